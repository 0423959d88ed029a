package namespace

import (
	"sync"
	"time"
)

// The age of names is measured by a clock that never makes them look younger.

// clock tells Unix milliseconds for ages. Within a process it only goes forward, with the monotonic
// clock. A suspended machine's monotonic clock stands still; when the wall clock runs ahead of it, this
// one follows the wall clock. So a name never looks younger than it is.
//
// Over a restart there is only the wall clock. If that is behind the last time written down, it went
// back by an unknown amount. Then this clock continues from the written time, and no time from before
// is trusted.
type clock struct {
	wall  func() time.Time
	floor int64 // Unix ms; times below it are not trusted

	mu   sync.Mutex // guards the rest
	read time.Time  // of wall, at the last call
	nano int64      // the clock's time at that call, in Unix ns
	last int64      // time that Nano returned
}

// clockJump is how far the wall clock must run ahead to be followed.
const clockJump = 100 * time.Millisecond

// Start sets the clock. Nil means that the wall clock is time.Now.
func (c *clock) Start(wall func() time.Time) {
	c.wall = wall
	if wall == nil {
		c.wall = time.Now
	}
	c.read = c.wall()
	c.nano = c.read.UnixNano()
}

// Distrust compares the clock with the last time that was written down. It must be called before any
// time is asked for.
func (c *clock) Distrust(written int64) {
	if c.Now() < written {
		c.floor = written + 1
		c.nano = c.floor * 1e6
	}
}

// Now is the present time.
func (c *clock) Now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tickLocked() / 1e6
}

// Nano is the present time in Unix nanoseconds. It never returns the same time twice, so it orders the
// beginnings of questions.
func (c *clock) Nano() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.tickLocked(), c.last+1)
	return c.last
}

func (c *clock) tickLocked() int64 {
	read := c.wall()
	passed := max(0, read.Sub(c.read)) // monotonic, where there is such a clock
	if wall := time.Duration(read.UnixNano() - c.read.UnixNano()); wall > passed+clockJump {
		passed = wall
	}
	c.nano += int64(passed)
	c.read = read
	return c.nano
}

// Trusted returns a time that was written down, or 0 if it is not trusted.
func (c *clock) Trusted(at int64) int64 {
	if at < c.floor {
		return 0
	}
	return at
}

// left is what remains at now of a life that began at since, both in Unix milliseconds. Nothing remains
// when since is 0 or in the future.
func left(since, now int64, life time.Duration) time.Duration {
	if since <= 0 || since > now {
		return 0
	}
	return max(0, life-time.Duration(now-since)*time.Millisecond)
}
