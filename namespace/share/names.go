// Package share makes one node of a ring, the owner, list a directory of a bucket for all: the other
// nodes copy its names. It decorates the origin of a link.
//
// A directory belongs to the owner of its slot. Another node asks the owner, in place of the bucket, for
// a page of names or for what a single name stands for. It says how old the answer may be. The owner
// answers from its tree of names. If what the tree knows is too old, the tree asks the bucket, once for
// all who ask meanwhile (singleflight). An answer has an age: how long before the question the bucket was
// asked. It is a duration, since clocks differ. So a name's bound counts from the question to the bucket,
// wherever the name is copied to. Nobody copies a copy.
//
// Pages are asked for one by one, by a cursor: the last name before the page. Like a page of the bucket,
// each is true of its range of names at its age. So a directory that changes between two pages is not
// read anew. If the owner dies or refuses, the asker takes the names after the cursor from the bucket.
//
// Nodes may differ for a while about who owns what. So the owner answers only for directories that are
// its own by its own map. An asker that gets anything but an answer asks the bucket at once. While a node
// asks another one about a directory it answers nobody about it, and the other way round. So whoever
// waits for a node waits for the bucket, and nodes never wait in a circle.
//
// A node that learns from the bucket that a name has changed tells the directory's owner. The owner asks
// the bucket, and tells all other nodes what it finds. News is doubt, never truth. A node that hears news
// asks the owner about the names that it believes itself, at most three times a second for each directory. News
// that a node did not take is told it again. If that is the owner, the others are told in its place: they
// cannot ask it either, so they believe nothing of the names until the bucket was asked, which is when
// somebody looks them up. News may be lost, since a node stays away or since there is too much of it. Then
// nodes learn of the change when their names' time is over.
//
// Answers are checked. Names must be one segment each, in order, and after the cursor. Versions are
// computed here, from the identity that this node knows. An answer that breaks a rule fails as a whole.
package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// Numbers of Calls, the same on all nodes. Names have 1 to 15.
const (
	CallNames uint16 = 1
	CallFind  uint16 = 2
	CallNews  uint16 = 3
)

var (
	// ErrElsewhere says that this node is not the one to ask. By its map the directory is another
	// node's, or it asks another node about it itself.
	ErrElsewhere = errors.New("this node does not own it by its map, or asks for it itself: ask the bucket")
	// ErrAnswer says that what came is no valid answer to the question.
	ErrAnswer = errors.New("what came is no answer: do all nodes run the same release?")
	// ErrOld says that an answer is older than the question allows.
	ErrOld = errors.New("older than asked for")

	errNobody = errors.New("no other node to ask: there is no ring, or this node owns the directory")
)

// Tree is what a node knows of names.
type Tree interface {
	namespace.Teller
	// Heard is told that a segment, or "" for the directory, was found to have changed, that long ago.
	// If something older is believed here, it asks the directory's owner, and returns once that is done.
	Heard(ctx context.Context, dir hearth.Directory, segment string, ago time.Duration)
}

var (
	_ Tree             = (*namespace.Tree)(nil)
	_ namespace.Sharer = (*Shared)(nil)
)

// Options are what New needs. All must be set.
type Options struct {
	// Owner returns the node that owns a directory by this node's map; "" means none. self says that it
	// is this node.
	Owner func(dir [16]byte) (id string, self bool)
	// Others returns the ids of the nodes that hear what this node learns of its own directories.
	Others func() []string
	// Call makes a Call, given by its number, to a node. The caller releases the result.
	Call func(ctx context.Context, id string, number uint16, body *hearth.View) (*hearth.View, error)
	// Pool is the memory for answers until they are sent.
	Pool *hearth.Pool
}

// Names are a node's part in the names of a ring. They must be closed.
type Names struct {
	o      Options
	tree   atomic.Pointer[Tree]
	stats  counters
	gossip *gossip

	mu   sync.Mutex // guards uses; Owner is called under it, nothing else
	uses map[[16]byte]use
}

// use counts the questions about a directory that are in flight: asking those to another node, telling
// those from other nodes. At least one of the two is 0.
type use struct{ asking, telling int }

// New returns Names without a tree. They refuse all questions of other nodes until Serve.
func New(o Options) *Names { return &Names{o: o, uses: map[[16]byte]use{}, gossip: newGossip()} }

// Serve begins to answer other nodes from a tree, whose origins are decorated by Over.
func (n *Names) Serve(t Tree) { n.tree.Store(&t) }

// Answer is a function that answers a Call.
type Answer = func(ctx context.Context, body []byte) (*hearth.View, error)

// Calls are the functions that answer other nodes, by the numbers of Calls.
func (n *Names) Calls() map[uint16]Answer {
	return map[uint16]Answer{CallNames: n.names, CallFind: n.find, CallNews: n.hear}
}

// Over decorates an origin: its directories are asked of their owners. Head and List still ask the
// origin, for recursive listings and for those who need to know the present state.
func (n *Names) Over(origin namespace.Origin) *Shared { return &Shared{origin, n} }

// Shared is an origin whose directories have an owner each in the ring.
type Shared struct {
	namespace.Origin
	n *Names
}

// Elsewhere reports whether another node is to be asked for a directory's names. Until end is called,
// once, this node answers no other node about them. A directory of a local origin is never elsewhere: it
// costs no request, and one file has another ETag on each machine.
func (s *Shared) Elsewhere(dir hearth.Directory) (end func(), elsewhere bool) {
	if hearth.IsLocal(dir.Identity) {
		return nil, false
	}
	ok := s.n.enter(dir.ID, use{asking: 1}, func(now use) bool {
		id, self := s.n.o.Owner(dir.ID)
		return now.telling == 0 && id != "" && !self
	})
	return func() { s.n.leave(dir.ID, use{asking: 1}) }, ok
}

// enter adds to the use of a directory, if may allows it.
func (n *Names) enter(dir [16]byte, more use, may func(now use) bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.uses[dir]
	if !may(now) {
		return false
	}
	n.uses[dir] = use{now.asking + more.asking, now.telling + more.telling}
	return true
}

func (n *Names) leave(dir [16]byte, less use) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.uses[dir]
	if now = (use{now.asking - less.asking, now.telling - less.telling}); now == (use{}) {
		delete(n.uses, dir)
	} else {
		n.uses[dir] = now
	}
}

// Names asks a directory's owner for a page of names, as namespace.Teller says. If it returns an error,
// each was not called.
func (s *Shared) Names(ctx context.Context, dir hearth.Directory, behind string, old time.Duration, each func(*hearth.Object) bool) (hearth.Told, error) {
	s.n.stats.pages.Add(1)
	if behind == "" {
		s.n.stats.listings.Add(1)
	}
	q := question{dir: dir, behind: behind, old: old}
	var told hearth.Told
	var page []hearth.Object
	err := s.n.ask(ctx, CallNames, &q, func(b []byte) (err error) {
		told, page, err = parsePage(b, &q)
		if err == nil && told.Age > max(old, namespace.CopyShare*told.Took) {
			s.n.stats.old.Add(1)
			err = fmt.Errorf("%w: %v, not %v", ErrOld, told.Age, old)
		}
		return err
	})
	if err != nil {
		return hearth.Told{}, fmt.Errorf("ask for the names in %q: %w", dir.Prefix, err)
	}
	for i := range page {
		if !each(&page[i]) {
			told.Last = false
			break
		}
	}
	return told, nil
}

// Find asks a directory's owner what a segment stands for, as namespace.Teller says.
func (s *Shared) Find(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) (f hearth.Found, err error) {
	s.n.stats.finds.Add(1)
	q := question{dir: dir, behind: segment, old: old}
	err = s.n.ask(ctx, CallFind, &q, func(b []byte) (err error) {
		f, err = parseFound(b, &q)
		if err == nil && f.Age > old {
			s.n.stats.old.Add(1)
			err = fmt.Errorf("%w: %v, not %v", ErrOld, f.Age, old)
		}
		return err
	})
	if err != nil {
		return hearth.Found{}, fmt.Errorf("ask what %q in %q is: %w", segment, dir.Prefix, err)
	}
	return f, nil
}

// ask asks a directory's owner, and counts failures.
func (n *Names) ask(ctx context.Context, number uint16, q *question, take func([]byte) error) error {
	err := n.call(ctx, number, q, take)
	if err != nil && ctx.Err() == nil {
		n.stats.elsewhere.Add(1)
	}
	return err
}

func (n *Names) call(ctx context.Context, number uint16, q *question, take func([]byte) error) error {
	id, self := n.o.Owner(q.dir.ID)
	if self || id == "" {
		return errNobody // the map has changed since Elsewhere found the directory to be another node's
	}
	body, err := q.append(nil)
	if err != nil {
		return err
	}
	v, err := n.o.Call(ctx, id, number, hearth.NewView(body))
	if err != nil {
		return err
	}
	if v == nil {
		return fmt.Errorf("%w: it is empty", ErrAnswer)
	}
	defer v.Release()
	n.stats.received.Add(int64(v.Len()))
	return take(v.Bytes())
}

// Stats are the figures of Names since they were made.
type Stats struct {
	// Listings counts listings that were begun at owners, Pages the pages that owners were asked for, and
	// Finds the single names.
	Listings, Pages, Finds int64
	// Elsewhere counts pages and names that the bucket was asked for since the owner gave no good answer.
	// Old counts those of them whose answer was older than the question allowed.
	Elsewhere, Old int64
	// Received is the bytes of answers that came.
	Received int64
	// ToldPages and ToldFinds count answers to other nodes, and Sent their bytes. Refused counts questions
	// that were not answered: by this node's map the directory is another's, or memory was short.
	ToldPages, ToldFinds, Sent, Refused int64
	// Failed counts questions of other nodes that this node's tree or bucket failed to answer.
	Failed int64
	// NewsTold counts directories with changed names of which nodes were told, once for each node.
	// NewsHeard counts those of which this node heard, and NewsAsked how often it asked for one because
	// of that. NewsLost counts those that were not told, or not taken up: a node did not answer, or too
	// many waited.
	NewsTold, NewsHeard, NewsAsked, NewsLost int64
}

type counters struct {
	listings, pages, finds, elsewhere, old, received atomic.Int64
	toldPages, toldFinds, sent, refused, failed      atomic.Int64
	newsTold, newsHeard, newsAsked, newsLost         atomic.Int64
}

// Stats returns the present figures.
func (n *Names) Stats() Stats {
	c := &n.stats
	return Stats{
		Listings: c.listings.Load(), Pages: c.pages.Load(), Finds: c.finds.Load(),
		Elsewhere: c.elsewhere.Load(), Old: c.old.Load(), Received: c.received.Load(),
		ToldPages: c.toldPages.Load(), ToldFinds: c.toldFinds.Load(), Sent: c.sent.Load(),
		Refused: c.refused.Load(), Failed: c.failed.Load(),
		NewsTold: c.newsTold.Load(), NewsHeard: c.newsHeard.Load(), NewsAsked: c.newsAsked.Load(), NewsLost: c.newsLost.Load(),
	}
}
