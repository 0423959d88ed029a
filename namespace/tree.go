package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// Origin is what the namespace asks of an object store.
type Origin interface {
	// Head returns the object of a key. The error is fs.ErrNotExist when there is none, and
	// fs.ErrPermission when the origin denies the answer. It is fs.ErrInvalid, here and from List, when
	// the origin cannot have an object of that name. Any other error means that the origin cannot be
	// asked for that now.
	Head(ctx context.Context, key string) (hearth.Object, error)
	// List streams a listing, in key order where it can. An error from each ends
	// it and is returned.
	List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error
}

// Options say what the tree shows and where it is kept. The zero value is an
// empty tree in memory.
type Options struct {
	// Dir is the database's directory, on a cache disk; "" keeps names in memory.
	Dir string
	// Next returns the directories that the database may move to once Dir's disk failed, the best
	// first. Dir may be among them. Next may block. Nil means that names stay in memory.
	Next func() []string
	// Links are the tree's root table; AddLink adds more.
	Links []Link
	// CacheBytes is the size of the database's block cache. 0 means 16 MiB.
	CacheBytes int64
	// MemoryBytes bounds names that live in memory because Dir is "" or failed. Beyond it all names are
	// dropped and asked for anew. 0 means 64 MiB, or 512 MiB when Dir is "".
	MemoryBytes int64
	// Outlasts says that a node id that was given out outlasts the process, however that ends. It costs each change a write
	// to the operating system.
	Outlasts bool
	// Held says that kernels may hold node ids that another process gave out. What those stood for is kept until Taken.
	Held bool
	// FirstID is above every node id that may be in use from elsewhere. 0 means that none is in use.
	FirstID uint64
	// Clock is the wall clock. Nil means time.Now, guarded against jumps.
	Clock func() time.Time
	// Events are told what happens.
	Events Events

	fs        vfs.FS           // the disk of a test; nil: the real one
	moveRetry time.Duration    // how often a test retries a move; 0: the store's interval
	monotonic func() time.Time // times listings; a test makes them slow with it; nil: time.Now
	behind    func(more int)   // counts background work for a test: 1 when some begins, -1 when it has ended; or nil
}

const (
	rootID = 1
	// maxListings may run at a time: each holds a page of about 300 KiB.
	maxListings = 32
	// maxAsks questions about single names may run at a time, beside listings; more wait.
	maxAsks = 256
)

// Tree is directories over flat keys. Its methods may be called from many
// goroutines.
type Tree struct {
	o       Options
	db      *store.Store
	clock   clock
	ids     store.IDs
	taken   func()     // ends the hold on all ids; nil if there is none
	placeMu sync.Mutex // held while a directory gets its id; taken before the IDs' own
	dirs    directories
	links   atomic.Pointer[linkTable]
	asks    asks
	neg     absences
	news    subscribers
	holders holders
	stats   counters

	linkMu  sync.Mutex // guards changes of links
	refused refusals
	attrs   atomic.Bool // something is set of a node (Attr)
	tokens  tokens

	ctx    context.Context // ended by Close
	cancel context.CancelCauseFunc
	workMu sync.RWMutex   // guards closing; read-locked to add to work
	work   sync.WaitGroup // background goroutines of the tree
	closed bool
}

// tokens are four semaphores: for listings and single questions at an origin, and for copies and finds
// at other nodes.
type tokens struct{ listings, asks, copies, finds chan struct{} }

func newTokens() tokens {
	places := func(n int) chan struct{} { return make(chan struct{}, n) }
	return tokens{places(maxListings), places(maxAsks), places(maxListings), places(maxAsks)}
}

// Open opens the names kept in o.Dir, or starts with none.
func Open(o Options) (*Tree, error) {
	if o.monotonic == nil {
		o.monotonic = time.Now
	}
	if o.behind == nil {
		o.behind = func(int) {}
	}
	t := &Tree{o: o, tokens: newTokens()}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.clock.Start(o.Clock)
	t.dirs.start()
	t.asks.byName = map[askKey]*ask{}
	t.neg.Start()
	t.links.Store(&linkTable{})
	db, err := store.Open(store.Options{Dir: o.Dir, FS: o.fs, Outlasts: o.Outlasts, CacheBytes: o.CacheBytes, MemoryBytes: o.MemoryBytes,
		Next: o.Next, Retry: o.moveRetry, Log: o.Events.Log, Ill: o.Events.Ill, Moved: o.Events.Moved, Rebuilt: t.rebuilt})
	if err != nil {
		return nil, fmt.Errorf("open the namespace: %w", err)
	}
	t.db = db
	if err := t.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the namespace: %w", err), db.Close())
	}
	for _, l := range o.Links {
		if err := t.AddLink(l); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// Records returns the database, for a check of its records.
func (t *Tree) Records() *store.Store { return t.db }

// Kept reports whether a directory holds a database of names.
func Kept(dir string) bool { return store.Exists(dir) }

// load reads the records that are kept beside entries.
func (t *Tree) load() error {
	if err := t.checkFormat(); err != nil {
		return err
	}
	// A database that is set aside had given out fewer than 2^20 ids a second since 2020.
	lost := uint64(t.clock.Now()/1000-record.Epoch) * store.IDBlock
	if err := t.ids.Load(t.db, max(rootID, t.o.FirstID), lost, t.o.Events.Reserved); err != nil {
		return err
	}
	if err := t.loadClock(); err != nil {
		return err
	}
	if err := t.loadAttrs(); err != nil {
		return err
	}
	if err := t.refused.load(t.db); err != nil {
		return err
	}
	if t.o.Held {
		t.taken = t.Hold(func(uint64) bool { return true })
		return nil
	}
	// Ids that were superseded before this process began are known to no kernel.
	return t.sweepSuperseded(math.MaxInt64)
}

// Taken says that whoever holds node ids of another process's time has said so by now (Hold).
func (t *Tree) Taken() {
	if t.taken != nil {
		t.taken()
		t.taken = nil
	}
}

// rebuilt is called when an empty database replaced the former one. Node ids continue where they were,
// and directories are listed anew. The store's lock is held.
func (t *Tree) rebuilt(cause error) {
	t.ids.Lost()
	t.refused.total.Store(0)
	if told := t.o.Events.Rebuilt; told != nil {
		told(cause)
	}
}

// Close ends background work and makes the names durable.
func (t *Tree) Close() error {
	t.workMu.Lock()
	t.closed = true
	t.workMu.Unlock()
	t.cancel(fmt.Errorf("the namespace is closed: %w", fs.ErrClosed))
	t.work.Wait()
	return t.db.Close()
}

// behind runs f in a goroutine that Close waits for. It returns false, and does not run f, when the
// tree is closed.
func (t *Tree) behind(f func()) bool {
	t.workMu.RLock()
	defer t.workMu.RUnlock()
	if t.closed {
		return false
	}
	t.work.Add(1)
	t.o.behind(1)
	go func() {
		defer t.work.Done()
		defer t.o.behind(-1)
		f()
	}()
	return true
}

// Node is what a name or a node id stands for.
type Node struct {
	// ID is the node id. A file's belongs to (directory, name, version), a directory's to its path.
	ID uint64
	// Dir tells directories from files.
	Dir bool
	// Name in the mount; "" for the root.
	Name string
	// Object is a file's version. Of a directory found by name it has the prefix of its keys.
	Object hearth.Object
	// ModTime of a file is the object's, in whole seconds (Shown). Of a directory it is when this node
	// first saw the present listing.
	ModTime time.Time
	// Unsure is set of a file whose version only a listing told, and the listing may be wrong. Look the
	// file up before its bytes are read.
	Unsure bool
	// TTL is how long this may be believed from now on. It is 0 for strict links, and for names that
	// are served from before the origin failed.
	TTL time.Duration
}

// Outlast has what is found and written from now on outlast the process, as Options.Outlasts has from the start.
func (t *Tree) Outlast() { t.db.Outlast() }

// Behind is the cursor with which ReadDir continues after the node, whatever has come or gone
// meanwhile. A directory's name gets a "/"; a file's is the name that it has beside a directory.
func (n *Node) Behind() string {
	if n.Dir {
		return n.Name + "/"
	}
	return record.AsFile(n.Name)
}

// Root returns the directory at a path of the tree, such as a mount's prefix.
func (t *Tree) Root(ctx context.Context, path string) (Node, error) {
	n, err := t.Resolve(ctx, path)
	if err == nil && !n.Dir {
		return Node{}, fmt.Errorf("%s: %w", path, syscall.ENOTDIR)
	}
	return n, err
}

// Resolve walks a path of mount names from the tree's root.
func (t *Tree) Resolve(ctx context.Context, path string) (Node, error) {
	n, err := t.Node(ctx, rootID)
	if err != nil {
		return Node{}, err
	}
	for name := range strings.SplitSeq(path, "/") {
		if name == "" {
			continue
		}
		if n, err = t.Lookup(ctx, n.ID, name); err != nil {
			return Node{}, fmt.Errorf("look up %s in %s: %w", name, path, err)
		}
	}
	return n, nil
}

// Node returns what an id stands for, without asking an origin. The error hearth.ErrStale means that
// the id is not known, or not any more.
func (t *Tree) Node(_ context.Context, id uint64) (Node, error) {
	n, _, err := t.node(id)
	return n, err
}

// node also reports whether the id's name means another version by now.
func (t *Tree) node(id uint64) (n Node, superseded bool, err error) {
	t.stats.nodes.Add(1)
	if t.dirs.has(id) { // its record may be gone with a former database
		n, err := t.directoryNode(id)
		return n, false, err
	}
	for range 2 {
		r, err := t.reverse(id)
		if err != nil {
			return Node{}, false, err
		}
		if r.Dir {
			n, err := t.directoryNode(id)
			return n, false, err
		}
		if n, ok, err := t.fileNode(id, &r); ok || err != nil {
			return n, r.Superseded, err
		}
		// It was superseded between our two looks: its record says so now.
	}
	return Node{}, false, staleID(id)
}

// fileNode is the node of a file's id. It returns false when the file's name has another id now.
func (t *Tree) fileNode(id uint64, r *record.Reverse) (Node, bool, error) {
	d, err := t.dirs.get(t, r.Parent)
	if err != nil {
		return Node{}, false, err
	}
	defer d.release()
	if d.link == nil {
		return Node{}, false, staleID(id)
	}
	if r.Superseded {
		return d.node(t, r.Sort, &r.Entry, 0), true, nil
	}
	b := d.belief(t)
	e, ok, err := d.entry(t, r.Sort)
	if err != nil || !ok || e.ID != id {
		return Node{}, false, err
	}
	return d.node(t, r.Sort, &e, b.name(r.Sort, &e)), true, nil
}

func staleID(id uint64) error { return fmt.Errorf("node id %d: %w", id, hearth.ErrStale) }

// directoryNode is a directory by its id. Its TTL is what is left of its listing's life, or a whole
// life when the directory is yet to be listed.
func (t *Tree) directoryNode(id uint64) (Node, error) {
	d, err := t.dirs.get(t, id)
	if err != nil {
		return Node{}, err
	}
	defer d.release()
	n := Node{ID: id, Dir: true, Name: d.name(t), ModTime: d.seen(), TTL: Forever}
	if d.link != nil {
		if n.TTL = d.listingLeft(t); n.TTL == 0 && d.link.Freshness.Mode != Strict {
			n.TTL = d.link.Freshness.Life()
		}
	}
	return n, nil
}

// Open is Node for a caller that opens the file. It asks the origin whether the version is still
// current when the link is strict, when a reader found the version gone, or when only a listing told of
// it. When the name has another version now, Open returns that version's node.
func (t *Tree) Open(ctx context.Context, id uint64) (Node, error) {
	n, superseded, err := t.node(id)
	if err != nil || n.Dir {
		return n, err
	}
	r, err := t.reverse(id)
	if err != nil {
		return Node{}, err
	}
	d, err := t.dirs.get(t, r.Parent)
	if err != nil {
		return Node{}, err
	}
	defer d.release()
	e, ok, err := d.entry(t, r.Sort)
	if err != nil {
		return Node{}, err
	}
	if d.link.Freshness.Mode != Strict && !superseded && ok && !e.Doubted && !d.link.word(&e) {
		return n, nil
	}
	now, err := t.lookup(ctx, d, record.Meaning{Segment: record.Segment(r.Sort), File: ok && e.Beside})
	if errors.Is(err, fs.ErrNotExist) {
		return Node{}, fmt.Errorf("open %s: %w", n.Name, hearth.ErrStale)
	}
	return now, err
}
