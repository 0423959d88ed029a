package route

import (
	"context"
	"errors"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
)

// each is how GetMany yields blocks: see hearth.Source.
type each = func(b hearth.Block, v *hearth.View, err error) bool

// line yields the blocks of one GetMany in order, wherever they come from.
type line struct {
	next hearth.Block
	left int
	each each
	over bool // the caller wants no more, or there was an error
}

// yield passes the next block on.
func (l *line) yield(v *hearth.View, err error) {
	b := l.next
	l.next.Index++
	l.left--
	if !l.each(b, v, err) || err != nil {
		l.over = true
	}
}

// from yields up to n of the next blocks from a Source.
func (l *line) from(ctx context.Context, src hearth.Source, n int) {
	left := n
	src.GetMany(ctx, l.next, n, func(_ hearth.Block, v *hearth.View, err error) bool {
		left--
		l.yield(v, err)
		return !l.over && left > 0
	})
	l.over = l.over || left > 0 // the run ended early, and each got the error
}

// extents calls do for the rest of each extent, until the line is over. do yields all n blocks, or
// ends the line.
func (l *line) extents(do func(n int)) {
	for l.left > 0 && !l.over {
		do(min(l.left, hearth.ExtentBlocks-int(l.next.Index%hearth.ExtentBlocks)))
	}
}

// Route is the Source of all blocks: this node's own from own, the others' from theirs.
func (r *Router) Route(own, theirs hearth.Source) hearth.Source { return &split{r, own, theirs} }

type split struct {
	*Router
	own, theirs hearth.Source
}

// way is the Source that a block is read from.
func (s *split) way(b hearth.Block) hearth.Source {
	if s.Mine(b) {
		return s.own
	}
	return s.theirs
}

func (s *split) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return s.way(b).Get(ctx, b, off, n)
}

func (s *split) FromPeer(b hearth.Block) bool { return s.way(b).FromPeer(b) }

func (s *split) GetMany(ctx context.Context, first hearth.Block, n int, each each) {
	l := &line{next: first, left: n, each: each}
	l.extents(func(n int) { l.from(ctx, s.way(l.next), n) })
}

// Has reports whether either Source holds the block.
func (s *split) Has(id hearth.ID) bool { return s.own.Has(id) || s.theirs.Has(id) }

// GetMany yields whole blocks in order. It asks for all blocks of an extent at once.
func (f *fill) GetMany(ctx context.Context, first hearth.Block, n int, each each) {
	l := &line{next: first, left: n, each: each}
	l.extents(func(n int) { f.extent(ctx, l, n) })
}

func (f *fill) extent(ctx context.Context, l *line, n int) {
	stop := l.left - n // how many blocks are left behind this extent
	var err error
	from, why := f.ranks(l.next, func() int { return l.left - stop }, func(p Peer) judgement {
		for again := 0; ; again++ {
			f.asked.Add(int64(l.left - stop))
			before := l.next.Offset()
			err = many(ctx, p, wire.Fill, l, l.left-stop)
			f.bytes.Add(min(l.next.Offset(), l.next.Object.Size) - before)
			if l.over || !errors.Is(err, wire.ErrMemory) || again == mostAgain {
				return judge(ctx, err)
			}
		}
	}, func() error { return err })
	switch {
	case l.over || l.left == stop:
	case from == Here:
		l.from(ctx, f.own, l.left-stop)
	case from == Nobody:
		f.elsewhere.Add(int64(l.left - stop))
		l.from(ctx, f.bucket, l.left-stop)
	default:
		l.yield(nil, why)
	}
}

// many yields n blocks from a peer, up to the first that the peer does not give, and returns the
// reason. A block that comes before its turn waits, and is released if an earlier one fails.
func many(ctx context.Context, p Peer, verb wire.Verb, l *line, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wants := make([]wire.Want, n)
	for i := range wants {
		b := l.next.Object.Block(l.next.Index + int64(i))
		wants[i] = wire.Want{Block: b, N: b.Len()}
	}
	came := make([]*hearth.View, n)
	failed := make([]error, n)
	turn := 0
	var err error
	p.Many(ctx, verb, wants, func(i int, v *hearth.View, cause error) {
		came[i], failed[i] = v, cause
		for turn < n && err == nil && !l.over && (came[turn] != nil || failed[turn] != nil) {
			if err = failed[turn]; err == nil {
				v := came[turn]
				came[turn] = nil
				turn++
				l.yield(v, nil)
			}
		}
		if err == nil && !l.over {
			return
		}
		cancel()
		for k, v := range came { // this one, too
			if v != nil {
				v.Release()
				came[k] = nil
			}
		}
	})
	return err
}

// GetMany yields whole blocks in order. Those of an extent that former owners still hold come from
// them.
func (f *former) GetMany(ctx context.Context, first hearth.Block, n int, each each) {
	l := &line{next: first, left: n, each: each}
	if table := f.Table(); !remembers(table, first) {
		if table == nil {
			f.alone.Add(int64(n))
		}
		l.from(ctx, f.next, n)
		return
	}
	l.extents(func(n int) {
		held := f.held(ctx, l.next, n)
		for done := 0; done < n && !l.over; {
			p, run := held.run(done)
			done += run
			stop := l.left - run
			if p != nil {
				err := many(ctx, p, wire.Peek, l, run) // a block that it does not give is read from next
				f.found.Add(int64(run - (l.left - stop)))
				if !l.over && l.left > stop {
					f.lacked(err, l.left-stop)
				}
			}
			if !l.over && l.left > stop {
				l.from(ctx, f.next, l.left-stop)
			}
		}
	})
}
