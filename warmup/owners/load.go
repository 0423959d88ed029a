package owners

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
)

const (
	// mostFrames are in flight to one owner, with mostItems in them. That is part of what
	// the owner takes from a peer, since readers use the same connections. What comes
	// meanwhile shares a frame, so that many small objects need few frames.
	mostFrames, mostItems = 16, 128
	// A node that refuses because it is busy is asked again after refusedFirst, then
	// after twice as long each time, refusals times (exponential back-off). Another node
	// would load what the owner then loads once more.
	refusedFirst = 100 * time.Millisecond
	refusals     = 4
	// The owner of a block of a volume is asked again so often if it cannot be asked: by then, 13 s later, the ring
	// has another owner in its place.
	waits = 7
)

// Load is warmup.Owners'.
func (o *Owners) Load(ctx context.Context, first hearth.Block, n int, each func(b hearth.Block, err error)) bool {
	w := o.way(first)
	pause := refusedFirst
	for again := 0; ; {
		id, at := o.step(&w)
		if at == route.Nobody && o.o.Volumes && again < waits && ctx.Err() == nil {
			again++
			pause = rest(ctx, pause)
			w.Walk = o.o.Router.Walk(place.Of(first))
			continue
		}
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
		// The blocks before left are the owner's. A later question finds whether it holds them.
		first, n, w.why = left.first, left.n, err
	}
}

// Strays is how many bytes a rank other than the owner was asked to load, because the
// owner did not answer. That rank may be this node.
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

// loadAt has a node load a part, and calls each for every block that it kept or declined.
// The blocks in left failed with err.
func (o *Owners) loadAt(ctx context.Context, id string, p part, each func(b hearth.Block, err error)) (left part, err error) {
	pause := refusedFirst
	for again := 0; p.n > 0; {
		k, failed := o.some(ctx, id, p)
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
		switch err := failed; {
		case err == nil: // the rest has not been tried
		case o.o.Volumes && errors.Is(err, hearth.ErrRefused) && o.knowsNone(ctx, id):
			all(p.first, p.n, hearth.NotKept("at node "+o.name(id)+": its release knows no volumes: run the same release on all nodes"), each)
			return part{}, nil
		case errors.As(err, &said) && said.Class == wire.NotKept: // the run ended there
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

// some has a node load the first blocks of a part. k are kept. err is what became of the next one; nil means that
// nobody tried it.
func (o *Owners) some(ctx context.Context, id string, p part) (k int, err error) {
	if o.o.Volumes {
		return o.keepAt(ctx, id, p)
	}
	results := o.fill(ctx, id, p)
	if k = slices.IndexFunc(results, func(err error) bool { return err != nil }); k < 0 {
		return p.n, nil
	}
	return k, results[k]
}

// keepAt has a node keep the first blocks of a part on its volumes.
func (o *Owners) keepAt(ctx context.Context, id string, p part) (k int, err error) {
	body, err := view(run{objectOf(p.first.Object), p.first.Index, int64(p.n)})
	if err != nil {
		return 0, err
	}
	select {
	case o.keeps <- struct{}{}:
	case <-ctx.Done():
		body.Release()
		return 0, context.Cause(ctx)
	}
	answer, err := o.call(ctx, id, o.number(callKeep), body)
	<-o.keeps
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err != nil:
		return 0, err
	case len(answer) != 1 || answer[0] == 0 || int(answer[0]) > p.n:
		return 0, errBody
	}
	return int(answer[0]), nil
}

// knowsNone reports whether a node that refuses to keep blocks on volumes is of a release without volumes: it
// answers other calls, and none about volumes.
func (o *Owners) knowsNone(ctx context.Context, id string) bool {
	_, err := o.call(ctx, id, o.number(callRoom), nil)
	_, answers := o.call(ctx, id, callSlowed, nil)
	return errors.Is(err, hearth.ErrRefused) && answers == nil
}

// rest waits for pause, and returns twice as much.
func rest(ctx context.Context, pause time.Duration) time.Duration {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return 2 * pause
}

// line is the queue of loads for one node. Owners' lock guards its fields.
type line struct {
	queue  []*ask
	frames int
	items  int // in those frames
}

// ask is a part that a caller waits for.
type ask struct {
	part
	results []error // belongs to the frame's goroutine until answered
	left    int
	done    chan struct{} // closed once results are complete
	gone    bool          // nobody waits for it any more
	frame   *frame        // nil means that it is in the queue
}

// answer notes the result of one block.
func (a *ask) answer(i int, err error) {
	a.results[i] = err
	if a.left--; a.left == 0 {
		close(a.done)
	}
}

// frame is in flight. It ends when nobody waits for any of it.
type frame struct {
	asks  []*ask
	items int
	waits int
	end   context.CancelFunc
}

// fill has a node load a part, together with what other callers want of that node. It
// returns what became of each block.
func (o *Owners) fill(ctx context.Context, id string, p part) []error {
	gone := func() []error { return slices.Repeat([]error{context.Cause(ctx)}, p.n) }
	if ctx.Err() != nil { // do not send for a caller that has gone
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

// sendLocked sends from the queue, as far as more may be in flight.
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
