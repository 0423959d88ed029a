package prefetch

import (
	"context"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// mostRequests are in flight at a time: as many as are best for a plain downloader of
	// small objects 20 ms away. With 64 no machine gets more than 3,200 objects a second.
	mostRequests = 128
	// paceEvery is how often it is checked whether an origin asked to slow down.
	// restAfter is how long the number of requests does not grow after that.
	paceEvery, restAfter = 200 * time.Millisecond, 2 * time.Second
	// askAgain is how soon a request that may not begin looks again, if no prefetch ends
	// before: readers do not tell when they have left a connection.
	askAgain = 10 * time.Millisecond
	// Of the memory, one part in memoryShare may be in flight, and at most mostInFlight
	// bytes. The write queue is a quarter of the memory, and half of the queue is free
	// when a request begins.
	memoryShare, mostInFlight = 16, 16 << 20
)

// pace is how many requests may be in flight (congestion control). It is arithmetic only.
type pace struct {
	most      int
	throttled int64     // answers so far that asked to slow down
	looked    time.Time // the last look
	rested    time.Time // until then the number does not grow

	flying  int
	byLink  map[string]int
	bytes   int64
	changed chan struct{} // tells one waiter that a request has ended
}

func newPace() pace {
	return pace{most: mostRequests, byLink: map[string]int{}, changed: make(chan struct{}, 1)}
}

// due reports whether it is time to look.
func (c *pace) due(now time.Time) bool { return now.Sub(c.looked) >= paceEvery }

// look takes how often origins asked to slow down so far.
func (c *pace) look(throttled int64, now time.Time) {
	if !c.due(now) {
		return
	}
	switch {
	case throttled != c.throttled && !c.looked.IsZero():
		c.most = max(1, c.most/2)
		c.rested = now.Add(restAfter)
	case now.After(c.rested):
		c.most = min(mostRequests, c.most+max(1, c.most/4))
	}
	c.looked, c.throttled = now, throttled
}

// lets reports whether a further request for a link may begin. Readers' requests go
// first: inUse counts those and ours, except ours that have just begun.
func (c *pace) lets(link string, inUse, connections int) bool {
	return c.flying < c.most && max(inUse, c.byLink[link]) < connections
}

// enter waits until a block may be fetched. It returns false if the area is no longer
// filled.
func (p *Prefetch) enter(a *area, b hearth.Block) bool {
	for {
		if a.ctx.Err() != nil || a.failures.Load() >= mostFailures {
			return false
		}
		would, soon := p.o.Store.Takes(b, a.began)
		if !would {
			return false
		}
		inUse, most := p.o.Connections(a.link)
		p.mu.Lock()
		c := &p.pace
		if c.due(time.Now()) {
			p.mu.Unlock()
			throttled := p.o.Throttled()
			p.mu.Lock()
			c.look(throttled, time.Now())
		}
		size := b.Object.Size
		fits := c.bytes == 0 || c.bytes+size <= min(p.o.Memory/memoryShare, mostInFlight)
		if soon && fits && c.lets(a.link, inUse, most) && a.mayHave(size) && !p.table.Load().full() {
			c.flying++
			c.byLink[a.link]++
			c.bytes += size
			a.flying++
			a.bytes += size
			p.mu.Unlock()
			return true
		}
		p.mu.Unlock()
		if !wait(a.ctx, c.changed) {
			return false
		}
	}
}

func wait(ctx context.Context, changed <-chan struct{}) bool {
	again := time.NewTimer(askAgain)
	defer again.Stop()
	select {
	case <-changed:
	case <-again.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// exit ends a request.
func (p *Prefetch) exit(a *area, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.pace
	c.flying--
	if c.byLink[a.link]--; c.byLink[a.link] == 0 {
		delete(c.byLink, a.link)
	}
	c.bytes -= size
	a.flying--
	a.bytes -= size
	select {
	case c.changed <- struct{}{}:
	default: // a waiter has been told already, and looks again
	}
}
