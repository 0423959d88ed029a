// Package share has each directory of a bucket listed by one node of a ring, of which the
// others copy it. It decorates the origin of a link.
//
// A directory belongs to the owner of its slot. Another node asks that one for a page of
// names, or for what a single name stands for, in place of the bucket, and says how old
// the answer may be. The owner answers from its tree of names, which has the bucket asked if
// it does not know well enough: once for all who ask meanwhile. Each answer says how
// long before the question the bucket was asked for it, as a duration, since clocks differ;
// so a name's bound counts from then, wherever it is copied to, and nobody copies a copy.
//
// Pages are asked for one by one, by the name that they come behind. Each is true of its
// range of names at its age, as a bucket's own pages are, so a directory that changes
// between two needs no new beginning; and whoever takes them puts what the owner did not
// tell from the bucket behind what it did, when it dies, or does not want to.
//
// The owner answers for what its own map says is its, and the asker goes to the bucket by
// itself at once for anything but an answer: maps differ for a while. A directory is never
// asked for elsewhere by a node while that tells of it, nor told of while it is asked for
// elsewhere: so who waits for a node waits for the bucket, and never in a circle, however
// much maps differ.
//
// Who learns from the bucket that a name means another thing tells the directory's owner;
// that asks the bucket, and who owns the directory tells all others what it finds. News are doubt,
// never truth: who hears them asks the owner for what it believes itself, once a second for
// each directory at most, whatever is said how often. What is lost, since
// a node does not answer or much is told at once, is learned when the names' time is over.
//
// What comes is checked: names are one segment each, in order, behind what was asked for;
// Versions are computed here, of the identity that this node knows. Anything else fails the
// answer.
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

// The numbers of Calls that all nodes know: names have 1 to 15.
const (
	CallNames uint16 = 1
	CallFind  uint16 = 2
	CallNews  uint16 = 3
)

var (
	// ErrElsewhere says that this node is not the one to ask: by its map the directory is
	// another's, or it asks for it itself.
	ErrElsewhere = errors.New("another node's by this one's map: ask the bucket")
	// ErrAnswer says that an answer cannot be what was asked for.
	ErrAnswer = errors.New("what came is no answer: do all nodes run the same release?")
	// ErrOld says that an answer is older than was asked for.
	ErrOld = errors.New("older than asked for")

	errNobody = errors.New("nobody tells: no ring, or the directory is this node's own")
)

// Tree is what a node knows of names.
type Tree interface {
	namespace.Teller
	// Heard is told that a segment, or "" for the directory, was found so long ago to mean
	// another thing. It returns once what is older is asked for of who tells of the directory.
	Heard(ctx context.Context, dir hearth.Directory, segment string, ago time.Duration)
}

var (
	_ Tree             = (*namespace.Tree)(nil)
	_ namespace.Sharer = (*Shared)(nil)
)

// Options are what Names are made of; all must be given.
type Options struct {
	// Owner is the node that a directory belongs to by this node's map; "": none. self: it
	// is this one.
	Owner func(dir [16]byte) (id string, self bool)
	// Others are the ids of those that are told what this node learns of directories of its own.
	Others func() []string
	// Call asks a node by a number; the caller releases what it gets.
	Call func(ctx context.Context, id string, number uint16, body *hearth.View) (*hearth.View, error)
	// Pool is where answers lie on their way out.
	Pool *hearth.Pool
}

// Names are a node's part in the names of a ring. Close them.
type Names struct {
	o      Options
	tree   atomic.Pointer[Tree]
	stats  counters
	gossip *gossip

	mu   sync.Mutex // guards uses; Owner is called under it, nothing else
	uses map[[16]byte]use
}

// use is how many ask elsewhere for a directory, and how many tell of it. One of them is 0.
type use struct{ asking, telling int }

// New returns Names without a tree: until Serve all questions of others are refused.
func New(o Options) *Names { return &Names{o: o, uses: map[[16]byte]use{}, gossip: newGossip()} }

// Serve answers others from a tree whose origins are decorated by Over.
func (n *Names) Serve(t Tree) { n.tree.Store(&t) }

// Answer answers a Call.
type Answer = func(ctx context.Context, body []byte) (*hearth.View, error)

// Calls answer others, by number.
func (n *Names) Calls() map[uint16]Answer {
	return map[uint16]Answer{CallNames: n.names, CallFind: n.find, CallNews: n.hear}
}

// Over is an origin whose directories are asked of their owners. Head and List are the
// origin's own: a recursive listing, and who wants to know what is so now, goes there.
func (n *Names) Over(origin namespace.Origin) *Shared { return &Shared{origin, n} }

// Shared is an origin of which each directory belongs to one node.
type Shared struct {
	namespace.Origin
	n *Names
}

// Elsewhere reports whether another node is to be asked for a directory's names. Until
// end is called, once, this node tells nobody of them. A local directory costs no request, and gives one
// file another ETag on each machine.
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

// enter adds to the use of a directory, if may says so.
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

// Names are a page of a directory's names as its owner knows them, as a Teller has it. After
// an error each was not called.
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

// Find asks a directory's owner what a segment stands for, as a Teller has it.
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

// ask asks a directory's owner, and counts what comes of it.
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
		return errNobody // since the directory was found to be another's
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
	// Listings of directories were begun at their owners, in Pages; Finds are single names.
	Listings, Pages, Finds int64
	// Elsewhere are pages and names that the bucket was asked for since the owner did not
	// answer, Old those of them that came and were older than asked for.
	Elsewhere, Old int64
	// Received are bytes of answers that came.
	Received int64
	// ToldPages and ToldFinds are answers to others, in Sent bytes. Refused were not
	// answered, since the directory is another's by this node's map, or for want of memory.
	ToldPages, ToldFinds, Sent, Refused int64
	// Failed are questions of others that this node's tree or bucket failed to answer.
	Failed int64
	// NewsTold are directories of which nodes were told that names in them changed, each node counted;
	// NewsHeard those of which this node heard, NewsAsked how often one was asked for because
	// of that. NewsLost were not told, or not taken up: a node did not answer, or too many waited.
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
