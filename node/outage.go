package node

import (
	"context"
	"time"

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
		return explained(cause)
	}
	known, err := n.tree.Knows(n.inTree(l))
	if err != nil || !known {
		return explained(cause)
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
	text := explained(cause).Error()
	l.doubted.Store(&text)
	n.tree.Asked(l.name, cause)
}

// warning says what a mount of the link should know; "": all is well.
func (l *link) warning() string {
	if cause := l.doubted.Load(); cause != nil {
		return "the origin cannot be asked, the last known names are shown until it can: " + *cause
	}
	return ""
}
