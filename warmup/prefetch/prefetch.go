package prefetch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
)

// Store is where blocks are brought to.
type Store interface {
	// Fill brings a whole block into the store, unless it is held or in flight. If it
	// makes a request, it calls begun first.
	Fill(ctx context.Context, b hearth.Block, begun func()) error
	// Has reports whether a block is held, Fetching whether it is in flight.
	Has(id hearth.ID) bool
	Fetching(id hearth.ID) bool
	// Held asks for many blocks at once, wherever they belong. The result reports which
	// of them need not be brought, as far as is known.
	Held(ctx context.Context, blocks []hearth.Block) func(hearth.ID) bool
	// Takes reports whether the store would take the block now without evicting anything
	// that was used since then or is worth more (would). soon reports whether the store's
	// writer keeps up. No policy of the store counts the question.
	Takes(b hearth.Block, since time.Time) (would, soon bool)
}

// Names is the tree whose directories are filled.
type Names interface {
	// Page returns the next objects right below a prefix of a link's keys, behind the
	// name after. next is the name to go on behind; "" means that there are no more.
	Page(ctx context.Context, link, prefix, after string) (page []hearth.Object, next string, err error)
}

// Options are what Prefetch works with.
type Options struct {
	Store Store
	Names Names
	// Memory is the number of bytes of memory in all. Reserve takes some of them from the
	// budget, or returns false if there are none left. Unreserve gives them back.
	Memory    int64
	Reserve   func(bytes int64) bool
	Unreserve func(bytes int64)
	// Connections are the connections of a link in use, and how many it has for objects.
	Connections func(link string) (inUse, most int)
	// Throttled counts the answers so far in which origins asked to slow down.
	Throttled func() int64
}

// Stats are figures since the start.
type Stats struct {
	// Areas are the directories and trees that are being filled, or have been and are
	// still read.
	Areas int64 `json:"areas"`
	// Files and Bytes were brought before anybody had asked for them.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
	// ReadBytes is how many of Bytes have been read. WastedBytes were evicted, not kept,
	// or not read before their area ended. UnreadBytes are the rest, which may still be
	// read.
	ReadBytes   int64 `json:"read_bytes"`
	WastedBytes int64 `json:"wasted_bytes"`
	UnreadBytes int64 `json:"unread_bytes"`
}

// Prefetch fills directories behind their readers. Its methods are safe for concurrent
// use.
type Prefetch struct {
	o      Options
	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	table atomic.Pointer[unread] // nil while there is no area
	slots [mostAreas]atomic.Pointer[area]

	files, brought, read, wasted atomic.Int64

	mu       sync.Mutex // guards the rest; never held while an origin or the tree is asked
	closed   bool
	detector detector
	pace     pace
	walkers  int
}

// New returns a Prefetch that has heard of no READ yet.
func New(o Options) *Prefetch {
	p := &Prefetch{o: o, detector: newDetector(), pace: newPace()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Close ends all work and waits for it.
func (p *Prefetch) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.work.Wait()
	if t := p.table.Swap(nil); t != nil {
		p.o.Unreserve(t.bytes())
	}
}

// Stats returns the present figures.
func (p *Prefetch) Stats() Stats {
	s := Stats{Files: p.files.Load(), ReadBytes: p.read.Load(), WastedBytes: p.wasted.Load()}
	s.Bytes = max(p.brought.Load(), s.ReadBytes+s.WastedBytes) // one read while in flight enters brought last
	s.UnreadBytes = s.Bytes - s.ReadBytes - s.WastedBytes
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Areas = int64(len(p.detector.areas))
	return s
}

// Read hears of a READ of n bytes of an object of one block. held means that the node
// held them. Read never waits.
func (p *Prefetch) Read(o *hearth.Object, n int, held bool) {
	if !p.Used(o, held) && !held && o.Cacheable() {
		p.miss(o, n)
	}
}

// Used is Read for a reader for whom nothing is to be prefetched. It reports whether the
// object had been prefetched.
func (p *Prefetch) Used(o *hearth.Object, held bool) bool {
	t := p.table.Load()
	if t == nil || t.words.Load() == 0 {
		return false
	}
	slot, size := t.take(hashOf(o))
	return size > 0 && p.settle(o, slot, size, held)
}

// Came hears that the bytes of a READ that missed have come. If they came by a prefetch
// request that began after Read, what that request brought counts as read.
func (p *Prefetch) Came(o *hearth.Object) {
	if t := p.table.Load(); t != nil {
		if slot, size := t.take(hashOf(o)); size > 0 {
			p.settle(o, slot, size, true)
		}
	}
}

// settle counts a prefetched object that is asked for. It returns false if it was evicted
// unread.
func (p *Prefetch) settle(o *hearth.Object, slot int, size int64, held bool) bool {
	a, id := p.slots[slot].Load(), o.Block(0).ID()
	if a == nil {
		a = &area{} // it has just ended
	}
	if held || p.o.Store.Fetching(id) || p.o.Store.Has(id) {
		p.read.Add(size)
		a.used.Add(size)
		a.seen(size, time.Now())
		return true
	}
	p.waste(a, size)
	return false
}

// miss notes a miss, and begins to fill directories if the miss makes or lies in an area.
func (p *Prefetch) miss(o *hearth.Object, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	a, fresh := p.detector.miss(o, n, time.Now())
	if fresh && !p.openLocked(a) {
		p.detector.drop(a)
		return
	}
	if a != nil {
		p.dispatchLocked()
	}
}

// openLocked gives a new area a slot. It returns false if there is no slot or no memory.
func (p *Prefetch) openLocked(a *area) bool {
	t := p.table.Load()
	if t == nil {
		t = newUnread(setsFor(p.o.Memory))
		if !p.o.Reserve(t.bytes()) {
			return false
		}
		p.table.Store(t)
		p.work.Go(p.watch)
	}
	for i := range p.slots {
		if p.slots[i].Load() == nil {
			a.slot = i
			a.ctx, a.cancel = context.WithCancel(p.ctx)
			p.slots[i].Store(a)
			return true
		}
	}
	return false
}

// watchEvery is how often the areas are looked at.
const watchEvery = time.Second

// watch ends areas, and returns after the last.
func (p *Prefetch) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		if !p.look(time.Now()) {
			return
		}
	}
}

// look ends the areas whose time has come. It returns false if none is left.
func (p *Prefetch) look(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := false
	for i := range p.slots {
		a := p.slots[i].Load()
		if a == nil {
			continue
		}
		if a.ctx.Err() == nil && a.over(now) {
			a.cancel()
			p.detector.end(a, now)
		}
		if a.ctx.Err() == nil || a.flying > 0 || a.walkers > 0 {
			left = true
			continue
		}
		p.wasted.Add(p.table.Load().sweep(i))
		p.slots[i].Store(nil)
	}
	if !left {
		t := p.table.Swap(nil)
		p.o.Unreserve(t.bytes())
	}
	return left
}

// mostWalkers read directories at a time, each a page of names.
const mostWalkers = 8

// dispatchLocked begins to fill the next directories. The area with the fewest walkers
// goes first.
func (p *Prefetch) dispatchLocked() {
	for !p.closed && p.walkers < mostWalkers {
		var next *area
		for _, a := range p.detector.areas {
			if len(a.queue) > 0 && (next == nil || a.walkers < next.walkers) {
				next = a
			}
		}
		if next == nil {
			return
		}
		dir := next.queue[0]
		next.queue = next.queue[1:]
		next.walkers++
		p.walkers++
		p.work.Go(func() { p.walk(next, dir) })
	}
}

// walk fills one directory.
func (p *Prefetch) walk(a *area, dir string) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		a.walkers--
		p.walkers--
		p.dispatchLocked()
	}()
	for after := ""; ; {
		page, next, err := p.o.Names.Page(a.ctx, a.link, dir, after)
		if err != nil {
			return // its readers get the same error
		}
		blocks := small(page)
		held := p.o.Store.Held(a.ctx, blocks)
		for _, b := range blocks {
			if !held(b.ID()) && !p.bring(a, b) {
				return
			}
		}
		if next == "" {
			return
		}
		after = next
	}
}

// small are the blocks of the objects of one block.
func small(page []hearth.Object) (blocks []hearth.Block) {
	for i := range page {
		if o := &page[i]; o.Cacheable() && o.Size > 0 && o.Size <= hearth.BlockSize {
			blocks = append(blocks, o.Block(0))
		}
	}
	return blocks
}

// bring begins to fetch a block that the node does not have. It returns false if the area
// is no longer to be filled.
func (p *Prefetch) bring(a *area, b hearth.Block) bool {
	if p.o.Store.Has(b.ID()) || p.o.Store.Fetching(b.ID()) {
		return true
	}
	if !p.enter(a, b) {
		return false
	}
	p.work.Go(func() {
		defer p.exit(a, b.Object.Size)
		p.fetch(a, b)
	})
	return true
}

// fetch brings a block and counts what became of it.
func (p *Prefetch) fetch(a *area, b hearth.Block) {
	t, hash, size := p.table.Load(), hashOf(b.Object), b.Object.Size
	var begun, noted atomic.Bool
	err := p.o.Store.Fill(p.ctx, b, func() {
		noted.Store(t.put(hash, a.slot, size))
		begun.Store(true)
	})
	if !begun.Load() {
		return // it was held, or another attempt brought it
	}
	declined := err == nil && !p.o.Store.Has(b.ID())
	if err == nil && !declined && noted.Load() {
		p.brings(a, size, 1)
		a.failures.Store(0)
		return
	}
	_, left := t.take(hash)
	switch {
	case noted.Load() && left == 0: // a reader waited for it, and was counted
		p.brings(a, size, 0)
	case declined:
		p.files.Add(1)
		p.brought.Add(size)
		p.wasted.Add(size)
	case err == nil: // nobody will know whether it is read
		p.brings(a, size, 1)
		p.waste(a, size)
		return
	}
	if !errors.Is(err, hearth.ErrStale) && !errors.Is(err, hearth.ErrArchived) {
		a.failures.Add(1)
	}
}

// brings counts what was brought.
func (p *Prefetch) brings(a *area, bytes, files int64) {
	p.files.Add(files)
	p.brought.Add(bytes)
	a.brought.Add(bytes)
}

// waste counts what was brought and will not be read.
func (p *Prefetch) waste(a *area, bytes int64) {
	p.wasted.Add(bytes)
	a.lost.Add(bytes)
}
