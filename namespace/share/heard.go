package share

import (
	"context"
	"time"

	"github.com/hearthfs/hearth"
)

// hear answers CallNews. It handles the news in the background, after the answer.
func (n *Names) hear(_ context.Context, body []byte) (*hearth.View, error) {
	list, err := parseNews(body, time.Now())
	if err != nil {
		n.stats.refused.Add(1)
		return nil, err
	}
	for _, x := range list {
		n.doubt(x)
	}
	return nil, nil
}

// doubt queues news of a directory: it is asked for at once, unless it was in the last newsEvery.
func (n *Names) doubt(x *news) {
	g := n.gossip
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.heard[x.dir.ID]
	switch {
	case g.closed || n.tree.Load() == nil:
	case old == nil && len(g.heard) >= newsDirs, old != nil && old.dir != x.dir:
		n.stats.newsLost.Add(1)
	case old == nil:
		n.stats.newsHeard.Add(1)
		g.heard[x.dir.ID] = x
		g.work.Go(func() { n.askAll(x.dir.ID) })
	default:
		n.stats.newsHeard.Add(1)
		old.merge(x)
	}
}

// askAll asks for what was heard of a directory. News that arrives meanwhile is handled newsEvery later,
// until there is none.
func (n *Names) askAll(dir [16]byte) {
	g := n.gossip
	for {
		select {
		case g.asks <- struct{}{}:
		case <-g.ctx.Done():
			return
		}
		g.mu.Lock()
		x := g.heard[dir]
		g.heard[dir] = &news{dir: x.dir}
		g.mu.Unlock()
		n.askFor(x)
		<-g.asks
		if !g.wait(newsEvery) {
			return
		}
		g.mu.Lock()
		quiet := g.heard[dir].none()
		if quiet {
			delete(g.heard, dir)
		}
		g.mu.Unlock()
		if quiet {
			return
		}
	}
}

// askFor passes news to the tree, which asks again for what it believes.
func (n *Names) askFor(x *news) {
	n.stats.newsAsked.Add(1)
	tree := *n.tree.Load()
	if x.all {
		tree.Heard(n.gossip.ctx, x.dir, "", time.Since(x.at))
	}
	for name, at := range x.names {
		tree.Heard(n.gossip.ctx, x.dir, name, time.Since(at))
	}
}
