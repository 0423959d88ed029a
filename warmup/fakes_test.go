package warmup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/namespace/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBucket is an origin in memory that counts its requests, and changes or fails when
// told to.
type fakeBucket struct {
	mu      sync.Mutex // guards the rest
	objects map[string]hearth.Object
	lists   int
	gets    int
	bytes   int64
	fail    error
	unlist  func(prefix string) error // error of listings; nil means that none fails
	gone    func(*hearth.Object)      // called with versions that are asked for and gone
	onGet   func(n int, key string)   // called before each request for bytes, without the lock
	onPage  func(n int)
}

func (b *fakeBucket) put(key, etag string, size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects[key] = hearth.Object{Link: "l", Key: key, ETag: etag, Size: size, Version: hearth.VersionOf("id", key, etag, size)}
}

func (b *fakeBucket) remove(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, key)
}

func (b *fakeBucket) total() (t Tally) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.objects {
		t.Add(Tally{Files: 1, Bytes: o.Size})
	}
	return t
}

// Head is namespace.Origin's.
func (b *fakeBucket) Head(_ context.Context, key string) (hearth.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return hearth.Object{}, b.fail
	}
	o, ok := b.objects[key]
	if !ok {
		return o, fs.ErrNotExist
	}
	return o, nil
}

// List is namespace.Origin's; a request is counted for each 1,000 names.
func (b *fakeBucket) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	b.mu.Lock()
	var names []hearth.Object
	seen := map[string]bool{}
	for key, o := range b.objects {
		rest, ok := strings.CutPrefix(key, q.Prefix)
		if !ok {
			continue
		}
		if group, _, in := strings.Cut(rest, "/"); in && !q.Recursive {
			o = hearth.Object{Key: q.Prefix + group + "/", Size: hearth.PrefixSize}
		}
		if !seen[o.Key] {
			seen[o.Key] = true
			names = append(names, o)
		}
	}
	fail := b.fail
	if fail == nil && b.unlist != nil {
		fail = b.unlist(q.Prefix)
	}
	b.mu.Unlock()
	if fail != nil {
		return fail
	}
	slices.SortFunc(names, func(x, y hearth.Object) int { return strings.Compare(x.Key, y.Key) })
	for i, o := range names {
		if i%1000 == 0 && q.Limit == 0 {
			b.mu.Lock()
			b.lists++
			n, told := b.lists, b.onPage
			b.mu.Unlock()
			if told != nil {
				told(n)
			}
		}
		if err := each(o); err != nil || q.Limit > 0 && i+1 == q.Limit {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// Get is hearth.Source's.
func (b *fakeBucket) Get(_ context.Context, x hearth.Block, _, n int) (*hearth.View, error) {
	if err := b.ask(x); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += int64(n)
	return hearth.NewView(make([]byte, n)), nil
}

func (b *fakeBucket) ask(x hearth.Block) error {
	b.mu.Lock()
	b.gets++
	n, told := b.gets, b.onGet
	b.mu.Unlock()
	if told != nil {
		told(n, x.Object.Key)
	}
	b.mu.Lock()
	fail, now := b.fail, b.objects[x.Object.Key]
	b.mu.Unlock()
	if fail == nil && now.Version != x.Object.Version {
		b.gone(x.Object)
		fail = hearth.ErrStale
	}
	return fail
}

// Has and FromPeer are hearth.Source's.
func (b *fakeBucket) Has(hearth.ID) bool         { return false }
func (b *fakeBucket) FromPeer(hearth.Block) bool { return false }

// GetMany is hearth.Source's: one request.
func (b *fakeBucket) GetMany(_ context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	err := b.ask(first)
	for i := range n {
		x := first.Object.Block(first.Index + int64(i))
		if err != nil {
			each(x, nil, err)
			return
		}
		b.mu.Lock()
		b.bytes += int64(x.Len())
		b.mu.Unlock()
		if !each(x, hearth.NewView(make([]byte, x.Len())), nil) {
			return
		}
	}
}

// kept has a keeper keep what a source yields, without a tier in between.
type kept struct {
	hearth.Source
	keeper hearth.Store
}

// Load is Loader's.
func (k kept) Load(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, error) bool) {
	k.GetMany(ctx, first, n, func(b hearth.Block, v *hearth.View, err error) bool {
		if err != nil {
			return each(b, err)
		}
		defer v.Release()
		err = k.keeper.Keep(ctx, b, v)
		switch {
		case err != nil && ctx.Err() != nil:
			each(b, context.Cause(ctx))
			return false
		case err != nil:
			err = hearth.NotKept(err.Error())
		}
		return each(b, err)
	})
}

// fakeKeeper is a disk tier in memory with a budget. crash loses what was not flushed.
type fakeKeeper struct {
	mu     sync.Mutex // guards the rest
	blocks map[hearth.ID]*fakeHeld
	budget int64 // 0 means none
	used   int64
	evicts bool                  // evicts for a block that comes
	pushed int                   // how many blocks were evicted
	loses  func(key string) bool // keys that a flush finds gone though they were taken; nil means none
	flush  func() error          // the error of a flush; nil means that it is well
}

type fakeHeld struct {
	block   hearth.Block
	flushed bool
}

var errFakeFull = errors.New("no room")

// Keep is hearth.Store's.
func (k *fakeKeeper) Keep(_ context.Context, b hearth.Block, v *hearth.View) error {
	return k.Put(b, v)
}

// Put is hearth.Store's.
func (k *fakeKeeper) Put(b hearth.Block, v *hearth.View) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.blocks[b.ID()] != nil {
		return nil
	}
	if k.budget > 0 && k.used+int64(v.Len()) > k.budget && !k.makeRoomLocked(int64(v.Len())) {
		return errFakeFull
	}
	k.used += int64(v.Len())
	k.blocks[b.ID()] = &fakeHeld{block: b}
	return nil
}

// makeRoomLocked evicts blocks whose key has another first letter.
func (k *fakeKeeper) makeRoomLocked(n int64) bool {
	for id, h := range k.blocks {
		if k.evicts && k.used+n > k.budget && h.block.Object.Key[0] == 'o' {
			k.used -= int64(h.block.Len())
			k.pushed++
			delete(k.blocks, id)
		}
	}
	return k.used+n <= k.budget
}

// Get is hearth.Source's.
func (k *fakeKeeper) Get(_ context.Context, b hearth.Block, _, n int) (*hearth.View, error) {
	if !k.Has(b.ID()) {
		return nil, hearth.ErrMiss
	}
	return hearth.NewView(make([]byte, n)), nil
}

// Flush is hearth.Store's.
func (k *fakeKeeper) Flush(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flush != nil {
		if err := k.flush(); err != nil {
			return err
		}
	}
	for id, h := range k.blocks {
		if !h.flushed && k.loses != nil && k.loses(h.block.Object.Key) {
			delete(k.blocks, id)
			continue
		}
		h.flushed = true
	}
	return nil
}

// Takes is hearth.Store's.
func (k *fakeKeeper) Takes(hearth.Block) bool { return true }

// Has is hearth.Store's.
func (k *fakeKeeper) Has(id hearth.ID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.blocks[id] != nil
}

// evict evicts the blocks for which of is true.
func (k *fakeKeeper) evict(of func(*fakeHeld) bool) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, h := range k.blocks {
		if of(h) {
			k.used -= int64(h.block.Len())
			delete(k.blocks, id)
			n++
		}
	}
	return n
}

func (k *fakeKeeper) crash() { k.evict(func(h *fakeHeld) bool { return !h.flushed }) }

// fakeRecords wraps Records, and saves nothing for a process that was killed. It checks
// that saved counters never fall.
type fakeRecords struct {
	Records
	t    testing.TB
	mu   sync.Mutex // guards the rest
	dead bool       // nothing is saved any more
	last map[string]Record
	// saved is called after each save; nil means that nobody asks.
	saved func()
}

func (f *fakeRecords) Save(r Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return errors.New("killed")
	}
	was := f.last[r.ID]
	for v := range verdicts {
		if a, b := was.Counters.Of(v), r.Counters.Of(v); b.Files < a.Files || b.Bytes < a.Bytes {
			f.t.Errorf("counters fell from %+v to %+v", was.Counters, r.Counters)
		}
	}
	if r.Plan.Total.Files < was.Plan.Total.Files && !r.Plan.Counted {
		f.t.Errorf("what was found fell from %+v to %+v", was.Plan, r.Plan)
	}
	f.last[r.ID] = r
	if f.saved != nil {
		defer f.saved()
	}
	return f.Records.Save(r)
}

// fakeNames is a namespace that finds targets by path. A path also means the file beside
// a directory of its name.
type fakeNames struct{ *namespace.Tree }

func entry(n namespace.Node) Entry {
	return Entry{ID: n.ID, Dir: n.Dir, Name: n.Name, Object: n.Object, Unsure: !n.Dir && n.Unsure}
}

func (n fakeNames) Find(ctx context.Context, target string) ([]Entry, error) {
	x, err := n.Resolve(ctx, target)
	if file, none := n.Resolve(ctx, target+"%F"); none == nil { // beside a directory of its name
		return []Entry{entry(file), entry(x)}, err
	}
	return []Entry{entry(x)}, err
}

func (n fakeNames) ReadSince(ctx context.Context, dir uint64, since int64, after string, each func(Entry) bool) error {
	if after != "" && !strings.HasSuffix(after, "/") {
		after = record.AsFile(after)
	}
	return n.Tree.ReadSince(ctx, dir, since, after, func(x namespace.Node) bool { return each(entry(x)) })
}

func (n fakeNames) Lookup(ctx context.Context, dir uint64, name string) (Entry, error) {
	name, wantsDir := strings.CutSuffix(name, "/")
	x, err := n.Tree.Lookup(ctx, dir, name)
	if err == nil && x.Dir != wantsDir {
		err = fs.ErrNotExist
	}
	return entry(x), err
}

// fakeRoom has one directory, in which an object takes its size.
type fakeRoom int64

// Needs is Room's.
func (fakeRoom) Needs(o *hearth.Object) (int, int64) { return 0, o.Size }

// Rooms is Room's.
func (r fakeRoom) Rooms([]string) []int64 { return []int64{int64(r)} }

// Free is Room's.
func (fakeRoom) Free() []int64 { return []int64{math.MaxInt64} }

// Covered is Room's.
func (fakeRoom) Covered(string, []string) bool { return false }

// Within is Room's.
func (fakeRoom) Within([]string) []*Set { return nil }

// world is what lasts over kills.
type world struct {
	t       testing.TB
	bucket  *fakeBucket
	keeper  *fakeKeeper
	tree    *namespace.Tree
	files   *Files
	records *fakeRecords
	source  Loader
	room    Room
	pins    *Pins
	readers func() int64
	checker *fakeChecker
	volumes *Volumes
	every   time.Duration // between checkpoints; 0 means the usual
	engine  *Engine
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, bucket: &fakeBucket{objects: map[string]hearth.Object{}}, keeper: &fakeKeeper{blocks: map[hearth.ID]*fakeHeld{}},
		files: &Files{Dir: t.TempDir(), Log: func(what string, err error) { t.Log(what, err) }}}
	w.checker = &fakeChecker{w: w, bad: map[string]bool{}}
	w.source, w.readers = kept{w.bucket, w.keeper}, func() int64 { return 0 }
	tree, err := namespace.Open(namespace.Options{Links: []namespace.Link{{Path: "/", Name: "l", Identity: "id", Origin: w.bucket, StaleIfError: true}}})
	if err != nil {
		t.Fatal(err)
	}
	w.tree, w.bucket.gone = tree, tree.Forget
	w.records = &fakeRecords{Records: w.files, t: t, last: map[string]Record{}}
	t.Cleanup(func() {
		if w.engine != nil {
			w.engine.Close()
		}
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// open begins the life of a process.
func (w *world) open() *Engine {
	w.t.Helper()
	e, err := Open(Options{Source: w.source, Keeper: w.keeper, Checker: w.checker, Room: w.room, Volumes: w.volumes, Pins: w.pins, Names: fakeNames{w.tree}, Records: w.records, Files: w.files,
		Readers: w.readers, Throttled: func() int64 { return 0 }, Connections: func() int { return 56 },
		Log: func(what string, err error) { w.t.Log(what, err) }, checkpoint: w.every})
	if err != nil {
		w.t.Fatal(err)
	}
	w.engine = e
	return e
}

// kill ends that life: nothing more is saved, and what was not flushed is lost.
func (w *world) kill() {
	w.records.mu.Lock()
	w.records.dead = true
	w.records.mu.Unlock()
	w.engine.Close()
	w.engine = nil
	w.keeper.crash()
	w.records.mu.Lock()
	w.records.dead = false
	w.records.mu.Unlock()
}

func asIs(s string) string { return s }

// start submits a job for a path.
func (w *world) start(path string) string {
	w.t.Helper()
	r, err := w.engine.Submit(Request{Targets: []string{path}}, nil, false, asIs)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.ID
}

// over waits until a job is over.
func (w *world) over(id string) View {
	w.t.Helper()
	for {
		v, changed, err := w.engine.Get(id)
		if err != nil {
			w.t.Fatal(err)
		}
		if v.State.Over() {
			return v
		}
		select {
		case <-changed:
		case <-w.t.Context().Done():
			w.t.Fatal("the job does not end")
		}
	}
}

// until waits for an event. It returns false if the job was over first.
func (w *world) until(id string, event <-chan struct{}) bool {
	w.t.Helper()
	for {
		v, changed, err := w.engine.Get(id)
		if err != nil {
			w.t.Fatal(err)
		}
		if v.State.Over() {
			return false
		}
		select {
		case <-event:
			return true
		case <-changed:
		}
	}
}

// holds checks that the keeper has every block of the present objects.
func (w *world) holds() {
	w.t.Helper()
	w.bucket.mu.Lock()
	defer w.bucket.mu.Unlock()
	for key, o := range w.bucket.objects {
		for i := range o.Blocks() {
			if !w.keeper.Has(o.Block(i).ID()) {
				w.t.Errorf("block %d of %s is not held", i, key)
			}
		}
	}
}

// fill makes a tree of objects: small and large ones, odd names, files beside
// directories, empty ones.
func (w *world) fill() {
	for d := range 6 {
		for f := range 40 {
			w.bucket.put(fmt.Sprintf("d%d/f%02d", d, f), "e", int64(1000*f)) // f00 is empty
		}
	}
	for i, key := range []string{"a", "a/x", "a/y/z", "a-b", "100%25", "%41", "sp ace/new\nline", "ü/ö", "dots/../up", "t//empty segment"} {
		w.bucket.put(key, "odd", int64(100+i))
	}
	w.bucket.put("large", "e", 40<<20+5)
	w.bucket.put("d3/large", "e", 17<<20)
}
