package share

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
)

const (
	// newsWindow is how long news gathers before it is sent: a listing finds many changes at once.
	newsWindow = 100 * time.Millisecond
	// newsDirs bounds the directories whose news waits, in either direction. News of more is dropped:
	// others learn of it when their names' time is over.
	newsDirs = 256
	// newsNames bounds the names of one directory that are told. If there are more, the news is that the
	// directory changed. A HEAD for each name would cost no less than the LIST of a page.
	newsNames = 32
	// newsCalls nodes are told at a time, each within newsWait. So a node that hangs holds up only the
	// news that comes meanwhile.
	newsCalls = 8
	newsWait  = time.Second
	// newsKept is how old news becomes that a node did not take. Until then it is told again, each newsWait:
	// a node that was killed is back sooner, or others no longer count it among them.
	newsKept = 10 * time.Second
	// newsOwed bounds the nodes for which such news is kept, of newsDirs directories each.
	newsOwed = 16
	// newsEvery is the least time between two requests for a directory that news of it causes. News of a write
	// may wait that long at the owner and as long at each other node, and all are to have it within a second.
	newsEvery = time.Second / 3
	// newsAsks bounds the directories that are asked for at a time because of news (a semaphore).
	newsAsks = 8
)

// news is what nodes tell each other of one directory.
type news struct {
	dir   hearth.Directory
	names map[string]time.Time // segments, and when the bucket said so
	all   bool                 // the directory changed; names are not told
	at    time.Time            // when the bucket last said any of this
}

// add makes a name part of the news; "" is the directory itself.
func (x *news) add(name string, at time.Time) {
	if at.After(x.at) {
		x.at = at
	}
	_, known := x.names[name]
	if x.all = x.all || name == "" || !known && len(x.names) >= newsNames; x.all {
		x.names = nil
		return
	}
	if x.names == nil {
		x.names = map[string]time.Time{}
	}
	if at.After(x.names[name]) {
		x.names[name] = at
	}
}

// merge adds younger news of the same directory.
func (x *news) merge(y *news) {
	if y.all {
		x.add("", y.at)
	}
	for name, at := range y.names {
		x.add(name, at)
	}
}

func (x *news) none() bool { return !x.all && len(x.names) == 0 }

// gossip holds the news that waits to be told, and the news that was heard and not asked about yet.
type gossip struct {
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup
	asks   chan struct{} // a semaphore: one place for each directory that is asked for

	mu      sync.Mutex // guards the rest, and additions to work
	closed  bool
	told    map[[16]byte]*news
	telling bool // spread is running
	heard   map[[16]byte]*news
	owed    map[string]map[[16]byte]*news // what nodes did not take, by their ids; tellAgain runs for each
}

func newGossip() *gossip {
	g := &gossip{asks: make(chan struct{}, newsAsks), told: map[[16]byte]*news{}, heard: map[[16]byte]*news{}, owed: map[string]map[[16]byte]*news{}}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Close ends the telling and hearing of news. It returns when no question that news caused is in flight
// at this node's tree.
func (n *Names) Close() {
	n.gossip.mu.Lock()
	n.gossip.closed = true
	n.gossip.mu.Unlock()
	n.gossip.cancel()
	n.gossip.work.Wait()
}

// wait returns true after that time, or false at Close.
func (g *gossip) wait(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-g.ctx.Done():
		return false
	}
}

// Changed tells other nodes that segments of a directory have changed, as the bucket said that long ago.
// It tells all others if this node owns the directory, or the owner does not answer. Else it tells the
// owner, which asks the bucket and tells the others. It does not wait for that.
func (s *Shared) Changed(dir hearth.Directory, segments []string, ago time.Duration) {
	n, g := s.n, s.n.gossip
	g.mu.Lock()
	defer g.mu.Unlock()
	x := g.told[dir.ID]
	switch {
	case g.closed:
		return
	case x == nil && len(g.told) >= newsDirs, len(dir.Link) > maxLink, len(dir.Prefix) > maxKey:
		n.stats.newsLost.Add(1)
		return
	case x == nil:
		x = &news{dir: dir}
		g.told[dir.ID] = x
	}
	at := time.Now().Add(-ago)
	for _, name := range segments {
		if len(name) > maxKey { // nodes would refuse it, and with it the whole call
			name = ""
		}
		x.add(name, at)
	}
	if !g.telling {
		g.telling = true
		g.work.Go(n.spread)
	}
}

// spread tells the news that waits, until none is left.
func (n *Names) spread() {
	g := n.gossip
	for g.wait(newsWindow) {
		g.mu.Lock()
		all := g.told
		g.told = map[[16]byte]*news{}
		g.telling = len(all) > 0
		g.mu.Unlock()
		if len(all) == 0 {
			return
		}
		n.tellAll(all)
	}
}

// tellAll tells each node the news that it should have.
func (n *Names) tellAll(all map[[16]byte]*news) {
	var ours []*news
	to := map[string][]*news{}
	for _, x := range all {
		if id, self := n.o.Owner(x.dir.ID); self {
			ours = append(ours, x)
		} else if id != "" {
			to[id] = append(to[id], x)
		}
	}
	if len(ours) > 0 {
		for _, id := range n.o.Others() {
			to[id] = append(to[id], ours...)
		}
	}
	instead := map[string][]*news{} // an owner that does not answer tells nobody
	for owner, list := range n.tellEach(to) {
		for _, x := range list {
			if slices.Contains(ours, x) {
				continue
			}
			for _, id := range n.o.Others() {
				if id != owner {
					instead[id] = append(instead[id], x)
				}
			}
		}
	}
	n.tellEach(instead)
}

// tellEach tells nodes news, and returns what they did not take. They are told that again.
func (n *Names) tellEach(to map[string][]*news) (left map[string][]*news) {
	var mu sync.Mutex
	left = map[string][]*news{}
	var calls errgroup.Group
	calls.SetLimit(newsCalls)
	for id, list := range to {
		calls.Go(func() error {
			if list = n.tellOne(id, list); len(list) > 0 {
				mu.Lock()
				left[id] = list
				mu.Unlock()
				n.owe(id, list)
			}
			return nil
		})
	}
	_ = calls.Wait()
	return left
}

// owe keeps news that a node did not take, which is told it again.
func (n *Names) owe(id string, list []*news) {
	g := n.gossip
	g.mu.Lock()
	defer g.mu.Unlock()
	owed := g.owed[id]
	if g.closed || owed == nil && len(g.owed) >= newsOwed {
		n.stats.newsLost.Add(int64(len(list)))
		return
	}
	if owed == nil {
		owed = map[[16]byte]*news{}
		g.owed[id] = owed
		g.work.Go(func() { n.tellAgain(id) })
	}
	for _, x := range list {
		old := owed[x.dir.ID]
		if old == nil && len(owed) >= newsDirs {
			n.stats.newsLost.Add(1)
			continue
		}
		if old == nil {
			old = &news{dir: x.dir} // x is told to other nodes, too
			owed[x.dir.ID] = old
		}
		old.merge(x)
	}
}

// tellAgain tells a node what it did not take, until it has, or newsKept is over. What it does not take
// even then, it learns when its names' time is over.
func (n *Names) tellAgain(id string) {
	g := n.gossip
	for wait := newsWindow; g.wait(wait); wait = newsWait {
		there := slices.Contains(n.o.Others(), id)
		g.mu.Lock()
		var list []*news
		for _, x := range g.owed[id] {
			if there && time.Since(x.at) < newsKept {
				list = append(list, x)
			} else {
				n.stats.newsLost.Add(1)
			}
		}
		g.owed[id] = map[[16]byte]*news{}
		if len(list) == 0 {
			delete(g.owed, id)
		}
		g.mu.Unlock()
		if len(list) == 0 {
			return
		}
		if list = n.tellOne(id, list); len(list) > 0 {
			n.owe(id, list)
		}
	}
}

// tellOne tells a node, and returns what the node did not take.
func (n *Names) tellOne(id string, list []*news) (left []*news) {
	for len(list) > 0 {
		body, many := appendNews(nil, list, time.Now())
		ctx, cancel := context.WithTimeout(n.gossip.ctx, newsWait)
		v, err := n.o.Call(ctx, id, CallNews, hearth.NewView(body))
		cancel()
		if v != nil {
			v.Release()
		}
		if err != nil {
			return list
		}
		n.stats.newsTold.Add(int64(many))
		list = list[many:]
	}
	return nil
}
