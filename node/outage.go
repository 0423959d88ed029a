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

// probeAgain is the pause between two tries of an origin that could not be asked
// when its link was made.
const probeAgain = 2 * time.Second

// goOn decides about a link whose origin failed its probe with cause. Where it
// cannot be asked now, and names of it are known from before, the link goes on with
// those: the tree is told, and the probe is tried again behind. Else the cause is
// returned: an origin that was never seen, or one that gave an answer.
func (n *Node) goOn(ctx context.Context, l *link, cause error) error {
	if ctx.Err() != nil || !origin.Away(cause) {
		return watch.Explained(cause)
	}
	known, err := n.tree.Knows(n.inTree(l))
	if err != nil || !known {
		return watch.Explained(cause)
	}
	return nil
}

// tryAgain tells the tree that a link's origin could not be asked, and probes it
// until it answers.
func (n *Node) tryAgain(l *link, cause error) {
	n.doubt(l, cause)
	n.group.Go(func() error {
		pause := time.NewTimer(probeAgain)
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

// doubt keeps why an origin could not be tried.
func (n *Node) doubt(l *link, cause error) {
	text := watch.Explained(cause).Error()
	l.doubted.Store(&text)
	var e *origin.Error
	if errors.As(cause, &e) && e.Op != "list" {
		cause = nil // the names were told: one object cannot be read
	}
	n.tree.Asked(l.name, cause)
}

const (
	// tryAfter is before a fetch that failed is tried again though nobody asks. It is longer
	// than a person looks for the cause, and than most outages; three times origin.timeout,
	// which one try may take, if that is more.
	tryAfter = 15 * time.Second
	// tryBytes are read in such a try, of the block that failed: what is wrong with bodies
	// must show, too.
	tryBytes = 1 << 20
)

// tryFailing tries what failed at origins again, until the context ends: where all that is
// read is cached, nobody else would ever find that they are well.
func (n *Node) tryFailing(ctx context.Context) {
	var tries sync.WaitGroup // one of a link at once
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
				continue // it is probed anyway
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

// askable keeps whether questions for a link's names are answered.
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

// again reads what failed; nil: the origin has it, or answers that it is gone. Where it is
// denied, another object tells whether all are.
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

// warning says what a mount of the link should know; "": all is well.
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

// tellPassed logs what the link's first probe could not read.
func (n *Node) tellPassed(l *link) {
	if passed := l.passed.Load(); passed != nil && *passed != "" {
		n.events.Warn(somePassed, "link", l.Path, "cause", *passed)
	}
}
