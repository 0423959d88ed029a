package watch

import (
	"context"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/warmup"
)

// Egress counts what is fetched from origins, by purpose: for readers, for warm-ups, or for readers of other
// nodes.
type Egress struct{ readers, warmUp, peers fetches }

// fetches counts requests and the bytes that they brought.
type fetches struct{ requests, bytes atomic.Int64 }

func (f *fetches) figures() status.Requests {
	return status.Requests{Requests: f.requests.Load(), Bytes: f.bytes.Load()}
}

// came counts the bytes of a View, if there is one.
func (f *fetches) came(v *hearth.View) {
	if v != nil {
		f.bytes.Add(int64(v.Len()))
	}
}

// Readers returns what was fetched for readers, read-ahead included.
func (e *Egress) Readers() status.Requests { return e.readers.figures() }

// Peers returns what was fetched for readers of other nodes.
func (e *Egress) Peers() status.Requests { return e.peers.figures() }

// WarmUp returns what was fetched for warm-ups.
func (e *Egress) WarmUp() status.Requests { return e.warmUp.figures() }

// warmsUp is the key of a context whose work is for a warm-up, and forPeer of one whose work is for a reader of
// another node.
type (
	warmsUp struct{}
	forPeer struct{}
)

// of returns the counter of a fetch under ctx, and counts the request. An attempt that a warm-up began counts
// for the warm-up, whoever joined it.
func (e *Egress) of(ctx context.Context) *fetches {
	if e == nil {
		return &fetches{} // nobody reads these counts
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

// ForWarmUp returns a context whose fetches count for a warm-up.
func ForWarmUp(ctx context.Context) context.Context { return context.WithValue(ctx, warmsUp{}, true) }

// Peers is a Source whose fetches count for readers of other nodes.
type Peers struct{ hearth.Source }

// Get reads a range of a block.
func (p Peers) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return p.Source.Get(context.WithValue(ctx, forPeer{}, true), b, off, n)
}

// GetMany reads a run of blocks.
func (p Peers) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	p.Source.GetMany(context.WithValue(ctx, forPeer{}, true), first, n, each)
}

// WarmUp is a Loader whose fetches count for a warm-up.
type WarmUp struct{ warmup.Loader }

// Load reads a run of blocks and has each kept.
func (w WarmUp) Load(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, error) bool) {
	w.Loader.Load(ForWarmUp(ctx), first, n, each)
}
