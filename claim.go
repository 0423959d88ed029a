package hearth

import "slices"

// claimLeft is what indexes leave of a Pool to Views, in bytes: as much as the tier in
// memory leaves at least, a few blocks for each of a few readers.
const claimLeft = MinRAM / 2

// giver lets go of memory of a Pool that others need more.
type giver struct{ give Give }

// Give lets go of about n bytes, and reports whether it had any. For an index it gives
// all that it has; for who waits in Alloc, as readers do all the time, only what indexes
// took of the part that is left to Views. Several may call it at once.
type Give func(n int64, index bool) bool

// Gives has give called when an index, or who waits in Alloc, needs memory that the Pool
// does not have. end takes it out again.
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

// Press is Reserve for what a disk cannot be used without: what lies in memory only for
// speed gives way to it. It waits for nobody; call it without a lock that a giver may
// need.
func (p *Pool) Press(n int64) bool { return p.reserve(n) || p.press(n) }

// Claim is Press for an index, which is as large as the disk is full: all indexes
// together leave the Views half of the smallest Pool. Unclaim gives the bytes back.
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

// press has the givers let go of memory until n bytes are there. Meanwhile it stands
// before all who wait, who would take what is given otherwise.
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

// ask has the givers let go of what those who wait need.
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

// wanted is what those who wait need.
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
