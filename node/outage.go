package node

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/origin"
)

// probeAgain is the pause between two probes of an origin that could not be asked when its link was made.
const probeAgain = 2 * time.Second

// errLater means that a link's origin was not probed yet.
var errLater = errors.New("the origin is asked once the mounts are served")

// probe asks a link's origin while the link is made. Where users of mounts that are taken over wait meanwhile, an origin that
// does not answer must not make them wait longer: then it returns errLater, with which the link goes on.
func (n *Node) probe(ctx context.Context, l *link) error {
	if n.config.Keeper.Has() && n.stalled.Load() == 0 {
		return errLater
	}
	return l.probe(ctx)
}

// goOn decides about a link whose origin failed its probe with cause. If the origin cannot be asked now,
// but its names are known from before, the link goes on with those names. Then goOn returns nil, and the
// caller probes again (tryAgain). Otherwise goOn returns the cause: the origin was never seen, or it gave a
// definite answer.
func (n *Node) goOn(ctx context.Context, l *link, cause error) error {
	if cause == nil || cause == errLater {
		return nil
	}
	if ctx.Err() != nil || !origin.Away(cause) {
		return watch.Explained(cause)
	}
	known, err := n.tree.Knows(n.inTree(l))
	if err != nil || !known {
		return watch.Explained(cause)
	}
	return nil
}

// tryAgain tells the tree that a link's origin could not be asked, if it was asked, and probes the origin until it answers.
func (n *Node) tryAgain(l *link, cause error) {
	first := probeAgain
	if cause == errLater {
		first = 0
	} else {
		n.doubt(l, cause)
	}
	n.group.Go(func() error {
		pause := time.NewTimer(first)
		defer pause.Stop()
		for {
			select {
			case <-n.ctx.Done():
				return nil
			case <-pause.C:
			}
			err := l.probe(n.ctx)
			if err == nil {
				l.doubted.Store(nil)
				n.tree.Asked(l.name, nil)
				if d := l.found.Load(); d != nil {
					n.tree.Differs(l.name, d.key, d.says)
				}
				return nil
			}
			if n.ctx.Err() == nil {
				n.doubt(l, err)
			}
			pause.Reset(probeAgain)
		}
	})
}

// doubt notes why an origin could not be probed.
func (n *Node) doubt(l *link, cause error) {
	text := watch.Explained(cause).Error()
	l.doubted.Store(&text)
	var e *origin.Error
	if errors.As(cause, &e) && e.Op != "list" {
		cause = nil // the names were listed; only an object cannot be read
	}
	n.tree.Asked(l.name, cause)
}

const (
	// tryAfter is the time before a failed fetch is tried again although no reader asks. It is longer than a
	// person looks for the cause, and than most outages. If three times origin.timeout, which one try may take,
	// is longer, that is used.
	tryAfter = 15 * time.Second
	// tryBytes are read in such a try, of the block that failed, so that a fault in bodies shows, too.
	tryBytes = 1 << 20
)

// tryFailing tries failed fetches again, until the context ends. Where all that readers ask for is cached,
// nothing else would ever find that the origin is well again.
func (n *Node) tryFailing(ctx context.Context) {
	var tries sync.WaitGroup // at most one try of a link at a time
	defer tries.Wait()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, l := range n.links.list() {
			if f := l.health.Due(); f != nil {
				tries.Go(func() {
					is := l.again(ctx, f.Block)
					if ctx.Err() == nil && l.health.Tried(f, is) {
						n.events.Info("origin answers again", "link", l.Path)
					}
				})
			}
			if l.doubted.Load() != nil {
				continue // tryAgain probes it already
			}
			if f := l.names.Due(); f != nil {
				tries.Go(func() {
					err := l.first(ctx, func(hearth.Object) error { return nil })
					if l.names.Tried(f, watch.FailureOfNames(err)) {
						n.tree.Asked(l.name, nil)
					}
				})
			}
		}
	}
}

// askable notes whether the origin answers questions for a link's names.
func (n *Node) askable(link string, err error) {
	l := n.links.named(link)
	switch {
	case l == nil:
	case err == nil:
		l.names.Succeeded()
	default:
		l.names.Failed(*watch.FailureOfNames(err), time.Now())
	}
}

// again reads what failed. nil means that the origin has it, or answers that it is gone. If the read is denied,
// a probe of another object tells whether all reads are.
func (l *link) again(ctx context.Context, b hearth.Block) *watch.Failure {
	r, err := l.origin.Read(ctx, b.Object, b.Offset(), int64(min(b.Len(), tryBytes)))
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		_ = r.Close() // it was read
	}
	if err == nil || errors.Is(err, hearth.ErrStale) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f := watch.FailureOf(b, err)
	f.OneKey = f.Archived || f.Denied && l.probe(ctx) == nil
	return f
}

// warning returns what a user of the link's mounts should know. It is empty if all is well.
func (l *link) warning() string {
	if cause := l.doubted.Load(); cause != nil {
		return "the origin cannot be asked, the last known names are shown until it can: " + *cause
	}
	if passed := l.passed.Load(); passed != nil && *passed != "" {
		return somePassed + ": " + *passed
	}
	return ""
}

const somePassed = "not every object can be read"

// tellPassed logs which objects the link's first probe could not read.
func (n *Node) tellPassed(l *link) {
	if passed := l.passed.Load(); passed != nil && *passed != "" {
		n.events.Warn(somePassed, "link", l.Path, "cause", *passed)
	}
}
