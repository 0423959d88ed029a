package s3gw

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// seenWithin is how long an answer waits until what was written is known here.
	seenWithin = 5 * time.Second
	// mostAsked keys of a write are asked for one by one, so many at a time. A directory with more
	// of them is listed again, where that is cheaper: LIST tells a thousand names, HEAD one.
	mostAsked, atOnce = 16, 8
	// mostListed directories are listed again after a write of which nobody can say what it
	// touched. With some ms for each that takes a second; names in others grow old.
	mostListed = 256
)

// forget has the tree ask again for all that a write may have changed, and headers be asked for
// anew. A key counts together with its Alias: to some origins they are one object.
//
// What can touch names that it does not tell (Everything: what configures or removes the bucket,
// and MinIO's way to unpack an archive; Below: MinIO's forced removal) has directories listed
// again from the top on, at most mostListed of them, and only those that were listed before:
// elsewhere there is nothing but single names to be wrong, which the bound of the link ends.
func (x *exchange) forget(ctx context.Context, keys []string) {
	for _, key := range keys {
		if alias, _ := request.Alias(key); alias != key && alias != "" {
			keys = append(keys, alias)
		}
	}
	switch x.asks.Touches {
	case request.TheKey, request.Listed:
		for _, key := range keys {
			x.objects.Changed(key)
		}
		x.written(ctx, keys)
	case request.Below, request.Everything:
		x.objects.AllChanged()
		x.written(ctx, keys)
		if x.asks.Touches == request.Everything {
			keys = []string{""}
		}
		left, links := mostListed, x.all(x.asks.Bucket)
		for _, key := range keys {
			for i := range links {
				l := &links[i]
				if strings.HasPrefix(key, l.Prefix) {
					x.listBelow(ctx, l, key, &left)
				} else if strings.HasPrefix(l.Prefix, key) {
					x.listBelow(ctx, l, l.Prefix, &left)
				}
			}
		}
	}
}

// written has the tree ask again for keys.
func (x *exchange) written(ctx context.Context, keys []string) {
	byDir, links := map[string][]string{}, x.all(x.asks.Bucket)
	for _, key := range keys {
		dir := key[:strings.LastIndexByte(key, '/')+1]
		byDir[dir] = append(byDir[dir], key)
	}
	var work sync.WaitGroup
	defer work.Wait()
	room := make(chan struct{}, atOnce)
	for dir, all := range byDir {
		if len(all) > mostAsked && x.listAgain(ctx, links, dir, len(all)) {
			for i := range links {
				x.o.Tree.Tell(links[i].Name, all[1:])
			}
			all = all[:1] // and the directory's own name
		}
		for _, key := range all {
			room <- struct{}{}
			work.Go(func() {
				defer func() { <-room }()
				for i := range links {
					if strings.HasPrefix(key, links[i].Prefix) {
						x.o.Tree.Written(ctx, links[i].Name, key)
					}
				}
			})
		}
	}
}

// listAgain has the tree list a directory in which so many keys were written, and reports whether
// all links have. Of a directory that is not listed, or has many names more, it has not.
func (x *exchange) listAgain(ctx context.Context, links []Link, dir string, written int) bool {
	for i := range links {
		l := &links[i]
		if !strings.HasPrefix(dir, l.Prefix) {
			continue
		}
		if !x.o.Tree.Small(l.Name, dir, 1000+16*written) {
			return false
		}
		n, err := x.o.Tree.Prefix(ctx, l.Name, dir)
		if err == nil {
			err = x.o.Tree.Refresh(ctx, n.ID, x.o.Tree.Now()+1)
		}
		if err != nil {
			return false
		}
	}
	return true
}

// listBelow has the tree list again the directory that a prefix of keys ends in, and whatever
// was listed of those whose keys begin with it, the upper ones first: of what they do not show
// any more the lower ones are not asked for.
func (x *exchange) listBelow(ctx context.Context, l *Link, prefix string, left *int) {
	for more := []string{prefix[:strings.LastIndexByte(prefix, '/')+1]}; len(more) > 0 && *left > 0 && ctx.Err() == nil; more = more[1:] {
		dir := more[0]
		n, err := x.o.Tree.Prefix(ctx, l.Name, dir)
		if err != nil || n.ModTime.IsZero() { // when it was listed
			continue
		}
		*left--
		if x.o.Tree.Refresh(ctx, n.ID, x.o.Tree.Now()+1) != nil {
			continue
		}
		_, _ = x.o.Tree.Keys(ctx, l.Name, dir, "", func(o *hearth.Object) bool { // what cannot be told grows old
			if o.Size == hearth.PrefixSize && strings.HasPrefix(o.Key, prefix) {
				more = append(more, o.Key)
			}
			return true
		})
	}
}
