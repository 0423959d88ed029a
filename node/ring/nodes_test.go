package ring_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
)

// patience is how long a test waits for a fact on a busy machine.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	// memberlist does not wait for its last probe, which takes up to eight intervals.
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err = goleak.Find(); err == nil {
			break
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// rig is a bucket and the nodes of a ring over it.
type rig struct {
	*testing.T
	server *hearthtest.Server
	bucket string
	files  map[string][]byte
	log    *slog.Logger
	change func(*node.Config) // of nodes that are started; nil means no change
}

// member is one node of the rig.
type member struct {
	*node.Node
	*admin.Client
	name string
}

func newRig(t *testing.T, sizes ...int) *rig {
	r := &rig{T: t, server: hearthtest.StartFakeS3(t), files: map[string][]byte{}, log: slog.New(slog.DiscardHandler)}
	r.bucket = r.server.Bucket(t, "data")
	for i, size := range sizes {
		name := fmt.Sprintf("d%d/f%d", i%3, i)
		r.files[name] = make([]byte, size)
		hearthtest.Fill(r.files[name], name, 0, 1)
		if _, err := r.server.PutBytes(t.Context(), r.bucket, name, r.files[name]); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// start starts a node on loopback, which needs no key, and joins it to others.
func (r *rig) start(name string, others ...*member) *member {
	r.Helper()
	m, err := r.try(name, others...)
	if err != nil {
		r.Fatal(err)
	}
	return m
}

// try is start of a node that may fail to start.
func (r *rig) try(name string, others ...*member) (*member, error) {
	r.Helper()
	c := node.Config{
		Links:   []node.Link{{Path: "/", Origin: node.Origin{URL: "s3://" + r.bucket, Endpoint: r.server.Endpoint, Region: "us-east-1", PathStyle: "on", Anonymous: true}}},
		Cache:   node.Cache{RAM: node.Size{Bytes: 256 << 20}, Disks: []node.Disk{{Path: filepath.Join(r.TempDir(), name), Size: node.Size{Bytes: 256 << 20}}}, FreeFloor: node.Size{Bytes: 1}},
		Ring:    config.Membership{Name: name, Listen: "127.0.0.1:0"},
		Admin:   node.Admin{Socket: filepath.Join(r.TempDir(), "s"), Listen: "-"},
		Version: "test", Log: r.log, PeerSilence: time.Minute,
	}
	for _, o := range others {
		c.Ring.Join = append(c.Ring.Join, r.self(o).Address)
	}
	if r.change != nil {
		r.change(&c)
	}
	n, err := node.New(r.Context(), c)
	if err != nil {
		return nil, err
	}
	m := &member{n, n.Client(), name}
	r.Cleanup(func() {
		m.Client.Close()
		if err := n.Close(); err != nil {
			r.Errorf("close %s: %v", name, err)
		}
	})
	return m, nil
}

// ring returns a member's view of the ring.
func (r *rig) ring(m *member) *status.RingStatus {
	r.Helper()
	s, err := m.Ring(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// self returns what a member says of itself.
func (r *rig) self(m *member) status.Member {
	r.Helper()
	s := r.ring(m)
	for _, x := range s.Members {
		if x.ID == s.Self {
			return x
		}
	}
	r.Fatalf("%s does not know itself: %+v", m.name, s)
	return status.Member{}
}

// agree waits until all members own their share.
func (r *rig) agree(all ...*member) {
	r.Helper()
	for _, m := range all {
		if !hearthtest.Eventually(r.Context(), patience, func() bool {
			own := 0
			for _, x := range r.ring(m).Members {
				if x.Share > 0 {
					own++
				}
			}
			return own == len(all)
		}) {
			r.Fatalf("%s knows %+v", m.name, r.ring(m).Members)
		}
	}
}

// readAll has each member read every file, all at the same time, and checks the bytes.
func (r *rig) readAll(all ...*member) {
	r.Helper()
	var reading sync.WaitGroup
	for _, m := range all {
		reading.Go(func() {
			for name, want := range r.files { // in an order of its own
				var got bytes.Buffer
				got.Grow(len(want)) // a page touched for the first time is dear
				if err := m.Cat(context.Background(), "/"+name, 0, -1, &got); err != nil || !bytes.Equal(got.Bytes(), want) {
					r.Errorf("%s reads %s: %d bytes of %d, %v", m.name, name, got.Len(), len(want), err)
				}
			}
		})
	}
	reading.Wait()
}

// fetched returns the bytes that members have read from the bucket for readers, and the number of GETs.
func (r *rig) fetched(all ...*member) (gets, size int64) {
	for _, m := range all {
		s := m.Node.Status(r.Context())
		gets += s.Origin.Verbs["get"]
		size += s.Egress.Asked["readers"].Bytes + s.Egress.Asked["peers"].Bytes + s.Egress.Asked["warm_up"].Bytes
	}
	return gets, size
}

// say logs what members counted, for a person who looks into a failure.
func (r *rig) say(all ...*member) {
	r.Helper()
	for _, m := range all {
		s := m.Node.Status(r.Context())
		r.Logf("%s: reads %+v, peers %+v, asked for %+v, answered by %+v", m.name, s.Ring.Reads, s.Ring.Peers, s.Egress.Asked, s.Ring.Served)
		for _, t := range s.Tiers {
			r.Logf("%s: tier %+v", m.name, t)
		}
	}
}

// size returns the size of all files together.
func (r *rig) size() (sum int64) {
	for _, data := range r.files {
		sum += int64(len(data))
	}
	return sum
}

func TestTheBucketIsReadOnce(t *testing.T) {
	// Three nodes read the same files at once, small ones and two of many blocks. Each byte is read from the
	// bucket once, and an extent by one request where that is possible. Each node names the same owners.
	sizes := []int{34<<20 + 7, 2 << 20}
	for i := range 40 {
		sizes = append(sizes, 10_000+1000*i)
	}
	r := newRig(t, sizes...)
	a := r.start("a")
	b := r.start("b", a)
	c := r.start("c", a, b)
	all := []*member{a, b, c}
	r.agree(all...)
	r.readAll(all...)
	gets, size := r.fetched(all...)
	around := int64(0) // bytes: a peer that this machine lets wait for half a second is gone around
	for _, m := range all {
		reads := r.ring(m).Reads
		around += reads.Detours*hearth.ExtentBlocks*hearth.BlockSize + reads.Elsewhere*hearth.BlockSize
	}
	t.Logf("%d GETs, %d of %d bytes, %d bytes around", gets, size, r.size(), around)
	if size < r.size() || size > r.size()+around {
		t.Errorf("%d bytes from the bucket of %d, with %d gone around", size, r.size(), around)
		r.say(all...)
	}
	served := int64(0)
	for _, m := range all {
		x := r.self(m)
		served += x.Served
		if x.Version != "test" || x.Donated != 256<<20 || x.Health != "alive" || x.Silent != "" {
			t.Errorf("%s says %+v", m.name, x)
		}
	}
	if served < r.size() {
		t.Errorf("peers were served %d bytes; two thirds of %d are another's for each of three", served, r.size())
	}
	for name := range r.files {
		if x, err := a.Explain(t.Context(), "/"+name, 0); err != nil || len(x.Read.Owners) != 3 {
			t.Errorf("explain %s: %+v, %v", name, x, err)
		}
		first, err := a.Owners(t.Context(), "/"+name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all[1:] {
			if other, err := m.Owners(t.Context(), "/"+name); err != nil || fmt.Sprint(other) != fmt.Sprint(first) {
				t.Errorf("owners of %s: %v at a, %v at %s, %v", name, first, other, m.name, err)
			}
		}
	}
}

func TestEachNodeIsToldOfTheOthers(t *testing.T) {
	// Two nodes stand in two zones. Each says of both where they stand, what they hold and what they got from
	// each other. No mount has readers, so there is no hit ratio.
	var sizes []int
	for i := range 40 {
		sizes = append(sizes, 50_000+i)
	}
	r := newRig(t, sizes...)
	zones := map[string]string{"a": "rack 1", "b": "rack 2"}
	r.change = func(c *node.Config) { c.Ring.Zone = zones[c.Ring.Name] }
	a := r.start("a")
	b := r.start("b", a)
	all := []*member{a, b}
	r.agree(all...)
	// say waits until each member says that something holds for a member.
	say := func(what, name string, so func(status.Member) bool) {
		t.Helper()
		for _, m := range all {
			var last []status.Member
			if !hearthtest.Eventually(t.Context(), patience, func() bool {
				last = r.ring(m).Members
				return slices.ContainsFunc(last, func(x status.Member) bool { return x.Name == name && so(x) })
			}) {
				t.Errorf("%s does not say that %s %s: %+v", m.name, name, what, last)
			}
		}
	}
	for name, zone := range zones {
		say("stands in its zone and holds nothing", name, func(x status.Member) bool { return x.Zone == zone && x.Used < 50_000 && x.Asked == 0 })
	}
	r.readAll(a)
	say("got a part of b", "a", func(x status.Member) bool { return x.Asked >= 50_000 && x.HitRatio == -1 })
	say("gave a part to a", "b", func(x status.Member) bool { return x.Served >= 50_000 && x.Asked == 0 })
	for name := range zones { // what is to be written waits for nobody
		say("holds a part", name, func(x status.Member) bool { return x.Used >= 50_000 && x.Used <= x.Donated && x.Suspects == nil })
	}
}

// asked returns the requests for names that members made at the bucket.
func (r *rig) asked(all ...*member) (n int64) {
	for _, m := range all {
		s := m.Node.Status(r.Context())
		n += s.Origin.Verbs["head"] + s.Origin.Verbs["list"]
	}
	return n
}

func TestEachDirectoryIsListedOnce(t *testing.T) {
	// Three nodes walk the same directories at once. The bucket lists each directory once, for the node that
	// owns it, and each node sees all files.
	r := newRig(t, make([]int, 60)...)
	a := r.start("a")
	b := r.start("b", a)
	c := r.start("c", a, b)
	all := []*member{a, b, c}
	r.agree(all...)
	before := r.asked(all...) // what a start asks
	var walking sync.WaitGroup
	for _, m := range all {
		walking.Go(func() {
			files := 0
			if _, err := m.List(context.Background(), "/", true, func(e admin.Entry) error {
				if !e.Dir {
					files++
				}
				return nil
			}); err != nil || files != len(r.files) {
				r.Errorf("%s lists %d files of %d: %v", m.name, files, len(r.files), err)
			}
		})
	}
	walking.Wait()
	if n := r.asked(all...) - before; n != 4 {
		t.Errorf("%d requests for the names of 4 directories", n)
	}
}

func TestWhoJoinsFindsWhatOthersHold(t *testing.T) {
	// A node that joins owns a part from then on, whose blocks earlier members hold. A node that leaves takes
	// nothing with it that is asked for meanwhile. No read fails, and the bucket is asked only for what is
	// lost.
	var sizes []int
	for i := range 80 {
		sizes = append(sizes, 20_000+i)
	}
	r := newRig(t, append(sizes, 20<<20)...)
	a := r.start("a")
	r.readAll(a)
	b := r.start("b", a)
	r.agree(a, b)
	before, _ := r.fetched(a, b) // what a start asks a bucket among it
	r.readAll(a, b)
	gets, _ := r.fetched(a, b)
	around := int64(0) // reads that this machine let wait for too long
	for _, m := range []*member{a, b} {
		reads := r.ring(m).Reads
		around += reads.Late + reads.Detours + reads.Elsewhere
	}
	if gets-before > around || r.ring(b).Reads.Found == 0 {
		t.Errorf("the bucket was asked %d times more; %+v, %+v", gets-before, r.ring(a).Reads, r.ring(b).Reads)
	}
	if err := b.Node.Close(); err != nil {
		t.Error(err)
	}
	r.agree(a)
	r.readAll(a)
}

func TestAMemberStartsAgain(t *testing.T) {
	// A node that holds blocks starts again in a ring. Its disk tier asks from the first moment who owns them,
	// while the ring is still being made. All is read from disk.
	r := newRig(t, 3<<20, 20_000, 30_000)
	dir := filepath.Join(t.TempDir(), "cache")
	r.change = func(c *node.Config) { c.Cache.Disks[0].Path = dir }
	a := r.start("a")
	r.readAll(a)
	if err := a.Node.Close(); err != nil {
		t.Fatal(err)
	}
	a = r.start("a")
	r.readAll(a)
	if _, size := r.fetched(a); size != 0 {
		t.Errorf("%d bytes of %d are read again", size, r.size())
	}
}

func TestWhoIsNotTakenIsRefused(t *testing.T) {
	// A gossip or data port that is taken, and a name that another member has, end a node as refused, with the
	// cure. An address that is not there just ends it. A network that is none ends it as usage.
	r := newRig(t, 10)
	a := r.start("a")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := busy.Addr().(*net.TCPAddr).Port
	for _, c := range []struct {
		name, listen, says string
		kind               admin.Kind
	}{
		{"b", fmt.Sprint("127.0.0.1:", port), "give node.listen another address or port", admin.KindRefused},
		{"b", fmt.Sprint("127.0.0.1:", port-1), "listen for reads of peers, one port above node.listen", admin.KindRefused},
		{"a", "127.0.0.1:0", "the ring refuses this node", admin.KindRefused},
		{"b", "none0", "no interface has that name", admin.KindFailed},
		{"b", "127.0.0.0/99", "is no CIDR", admin.KindUsage},
	} {
		r.change = func(n *node.Config) { n.Ring.Listen = c.listen }
		if _, err := r.try(c.name, a); admin.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s at %s: %s, %v", c.name, c.listen, admin.KindOf(err), err)
		}
	}
}

func TestANodeWithoutARing(t *testing.T) {
	// A node that is in no ring says so, and how to put it into one.
	r := newRig(t, 10)
	n, err := node.New(t.Context(), node.Config{Cache: node.Cache{RAM: node.Size{Bytes: 32 << 20}, NoDisk: true},
		Admin: node.Admin{Socket: "-", Listen: "-"}, Log: r.log})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, n)
	c := n.Client()
	defer c.Close()
	if _, err := c.Ring(t.Context()); err == nil || !bytes.Contains([]byte(err.Error()), []byte("--join")) {
		t.Error(err)
	}
	if err := c.Cat(t.Context(), "/x", 0, -1, io.Discard); err == nil {
		t.Error("a node without a link reads")
	}
}
