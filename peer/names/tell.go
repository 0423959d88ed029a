package names

import (
	"context"
	"errors"
	"fmt"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
)

const (
	// pageNames is what an asker may have to hold of a page: as many as of a bucket's.
	pageNames = 1000
	// pageBytes hold that many names of usual length, and a hundred of the longest. What
	// waits to be sent to a slow asker is as little as this for each question.
	pageBytes = 128 << 10
)

// names answers CallNames.
func (n *Names) names(ctx context.Context, body []byte) (*hearth.View, error) {
	return n.tell(ctx, body, &n.stats.toldPages, func(t Tree, q *question) (*hearth.View, error) {
		p := page{pool: n.o.Pool, prefix: len(q.dir.Prefix)}
		told, err := t.Names(ctx, q.dir, q.behind, q.old, p.add)
		v, err := p.end(told, err)
		if err != nil {
			return nil, err
		}
		return v, nil
	})
}

// find answers CallFind.
func (n *Names) find(ctx context.Context, body []byte) (*hearth.View, error) {
	return n.tell(ctx, body, &n.stats.toldFinds, func(t Tree, q *question) (*hearth.View, error) {
		f, err := t.Find(ctx, q.dir, q.behind, q.old)
		if err != nil {
			return nil, err
		}
		b := appendFound(nil, &f)
		v := n.o.Pool.TryAlloc(len(b))
		if v == nil {
			return nil, wire.ErrRefused
		}
		copy(v.Bytes(), b)
		return v, nil
	})
}

// tell answers a question about a directory that is this node's own. While it does, nobody
// of this node asks elsewhere for the directory.
func (n *Names) tell(ctx context.Context, body []byte, done counter, answer func(Tree, *question) (*hearth.View, error)) (*hearth.View, error) {
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
	v, err := answer(*tree, q)
	switch {
	case errors.Is(err, wire.ErrRefused), errors.Is(err, hearth.ErrMiss):
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

// page is an answer that is being written. It takes memory when there is a first name, since
// a tree may have to wait for that.
type page struct {
	pool   *hearth.Pool
	view   *hearth.View
	at     []byte // of view, as far as it is written
	prefix int    // bytes of keys
	names  int
	full   bool
	err    error
}

func (p *page) alloc() bool {
	if p.view == nil && p.err == nil {
		if p.view = p.pool.TryAlloc(pageBytes); p.view == nil {
			p.err = fmt.Errorf("%w: no memory for names", wire.ErrRefused)
		} else {
			p.at = p.view.Bytes()[:toldSize]
		}
	}
	return p.err == nil
}

// add takes a name; false: there is no room for it.
func (p *page) add(o *hearth.Object) bool {
	if !p.alloc() || p.names == pageNames || len(p.at)+nameSize(o, p.prefix) > pageBytes {
		p.full = true
		return false
	}
	p.at = appendName(p.at, o, p.prefix)
	p.names++
	return true
}

// end is the answer.
func (p *page) end(told hearth.Told, err error) (*hearth.View, error) {
	if err == nil {
		p.alloc()
		err = p.err
	}
	if err == nil && p.names == 0 && !told.Last {
		err = errors.New("a page without names that is not the last")
	}
	if err != nil {
		if p.view != nil {
			p.view.Release()
		}
		return nil, err
	}
	told.Last = told.Last && !p.full
	putTold(p.at, &told)
	defer p.view.Release()
	return p.view.Slice(0, len(p.at)), nil
}
