package origin

import (
	"context"
	"sync"

	"github.com/hearthfs/hearth"
)

// This file reads a run in parallel parts. The blocks must be delivered in order, so a later
// part's blocks wait in memory for an earlier one's: Views that are held while
// somebody waits. That is allowed only while nobody waits for memory, so
// parts take memory with TryAlloc only. At the first refusal every part stops,
// the waiting blocks are released, and the rest is streamed with one request.

// part is a stretch of a run and its blocks in order. The channel is closed after the last block.
type part struct {
	blocks int64
	out    chan result
}

type result struct {
	view *hearth.View
	err  error
}

// parallel delivers blocks until the end, or until memory is short. It returns false when the reader
// has had enough, or after an error. It returns true when the rest is left to stream.
func (r *run) parallel(ctx context.Context, openers []opener) bool {
	ctx, cancel := context.WithCancel(ctx)
	var parts []*part
	var wait sync.WaitGroup
	defer func() {
		cancel()
		wait.Wait()
		for _, p := range parts {
			for got := range p.out {
				if got.view != nil {
					got.view.Release()
				}
			}
		}
	}()
	n, at := int64(len(openers)), r.next
	for i := range n {
		end := r.next + (r.end-r.next)*(i+1)/n
		p := &part{blocks: end - at, out: make(chan result, end-at)}
		first := at
		wait.Go(func() { r.bucket.fetch(ctx, openers[i], r.object.Block(first), p) })
		parts, at = append(parts, p), end
	}
	for _, p := range parts {
		for range p.blocks {
			got, ok := <-p.out
			if !ok {
				return true
			}
			if !r.deliver(got.view, got.err) {
				return false
			}
		}
	}
	return true
}

// fetch streams a part. When memory is refused it stops and only closes the channel.
func (b *Bucket) fetch(ctx context.Context, p opener, first hearth.Block, part *part) {
	defer close(part.out)
	o := first.Object
	last := o.Block(first.Index + part.blocks - 1)
	body, err := p.open(ctx, o, first.Offset(), last.Offset()+int64(last.Len())-first.Offset())
	if err != nil {
		part.out <- result{err: err}
		return
	}
	defer body.Close()
	for i := range part.blocks {
		v := b.pool.TryAlloc(o.Block(first.Index + i).Len())
		if v == nil {
			return
		}
		if err := fill(v, body); err != nil {
			v.Release()
			part.out <- result{err: err}
			return
		}
		part.out <- result{view: v}
	}
}
