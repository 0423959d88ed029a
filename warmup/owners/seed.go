package owners

import (
	"context"
	"encoding/json"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/warmup"
)

// seedWithin bounds how long one owner may take for the blocks of an extent.
const seedWithin = time.Minute

// seed is the body of callSeeded: blocks of an extent, and the id of the node that answers Peeks of them.
type seed struct {
	Run  run    `json:"run"`
	From string `json:"from"`
}

func parseSeed(body []byte) (first hearth.Block, n int, from string, err error) {
	var x seed
	if json.Unmarshal(body, &x) != nil || x.From == "" {
		return first, 0, "", errBody
	}
	first, n, err = x.Run.blocks()
	return first, n, x.From, err
}

// Seed has the owner of an extent take blocks of it that nobody has read yet: it fetches them from this node, by Peeks, and
// keeps them if its disk has room for them. taken are the bytes that it holds then. mine means that this node is to keep them
// itself, as the next rank, or since nobody can be asked. An owner that does not do so is not asked again, nor is another node:
// nothing depends on it.
func (o *Owners) Seed(ctx context.Context, first hearth.Block, n int) (taken int64, mine bool, err error) {
	w := o.way(first)
	id, at := o.step(&w)
	if at != route.There {
		return 0, true, nil
	}
	body, err := view(seed{run{objectOf(first.Object), first.Index, int64(n)}, o.o.Router.Self()})
	if err != nil {
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, seedWithin)
	defer cancel()
	answer, err := o.call(ctx, id, callSeeded, body)
	if err == nil && len(answer) != n {
		err = o.at(id, errBody)
	}
	if err != nil {
		return 0, false, err
	}
	for i, what := range answer {
		if what == wasHeld || what == wasBrought {
			taken += int64(first.Object.Block(first.Index + int64(i)).Len())
		}
	}
	return taken, false, nil
}

// seeded answers callSeeded: a byte for each block.
func (s *Served) seeded(ctx context.Context, body []byte) (*hearth.View, error) {
	first, n, from, err := parseSeed(body)
	if err == nil {
		err = s.o.Known(first.Object)
	}
	if err != nil {
		return nil, err
	}
	select {
	case s.offers <- struct{}{}:
		defer func() { <-s.offers }()
	default:
		return nil, hearth.ErrRefused
	}
	pass, exit, err := s.enter(ctx, n > 1)
	if err != nil {
		return nil, said(ctx, err)
	}
	answer, brought := make([]byte, n), int64(0)
	defer func() { exit(brought) }()
	for i := 0; i < n && ctx.Err() == nil; i++ {
		b := first.Object.Block(first.Index + int64(i))
		answer[i] = bring(ctx, pass, s.o.Disk, b, func() (*hearth.View, error) { return s.o.Peek(ctx, from, b) })
		if answer[i] == wasBrought {
			brought += int64(b.Len())
		}
		pass.Rest(ctx)
	}
	return hearth.NewView(answer), nil
}

// Bring is a part of a step that has passed a gate: a disk keeps a block if it has room for it by its policy. It reports whether
// the disk holds it then. fetch is only called if there is room, and once the disk's queue is half empty, so that readers and
// warm-ups go first.
func Bring(ctx context.Context, pass *warmup.GatePass, disk Disk, b hearth.Block, fetch func() (*hearth.View, error)) bool {
	what := bring(ctx, pass, disk, b, fetch)
	return what == wasHeld || what == wasBrought
}

// queueEvery is how often a disk is asked whether its queue is half empty: it writes some blocks meanwhile.
const queueEvery = 10 * time.Millisecond

func bring(ctx context.Context, pass *warmup.GatePass, disk Disk, b hearth.Block, fetch func() (*hearth.View, error)) byte {
	for {
		if disk.Has(b.ID()) {
			return wasHeld
		}
		room, queue := disk.Spare(b, time.Now())
		if !room {
			return wasDeclined
		}
		if queue {
			break
		}
		err := pass.Aside(ctx, func() error {
			rest(ctx, queueEvery)
			return ctx.Err()
		})
		if err != nil {
			return wasDeclined
		}
	}
	v, err := fetch()
	if err != nil {
		return wasFailed
	}
	defer v.Release()
	if disk.Put(b, v) != nil {
		return wasDeclined
	}
	return wasBrought
}
