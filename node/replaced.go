package node

import (
	"context"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// This file has the disk tier evict versions that no name means any more.

// replacedQueue bounds the replaced versions that wait for the disk tier to hear of them. One that does not fit
// is only evicted later.
const replacedQueue = 1024

// replacedDisk evicts blocks of replaced versions first.
type replacedDisk interface{ Replaced(o *hearth.Object) }

// followReplaced tells the disk tier of each version that was replaced in the tree, until ctx ends.
func followReplaced(ctx context.Context, tree *namespace.Tree, disk replacedDisk) {
	old := make(chan uint64, replacedQueue)
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
