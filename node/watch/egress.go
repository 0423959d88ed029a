package watch

import (
	"context"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/warmup"
)

// Egress counts what is fetched from origins, by whom it is for.
type Egress struct{ readers, warmUp, peers fetches }

// fetches are requests and the bytes that came of them.
type fetches struct{ requests, bytes atomic.Int64 }

func (f *fetches) figures() status.Requests {
	return status.Requests{Requests: f.requests.Load(), Bytes: f.bytes.Load()}
}

// came counts a View, if there is one.
func (f *fetches) came(v *hearth.View) {
	if v != nil {
		f.bytes.Add(int64(v.Len()))
	}
}

// Readers and WarmUp are what was fetched for readers, what is read ahead of them
// included, and for warm-ups; Peers what was for readers of other nodes.
func (e *Egress) Readers() status.Requests { return e.readers.figures() }

// Peers is what was fetched for readers of other nodes.
func (e *Egress) Peers() status.Requests { return e.peers.figures() }

// WarmUp is what was fetched for warm-ups.
func (e *Egress) WarmUp() status.Requests { return e.warmUp.figures() }

// warmsUp is the key of a context whose work is a warm-up's, forPeer that of one whose
// work is for a reader of another node.
type (
	warmsUp struct{}
	forPeer struct{}
)

// of is where a fetch under ctx counts: an attempt that a warm-up began is its own,
// whoever joined it.
func (e *Egress) of(ctx context.Context) *fetches {
	if e == nil {
		return &fetches{} // nobody asks for it
	}
	f := &e.readers
	switch {
	case ctx.Value(warmsUp{}) != nil:
		f = &e.warmUp
	case ctx.Value(forPeer{}) != nil:
		f = &e.peers
	}
	f.requests.Add(1)
	return f
}

// ForWarmUp is a context whose fetches are a warm-up's.
func ForWarmUp(ctx context.Context) context.Context { return context.WithValue(ctx, warmsUp{}, true) }

// Peers is a Source whose fetches are for readers of other nodes.
type Peers struct{ hearth.Source }

// Get reads a range of a block.
func (p Peers) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return p.Source.Get(context.WithValue(ctx, forPeer{}, true), b, off, n)
}

// GetMany reads a run of blocks.
func (p Peers) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	p.Source.GetMany(context.WithValue(ctx, forPeer{}, true), first, n, each)
}

// WarmUp is a Loader whose fetches are a warm-up's.
type WarmUp struct{ warmup.Loader }

// Load reads a run of blocks and has each kept.
func (w WarmUp) Load(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, error) bool) {
	w.Loader.Load(ForWarmUp(ctx), first, n, each)
}
