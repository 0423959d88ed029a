// Package disk is the cache's tier on local file systems: one Store over one or
// several directories.
//
// An object lies in one directory, chosen by rendezvous hashing of its Version,
// weighted by the directories' budgets. There a large object (more than one block,
// at most a quarter of the budget) is a sparse file of package sparse; everything
// else is packed into the segments of package segment. Get looks in the queue of
// blocks that are not written yet, then in the area where the block should lie,
// then, before it calls it a miss, in the other places: budgets and directories
// may have changed since it was written.
//
// Put retains the View, queues it and returns; it declines when the queue
// (Options.QueueBytes) or the directory is full. One writer goroutine per
// directory takes what is queued, up to one write unit at a time, and commits it
// as a group. Before each group it looks at what is allocated now and at the
// space that is free now, so that a directory never holds more than its budget
// plus one write unit, and less when others fill the file system: the free-space
// floor wins over the budget. What a Put brings goes into free space, or replaces
// what is worth least, as the policy of package evict has it, which each directory
// tells of every request; for a Keep, and when budget or floor have shrunk,
// blocks go in its order in any case. Blocks of replaced versions and others' blocks
// make room for a Put too.
//
// A disk's errors never reach readers: they are counted, the block is declined
// or missed. Eight in a row within 30 s eject the directory: failed writes end
// writing to it, failed reads end reading as well. Its objects then go to the
// directory of the next rank, and it is tried again later: probed by a small
// file, reopened, and used again. A full file system is no failure, only no room.
// A directory that was removed under us is made again, empty.
//
// A device may also not answer at all. What a reader asks of it runs on another
// thread (package device), and a reader whose operation made no step for Options.Patience
// leaves it there: with the thread, the memory that the kernel may still write
// into, and its reference to the volume. The directory is then ejected as stalled,
// as it is when its writer hangs, and is tried again once all of these have come
// back. While 64 operations of a directory are left so, a Get is a miss at once.
//
// Each directory belongs to one process (a flock on its lock file) and says whose
// it is and in what format (hearth.json).
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

// Why a block is not taken, or a directory not opened.
var (
	// ErrRefused: the directory cannot be the cache, and a person must decide; the
	// error's text says what.
	ErrRefused = errors.New("cache directory refused")
	// ErrInUse: refused, since another process has it.
	ErrInUse = errors.New("cache directory is in use")
	// ErrHung: in use, by a process that was killed and cannot end before the readers
	// of its mount have got an answer.
	ErrHung = errors.New("cache directory is held by a killed process")
	// ErrFull: declined, since there is no room that nothing else wants.
	ErrFull = errors.New("cache directory is full")
	// ErrTooFar: declined, since it lies behind the first 128 TiB of an object that has no
	// file of its own.
	ErrTooFar = errors.New("what lies behind the first 128 TiB of an object is not kept")
	// ErrEjected: no directory takes writes now.
	ErrEjected = errors.New("cache directory is out of use")

	errDeclined  = errors.New("declined")  // by an area, for a reason that is no device's
	errElsewhere = errors.New("elsewhere") // by an area: the other one must take it
)

// maxDirectories bounds the work of a miss, which looks into each of them.
const maxDirectories = 16

// Options says where the cache lies and what it may use.
type Options struct {
	// Dirs are the cache directories, at least one, at most 16.
	Dirs []DirOptions
	// Pool is where Views come from, and what indexes are counted against.
	Pool *hearth.Pool
	// QueueBytes bounds the blocks that wait to be written, over all directories.
	// 0: a quarter of the Pool, at most 64 MiB.
	QueueBytes int64
	// Owns says whether a block is this node's to keep; others go first. nil: all.
	Owns func(hearth.ID) bool
	// Pinned says whether a block must stay, whatever the policy thinks. nil: none.
	Pinned func(hearth.ID) bool
	// Unknown: what is pinned is not known yet, and nothing is evicted. nil: it is.
	Unknown func() bool
	// Events are told of what an operator should know.
	Events Events
	// Check is how often space and health are looked at when nothing is written.
	// 0: 2 s.
	Check time.Duration
	// RetryAfter is the time from an ejection to the first new attempt; it doubles
	// up to 32 times itself. 0: 10 s.
	RetryAfter time.Duration
	// Patience is how long a reader waits for a device that does not answer. Then
	// the directory is out of use until it answers again. 0: 2 s.
	Patience time.Duration

	// Scrub is how many bytes a second are read again and verified in each directory,
	// behind the readers; 0: none. A pass begins ScrubEvery after the last began; 0: 24 h.
	Scrub      int64
	ScrubEvery time.Duration

	// For tests: how areas are opened and free space is asked.
	open   func(d *directory) (*volume, error)
	statfs statfsFunc
}

// DirOptions is one cache directory.
type DirOptions struct {
	// Path of the directory; made if it is missing.
	Path string
	// Budget is the number of bytes that may be allocated in it. 0: a tenth of its
	// file system.
	Budget int64
	// Floor is the number of bytes that stay free on its file system, whoever fills
	// it. 0: a tenth of it; negative: nothing.
	Floor int64
}

// Events are called when something happens that Stats alone would hide. Each may
// be nil, is called on the Store's goroutines or its callers', and must not block.
type Events struct {
	// Ejected: the directory is out of use, and why.
	Ejected func(path string, cause error)
	// Returned: it is in use again.
	Returned func(path string)
	// Full: its file system said that it has no room or no inodes; it is asked again 10 s later.
	Full func(path string, cause error)
	// Mended: a file that somebody harmed is as it should be again: its owner's rights are
	// given back, or what it says is made anew.
	Mended func(file string, cause error)
	// Short: others have left the file system so few bytes that the directory may hold but
	// limit of its budget; told again once that has halved, or was over meanwhile.
	Short func(path string, limit, budget int64)
	// Unindexed: there is no memory to index so many blocks, of so many bytes, that the
	// directory holds. They stay, are misses, and go first when room is needed. Told again
	// once they have doubled, or were none meanwhile.
	Unindexed func(path string, blocks, bytes int64)
	// Found: the scrub found bytes that are not what was written, and dropped them, or
	// what cannot be read. ScrubFailed: it cannot go on for now, and why, once in a row.
	Found       func(check.Finding)
	ScrubFailed func(cause error)
	// Damaged: a file of the cache, or some of it, is of no use, and what it held is a
	// miss: its bytes are not what was written, or of a newer format.
	Damaged func(file string, cause error)
}

// Store is the disk tier.
type Store struct {
	dirs []*directory
	node string
}

var _ hearth.Store = (*Store)(nil)

// Open opens the cache directories. It refuses a directory that a person must
// decide on: foreign, of a newer format, in use by another process, in a FUSE
// mount. One whose device fails is ejected from the start, if another works.
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
			_ = s.Close() // what stands in the way of opening is told
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
		_ = s.Close() // what stands in the way of opening is told
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

// Get returns bytes of a block that is queued or on disk, verified; else ErrMiss,
// or the context's error when memory did not come in time.
func (s *Store) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	id := b.ID()
	first := s.place(&id.Version)
	d := s.dirs[first]
	d.policy.Use(id, b.Len(), d.clock.seconds()) // a hit or a miss of where it belongs
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

// GetHere is Get on the caller's own thread of what lies where it belongs, as wiring.Disk says.
func (s *Store) GetHere(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
	id := b.ID()
	d := s.dirs[s.place(&id.Version)]
	v, _ := d.get(ctx, b, off, n, stead) // Get says what is wrong, and counts what is not held
	if v != nil {
		d.policy.Use(id, b.Len(), d.clock.seconds())
	}
	return v
}

// Put queues a block that goes into free space, or declines. It touches memory
// only: that a block is held already is found by the writer.
func (s *Store) Put(b hearth.Block, v *hearth.View) error {
	d, err := s.target(b, v)
	if err != nil {
		return err
	}
	return d.put(b, v)
}

// Takes tells whether Put will have room for the block once it is fetched. Who
// fetches from afar asks first: while nothing can be kept, ranges are not fetched
// as blocks. A quarter of the queue stays for those that were told so before and
// are still on their way, or they would be fetched whole, declined, and fetched
// again with the next range.
func (s *Store) Takes(b hearth.Block) bool {
	d := s.taker(b.Object.Version)
	if d == nil {
		return false
	}
	// A block that comes in a run is asked for here only: its reader has it from memory.
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

// taker is the directory that takes an object now; nil: none does.
func (s *Store) taker(version [16]byte) *directory {
	if first := s.dirs[s.place(&version)]; first.writable() {
		return first
	}
	if i := s.nextWritable(&version); i >= 0 {
		return s.dirs[i]
	}
	return nil
}

// target is the directory that takes the block's object now.
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

// LocalFile hands out an object that is whole in one sparse file. What is still
// queued is not waited for.
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

// Samples names a file of each directory that is in use, as fuse.LocalFiler says.
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

// NamesDirs are where the namespace may lie: in each directory that is in use.
// What it allocates, measured every 2 s, counts against that directory's budget.
func (s *Store) NamesDirs() []string {
	var all []string
	for _, d := range s.dirs {
		if d.writable() {
			all = append(all, filepath.Join(d.path, NamesDir))
		}
	}
	return all
}

// Close writes what is queued, and gives the directories back.
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
