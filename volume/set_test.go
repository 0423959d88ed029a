package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/volume/nvmetcp"
)

// setRig is a Set over plain files.
type setRig struct {
	*testing.T
	pool  *hearth.Pool
	set   *Set
	told  chan *Attachment
	noise []byte
}

func newSet(t *testing.T, copies int) *setRig {
	r := &setRig{T: t, pool: hearth.NewPool(96 << 20), told: make(chan *Attachment, 1000), noise: make([]byte, 2*hearth.BlockSize)}
	_, _ = rand.NewChaCha8([32]byte{}).Read(r.noise)
	r.set = NewSet(SetOptions{Options: Options{Pool: r.pool, Cluster: cluster, Patience: time.Minute}, Copies: copies,
		Told: func(a *Attachment) { r.told <- a }})
	t.Cleanup(func() {
		r.set.Close()
		if s := r.pool.Stats(); s.Used != s.Idle || s.Views != 0 {
			t.Errorf("memory is not given back: %+v", s)
		}
	})
	return r
}

// file makes a formatted file of so many segments.
func (r *setRig) file(name string, segments int) string {
	r.Helper()
	name = filepath.Join(r.TempDir(), name)
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		r.Fatal(err)
	}
	r.format(name, segments)
	return name
}

func (r *setRig) format(name string, segments int) {
	r.Helper()
	if err := os.Truncate(name, firstSegment+int64(segments)*minSegment+pageSize); err != nil {
		r.Fatal(err)
	}
	f, err := OpenFile(name)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := MakeVolume(f, FormatOptions{Cluster: cluster, Label: filepath.Base(name), Segment: minSegment}); err != nil {
		r.Fatal(err)
	}
}

// make makes a volume on a namespace, and attaches it.
func (r *setRig) make(name string) *Attachment {
	r.Helper()
	address, err := ParseAddress(name)
	if err != nil {
		r.Fatal(err)
	}
	r.formatted(address)
	return r.attach(name)
}

// formatted makes a volume on what lies at an address.
func (r *setRig) formatted(address Address) {
	r.Helper()
	dev, err := address.Open(r.Context(), Access{})
	if err != nil {
		r.Fatal(err)
	}
	if _, err := MakeVolume(dev, FormatOptions{Cluster: cluster, Segment: minSegment}); err != nil {
		r.Fatal(err)
	}
	_ = dev.Close() // MakeVolume has flushed
}

// attach attaches a volume, and waits until it is known.
func (r *setRig) attach(name string) *Attachment {
	r.Helper()
	address, err := ParseAddress(name)
	if err != nil {
		r.Fatal(err)
	}
	a, err := r.set.Attach(Spec{Address: address})
	if err != nil {
		r.Fatal(err)
	}
	r.known(a)
	return a
}

func (r *setRig) known(a *Attachment) {
	for {
		if s := a.Stats(); s.Why == nil && s.State.Learned == s.State.All {
			return
		}
		<-r.told
	}
}

func (r *setRig) block(i, size int) (hearth.Block, []byte) {
	o := &hearth.Object{ETag: "e", Key: fmt.Sprint(i), Size: int64(size), Version: hearth.VersionOf("set", fmt.Sprint(i), "e", int64(size))}
	at := i * 7919 % hearth.BlockSize
	return o.Block(0), r.noise[at : at+size]
}

func (r *setRig) keep(i, size int) error {
	b, data := r.block(i, size)
	view, err := r.pool.Alloc(r.Context(), size)
	if err != nil {
		return err
	}
	defer view.Release()
	copy(view.Bytes(), data)
	return r.set.Keep(r.Context(), b, view)
}

func (r *setRig) held(i, size int) bool {
	r.Helper()
	b, data := r.block(i, size)
	view, err := r.set.Get(r.Context(), b, 0, size)
	if err != nil {
		return false
	}
	defer view.Release()
	if !bytes.Equal(view.Bytes(), data) {
		r.Errorf("block %d: wrong bytes", i)
	}
	return true
}

func TestBlocksLieOnVolumesBySize(t *testing.T) {
	// Of 400 blocks a volume of three times the size gets about three times as many. When it is detached, no block of
	// the other one moves.
	r := newSet(t, 1)
	small, large := r.attach(r.file("small", 4)), r.attach(r.file("large", 12))
	for i := range 400 {
		if err := r.keep(i, 1000); err != nil {
			t.Fatal(err)
		}
	}
	few, many := small.Stats().Stats.Blocks, large.Stats().Stats.Blocks
	if few+many != 400 || few < 60 || few > 140 {
		t.Errorf("%d on the small one, %d on the large one", few, many)
	}
	r.set.Detach(large)
	left := 0
	for i := range 400 {
		if r.held(i, 1000) {
			left++
		}
	}
	if left != int(few) {
		t.Errorf("%d blocks are left of %d", left, few)
	}
	r.known(r.attach(large.Address.String()))
	for i := range 400 {
		if !r.held(i, 1000) {
			t.Fatalf("block %d is lost", i)
		}
	}
}

func TestCopiesSurviveTheLossOfAVolume(t *testing.T) {
	// With two copies each block is on two of three volumes. Without one of them all are there still.
	r := newSet(t, 2)
	var all []*Attachment
	for i := range 3 {
		all = append(all, r.attach(r.file(fmt.Sprint("v", i), 4)))
	}
	for i := range 100 {
		if err := r.keep(i, 5000); err != nil {
			t.Fatal(err)
		}
	}
	sum := int64(0)
	for _, a := range all {
		sum += a.Stats().Stats.Blocks
	}
	if sum != 200 {
		t.Errorf("%d copies of 100 blocks", sum)
	}
	if err := r.set.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	r.set.Detach(all[1])
	for i := range 100 {
		if !r.held(i, 5000) {
			t.Fatalf("block %d is lost", i)
		}
	}
}

func TestTheFastestCopyIsRead(t *testing.T) {
	// Reads go to the volume whose reads took the least time, and from time to time to the other one, so that one
	// that was slow once is used again.
	r := newSet(t, 2)
	a, b := r.attach(r.file("a", 4)), r.attach(r.file("b", 4))
	if err := r.keep(1, 5000); err != nil {
		t.Fatal(err)
	}
	a.pace.Store(int64(time.Hour))
	reads := func() (int64, int64) { return a.Stats().Stats.Hits, b.Stats().Stats.Hits }
	for range 50 {
		r.held(1, 5000)
	}
	if x, y := reads(); x != 0 || y != 50 {
		t.Errorf("%d reads of the slow one, %d of the fast one", x, y)
	}
	for range 10000 {
		if x, _ := reads(); x > 0 {
			return
		}
		r.held(1, 5000)
	}
	t.Error("one that was slow once is never used again")
}

func TestAVolumeComesByItself(t *testing.T) {
	// A volume that is not there yet, or not formatted, is a reason in its state. It is attached once it is there.
	// Meanwhile nothing is held and nothing is taken, with that reason.
	r := newSet(t, 1)
	name := filepath.Join(t.TempDir(), "later")
	address, _ := ParseAddress(name)
	a, err := r.set.Attach(Spec{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	<-r.told
	if s := a.Stats(); !errors.Is(s.Why, os.ErrNotExist) {
		t.Errorf("%v", s.Why)
	}
	if err := r.keep(1, 1000); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
	if err := os.WriteFile(name, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	<-r.told
	if s := a.Stats(); !errors.Is(s.Why, ErrNoVolume) {
		t.Errorf("%v", s.Why)
	}
	r.format(name, 4)
	r.known(a)
	if err := r.keep(1, 1000); err != nil || !r.held(1, 1000) {
		t.Error(err)
	}
}

func TestAVolumeIsAttachedOnce(t *testing.T) {
	// One volume by two names is attached by the first: two writers in one process would share its ranges.
	r := newSet(t, 1)
	name := r.file("one", 4)
	r.attach(name)
	address, _ := ParseAddress(name)
	if _, err := r.set.Attach(Spec{Address: address}); err == nil {
		t.Error("the same address twice")
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	address, _ = ParseAddress(link)
	a, err := r.set.Attach(Spec{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	for !errors.Is(a.Stats().Why, errSameTwice) {
		<-r.told
	}
	if r.set.Find("one") == nil || r.set.Find(name) == nil || r.set.Find("none") != nil {
		t.Error("names do not find it")
	}
}

func TestAFlushSaysWhatItConcerns(t *testing.T) {
	// Where the flush of one volume fails, what another one holds as well is not concerned.
	r := newSet(t, 2)
	a, b := r.attach(r.file("a", 4)), r.attach(r.file("b", 4))
	if err := r.keep(1, 1000); err != nil {
		t.Fatal(err)
	}
	r.set.Detach(b)
	if err := r.keep(2, 1000); err != nil {
		t.Fatal(err)
	}
	b = r.attach(b.Address.String())
	cause := errors.New("gone")
	a.volume.Load().leave(cause)
	err := r.set.Flush(t.Context())
	var lost hearth.Unflushed
	if !errors.As(err, &lost) || !errors.Is(err, cause) {
		t.Fatal(err)
	}
	one, _ := r.block(1, 1000)
	if lost.Concerns(one.ID()) || !b.volume.Load().Has(one.ID()) {
		t.Error("a block with another copy is concerned")
	}
}

func TestAVolumeLearnsWhoseBlocksAreWhileItIsAttached(t *testing.T) {
	// Blocks come to this node while a volume is being attached, whose indexes were read for the former owner. They are
	// read again: the volume gives the blocks.
	r := newSet(t, 1)
	name := r.file("volume", 8)
	a := r.attach(name)
	if err := errors.Join(r.keep(1, 5000), r.keep(2, 5000), r.set.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	r.set.Detach(a)
	var mine atomic.Bool
	asked := make(chan struct{}, 100)
	r.set.o.Mine = func(hearth.ID) bool {
		asked <- struct{}{}
		return mine.Load()
	}
	begun, held := make(chan struct{}), make(chan struct{})
	r.set.o.Who = func() ([16]byte, [16]byte, error) {
		close(begun)
		<-held
		return cluster, [16]byte{1}, nil
	}
	address, err := ParseAddress(name)
	if err != nil {
		t.Fatal(err)
	}
	if a, err = r.set.Attach(Spec{Address: address}); err != nil {
		t.Fatal(err)
	}
	<-begun
	r.set.mu.Lock() // it is not claimed yet
	close(held)
	<-asked
	<-asked
	mine.Store(true)
	if err := r.set.Relearn(t.Context()); err != nil {
		t.Error(err)
	}
	r.set.mu.Unlock()
	r.known(a)
	if err := r.set.Known(t.Context()); err != nil || !r.held(1, 5000) || !r.held(2, 5000) {
		t.Errorf("not held: %v", err)
	}
}

func TestPortalsOfADiscovery(t *testing.T) {
	// A target on two networks has the host that was asked once and its second address, another controller's target the
	// address in its record, and one that names no address, as by discovery of all interfaces, the host that was asked.
	const nqn = "nqn.2014-08.org.example:v1"
	found := []nvmetcp.Subsystem{{NQN: nqn, Portal: "10.0.0.5:4420", Advertised: "10.0.0.5:4420"}, {NQN: nqn, Portal: "10.0.0.5:4420", Advertised: "10.0.1.5:4420"},
		{NQN: nqn, Portal: "10.0.0.5:4421", Advertised: "0.0.0.0:4421"}, {NQN: nqn, Portal: "10.0.0.5:4421", Advertised: "no:such:4421"}, {NQN: "other", Portal: "10.0.0.5:9", Advertised: "10.0.0.9:9"}}
	if got, want := portalsOf(found, nqn), []string{"10.0.0.5:4420", "10.0.0.5:4421", "10.0.1.5:4420"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAddresses(t *testing.T) {
	// An address that is wrong is refused with what is wrong, and without what may be a secret. A right one keeps its
	// text.
	for text, want := range map[string]string{
		"/dev/nvme1n1": "", "/a/file?with=this": "",
		"nvme+tcp://10.0.0.5/nqn.2014-08.org.example:v": "",
		"nvme+tcp://a:4420,[::1]:4421/nqn.x?nsid=2&queues=2&depth=32&header_digest=on&data_digest=on&flow_control=off&keep_alive=10s&timeout=3s": "",
		"":                                   "a path from the root",
		"volume":                             "a path from the root",
		"nvme+tcp://":                        "names no target",
		"nvme+tcp://host":                    "names no target",
		"nvme+tls://host/nqn":                "tunnel",
		"nvme+tcp://host/nqn?nsid=0":         "numbered from 1",
		"nvme+tcp://host/nqn?queues=1000":    "1 to 64",
		"nvme+tcp://host/nqn?secret=hush":    "secret_file",
		"nvme+tcp://me:hush@host/nqn":        "no user and no password",
		"nvme+tcp://me:hush@host":            "no user and no password",
		"nvme+tls://me:hush@host/nqn":        "no user and no password",
		"nvme+tls://host/nqn?secret=hush":    "tunnel",
		"nvme+tcp://host/nqn?tls=1":          "tunnel",
		"nvme+tcp://host/nqn?TLS_key=hush":   "tunnel",
		"nvme+tcp://host/the nqn":            "none of them zero or a blank",
		"nvme+tcp://host/nqn?data_digest=ja": "neither on nor off",
		"nvme+tcp://host/nqn?what=1":         "there are nsid",
		"nvme+tcp://host/nqn?keep_alive=1ms": "1s to 1h",
	} {
		a, err := ParseAddress(text)
		switch {
		case want == "" && (err != nil || a.String() != text):
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		case want != "" && strings.Contains(err.Error(), "hush"):
			t.Errorf("%q: %v shows a secret", text, err)
		}
	}
	a, _ := ParseAddress("nvme+tcp://a:4420,[::1]:4421/nqn.x?nsid=2")
	if !a.Remote() || !slices.Equal(a.tcp.Portals, []string{"a:4420", "[::1]:4421"}) || a.tcp.NSID != 2 || a.tcp.SubsystemNQN != "nqn.x" {
		t.Errorf("%+v", a)
	}
}

func TestANamespaceOverTCP(t *testing.T) {
	// A namespace of a target is a volume as a file is, with a secret from a file. While the target is down the volume
	// says so, though nobody reads, and all is a miss; afterwards the volume is there by itself, with what it had.
	const key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
	target, err := fakenvmet.New(fakenvmet.Options{Secret: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	r := newSet(t, 1)
	address, err := ParseAddress(Scheme + target.Address() + "/" + fakenvmet.NQN + "?timeout=1s&queues=2&host_nqn=nqn.2014-08.org.example:host")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := address.Open(t.Context(), Access{}); err == nil || !strings.Contains(err.Error(), "authentication") {
		t.Errorf("without the secret: %v", err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dev, err := address.Open(t.Context(), Access{Secret: key})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := MakeVolume(dev, FormatOptions{Cluster: cluster, Segment: minSegment}); err != nil {
		t.Fatal(err)
	}
	_ = dev.Close()
	r.set.o.Patience = 2 * time.Second
	a, err := r.set.Attach(Spec{Address: address, SecretFile: secret})
	if err != nil {
		t.Fatal(err)
	}
	r.known(a)
	if err := errors.Join(r.keep(1, 5000), r.set.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	if s := a.Stats(); s.Remote == nil || s.Remote.Portal != target.Address() || s.Remote.Queues != 2 {
		t.Errorf("%+v", s.Remote)
	}
	target.Kill()
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return a.Stats().State.Away != nil }) {
		t.Error("nobody reads, and nothing says that the target is gone")
	}
	for r.held(1, 5000) || a.Stats().State.Away == nil { // the guard leaves the read
	}
	if err := target.Restart(); err != nil {
		t.Fatal(err)
	}
	for a.Stats().State.Away != nil {
		<-r.told
	}
	for !r.held(1, 5000) {
		<-r.told
	}
}

func TestABlockGivenTwiceIsWrittenOnce(t *testing.T) {
	// A block is offered and kept at once, in one batch of the writer. It is written once, and both succeed.
	r := newSet(t, 1)
	a := r.attach(r.file("a", 8))
	v := a.volume.Load()
	v.turn <- struct{}{} // the writer waits with its batch
	o := &hearth.Object{Link: "l", Key: "k", ETag: "e", Size: 10_000, Version: [16]byte{1}}
	view, err := r.pool.Alloc(t.Context(), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Release()
	kept := make(chan error, 3)
	for range 3 {
		go func() { kept <- r.set.Keep(t.Context(), o.Block(0), view) }()
	}
	for v.queue.bytes() < 20_000 { // one is in the batch that waits, or none
		runtime.Gosched()
	}
	<-v.turn
	for range 3 {
		if err := <-kept; err != nil {
			t.Error(err)
		}
	}
	if s := v.Stats(); s.Appended != 1 || s.AppendedBytes != 10_000 {
		t.Errorf("%+v", s)
	}
}

func TestWhatWaitsToBeWrittenIsRead(t *testing.T) {
	// A mount's READ may be shorter than a file. The next one comes before the block that the first one brought is written,
	// and reads it. A block that the device did not take is a miss then, and one that it took lies there.
	for _, fails := range []bool{false, true} {
		r := newSet(t, 1)
		a := r.attach(r.file("a", 8))
		v := a.volume.Load()
		v.turn <- struct{}{} // the writer waits with its batch
		b, data := r.block(1, 10_000)
		view, err := r.pool.Alloc(t.Context(), 10_000)
		if err != nil {
			t.Fatal(err)
		}
		copy(view.Bytes(), data)
		for range 2 { // the second time it waits already
			if err := r.set.Put(b, view); err != nil || v.queue.bytes() != 10_000 {
				t.Fatal(err, v.queue.bytes())
			}
		}
		view.Release()
		part, err := r.set.Get(t.Context(), b, 6_000, 4_000)
		if err != nil || !r.set.Has(b.ID()) || r.set.Wants(b.ID()) {
			t.Fatal("what waits is not there: ", err)
		}
		if !bytes.Equal(part.Bytes(), data[6_000:]) {
			t.Error("wrong bytes")
		}
		part.Release()
		if _, err := r.set.Get(t.Context(), b, 6_000, 4_001); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("more than there is: %v", err)
		}
		kept := make(chan error, 1)
		go func() { kept <- r.keep(1, 10_000) }() // it waits until the device has the block
		for v.queue.bytes() < 20_000 {
			runtime.Gosched()
		}
		if fails {
			gone := error(errClosed)
			v.away.Store(&gone)
		}
		<-v.turn
		err = <-kept
		if s := v.Stats(); (err != nil) != fails || s.Queued != 0 || r.held(1, 10_000) == fails || r.set.Has(b.ID()) == fails {
			t.Errorf("fails %v: kept: %v, held %v: %+v", fails, err, r.held(1, 10_000), s)
		}
	}
}

func TestWhatVolumesHaveRoomFor(t *testing.T) {
	// Full blocks fill volumes to the last that Room has room for, and none of them is evicted. What is free falls as
	// they come. With two copies the smaller volume bounds both.
	r := newSet(t, 1)
	a := r.attach(r.file("a", 9))
	room, free := r.set.Room()
	o := &hearth.Object{Link: "l", Key: "k", ETag: "e", Size: hearth.BlockSize, Version: [16]byte{1}}
	need := r.set.Needs(o)
	if room != free || room/need != 8*3 {
		t.Errorf("room %d, free %d, a block needs %d", room, free, need)
	}
	view, err := r.pool.Alloc(t.Context(), hearth.BlockSize)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Release()
	o.Size *= room / need
	for i := range o.Blocks() {
		if err := r.set.Keep(t.Context(), o.Block(i), view); err != nil {
			t.Fatal(err)
		}
	}
	for i := range o.Blocks() {
		if !r.set.Has(o.Block(i).ID()) {
			t.Errorf("block %d of %d was evicted", i, o.Blocks())
		}
	}
	if _, free := r.set.Room(); free != 0 {
		t.Errorf("%d bytes are free of a full volume", free)
	}
	r.set.Detach(a)
	if room, free := r.set.Room(); room != 0 || free != 0 {
		t.Errorf("without a volume: %d, %d", room, free)
	}
	for _, c := range []struct {
		rooms  []int64
		copies int
		want   int64
	}{{nil, 2, 0}, {[]int64{10}, 2, 10}, {[]int64{10, 100}, 1, 110}, {[]int64{10, 100}, 2, 10}, {[]int64{40, 40, 40}, 2, 60}, {[]int64{10, 100, 20}, 2, 30}} {
		if got := spread(c.rooms, c.copies); got != c.want {
			t.Errorf("%v, %d copies: %d, want %d", c.rooms, c.copies, got, c.want)
		}
	}
}

func TestANamespaceThatComesBackEmpty(t *testing.T) {
	// A target that keeps its namespace in memory is restarted. No read asked for anything since. The volume says
	// that it is gone, and takes no block that a flush would promise. With its content it is in use again. Emptied once
	// more, and formatted anew by somebody for this cluster, it is taken by itself; for another cluster it is not.
	memory := fakenvmet.NewMemory(64 << 20)
	target, err := fakenvmet.New(fakenvmet.Options{Namespaces: []fakenvmet.NamespaceOptions{{Size: 64 << 20, Backing: memory}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	r := newSet(t, 1)
	a := r.make(Scheme + target.Address() + "/" + fakenvmet.NQN + "?queues=1")
	if err := errors.Join(r.keep(1, 5000), r.set.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 64<<20)
	if _, err := memory.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	target.Kill()
	if _, err := memory.WriteAt(make([]byte, 64<<20), 0); err != nil {
		t.Fatal(err)
	}
	if err := target.Restart(); err != nil {
		t.Fatal(err)
	}
	r.out(a, ErrNoVolume)
	if err := r.keep(2, 5000); err == nil || !strings.Contains(err.Error(), ErrNoVolume.Error()) {
		t.Errorf("keep: %v", err)
	}
	if r.held(1, 5000) {
		t.Error("a block of before")
	}
	if _, err := memory.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	r.known(a)
	for !r.held(1, 5000) {
		<-r.told
	}
	for _, c := range []struct {
		cluster [16]byte
		out     error
	}{{[16]byte{7}, ErrForeign}, {cluster, nil}} {
		before := a.Stats().Info.ID
		target.Kill()
		blank := fakeBlank{memory}
		if _, err := blank.WriteAt(make([]byte, 64<<20), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := MakeVolume(blank, FormatOptions{Cluster: c.cluster, Segment: minSegment}); err != nil {
			t.Fatal(err)
		}
		if err := target.Restart(); err != nil {
			t.Fatal(err)
		}
		if c.out != nil {
			r.out(a, c.out)
			continue
		}
		r.known(a)
		if a.Stats().Info.ID == before || r.held(1, 5000) {
			t.Error("the volume of before")
		}
		if err := errors.Join(r.keep(3, 5000), r.set.Flush(t.Context())); err != nil || !r.held(3, 5000) {
			t.Error(err)
		}
	}
}

func TestANamespaceThatWasMadeAnew(t *testing.T) {
	// A target is set up anew after a restart: the same bytes have another UUID, as the kernel's target draws one for each
	// namespace. The volume is let go and taken again by itself.
	memory := fakenvmet.NewMemory(64 << 20)
	o := fakenvmet.NamespaceOptions{Size: 64 << 20, Backing: memory}
	target, err := fakenvmet.New(fakenvmet.Options{Namespaces: []fakenvmet.NamespaceOptions{o}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	r := newSet(t, 1)
	a := r.make(Scheme + target.Address() + "/" + fakenvmet.NQN + "?queues=1")
	if err := errors.Join(r.keep(1, 5000), r.set.Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	target.Kill()
	target.RemoveNamespace(1)
	if _, err := target.AddNamespace(o); err != nil {
		t.Fatal(err)
	}
	if err := target.Restart(); err != nil {
		t.Fatal(err)
	}
	for !r.held(1, 5000) { // a read finds out; until it is attached again each is a miss
		<-r.told
	}
	if s := a.Stats(); s.Why != nil || s.State.Away != nil || s.Remote.Connections != 1 {
		t.Errorf("%v, %+v, %+v", s.Why, s.State, s.Remote)
	}
}

// fakeBlank is the Device below a target that is down.
type fakeBlank struct{ *fakenvmet.Memory }

func (fakeBlank) Flush() error               { return nil }
func (fakeBlank) Discard(off, n int64) error { return nil }
func (fakeBlank) Size() int64                { return 64 << 20 }
func (fakeBlank) BlockSize() int             { return 512 }

// out waits until the volume is out of use for a reason.
func (r *setRig) out(a *Attachment, why error) {
	r.Helper()
	for s := a.Stats(); !errors.Is(s.Why, why) && !errors.Is(s.State.Away, why); s = a.Stats() {
		select {
		case <-r.told:
		case <-time.After(time.Minute):
			r.Fatalf("not %v, but %v, %v", why, s.Why, s.State.Away)
		}
	}
}
