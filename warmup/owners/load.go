package owners

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
)

const (
	// mostFrames are under way to one owner, and mostItems in them: a part of what it takes
	// of a peer, since readers come over the same connections. What comes meanwhile goes
	// together, so that many small objects are few frames.
	mostFrames, mostItems = 16, 128
	// refusedFirst is how soon one that has too much to do is asked again, then after twice
	// as long, refusals times: another would load what the owner then loads once more.
	refusedFirst = 100 * time.Millisecond
	refusals     = 4
)

// Load is warmup.Owners'.
func (o *Owners) Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error)) bool {
	w := o.way(first)
	for {
		id, at := o.step(&w)
		if at == route.Nobody {
			all(first, n, w.nobody(first), each)
			return true
		}
		if w.Rank() > 1 {
			o.strays.Add(part{first, n}.bytes())
		}
		if at == route.Here {
			return false
		}
		o.loads(id)
		left, err := o.loadAt(ctx, id, part{first, n}, each)
		if left.n == 0 {
			return true
		}
		if !elsewhere(ctx, err) {
			all(left.first, left.n, err, each)
			return true
		}
		// Those before are the owner's, and found there or not when they are asked for.
		first, n, w.why = left.first, left.n, err
	}
}

// Strays are the bytes that another rank than the owner was asked to load, this node itself
// among them: the owner did not answer.
func (o *Owners) Strays() int64 { return o.strays.Load() }

// part is n blocks of one object.
type part struct {
	first hearth.Block
	n     int
}

func (p part) bytes() (sum int64) {
	for i := range p.n {
		sum += int64(p.first.Object.Block(p.first.Index + int64(i)).Len())
	}
	return sum
}

// behind is the part without its first k blocks.
func (p part) behind(k int) part {
	return part{p.first.Object.Block(p.first.Index + int64(k)), p.n - k}
}

// all calls each with one error for all blocks.
func all(first hearth.Block, n int, err error, each func(b hearth.Block, err error)) {
	for i := range n {
		each(first.Object.Block(first.Index+int64(i)), err)
	}
}

// loadAt has a node load a part, and calls each for what it kept or did not. What is left
// failed as err says.
func (o *Owners) loadAt(ctx context.Context, id string, p part, each func(b hearth.Block, err error)) (left part, err error) {
	pause := refusedFirst
	for again := 0; p.n > 0; {
		results := o.fill(ctx, id, p)
		k := slices.IndexFunc(results, func(err error) bool { return err != nil })
		if k < 0 {
			k = p.n
		}
		for i := range k {
			each(p.first.Object.Block(p.first.Index+int64(i)), nil)
		}
		if k > 0 {
			o.touch(id)
		}
		if p = p.behind(k); p.n == 0 {
			break
		}
		var said *wire.Error
		switch err := results[k]; {
		case errors.As(err, &said) && said.Class == wire.NotKept: // that is where the run ended
			each(p.first, hearth.NotKept("at node "+o.name(id)+": "+said.Text))
			p = p.behind(1)
		case errors.Is(err, hearth.ErrRefused) && again < refusals && ctx.Err() == nil:
			again++
			pause = rest(ctx, pause)
		case errors.Is(err, hearth.ErrMiss):
			return p, o.at(id, errors.New("it does not know the link "+p.first.Object.Link+": give all nodes the same links"))
		default:
			return p, o.at(id, err)
		}
	}
	return p, nil
}

// rest waits, and doubles what is waited for.
func rest(ctx context.Context, pause time.Duration) time.Duration {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return 2 * pause
}

// line is what waits to be loaded at one node. Its fields are guarded by Owners' lock.
type line struct {
	queue  []*ask
	frames int
	items  int // in them
}

// ask is a part that somebody waits for.
type ask struct {
	part
	results []error // of the frame's goroutine until answered
	left    int
	done    chan struct{} // closed once results are whole
	gone    bool          // nobody waits any more
	frame   *frame        // nil: it is in the queue
}

// answer notes one block's result.
func (a *ask) answer(i int, err error) {
	a.results[i] = err
	if a.left--; a.left == 0 {
		close(a.done)
	}
}

// frame is on its way; it ends when nobody waits for any of it.
type frame struct {
	asks  []*ask
	items int
	waits int
	end   context.CancelFunc
}

// fill has a node load a part, together with what others want of it, and gives what became
// of each block.
func (o *Owners) fill(ctx context.Context, id string, p part) []error {
	gone := func() []error { return slices.Repeat([]error{context.Cause(ctx)}, p.n) }
	if ctx.Err() != nil { // nothing is sent for who will not hear of it
		return gone()
	}
	a := &ask{part: p, results: make([]error, p.n), left: p.n, done: make(chan struct{})}
	o.mu.Lock()
	l := o.lines[id]
	if l == nil {
		l = &line{}
		o.lines[id] = l
	}
	l.queue = append(l.queue, a)
	o.sendLocked(id, l)
	o.mu.Unlock()
	select {
	case <-a.done:
		return a.results
	case <-ctx.Done():
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	a.gone = true
	if f := a.frame; f != nil {
		if f.waits--; f.waits == 0 {
			f.end()
		}
	}
	return gone()
}

// sendLocked sends what waits, as far as there may be more under way.
func (o *Owners) sendLocked(id string, l *line) {
	for len(l.queue) > 0 && l.frames < mostFrames && l.items < mostItems {
		f := &frame{}
		for len(l.queue) > 0 && (f.items == 0 || f.items+l.queue[0].n <= wire.MaxItems) {
			a := l.queue[0]
			l.queue[0] = nil
			if l.queue = l.queue[1:]; !a.gone {
				a.frame = f
				f.asks, f.items = append(f.asks, a), f.items+a.n
			}
		}
		if f.waits = len(f.asks); f.waits == 0 {
			continue
		}
		var ctx context.Context
		ctx, f.end = context.WithCancel(o.ctx)
		if !o.goLocked(func() { o.send(ctx, id, l, f) }) {
			f.fail(errClosed)
			f.end()
			continue
		}
		l.frames++
		l.items += f.items
	}
	if len(l.queue) == 0 && l.frames == 0 {
		delete(o.lines, id)
	}
}

func (f *frame) fail(err error) {
	for _, a := range f.asks {
		for i := range a.n {
			a.answer(i, err)
		}
	}
}

// send has a node load a frame.
func (o *Owners) send(ctx context.Context, id string, l *line, f *frame) {
	defer f.end()
	if p := o.o.Router.Peer(id); p == nil {
		f.fail(wire.ErrDown)
	} else {
		var wants []wire.Want
		var of []func(error)
		for _, a := range f.asks {
			for i := range a.n {
				wants = append(wants, wire.Want{Block: a.first.Object.Block(a.first.Index + int64(i))})
				of = append(of, func(err error) { a.answer(i, err) })
			}
		}
		p.Many(ctx, wire.Fill, wants, func(i int, v *hearth.View, err error) {
			if v != nil {
				v.Release()
			}
			of[i](err)
		})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	l.frames--
	l.items -= f.items
	o.sendLocked(id, l)
}
