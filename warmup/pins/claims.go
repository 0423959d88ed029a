package pins

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Claims are what jobs at work take of the cache directories, in the order in which they
// began. What two jobs share counts for the first.
type Claims struct {
	mu  sync.Mutex // guards all
	all []*Claim
}

// Claim is what one job takes. A nil Claim takes nothing.
type Claim struct {
	set     *Set
	needs   []atomic.Int64 // by directory
	once    sync.Once
	counted chan struct{} // closed once needs are complete, or the job has ended
	ended   atomic.Bool
}

// Open begins the claim of a job on so many cache directories. It also returns the claims
// of the jobs that began before it. mine is nil if the job does not load. set has what the
// job pins.
func (c *Claims) Open(set *Set, dirs int, loads bool) (mine *Claim, before []*Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before = slices.Clone(c.all)
	if !loads {
		return nil, before
	}
	mine = &Claim{set: set, needs: make([]atomic.Int64, dirs), counted: make(chan struct{})}
	c.all = append(c.all, mine)
	return mine, before
}

// Close ends a job's claim.
func (c *Claims) Close(mine *Claim) {
	if mine == nil {
		return
	}
	mine.ended.Store(true)
	mine.Whole()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(x *Claim) bool { return x == mine })
}

// Add adds n bytes in a directory.
func (c *Claim) Add(dir int, n int64) {
	if c != nil {
		c.needs[dir].Add(n)
	}
}

// Whole says that nothing more will be added.
func (c *Claim) Whole() {
	if c != nil {
		c.once.Do(func() { close(c.counted) })
	}
}

// Takes is how many bytes of a directory it takes so far. It is 0 once its job has ended.
func (c *Claim) Takes(dir int) int64 {
	if c.ended.Load() {
		return 0
	}
	return c.needs[dir].Load()
}

// Counted is closed once nothing more will be added.
func (c *Claim) Counted() <-chan struct{} { return c.counted }

// Has reports whether the job has pinned an object, by its version.
func (c *Claim) Has(version [16]byte) bool { return c.set.Has(version) }
