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
	// Fill brings a whole block into the store unless it is held or on its way, and
	// calls begun first if it makes a request.
	Fill(ctx context.Context, b hearth.Block, begun func()) error
	// Has and Fetching report whether a block is held, and on its way.
	Has(id hearth.ID) bool
	Fetching(id hearth.ID) bool
	// Held asks for many blocks at once, wherever they belong, and reports which of them
	// need not be brought, as far as anybody said.
	Held(ctx context.Context, blocks []hearth.Block) func(hearth.ID) bool
	// Takes reports whether the store would take the block now and lose nothing for it
	// that was used since then, or is worth more, and whether its writer keeps up; no
	// policy hears of it.
	Takes(b hearth.Block, since time.Time) (would, soon bool)
}

// Names is the tree whose directories are filled.
type Names interface {
	// Page gives the next objects right below a prefix of a link's keys, behind the name
	// after, and the name to go on behind; "": there are no more.
	Page(ctx context.Context, link, prefix, after string) (page []hearth.Object, next string, err error)
}

// Options are what Prefetch works with.
type Options struct {
	Store Store
	Names Names
	// Memory is the number of bytes of memory that there are; Reserve counts some of
	// them, or says that there are no more, and Unreserve gives them back.
	Memory    int64
	Reserve   func(bytes int64) bool
	Unreserve func(bytes int64)
	// Connections are those of a link in use, and those there are for objects.
	Connections func(link string) (inUse, most int)
	// Throttled counts the answers of origins that asked to slow down so far.
	Throttled func() int64
}

// Stats are figures since the start.
type Stats struct {
	// Areas are the directories, and trees of them, that are being filled or were and
	// are still read.
	Areas int64 `json:"areas"`
	// Files and Bytes were brought before anybody had asked for them.
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
	// ReadBytes of them were read by now, WastedBytes were evicted, not kept, or not
	// read before their area ended. UnreadBytes are the others: they may still be.
	ReadBytes   int64 `json:"read_bytes"`
	WastedBytes int64 `json:"wasted_bytes"`
	UnreadBytes int64 `json:"unread_bytes"`
}

// Prefetch fills directories behind their readers. Its methods may be called from many
// goroutines.
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

// New makes one that has heard of nothing yet.
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
	s.Bytes = max(p.brought.Load(), s.ReadBytes+s.WastedBytes) // what was on its way when it was read comes last
	s.UnreadBytes = s.Bytes - s.ReadBytes - s.WastedBytes
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Areas = int64(len(p.detector.areas))
	return s
}

// Read hears of a READ of n bytes of an object of one block; held: the node held them.
// It never waits.
func (p *Prefetch) Read(o *hearth.Object, n int, held bool) {
	if !p.Used(o, held) && !held && o.Cacheable() {
		p.miss(o, n)
	}
}

// Used is Read for one for whom nothing is to be brought; it reports whether the object
// had been.
func (p *Prefetch) Used(o *hearth.Object, held bool) bool {
	t := p.table.Load()
	if t == nil || t.words.Load() == 0 {
		return false
	}
	slot, size := t.take(hashOf(o))
	return size > 0 && p.settle(o, slot, size, held)
}

// Came hears that the bytes of a READ that were not held have come. Where they came by a
// request that began after Read, what it brought is read as well.
func (p *Prefetch) Came(o *hearth.Object) {
	if t := p.table.Load(); t != nil {
		if slot, size := t.take(hashOf(o)); size > 0 {
			p.settle(o, slot, size, true)
		}
	}
}

// settle counts what was brought and is asked for; false: it was evicted unread.
func (p *Prefetch) settle(o *hearth.Object, slot int, size int64, held bool) bool {
	a, id := p.slots[slot].Load(), o.Block(0).ID()
	if a == nil {
		a = &area{} // it has ended this moment
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

// miss notes a miss, and begins to fill directories where that says so.
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

// openLocked gives a new area its place; false: there is none, or no memory.
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

// watchEvery is how often areas are looked at.
const watchEvery = time.Second

// watch ends areas, and itself after the last.
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

// look ends the areas whose time has come; false: there is none left.
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

// dispatchLocked begins to fill the next directories, of the area first of which the
// fewest are being filled.
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
			return // its readers hear of that, too
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

// small are the blocks of objects of one block.
func small(page []hearth.Object) (blocks []hearth.Block) {
	for i := range page {
		if o := &page[i]; o.Cacheable() && o.Size > 0 && o.Size <= hearth.BlockSize {
			blocks = append(blocks, o.Block(0))
		}
	}
	return blocks
}

// bring begins to fetch a block that the node has not; false: the area is to be
// filled no more.
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
		return // it was held, or another's attempt brought it
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
	case err == nil: // whether it is read nobody will know
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
