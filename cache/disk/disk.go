// Package disk is the cache's tier on local file systems: one Store over one or
// several directories.
//
// An object lies in one directory, chosen by rendezvous hashing of its Version, weighted by the
// directories' budgets. There a large object (more than one block, at most a quarter of the budget)
// is a sparse file of package sparse. Everything else is packed into the segments of package
// segment. Get looks in the write queue first, then in the area where the block should lie. Before
// it returns a miss it looks in the other places, too: budgets and directories may have changed
// since the block was written.
//
// Put retains the View, queues it and returns. It declines when the queue (Options.QueueBytes) or
// the directory is full. Each directory has one writer goroutine. It takes up to one write unit
// from the queue at a time, and commits it as a group (group commit). Before each group it measures
// the allocated bytes and the free space. So a directory never holds more than its budget plus one
// write unit. It holds less when others fill the file system: the free-space floor wins over the
// budget.
//
// A block of a Put goes into free space, or replaces the entry that is worth least, as the policy
// of package evict decides. Each directory reports every request to its policy. For a Keep, and
// when budget or floor have shrunk, the policy only gives the order of eviction. Blocks of replaced
// versions and blocks of other nodes make room for a Put too.
//
// What eviction takes can go to Options.Spill, such as a remote volume. Right before an entry goes, the
// writer goroutine reads and verifies each of its blocks that Spill wants, and offers it. It waits for
// no memory and not for Spill: a block that cannot be offered at once is only evicted. Blocks of
// replaced versions, of other nodes, of forgotten objects and without an index are never offered.
//
// Errors of a disk never reach readers: they are counted, and the block is declined or missed.
// Eight in a row within 30 s eject the directory: failed writes end writing to it, failed reads end
// reading as well. Its objects then go to the directory of the next rank. It is tried again later:
// probed by a small file, reopened, and used again. A full file system is not a failure, only a
// lack of room. A directory that was removed under us is made again, empty.
//
// A device may also not answer at all. So a reader's operation runs on another thread (package
// device). If it makes no step for Options.Patience, the reader abandons it. The thread, the memory
// that the kernel may still write into, and the reference to the volume stay with it. The directory
// is then ejected as stalled, as it is when its writer hangs. It is tried again once all abandoned
// operations have come back. While there are 64 of them in a directory, a Get is a miss at once.
//
// Each directory belongs to one process: a flock on its lock file. hearth.json says whose it is,
// and in what format.
package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
)

// Reasons for which a block is not taken, or a directory not opened.
var (
	// ErrRefused means that the directory cannot be the cache and a person must decide. The error's
	// text says what to do.
	ErrRefused = errors.New("cache directory refused")
	// ErrInUse is an ErrRefused: another process has the directory.
	ErrInUse = errors.New("cache directory is in use")
	// ErrHung is an ErrInUse: a killed process has the directory. It cannot end before the readers
	// of its mount have got an answer.
	ErrHung = errors.New("cache directory is held by a killed process")
	// ErrFull means that the block is declined: there is no room that nothing else wants.
	ErrFull = errors.New("cache directory is full")
	// ErrTooFar means that the block is declined: it lies behind the first 128 TiB of an object
	// that has no file of its own.
	ErrTooFar = errors.New("what lies behind the first 128 TiB of an object is not kept")
	// ErrEjected means that no directory takes writes now.
	ErrEjected = errors.New("cache directory is out of use")

	errDeclined  = errors.New("declined")  // an area declined, and its device is not the reason
	errElsewhere = errors.New("elsewhere") // an area declined, and the other area must take it
)

// maxDirectories bounds the work of a miss, which looks into each directory.
const maxDirectories = 16

// Options says where the cache lies and what it may use.
type Options struct {
	// Dirs are the cache directories, at least one, at most 16.
	Dirs []DirOptions
	// Pool is where Views come from, and what indexes are counted against.
	Pool *hearth.Pool
	// QueueBytes bounds the bytes of the blocks that wait to be written, over all directories. 0
	// means a quarter of the Pool, at most 64 MiB.
	QueueBytes int64
	// Owns reports whether this node owns a block; blocks of other nodes are evicted first. nil
	// means that it owns all.
	Owns func(hearth.ID) bool
	// Pinned reports whether a block must stay, whatever the policy says. nil means that none must.
	Pinned func(hearth.ID) bool
	// Unknown reports that the pins are not known yet; until then nothing is evicted. nil means
	// that they are known.
	Unknown func() bool
	// Spill is where blocks go that eviction takes from the disk. nil means nowhere.
	Spill Spill
	// Events are called about what an operator should know.
	Events Events
	// Check is the time between two looks at space and health when nothing is written. 0 means 2 s.
	Check time.Duration
	// RetryAfter is the time from an ejection to the first new attempt (exponential back-off). It
	// doubles, up to 32 times RetryAfter. 0 means 10 s.
	RetryAfter time.Duration
	// Patience is how long a reader waits for a device that does not answer. Then the directory is
	// out of use until it answers again. 0 means 2 s.
	Patience time.Duration

	// Scrub is how many bytes a second are read again and verified in each directory, behind the
	// readers. 0 means none. A pass begins ScrubEvery after the last began; 0 means 24 h.
	Scrub      int64
	ScrubEvery time.Duration

	// Tests replace how areas are opened and how free space is measured.
	open   func(d *directory) (*volume, error)
	statfs statfsFunc
}

// DirOptions is one cache directory.
type DirOptions struct {
	// Path of the directory; made if it is missing.
	Path string
	// Budget is the number of bytes that may be allocated in it. 0 means a tenth of its file
	// system.
	Budget int64
	// Floor is the number of bytes that stay free on its file system, whoever fills it. 0 means a
	// tenth of the file system; a negative value means nothing.
	Floor int64
}

// Events are called when something happens that Stats alone would hide. Each may be nil, is called
// on a goroutine of the Store or of its callers, and must not block.
type Events struct {
	// Ejected says that the directory is out of use, and why.
	Ejected func(path string, cause error)
	// Returned says that the directory is in use again.
	Returned func(path string)
	// Full says that the file system reported no room or no inodes. It is asked again 10 s later.
	Full func(path string, cause error)
	// Mended says that a file that somebody harmed is in order again: its owner's rights are given
	// back, or its content is made anew.
	Mended func(file string, cause error)
	// Short says that others have left the file system so few bytes that the directory may hold
	// only limit of its budget. It is called again when limit has halved, or when the shortage was
	// over meanwhile.
	Short func(path string, limit, budget int64)
	// Unindexed says that the directory holds this many blocks, of this many bytes, that there is
	// no memory to index. They stay, are misses, and go first when room is needed. It is called
	// again when they have doubled, or when there were none meanwhile.
	Unindexed func(path string, blocks, bytes int64)
	// Found says that the scrub found bytes that are not what was written, and dropped them, or
	// something that cannot be read. ScrubFailed says that the scrub cannot go on for now, and why.
	// It is called once for several failures in a row with the same cause.
	Found       func(check.Finding)
	ScrubFailed func(cause error)
	// Damaged says that a file of the cache, or a part of it, is unusable, and that what it held is
	// a miss. Its bytes are not what was written, or of a newer format.
	Damaged func(file string, cause error)
}

// Store is the disk tier.
type Store struct {
	dirs []*directory
	node string
}

var _ hearth.Store = (*Store)(nil)

// Open opens the cache directories. It refuses a directory that a person must decide on: foreign,
// of a newer format, in use by another process, or in a FUSE mount. A directory whose device fails
// is ejected from the start, if another works.
func Open(o Options) (*Store, error) {
	if len(o.Dirs) == 0 || len(o.Dirs) > maxDirectories {
		return nil, fmt.Errorf("open disk cache: %d directories, want 1 to %d", len(o.Dirs), maxDirectories)
	}
	o.setDefaults()
	s := &Store{}
	var failed []error
	for _, do := range o.Dirs {
		d, err := newDirectory(do, &o, s.node)
		if err != nil {
			_ = s.Close() // the error that ends Open is returned
			return nil, fmt.Errorf("open disk cache: %w", err)
		}
		if e := d.ejection.Load(); e != nil {
			failed = append(failed, e.cause)
		}
		if s.node == "" && d.home != nil {
			s.node = d.home.node
		}
		s.dirs = append(s.dirs, d)
		go d.run()
		go d.scrubs()
		go d.guard.LookOut()
	}
	if len(failed) == len(s.dirs) {
		_ = s.Close() // the error that ends Open is returned
		return nil, fmt.Errorf("open disk cache: %w", errors.Join(failed...))
	}
	return s, nil
}

func (o *Options) setDefaults() {
	if o.QueueBytes <= 0 {
		o.QueueBytes = min(64<<20, o.Pool.Stats().Budget/4)
	}
	if o.Check <= 0 {
		o.Check = 2 * time.Second
	}
	if o.RetryAfter <= 0 {
		o.RetryAfter = 10 * time.Second
	}
	if o.ScrubEvery <= 0 {
		o.ScrubEvery = 24 * time.Hour
	}
	if o.Events.Damaged == nil {
		o.Events.Damaged = func(string, error) {}
	}
	if o.open == nil {
		o.open = openVolume
	}
	if o.statfs == nil {
		o.statfs = unix.Statfs
	}
}

// Get returns bytes of a block that is queued or on disk, verified. It fails with ErrMiss, or with
// the context's error if memory did not come in time.
func (s *Store) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	id := b.ID()
	first := s.place(&id.Version)
	d := s.dirs[first]
	d.policy.Use(id, b.Len(), d.clock.seconds()) // a hit or a miss of the directory that it belongs to
	v, err := d.get(ctx, b, off, n, nil)
	if err == nil || len(s.dirs) == 1 || !errors.Is(err, hearth.ErrMiss) {
		return v, err
	}
	for i, d := range s.dirs {
		if i == first {
			continue
		}
		if v, err := d.get(ctx, b, off, n, nil); err == nil || !errors.Is(err, hearth.ErrMiss) {
			return v, err
		}
	}
	return nil, err
}

// GetHere is Get on the caller's own thread, and only from the directory that the block belongs to;
// wiring.Disk says more.
func (s *Store) GetHere(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
	id := b.ID()
	d := s.dirs[s.place(&id.Version)]
	v, _ := d.get(ctx, b, off, n, stead) // the Get that follows reports errors and counts misses
	if v != nil {
		d.policy.Use(id, b.Len(), d.clock.seconds())
	}
	return v
}

// Put queues a block that goes into free space, or declines. It touches memory only: the writer
// finds out whether the block is held already.
func (s *Store) Put(b hearth.Block, v *hearth.View) error {
	d, err := s.target(b, v)
	if err != nil {
		return err
	}
	return d.put(b, v)
}

// Takes reports whether Put will have room for the block once it is fetched. A caller that fetches
// from afar asks first: while nothing can be kept, ranges are not fetched as whole blocks. A
// quarter of the queue is reserved for blocks that were promised room before and are still in
// flight. Otherwise they would be fetched whole, declined, and fetched again with the next range.
func (s *Store) Takes(b hearth.Block) bool {
	d := s.taker(b.Object.Version)
	if d == nil {
		return false
	}
	// A block that comes in a run is reported to the policy only here: its reader has it from
	// memory.
	d.policy.Use(b.ID(), b.Len(), d.clock.seconds())
	if d.admit(b) != nil {
		return false
	}
	soon := d.roomSoon(int64(b.Len()))
	if !soon {
		d.declined.Add(1)
	}
	return soon
}

// taker returns the directory that takes an object now. nil means that none does.
func (s *Store) taker(version [16]byte) *directory {
	if first := s.dirs[s.place(&version)]; first.writable() {
		return first
	}
	if i := s.nextWritable(&version); i >= 0 {
		return s.dirs[i]
	}
	return nil
}

// target returns the directory that takes the block's object now.
func (s *Store) target(b hearth.Block, v *hearth.View) (*directory, error) {
	if v.Len() != b.Len() || !b.Object.Cacheable() {
		return nil, fmt.Errorf("put block %v of %d bytes: only whole blocks of objects with a strong ETag are kept", b.ID(), v.Len())
	}
	d := s.taker(b.Object.Version)
	if d == nil {
		s.dirs[s.place(&b.Object.Version)].declined.Add(1)
		return nil, fmt.Errorf("put block %v: %w", b.ID(), ErrEjected)
	}
	return d, nil
}

// LocalFile lends an object that is whole in one sparse file. It does not wait for queued blocks.
func (s *Store) LocalFile(o *hearth.Object) (*os.File, func(), error) {
	if o.Size <= hearth.BlockSize { // packed
		return nil, nil, hearth.ErrMiss
	}
	first := s.place(&o.Version)
	file, release, err := s.dirs[first].localFile(o)
	if err == nil {
		s.dirs[first].useWhole(o)
		return file, release, nil
	}
	for i, d := range s.dirs {
		if i == first {
			continue
		}
		if file, release, err := d.localFile(o); err == nil {
			return file, release, nil
		}
	}
	return nil, nil, hearth.ErrMiss
}

// Samples returns one file of each directory in use; fuse.LocalFiler says what for.
func (s *Store) Samples() []string {
	var all []string
	for _, d := range s.dirs {
		if d.writable() {
			all = append(all, filepath.Join(d.path, LabelFile))
		}
	}
	return all
}

// NodeID is the random id of this node, kept in its first directory.
func (s *Store) NodeID() string { return s.node }

// NamesDirs returns the paths where the namespace may lie, one in each directory in use. The bytes
// that it allocates, measured every 2 s, count against that directory's budget.
func (s *Store) NamesDirs() []string {
	var all []string
	for _, d := range s.dirs {
		if d.writable() {
			all = append(all, filepath.Join(d.path, NamesDir))
		}
	}
	return all
}

// Close writes the queued blocks, and releases the directories.
func (s *Store) Close() error {
	for _, d := range s.dirs {
		d.scrub.end()
		d.queue.Close()
	}
	var errs []error
	for _, d := range s.dirs {
		errs = append(errs, d.await())
	}
	return errors.Join(errs...)
}
