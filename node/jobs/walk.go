package jobs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/warmup"
)

// Why a pin does not hold all that it should.
const (
	lacksNames  = "nothing is known at this path: it is gone from the origin, or no link of this node leads there (hearth unpin ends the pin)"
	lacksMemory = "there is no memory to note what it holds, so that it may be evicted: raise --cache-ram"
)

// walk calls each for every known file at or below a path, without asking an origin.
func (k *Keeper) walk(ctx context.Context, path string, each func(o *hearth.Object)) error {
	ctx = namespace.Quiet(ctx)
	n, err := k.parts.Tree.Resolve(ctx, path)
	if err != nil {
		return err
	}
	if !n.Dir {
		each(&n.Object)
		return nil
	}
	_, err = k.parts.Tree.Below(ctx, n.ID, func(_ string, n namespace.Node) error {
		if !n.Dir {
			each(&n.Object)
		}
		return ctx.Err()
	})
	return err
}

// rebuild makes a pin's set and figures again, from the names that are known.
func (k *Keeper) rebuild(ctx context.Context, path string) {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-k.turn }()
	if k.lost(path) {
		return
	}
	now, err := k.look(ctx, path, k.parts.Sieves.Open())
	k.mu.Lock()
	h := k.held[path]
	if h != nil && h.set != nil && now.Lacks == lacksMemory { // no memory for two sets: add what is new to the old one
		set := h.set
		k.mu.Unlock()
		now.set.Close()
		now, err = k.look(ctx, path, set)
		k.mu.Lock()
		h = k.held[path]
	}
	old := now.set
	if known := err == nil || errors.Is(err, fs.ErrNotExist); h != nil && known {
		old, now.Pin, now.partly = h.set, h.Pin, h.partly
		now.Lacks = cmp.Or(now.Lacks, now.partly)
		*h = now
	}
	used := h != nil && h.set == old
	k.mu.Unlock()
	if old != nil && !used {
		old.Close()
	}
}

// lost reports whether a pin's set knows more than its names do, because the database began anew and the names
// are not listed yet.
func (k *Keeper) lost(path string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[path]
	return h != nil && h.set != nil && (k.news.lost || k.news.gen != k.parts.Tree.Records().Generation())
}

// look walks what is known at and below a path, and adds its versions to the pin's set.
func (k *Keeper) look(ctx context.Context, path string, set *warmup.Set) (held, error) {
	now := held{set: set}
	err := k.walk(ctx, path, func(o *hearth.Object) {
		now.Files++
		now.Bytes += o.Size
		if !o.Cacheable() || k.parts.Disk == nil {
			return
		}
		dir, n := k.parts.Disk.Needs(o)
		for len(now.needs) <= dir {
			now.needs = append(now.needs, 0)
		}
		now.needs[dir] += n
		now.Needs += n
		if !set.Add(o.Version) {
			now.Lacks = lacksMemory
		}
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		now.Lacks = lacksNames
	case err != nil && ctx.Err() == nil:
		k.parts.Log("the names of a pin cannot be read", err)
	}
	return now, err
}

// Claimed returns the bytes of each cache directory that pins in force need, without the pins at and below some
// targets of a warm-up.
func (k *Keeper) Claimed(targets []string) (claimed []int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	others := k.othersLocked(targets)
	for _, h := range others {
		if within(others, h.Path, false) {
			continue
		}
		for dir, n := range h.needs {
			for len(claimed) <= dir {
				claimed = append(claimed, 0)
			}
			claimed[dir] += n
		}
	}
	return claimed
}

// Within implements warmup.Room.
func (k *Keeper) Within(targets []string) (sets []*warmup.Set) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.held {
		if h.set != nil && h.Job == "" && k.of(h, targets) {
			sets = append(sets, h.set)
		}
	}
	return sets
}

// Covered implements warmup.Room.
func (k *Keeper) Covered(target string, targets []string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return within(k.othersLocked(targets), k.path(target), true)
}

// othersLocked returns the pins in force that do not lie at or below any target. A pin that is still being
// loaded is not among them, since its job claims the room.
func (k *Keeper) othersLocked(targets []string) (others []*held) {
	for _, h := range k.held {
		if h.Job == "" && !k.of(h, targets) {
			others = append(others, h)
		}
	}
	return others
}

// of reports whether a pin lies at or below one of the targets.
func (k *Keeper) of(h *held, targets []string) bool {
	return slices.ContainsFunc(targets, func(t string) bool { return covers(k.path(t), h.Path) })
}

// within reports whether a path lies below one of the pins, or, with at, at one.
func within(all []*held, path string, at bool) bool {
	for _, h := range all {
		if covers(h.Path, path) && (at || h.Path != path) {
			return true
		}
	}
	return false
}

// path returns a target's path in the tree.
func (k *Keeper) path(target string) string {
	if target != "" && target[0] != '/' {
		return k.parts.PathOf(target)
	}
	return target
}

var _ warmup.Durable = (*Keeper)(nil)
