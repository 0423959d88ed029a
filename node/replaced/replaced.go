// Package replaced has the disk tier give up what no name means any more.
package replaced

import (
	"context"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// queued bounds the changes that wait for the disk tier to hear of them; what does not
// fit is only evicted later.
const queued = 1024

// Disk evicts blocks of replaced versions first.
type Disk interface{ Replaced(o *hearth.Object) }

// Follow tells the disk of each version that was replaced in the tree, until ctx ends.
func Follow(ctx context.Context, tree *namespace.Tree, disk Disk) {
	old := make(chan uint64, queued)
	defer tree.Subscribe(func(c namespace.Change) {
		if c.Old == 0 {
			return
		}
		select {
		case old <- c.Old:
		default:
		}
	})()
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-old:
			if x, err := tree.Node(ctx, id); err == nil && !x.Dir {
				disk.Replaced(&x.Object)
			}
		}
	}
}
