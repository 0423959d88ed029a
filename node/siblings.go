package node

import (
	"context"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// This file is how prefetch sees a node's tiers and its tree.

// siblingTier is the tier of the node's own blocks.
type siblingTier interface {
	Fill(ctx context.Context, b hearth.Block, begun func()) error
	Fetching(id hearth.ID) bool
}

// siblingDisk is the store of that tier.
type siblingDisk interface {
	Has(id hearth.ID) bool
	Spare(b hearth.Block, since time.Time) (room, queue bool)
}

// siblingStore joins the two into a prefetch.Store.
type siblingStore struct {
	siblingTier
	siblingDisk
	near near
}

// near is what holds blocks so near that prefetching them would only read them twice: volumes. A ring's node knows
// this of the blocks that it owns.
type near interface{ Has(id hearth.ID) bool }

// Has implements prefetch.Store.
func (s siblingStore) Has(id hearth.ID) bool { return s.siblingDisk.Has(id) || s.near.Has(id) }

// Takes implements prefetch.Store.
func (s siblingStore) Takes(b hearth.Block, since time.Time) (would, soon bool) {
	return s.Spare(b, since)
}

// Held implements prefetch.Store. Without a ring, Has tells all of it.
func (s siblingStore) Held(context.Context, []hearth.Block) func(hearth.ID) bool { return s.Has }

// siblingNames is the tree as prefetch reads it.
type siblingNames struct{ *namespace.Tree }

// pageNames is how many names of a directory are held at a time.
const pageNames = 512

// Page implements prefetch.Names. The directory is listed again only where the tree's own rules say so, as for
// any reader.
func (n siblingNames) Page(ctx context.Context, link, prefix, after string) (page []hearth.Object, next string, err error) {
	dir, err := n.Prefix(ctx, link, prefix)
	if err != nil {
		return nil, "", err
	}
	names := 0
	err = n.ReadDir(ctx, dir.ID, after, func(x namespace.Node) bool {
		// What another link puts there has its own policy.
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
