package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/flight"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/node/wiring"
)

// fakeVolume stands in the place of volumes: a Store with counters.
type fakeVolume struct {
	mu     sync.Mutex // guards blocks
	blocks map[hearth.ID][]byte
	hits   int
}

func (v *fakeVolume) Get(_ context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	data, ok := v.blocks[b.ID()]
	if !ok {
		return nil, hearth.ErrMiss
	}
	v.hits++
	return hearth.NewView(data[off : off+n]), nil
}

func (v *fakeVolume) Put(b hearth.Block, x *hearth.View) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.blocks[b.ID()] = append([]byte(nil), x.Bytes()...)
	return nil
}

func (v *fakeVolume) Has(id hearth.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.blocks[id] != nil
}

func (v *fakeVolume) Takes(hearth.Block) bool { return true }

func (v *fakeVolume) Keep(_ context.Context, b hearth.Block, x *hearth.View) error {
	return v.Put(b, x)
}

func (v *fakeVolume) Flush(context.Context) error { return nil }

// loop stands in the place of a ring: every second block is another node's, and that node is this one,
// asked through Fill.
type loop struct {
	answers       wiring.Answers
	filled, lists atomic.Int64
}

func (r *loop) Former(next hearth.Source) hearth.Source { return next }
func (r *loop) Fill(_, _ hearth.Source) hearth.Source   { return hearthtest.Source(r) }
func (r *loop) Route(own, theirs hearth.Source) hearth.Source {
	return hearthtest.Source(twoWays{own, theirs})
}
func (r *loop) List(o namespace.Origin) namespace.Origin {
	r.lists.Add(1)
	return o
}
func (r *loop) Serve(a wiring.Answers) error {
	r.answers = a
	return nil
}
func (r *loop) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	r.filled.Add(1)
	return r.answers.Owned.Get(ctx, b, off, n)
}

type twoWays struct{ own, theirs hearth.Source }

func (r twoWays) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if b.Index%2 == 1 {
		return r.theirs.Get(ctx, b, off, n)
	}
	return r.own.Get(ctx, b, off, n)
}

func TestVolumeAndRingStandInTheWiring(t *testing.T) {
	// A second store and a loop-back ring are put into the wiring and change no byte. Once the bucket was
	// read, the volume alone serves a node with new RAM.
	big := strings.Repeat("0123456789abcdef", 250_000)
	url := bucket(t, map[string]string{"big": big})
	vol := &fakeVolume{blocks: map[hearth.ID][]byte{}}
	for round := range 2 {
		ring := &loop{}
		n := start(t, url, func(c *Config) { c.Wiring = wiring.Wiring{Volumes: vol, All: true, Ring: ring} })
		var out strings.Builder
		if err := client(t, n).Cat(t.Context(), "/big", 0, -1, &out); err != nil {
			t.Fatal(err)
		}
		if out.String() != big {
			t.Fatalf("round %d: wrong bytes", round)
		}
		if ring.filled.Load() == 0 || ring.lists.Load() != 1 {
			t.Errorf("round %d: %d fills, %d decorated origins", round, ring.filled.Load(), ring.lists.Load())
		}
		if read := n.Status(t.Context()).Origin.Bytes; round == 0 && read < int64(len(big)) || round == 1 && read > 10_000 { // listings count
			t.Errorf("round %d: %d bytes from the origin", round, read)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if vol.hits == 0 {
		t.Error("the volume was never read")
	}
}

func TestNodesThatCannotBe(t *testing.T) {
	// A setting that is not valid is refused before anything is opened or made.
	for want, c := range map[string]Config{
		"two links":      {Links: []Link{{Path: "a", Origin: Origin{URL: "s3://a"}}, {Path: "/a/", Origin: Origin{URL: "s3://b"}}}},
		"no origin":      {Links: []Link{{Path: "/"}}},
		"two mounts":     {Mounts: []Mount{{Dir: "/a"}, {Dir: "/a"}}},
		"open":           {Mounts: []Mount{{Dir: "/a", Open: "wide"}}},
		"below 16 MiB":   {Cache: Cache{RAM: Size{Bytes: 1 << 20}}},
		"neither s3://":  {Links: []Link{{Origin: Origin{URL: "ftp://x"}}}, Cache: Cache{NoDisk: true}, Admin: Admin{Socket: "-", Listen: "-"}},
		"fuse abilities": {FuseWithout: []string{"wings"}},
		"no S3 clients":  {Links: []Link{{Origin: Origin{URL: "s3://a"}, Configure: true}}},
		"freshness":      {Links: []Link{{Origin: Origin{URL: "s3://a"}, Freshness: "soon"}}},
		"no absolute":    {Mounts: []Mount{{Dir: "a"}}},
		"cannot be strict": {Links: []Link{{Path: "/a", Origin: Origin{URL: "s3://a"}, Freshness: "strict"}},
			Mounts: []Mount{{Dir: "/m", Prefix: "a/b", Open: "none"}}},
	} {
		n, err := New(t.Context(), c)
		if err == nil {
			_ = n.Close()
		}
		if err == nil || admin.KindOf(err) != admin.KindUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func TestProblemsAreAllNamed(t *testing.T) {
	// All settings that are not valid are found at once, each with its place in the file.
	c := Config{
		Links: []Link{{Path: "/", Origin: Origin{URL: "s3://a"}}, {Path: "/x", Origin: Origin{URL: "nonsense"}}, {Path: "x/", Freshness: "soon", Configure: true}},
		Cache: Cache{RAM: Size{Bytes: 1}, Disks: []Disk{{Path: "/d"}, {}}}, FuseWithout: []string{"wings"},
		Mounts: []Mount{{Dir: "/m", Freshness: "bounded(60s)"}, {Dir: "/m"}, {Dir: "/n", Freshness: "strict"}, {}},
	}
	var keys []string
	for _, p := range c.Problems() {
		keys = append(keys, p.Key)
		if p.Err == nil {
			t.Errorf("%s has no error", p.Key)
		}
	}
	want := []string{"links[1].origin", "links[2]", "links[2]", "links[2].freshness", "links[2].configure", "cache.ram", "cache.disks[1]", "fuse.without", "mounts[1]", "mounts[2]", "mounts[3]"}
	if !slices.Equal(keys, want) {
		t.Errorf("problems at %q, want %q", keys, want)
	}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("the first problem: %v", err)
	}
}

func TestVolumesThatDoNotFitAreNamed(t *testing.T) {
	// What cannot work of a list of volumes is found before the start, each with its place: no address, one that stands
	// there twice, a secret for a file, one that is missing or that others may read, more copies than devices. Without
	// devices any number of copies may be attached by hand.
	dir := t.TempDir()
	secret, open := filepath.Join(dir, "secret"), filepath.Join(dir, "open")
	if err := errors.Join(os.WriteFile(secret, []byte("DHHC-1:00:x:"), 0o600), os.WriteFile(open, nil, 0o644), os.Chmod(open, 0o644)); err != nil {
		t.Fatal(err)
	}
	far := "nvme+tcp://h/n"
	for name, c := range map[string]struct {
		volumes config.Volumes
		key     string // "" means that all is well
		says    string
	}{
		"well":      {config.Volumes{Copies: 2, Devices: []config.Volume{{URL: "/a"}, {URL: far, SecretFile: secret}}}, "", ""},
		"later":     {config.Volumes{Copies: 2}, "", ""},
		"no url":    {config.Volumes{Devices: []config.Volume{{SecretFile: secret}}}, "volumes.devices[0].url", "has no url"},
		"no path":   {config.Volumes{Devices: []config.Volume{{URL: "a"}}}, "volumes.devices[0]", "a path from the root on"},
		"twice":     {config.Volumes{Devices: []config.Volume{{URL: "/a"}, {URL: "/a"}}}, "volumes.devices[1]", "two volumes"},
		"for files": {config.Volumes{Devices: []config.Volume{{URL: "/a", SecretFile: secret}}}, "volumes.devices[0].secret_file", "/a is a path"},
		"missing":   {config.Volumes{Devices: []config.Volume{{URL: far, SecretFile: dir + "/none"}}}, "volumes.devices[0].secret_file", "no such file"},
		"open":      {config.Volumes{Devices: []config.Volume{{URL: far, SecretFile: open}}}, "volumes.devices[0].secret_file", "chmod 600 " + open},
		"copies":    {config.Volumes{Copies: 3, Devices: []config.Volume{{URL: "/a"}}}, "volumes.copies", "3 copies of each block"},
	} {
		found := (&Config{Volumes: c.volumes}).Problems()
		switch {
		case c.key == "" && len(found) == 0:
		case len(found) != 1 || found[0].Key != c.key || !strings.Contains(found[0].Err.Error(), c.says):
			t.Errorf("%s: %+v", name, found)
		}
	}
}

func TestAbsentOriginNamesTheCure(t *testing.T) {
	// A bucket that cannot be asked ends the start with one line, and leaves nothing open.
	socket := filepath.Join(t.TempDir(), "s")
	_, err := New(t.Context(), Config{Cache: Cache{NoDisk: true}, Admin: Admin{Socket: socket, Listen: "-"},
		Links: []Link{{Path: "/", Origin: Origin{URL: "s3://absent", Endpoint: "http://127.0.0.1:1", Anonymous: true}}}})
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket was left behind")
	}
}

func TestKeysOfURLs(t *testing.T) {
	// A URL means a key byte for byte, in the longest link that holds it. An endpoint that was asked for
	// must be the link's.
	ls := &links{all: []*link{
		{Link: Link{Path: "/", Origin: Origin{URL: "s3://a"}}},
		{Link: Link{Path: "/img", Origin: Origin{URL: "s3://a/images/"}}, prefix: "images/"},
		{Link: Link{Path: "/own", Origin: Origin{URL: "s3://b/p", Endpoint: "http://h:1"}}, prefix: "p/"},
		{Link: Link{Path: "/dir", Origin: Origin{URL: "file:///d"}}},
	}}
	for url, want := range map[string]string{"s3://a": "/ ", "s3://a/": "/ ", "s3://a//": "/ /", "s3://a/x//y": "/ x//y", "s3://a/../e": "/ ../e",
		"s3://a/./p%2F": "/ ./p%2F", "s3://a/images/1": "/img images/1", "s3://a/images//": "/img images//", "s3://a/images": "/ images",
		"s3://b/p": "/own p/", "s3://b/p/k": "/own p/k", "file:///d": "/dir ", "file:///d/": "/dir ", "file:///d/../d/s/": "/dir s/"} {
		if l, key, err := ls.holding(url); err != nil || l.Path+" "+key != want {
			t.Errorf("%s: %s, %v, want %s", url, key, err, want)
		}
	}
	for _, url := range []string{"s3://ab/k", "s3://b/pk", "file:///dd"} {
		if _, _, err := ls.holding(url); admin.KindOf(err) != admin.KindNoLink {
			t.Errorf("%s lies in no link: %v", url, err)
		}
	}
	if l, _ := ls.covering(Origin{URL: "s3://b", Endpoint: "http://h:2"}); l != nil {
		t.Error("another endpoint is taken for the same bucket")
	}
	if l, rest := ls.at("/img/x/y"); l.Path != "/img" || rest != "x/y" {
		t.Error(l.Path, rest)
	}
}

func TestALateFailureDoesNotMakeAnOriginIll(t *testing.T) {
	// A fetch waits out an outage, and fails after another one has succeeded. Status stays ok, as it does
	// when all readers went away. A fetch that began afterwards counts, and so does a stream that breaks
	// off after some of its blocks.
	n := start(t, bucket(t, nil), nil)
	l := n.links.list()[0]
	o := &hearth.Object{Link: l.name, Key: "k", Size: 3 * hearth.BlockSize}
	before := time.Now()
	n.heard(o.Block(0), time.Now(), nil)
	n.heard(o.Block(0), before, io.ErrUnexpectedEOF)
	n.heard(o.Block(0), time.Now(), fmt.Errorf("get s3://b/k: %w", flight.ErrUnwanted))
	if s := n.Status(t.Context()); s.Says != "ok" {
		t.Errorf("after a late failure status says %q", s.Says)
	}
	w := watch.Bucket{Source: breaksOff{}, Heard: n.heard, Weak: func(*hearth.Object) {}}
	w.GetMany(t.Context(), o.Block(0), 2, func(hearth.Block, *hearth.View, error) bool { return true })
	if s := n.Status(t.Context()); s.Says == "ok" {
		t.Error("a stream broke off, and status says ok")
	}
}

// breaksOff yields a block and then an error.
type breaksOff struct{ hearth.Source }

func (breaksOff) GetMany(_ context.Context, first hearth.Block, _ int, each func(hearth.Block, *hearth.View, error) bool) {
	each(first, nil, nil)
	each(first.Object.Block(first.Index+1), nil, io.ErrUnexpectedEOF)
}
