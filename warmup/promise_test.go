package warmup

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestListingAndLoadingOverlap(t *testing.T) {
	// The listing of the last directory does not end before something was loaded and
	// counted. Until then there is no total and no percentage, and what was found grows.
	w := newWorld(t)
	w.every = time.Millisecond
	w.fill()
	w.open()
	loaded := make(chan struct{})
	w.bucket.unlist = func(prefix string) error {
		if prefix == "t/" {
			w.bucket.mu.Unlock()
			defer w.bucket.mu.Lock()
			select {
			case <-loaded:
			case <-time.After(20 * time.Second):
				t.Error("nothing is loaded while it is listed")
			}
		}
		return nil
	}
	id := w.start("/")
	for {
		v, changed, err := w.engine.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if v.FilesTotal != 0 || v.BytesTotal != 0 || v.Plan.Counted || v.State.Over() {
			t.Errorf("before the listing's end: %+v", v)
		}
		if v.Counters.Done.Bytes > 0 && v.Found > 0 {
			break
		}
		<-changed
	}
	close(loaded)
	if v := w.over(id); v.State != Done || v.FilesTotal != w.bucket.total().Files {
		t.Errorf("%+v", v)
	}
}

func TestLargeObjectsInParallel(t *testing.T) {
	// Ranges of one large object are under way at the same time.
	w := newWorld(t)
	w.bucket.put("large", "e", 64<<20)
	var mu sync.Mutex
	under, together := 0, make(chan struct{})
	w.bucket.onGet = func(int, string) {
		mu.Lock()
		if under++; under == 3 {
			close(together)
		}
		mu.Unlock()
		select {
		case <-together:
		case <-time.After(20 * time.Second):
			t.Error("they go one by one")
		}
	}
	w.open()
	if v := w.over(w.start("/")); v.State != Done || w.bucket.bytes != 64<<20 {
		t.Errorf("%+v", v)
	}
}

// endless is Names of one directory of so many names of about 500 bytes, made on demand.
type endless struct {
	fakeListing
	names int
}

func (n endless) entry(i int) Entry {
	key := fmt.Sprintf("%08d", i) + strings.Repeat("n", 500)
	return Entry{Name: key, Object: hearth.Object{Key: key, ETag: "e", Size: 10, Version: hearth.VersionOf("id", key, "e", 10)}}
}

// ReadSince is Names'.
func (n endless) ReadSince(_ context.Context, _ uint64, _ int64, after string, each func(Entry) bool) error {
	i := 0
	if after != "" {
		_, _ = fmt.Sscanf(after, "%08d", &i)
		i++
	}
	for i < n.names && each(n.entry(i)) {
		i++
	}
	return nil
}

// allKept is a Store that has everything but the blocks of one object.
type allKept struct {
	*fakeKeeper
	but [16]byte
}

// Has is hearth.Store's.
func (k allKept) Has(id hearth.ID) bool { return id.Version != k.but || k.fakeKeeper.Has(id) }

func TestNothingHoldsAList(t *testing.T) {
	// There are 100,000 names of 500 bytes. While the first file is waited for, all are
	// counted, and some thousand are in memory. Of each name, only pins and the sum of
	// bytes are kept, which takes some bytes.
	names := endless{fakeListing{}, 100_000}
	keeper := allKept{&fakeKeeper{blocks: map[hearth.ID]*fakeHeld{}}, names.entry(0).Object.Version}
	w := newWorld(t)
	release := make(chan struct{})
	w.bucket.onGet = func(int, string) { <-release }
	o := names.entry(0).Object
	w.bucket.objects[o.Key] = o
	none := func() int64 { return 0 }
	e, err := Open(Options{Source: kept{w.bucket, keeper}, Keeper: keeper, Names: names, Pins: &Pins{}, Room: fakeRoom(1 << 40), Records: w.records, Files: w.files, Readers: none, Throttled: none, Connections: func() int { return 8 }})
	if err != nil {
		t.Fatal(err)
	}
	w.engine = e
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	id := w.start("/")
	hearthtest.Eventually(t.Context(), 60*time.Second, func() bool { v, _, _ := e.Get(id); return v.Found == int64(names.names) })
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("%d MiB for a list of 50 MiB", grown>>20)
	}
	close(release)
	if v := w.over(id); v.State != Done || v.Counters.Sum().Files != int64(names.names) || v.Plan.Needs != 10*int64(names.names) {
		t.Errorf("%+v, %+v", v.Counters, v.Plan)
	}
}

// fakeRing keeps records elsewhere than in files.
type fakeRing struct {
	mu  sync.Mutex
	all map[string]Record
}

// Save is Records'.
func (f *fakeRing) Save(r Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[r.ID] = r.clone()
	return nil
}

// Load is Records'.
func (f *fakeRing) Load() ([]Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.all)), nil
}

func TestAnotherProcessTakesAJobOver(t *testing.T) {
	// A record is all that another engine needs to go on with a job. A store of records
	// needs two methods.
	if n := reflect.TypeFor[Records]().NumMethod(); n != 2 {
		t.Errorf("%d methods", n)
	}
	w := newWorld(t)
	w.every = time.Millisecond
	w.fill()
	w.records.Records = &fakeRing{all: map[string]Record{}}
	release := make(chan struct{})
	w.bucket.onGet = func(_ int, key string) {
		if key >= "d3" { // counted is in order
			<-release
		}
	}
	w.open()
	id := w.start("/")
	for {
		v, changed, _ := w.engine.Get(id)
		if v.Counters.Done.Files > 0 {
			break
		}
		<-changed
	}
	w.records.mu.Lock()
	w.records.dead = true
	w.records.mu.Unlock()
	close(release)
	w.kill()
	w.open()
	if v := w.over(id); v.State != Done || v.Counters.Sum() != w.bucket.total() {
		t.Errorf("%+v", v)
	}
	w.holds()
}
