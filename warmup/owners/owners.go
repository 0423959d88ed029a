package owners

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/place"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
	"github.com/hearthfs/hearth/warmup"
)

// Options are what Owners work with. All but Served are required.
type Options struct {
	// Router says how the nodes are asked. Names are the names of all owners by id, this
	// one included.
	Router *route.Router
	Names  func() map[string]string
	// Disk is this node's disk tier, or its volumes.
	Disk hearth.Store
	// Volumes means that blocks are kept on volumes. Of these only the owner of a block has its place and writes it,
	// so that no other rank is asked.
	Volumes bool
	// Served gets this node's Checker and Room once Join knows them. nil means that no
	// other node asks this one.
	Served *Served
}

// Owners are the nodes of a ring, as warm-up, prefetch and checks of this node see them.
// It is a warmup.Owners. Its methods are safe for concurrent use.
type Owners struct {
	o      Options
	ctx    context.Context // ended by Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // Add under mu while not closed
	slowed atomic.Int64   // answers in which origins of other nodes asked to slow down
	keeps  chan struct{}  // capacity mostItems: a semaphore for callKeep
	strays atomic.Int64   // bytes that a rank other than the owner was asked to load

	mu      sync.Mutex // guards the rest; never held while a node is asked
	closed  bool
	lines   map[string]*line
	touched map[string]bool // nodes that hold something and may not have flushed it
	unsure  map[string]bool // of these, the nodes that could not be asked to flush
	pulses  map[string]*pulse
	rooms   rooms
}

var (
	_         warmup.Owners = (*Owners)(nil)
	errClosed               = errors.New("the node ends")
)

// New returns Owners that have not asked any node yet. Close them.
func New(o Options) *Owners {
	x := &Owners{o: o, keeps: make(chan struct{}, mostItems), lines: map[string]*line{}, touched: map[string]bool{}, unsure: map[string]bool{}, pulses: map[string]*pulse{}}
	x.rooms.told = map[string]room{}
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	return x
}

// Close ends what is in flight and waits for it.
func (o *Owners) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.cancel(errClosed)
	o.work.Wait()
}

// goLocked runs do on a goroutine. It returns false if the Owners are closed.
func (o *Owners) goLocked(do func()) bool {
	if o.closed {
		return false
	}
	o.work.Go(do)
	return true
}

// name is what people call a node.
func (o *Owners) name(id string) string {
	return cmp.Or(o.o.Names()[id], id)
}

// at puts a node's name before an error. If it stands there already, it stands once.
func (o *Owners) at(id string, err error) error {
	name := o.name(id)
	if strings.HasPrefix(err.Error(), "at node "+name+": ") {
		return err
	}
	if inner := errors.Unwrap(err); inner != nil && err.Error() == "peer "+name+": "+inner.Error() {
		err = inner
	}
	return fmt.Errorf("at node %s: %w", name, err)
}

// way is how far the ranks of an extent have been asked.
type way struct {
	route.Walk
	why error // the error of the last rank that could not be asked
}

func (o *Owners) way(b hearth.Block) way { return way{o.o.Router.Walk(place.Of(b)), wire.ErrDown} }

// step goes on to the next rank that can be asked or is this node.
func (o *Owners) step(w *way) (id string, at route.Step) {
	for {
		if o.o.Volumes && w.Rank() > 0 {
			return "", route.Nobody
		}
		id, _, at := w.Next()
		if at != route.Down {
			return id, at
		}
		w.why = o.at(id, wire.ErrDown)
	}
}

// nobody is the error at the end of a way.
func (w *way) nobody(b hearth.Block) error {
	return fmt.Errorf("block %v: %w: %w", b.ID(), route.ErrNobody, w.why)
}

// number is the number of a call about this tier.
func (o *Owners) number(call uint16) uint16 {
	if o.o.Volumes {
		return call + ofVolumes
	}
	return call
}

// elsewhere reports whether an error means that a node could not be asked. Other errors
// are the node's answer.
func elsewhere(ctx context.Context, err error) bool {
	return route.Elsewhere(ctx, err) && !errors.Is(err, errBody) && !errors.Is(err, errClosed)
}

// Here is warmup.Owners'. A block that no tier may keep belongs to this node.
func (o *Owners) Here(b hearth.Block) bool { return o.o.Router.Mine(b) }

// touch notes that a node holds something that it may not have flushed.
func (o *Owners) touch(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.touched[id] = true
}

// mostBeside nodes are asked at a time by a question to all.
const mostBeside = 16

// beside calls do for each node, some at a time.
func beside[T any](nodes map[string]T, do func(id string, x T)) {
	var work sync.WaitGroup
	defer work.Wait()
	room := make(chan struct{}, mostBeside)
	for id, x := range nodes {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			do(id, x)
		})
	}
}

// extent is the blocks of one extent that are asked for.
type extent struct {
	way
	blocks []hearth.Block
}

// extents groups blocks by extent. Blocks of one extent must be adjacent.
func (o *Owners) extents(blocks []hearth.Block) (all []*extent) {
	for i := 0; i < len(blocks); {
		first := blocks[i].ID()
		n := 1
		for i+n < len(blocks) && blocks[i+n].Object.Version == first.Version && blocks[i+n].ID().Extent() == first.Extent() {
			n++
		}
		all = append(all, &extent{o.way(blocks[i]), blocks[i : i+n]})
		i += n
	}
	return all
}

// Held is warmup.Owners'.
func (o *Owners) Held(ctx context.Context, blocks []hearth.Block) func(hearth.ID) bool {
	by := o.Holders(ctx, blocks)
	return func(id hearth.ID) bool { return by(id) != "" }
}

// Holders asks the owners of blocks what their disks hold, and tells which node has a
// block. "" means none that could be asked.
func (o *Owners) Holders(ctx context.Context, blocks []hearth.Block) func(hearth.ID) string {
	held := map[hearth.ID]string{}
	for left := o.extents(blocks); len(left) > 0; {
		asks := map[string][]*extent{}
		for _, x := range left {
			switch id, at := o.step(&x.way); at {
			case route.There:
				asks[id] = append(asks[id], x)
			case route.Here:
				o.here(x, held)
			}
		}
		var mu sync.Mutex // guards held and next
		var next []*extent
		beside(asks, func(id string, all []*extent) {
			some, err := o.heldAt(ctx, id, all)
			mu.Lock()
			defer mu.Unlock()
			for _, b := range some {
				held[b] = id
			}
			if elsewhere(ctx, err) {
				next = append(next, all...)
			}
		})
		left = next
	}
	return func(id hearth.ID) string { return held[id] }
}

func (o *Owners) here(x *extent, held map[hearth.ID]string) {
	for _, b := range x.blocks {
		if o.o.Disk.Has(b.ID()) {
			held[b.ID()] = o.o.Router.Self()
		}
	}
}

// heldAt asks a node which blocks it holds.
func (o *Owners) heldAt(ctx context.Context, id string, all []*extent) (held []hearth.ID, err error) {
	var blocks []hearth.Block
	for _, x := range all {
		blocks = append(blocks, x.blocks...)
	}
	for some := range slices.Chunk(blocks, mostIDs) {
		answer, err := o.call(ctx, id, o.number(callHeld), hearth.NewView(appendIDs(nil, some)))
		if err != nil {
			return held, err
		}
		if len(answer) != len(newBits(len(some))) {
			return held, o.at(id, errBody)
		}
		for i, b := range some {
			if bits(answer).has(i) {
				held = append(held, b.ID())
			}
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unsure[id] {
		return nil, nil // nothing is certain until it has flushed
	}
	if len(held) > 0 {
		o.touched[id] = true
	}
	return held, nil
}

// call asks a node and copies its answer. It releases the body.
func (o *Owners) call(ctx context.Context, id string, number uint16, body *hearth.View) ([]byte, error) {
	if body != nil {
		defer body.Release()
	}
	p := o.o.Router.Peer(id)
	if p == nil {
		return nil, o.at(id, wire.ErrDown)
	}
	v, err := p.Call(ctx, number, body)
	if err != nil {
		return nil, o.at(id, err)
	}
	if v == nil {
		return nil, nil
	}
	defer v.Release()
	return slices.Clone(v.Bytes()), nil
}

// Flush is warmup.Owners'.
func (o *Owners) Flush(ctx context.Context) error {
	o.mu.Lock()
	nodes := o.touched
	o.touched = map[string]bool{}
	o.mu.Unlock()
	failed := unflushed{of: o, nodes: map[string]error{}}
	failed.here = o.o.Disk.Flush(ctx)
	beside(nodes, func(id string, _ bool) {
		_, err := o.call(ctx, id, o.number(callFlush), nil)
		away := elsewhere(ctx, err) && o.o.Router.Peer(id) != nil
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.unsure, id)
		switch {
		case err == nil:
		case away:
			o.touched[id], o.unsure[id] = true, true
		case o.o.Router.Peer(id) != nil: // otherwise it has gone, and a question for its blocks shows that
			o.touched[id] = true
			failed.nodes[id] = err
		}
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if failed.here == nil && len(failed.nodes) == 0 {
		return nil
	}
	return failed
}

// unflushed is a warmup.Unflushed.
type unflushed struct {
	of    *Owners
	here  error
	nodes map[string]error
}

// Error has the errors of all nodes.
func (u unflushed) Error() string {
	errs := []error{u.here}
	for _, err := range u.nodes {
		errs = append(errs, err)
	}
	return errors.Join(errs...).Error()
}

// Unsafe is warmup.Unflushed's.
func (u unflushed) Unsafe(b hearth.Block) bool {
	w := u.of.way(b)
	id, at := u.of.step(&w)
	var some hearth.Unflushed
	switch {
	case at == route.Nobody:
		return true
	case at == route.There:
		return u.nodes[id] != nil
	case errors.As(u.here, &some):
		return some.Concerns(b.ID())
	}
	return u.here != nil
}

// pulseEvery is how often an owner that loads is asked whether its origin slows it down:
// as often as a gate looks. With many owners each is asked less often. An owner that has
// loaded nothing for quietAfter is not asked.
const (
	pulseEvery = 200 * time.Millisecond
	pulseEach  = 64
	quietAfter = 10 * time.Second
)

// pulse is what an owner said of its origins.
type pulse struct {
	used, at time.Time // when it last loaded something, and when it was asked
	busy     bool
	known    bool
	slowed   int64
}

// Throttled counts answers that asked to slow down: own, which are those of this node's
// origins, and those of owners that load for it, as far as known. It has the owners asked
// again. It never waits.
func (o *Owners) Throttled(own int64) int64 {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	every := pulseEvery * time.Duration(1+len(o.pulses)/pulseEach)
	for id, p := range o.pulses {
		if now.Sub(p.used) > quietAfter && !p.busy {
			delete(o.pulses, id)
			continue
		}
		if !p.busy && now.Sub(p.at) >= every {
			p.busy = o.goLocked(func() { o.look(id, p) })
		}
	}
	return own + o.slowed.Load()
}

// look asks an owner whether its origin slows it down.
func (o *Owners) look(id string, p *pulse) {
	ctx, cancel := context.WithTimeout(o.ctx, quietAfter)
	defer cancel()
	answer, err := o.call(ctx, id, callSlowed, nil)
	n, ok := parseCount(answer)
	o.mu.Lock()
	defer o.mu.Unlock()
	p.busy, p.at = false, time.Now()
	if err != nil || !ok {
		return
	}
	if p.known && n != p.slowed {
		o.slowed.Add(max(1, n-p.slowed)) // the owner may have restarted
	}
	p.known, p.slowed = true, n
}

// loads notes that an owner loads something.
func (o *Owners) loads(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pulses[id] == nil {
		o.pulses[id] = &pulse{}
	}
	o.pulses[id].used = time.Now()
}
