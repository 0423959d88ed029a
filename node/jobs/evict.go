package jobs

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// Serve adds the pins' part of the admin API. plain adds a route that answers with one document.
func (k *Keeper) Serve(plain func(pattern string, do func(*http.Request) (any, error))) {
	plain("GET /v1/pins", func(*http.Request) (any, error) { return k.List(), nil })
	plain("DELETE /v1/pins", func(r *http.Request) (any, error) {
		uid := admin.From(r.Context()).UID
		paths, as := k.endable(uid), map[string]string{} // without paths: all that this user may end
		if asked := r.URL.Query()["path"]; len(asked) > 0 {
			paths = nil
			for _, a := range asked {
				for _, path := range k.pinnedAs(r.Context(), a) {
					paths, as[path] = append(paths, path), a
				}
			}
		}
		if err := k.Unpin(paths, uid, as); err != nil {
			return nil, err
		}
		for i, path := range paths {
			paths[i] = cmp.Or(as[path], k.parts.Short(path))
		}
		return paths, nil
	})
	plain("POST /v1/evict", func(r *http.Request) (any, error) {
		v := r.URL.Query()
		if len(v["path"]) == 0 {
			return nil, &admin.Error{Kind: admin.KindUsage, Message: "evict: a path is missing"}
		}
		return k.evict(r.Context(), v["path"], v.Get("dry_run") == "true")
	})
}

// pinnedAs returns the paths that asked means, even if nothing is there any more.
func (k *Keeper) pinnedAs(ctx context.Context, asked string) []string {
	if all, err := k.parts.Paths(namespace.Quiet(ctx), asked); err == nil {
		return all
	}
	return []string{k.parts.PathOf(asked)}
}

// pinned refuses to evict a path, which was asked for by that name, if a pin holds something of it.
func (k *Keeper) pinned(asked, path string) error {
	for _, pin := range k.paths() {
		if !covers(pin, path) && !covers(path, pin) {
			continue
		}
		name := k.parts.Short(pin)
		if pin == path {
			name = asked
		}
		return warmup.Refusal(asked + " is not evicted: " + name + " is pinned (hearth unpin " + name + " ends that)")
	}
	return nil
}

// evict drops what the tiers hold of the files at and below some paths. With dry it only counts them: the files
// of which something is held, and the bytes held.
func (k *Keeper) evict(ctx context.Context, asked []string, dry bool) (t warmup.Tally, err error) {
	var paths []string
	for _, a := range asked {
		all, err := k.parts.Paths(namespace.Quiet(ctx), a)
		if err != nil {
			return t, err
		}
		for _, path := range all {
			if err := k.pinned(a, path); err != nil {
				return t, err
			}
		}
		paths = append(paths, all...)
	}
	if k.parts.Disk != nil && !dry { // a block in the write queue would come back
		if err := k.parts.Disk.Flush(ctx); err != nil && !errors.As(err, new(hearth.Unflushed)) { // need not be durable
			return t, err
		}
	}
	for _, path := range paths {
		err := k.walk(ctx, path, func(o *hearth.Object) {
			held := k.holds(o)
			if held == 0 {
				return
			}
			t.Files++
			t.Bytes += held
			if !dry {
				k.dropObject(o)
			}
		})
		if err != nil {
			return t, err
		}
	}
	return t, nil
}

// holds returns how many bytes of an object the tiers hold.
func (k *Keeper) holds(o *hearth.Object) (bytes int64) {
	for i := range o.Blocks() {
		b := o.Block(i)
		if k.parts.RAM.Has(b.ID()) || k.parts.Disk != nil && k.parts.Disk.Has(b.ID()) {
			bytes += int64(b.Len())
		}
	}
	return bytes
}

func (k *Keeper) dropObject(o *hearth.Object) {
	for i := range o.Blocks() {
		k.parts.RAM.Drop(o.Block(i).ID())
	}
	if k.parts.Disk != nil {
		k.parts.Disk.Drop(o)
	}
}
