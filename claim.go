package hearth

import "slices"

// claimLeft is how many bytes of a Pool indexes leave to Views. It equals the least that the tier
// in memory leaves: a few blocks for each of a few readers.
const claimLeft = MinRAM / 2

// giver frees memory of a Pool that others need more.
type giver struct{ give Give }

// Give frees about n bytes, and reports whether it had any. For an index it frees all that it has.
// For a caller that waits in Alloc, as readers do all the time, it frees only what indexes took of
// the Views' share. Several goroutines may call it at once.
type Give func(n int64, index bool) bool

// Gives registers give. The Pool calls it when an index, or a caller that waits in Alloc, needs
// memory that the Pool does not have. end unregisters it.
func (p *Pool) Gives(give Give) (end func()) {
	g := &giver{give}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.givers = append(p.givers, g)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.givers = slices.DeleteFunc(slices.Clone(p.givers), func(x *giver) bool { return x == g })
	}
}

// Press is Reserve for memory without which a disk cannot be used: bytes that lie in memory only
// for speed give way to it. It waits for nobody. Call it without any lock that a Give may need.
func (p *Pool) Press(n int64) bool { return p.reserve(n) || p.press(n) }

// Claim is Press for an index, which grows with the disk's content. All indexes together leave half
// of the smallest Pool to the Views. Unclaim gives the bytes back.
func (p *Pool) Claim(n int64) bool {
	if p.claimed.Add(n) <= p.budget-claimLeft && p.Press(n) {
		return true
	}
	p.claimed.Add(-n)
	return false
}

// Unclaim gives back what Claim counted.
func (p *Pool) Unclaim(n int64) {
	p.claimed.Add(-n)
	p.Unreserve(n)
}

// press has the givers free memory until n bytes are there. Meanwhile it stands first in the queue;
// otherwise those who wait there would take the freed memory.
func (p *Pool) press(n int64) bool {
	w := &poolWaiter{need: n, ready: make(chan struct{})}
	p.mu.Lock()
	e := p.waiters.PushFront(w)
	p.waiting.Add(1)
	p.mu.Unlock()
	p.ask(true)
	p.mu.Lock()
	granted := w.granted()
	if !granted {
		p.waiters.Remove(e)
		p.waiting.Add(-1)
	}
	p.mu.Unlock()
	p.wake()
	return granted
}

// ask has the givers free the memory that the waiters need.
func (p *Pool) ask(index bool) {
	p.mu.Lock()
	givers := p.givers
	p.mu.Unlock()
	for _, g := range givers {
		for n := p.wanted(); n > 0 && g.give(n, index); n = p.wanted() {
			p.wake()
		}
	}
}

// wanted is the number of bytes that the waiters need.
func (p *Pool) wanted() (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := p.waiters.Front(); e != nil; e = e.Next() {
		n += e.Value.(*poolWaiter).need
	}
	return n
}

func (w *poolWaiter) granted() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}
