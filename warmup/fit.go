package warmup

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// Room is what the disk tier says of its directories.
type Room interface {
	// Needs is the index of the directory that an object belongs to, and about what
	// it takes there, in bytes.
	Needs(o *hearth.Object) (dir int, bytes int64)
	// Rooms are the bytes that each directory may hold of objects: its budget, or
	// less while its file system is short, less names and what is pinned elsewhere than
	// below these targets.
	Rooms(targets []string) []int64
	// Covered reports whether a target's bytes are in those of a pin already.
	Covered(target string, targets []string) bool
	// Within are the objects of the pins at and below some targets. What a warm-up takes
	// of them it takes from nobody: others have it taken off their rooms.
	Within(targets []string) []*Set
}

// fit sums up what a set needs. It is the whole set that must fit, what is held of it
// already included: else loading the rest would push that out.
type fit struct {
	of      Room
	targets []string
	needs   []int64
	shared  []int64  // of them, what jobs that began before need, too
	rooms   []int64  // when it began
	before  []*claim // of those jobs
	mine    *claim
	pinned  []*Set // of pins whose bytes are in needs
	target  string // that was asked about last, and
	covered bool   // the answer
}

func newFit(of Room, targets []string, mine *claim, before []*claim) *fit {
	f := &fit{of: of, targets: targets, mine: mine, before: before}
	if of != nil {
		f.rooms, f.pinned = of.Rooms(targets), of.Within(targets)
		f.needs, f.shared = make([]int64, len(f.rooms)), make([]int64, len(f.rooms))
	}
	return f
}

// add adds an object of a target, and returns the sum.
func (f *fit) add(target string, o *hearth.Object) (sum int64) {
	if f.of == nil {
		return 0
	}
	if f.target != target {
		f.target, f.covered = target, f.of.Covered(target, f.targets)
	}
	if o.Cacheable() && !f.covered {
		dir, n := f.of.Needs(o)
		f.needs[dir] += n
		switch {
		case slices.ContainsFunc(f.pinned, func(x *Set) bool { return x.has(o.Version) }):
		case f.isShared(o):
			f.shared[dir] += n
		default:
			f.mine.add(dir, n)
		}
	}
	for _, n := range f.needs {
		sum += n
	}
	return sum
}

func (f *fit) isShared(o *hearth.Object) bool {
	return slices.ContainsFunc(f.before, func(c *claim) bool { return c.pins.has(o.Version) })
}

func (f *fit) room() (sum int64) {
	for _, n := range f.rooms {
		sum += n
	}
	return sum
}

// claimed is what other jobs have taken of a directory, beside what they share with this.
func (f *fit) claimed(dir int) (sum int64) {
	for _, c := range f.before {
		sum += c.takes(dir)
	}
	return max(0, sum-f.shared[dir])
}

// refusal says why what was added does not fit; at the end of a count the room is
// measured again, since names take some of it, and other jobs must have theirs.
func (f *fit) refusal(end bool) error {
	if f.of == nil {
		return nil
	}
	if end {
		f.rooms = f.of.Rooms(f.targets)
	}
	for i, n := range f.needs {
		others, says, beside := int64(0), "takes more than", ""
		if end {
			others, says = f.claimed(i), "takes"
		}
		if others > 0 {
			beside = fmt.Sprintf(", of which other jobs at work have claimed %d more than they share with it", others)
		}
		if n > f.rooms[i]-others {
			return &failure{kindRefused, fmt.Sprintf("it does not fit: it %s %d bytes of a cache directory in which %d bytes can be held "+
				"(its budget, less the free-space floor, the names and what is pinned)%s; raise --cache-disks PATH=SIZE, unpin something, or warm up less", says, n, f.rooms[i], beside)}
		}
	}
	return nil
}

// claims are what jobs at work take of the cache directories, in the order in which they
// began: what two share is the first one's.
type claims struct {
	mu  sync.Mutex // guards all
	all []*claim
}

type claim struct {
	pins    *Set
	needs   []atomic.Int64 // by directory
	once    sync.Once
	counted chan struct{} // closed once needs are whole, or the job has ended
	ended   atomic.Bool
}

// open begins the claim of a job, and gives those of the jobs that began before it.
func (c *claims) open(pins *Set, of Room, loads bool) (mine *claim, before []*claim) {
	if of == nil {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before = slices.Clone(c.all)
	if !loads {
		return nil, before
	}
	mine = &claim{pins: pins, needs: make([]atomic.Int64, len(of.Rooms(nil))), counted: make(chan struct{})}
	c.all = append(c.all, mine)
	return mine, before
}

// close ends a job's claim.
func (c *claims) close(mine *claim) {
	if mine == nil {
		return
	}
	mine.ended.Store(true)
	mine.whole()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(x *claim) bool { return x == mine })
}

func (c *claim) add(dir int, n int64) {
	if c != nil {
		c.needs[dir].Add(n)
	}
}

// whole says that nothing is added any more.
func (c *claim) whole() {
	if c != nil {
		c.once.Do(func() { close(c.counted) })
	}
}

func (c *claim) takes(dir int) int64 {
	if c.ended.Load() {
		return 0
	}
	return c.needs[dir].Load()
}
