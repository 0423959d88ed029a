package node

import (
	"context"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// This file is prefetch's place in a node: the tiers and the tree as it sees
// them.

// siblingTier is that of the node's own blocks.
type siblingTier interface {
	Fill(ctx context.Context, b hearth.Block, begun func()) error
	Fetching(id hearth.ID) bool
}

// siblingDisk is what stands in it.
type siblingDisk interface {
	Has(id hearth.ID) bool
	Spare(b hearth.Block, since time.Time) (room, queue bool)
}

// siblingStore is both.
type siblingStore struct {
	siblingTier
	siblingDisk
}

// Takes is prefetch.Store's.
func (s siblingStore) Takes(b hearth.Block, since time.Time) (would, soon bool) {
	return s.Spare(b, since)
}

// Held is prefetch.Store's: Has tells as much.
func (s siblingStore) Held(context.Context, []hearth.Block) func(hearth.ID) bool { return s.Has }

// siblingNames is the tree.
type siblingNames struct{ *namespace.Tree }

// pageNames of a directory are held at a time.
const pageNames = 512

// Page is prefetch.Names'. The directory is listed again where the tree's own rules say
// so, as for any reader.
func (n siblingNames) Page(ctx context.Context, link, prefix, after string) (page []hearth.Object, next string, err error) {
	dir, err := n.Prefix(ctx, link, prefix)
	if err != nil {
		return nil, "", err
	}
	names := 0
	err = n.ReadDir(ctx, dir.ID, after, func(x namespace.Node) bool {
		// What another link puts there has a policy of its own.
		if !x.Dir && !x.Unsure && x.Object.Link == link && strings.HasPrefix(x.Object.Key, prefix) {
			page = append(page, x.Object)
		}
		names++
		next = x.Behind()
		return names < pageNames
	})
	if names < pageNames {
		next = ""
	}
	return page, next, err
}
