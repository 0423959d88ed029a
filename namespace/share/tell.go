package share

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// pageNames is how many names a page has at most: as many as a page of a bucket's listing.
	pageNames = 1000
	// pageBytes is the size of a page in bytes at most. It holds pageNames names of usual length, or a
	// hundred of the longest. It also bounds what waits to be sent to a slow asker, for each question.
	pageBytes = 128 << 10
	// memoryWait is how long an answer waits for memory. An asker that gets no answer asks the bucket,
	// which takes as long, and others free memory meanwhile. A waiting answer holds only its question.
	memoryWait = time.Second
)

// names answers CallNames.
func (n *Names) names(ctx context.Context, body []byte) (*hearth.View, error) {
	return n.tell(ctx, body, &n.stats.toldPages, func(t Tree, q *question) ([]byte, error) {
		p := page{prefix: len(q.dir.Prefix)}
		told, err := t.Names(ctx, q.dir, q.behind, q.old, p.add)
		if err != nil {
			return nil, err
		}
		return p.end(told)
	})
}

// find answers CallFind.
func (n *Names) find(ctx context.Context, body []byte) (*hearth.View, error) {
	return n.tell(ctx, body, &n.stats.toldFinds, func(t Tree, q *question) ([]byte, error) {
		f, err := t.Find(ctx, q.dir, q.behind, q.old)
		if err != nil {
			return nil, err
		}
		return appendFound(nil, &f), nil
	})
}

// tell answers a question about a directory that this node owns. Meanwhile this node asks no other node
// for that directory.
func (n *Names) tell(ctx context.Context, body []byte, done counter, answer func(Tree, *question) ([]byte, error)) (*hearth.View, error) {
	q, err := parseQuestion(body)
	if err != nil {
		n.stats.refused.Add(1)
		return nil, err
	}
	tree := n.tree.Load()
	ours := tree != nil && n.enter(q.dir.ID, use{telling: 1}, func(now use) bool {
		_, self := n.o.Owner(q.dir.ID)
		return now.asking == 0 && self
	})
	if !ours {
		n.stats.refused.Add(1)
		return nil, fmt.Errorf("directory %q: %w", q.dir.Prefix, ErrElsewhere)
	}
	defer n.leave(q.dir.ID, use{telling: 1})
	b, err := answer(*tree, q)
	var v *hearth.View
	if err == nil {
		v, err = n.view(ctx, b)
	}
	switch {
	case errors.Is(err, hearth.ErrRefused), errors.Is(err, hearth.ErrMiss):
		n.stats.refused.Add(1)
	case err != nil:
		n.stats.failed.Add(1)
	default:
		done.Add(1)
		n.stats.sent.Add(int64(v.Len()))
	}
	return v, err
}

// counter is an atomic.Int64.
type counter interface{ Add(int64) int64 }

// view copies an answer into memory of the pool.
func (n *Names) view(ctx context.Context, b []byte) (*hearth.View, error) {
	ctx, cancel := context.WithTimeout(ctx, memoryWait)
	defer cancel()
	v, err := n.o.Pool.Alloc(ctx, len(b))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hearth.ErrRefused, err)
	}
	copy(v.Bytes(), b)
	return v, nil
}

// page is an answer to CallNames while it is written.
type page struct {
	b      []byte
	prefix int // bytes of keys
	names  int
	full   bool
}

// add appends a name. It returns false when the page is full.
func (p *page) add(o *hearth.Object) bool {
	if p.b == nil {
		p.b = make([]byte, toldSize, 4<<10)
	}
	if p.names == pageNames || len(p.b)+nameSize(o, p.prefix) > pageBytes {
		p.full = true
		return false
	}
	p.b = appendName(p.b, o, p.prefix)
	p.names++
	return true
}

// end completes the page and returns it encoded.
func (p *page) end(told hearth.Told) ([]byte, error) {
	told.Last = told.Last && !p.full
	if p.names == 0 && !told.Last {
		return nil, errors.New("a page without names that is not the last")
	}
	if p.b == nil {
		p.b = make([]byte, toldSize)
	}
	putTold(p.b, &told)
	return p.b, nil
}
