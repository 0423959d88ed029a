package namespace

import (
	"context"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// What may have been written is asked for again, and doubted where that fails:
//
//	a key     by itself, with the names of directories that come or go with it
//	many keys of a directory: it is listed again, if it was listed before and is not large
//	a prefix  directories that were listed are listed again from the top on, so many at most.
//	          Elsewhere there are single names at most to be wrong, which the bound of the link ends

const (
	// mostAsked keys of a write are asked for one by one, atOnce at a time. A directory with more
	// of them is listed again, where that is cheaper: LIST tells a thousand names, HEAD one.
	mostAsked, atOnce = 16, 8
	// mostListed directories are listed again after a write of which nobody can say what it
	// touched. With some ms for each that takes a second; names in others grow old.
	mostListed = 256
)

// Written is told that a link's origin has answered a write of a key, which may have made,
// changed or removed it. What is believed of it, and of directories that come or go with it, is
// asked for again before it returns; mounts hear of what changed, and other nodes are to doubt
// all of it, whatever was known here. ctx bounds the wait, not the doubt: a name that could not
// be asked for is not believed before it was, nor is that it is not there.
func (t *Tree) Written(ctx context.Context, link, key string) {
	if l := t.links.Load().named(link); l != nil {
		t.written(ctx, l, key)
	}
}

func (t *Tree) written(ctx context.Context, l *link, key string) {
	if !l.has(key) {
		return
	}
	at := t.clock.Now() + 1 // what was asked for in this very millisecond may be older
	var fresh []func()      // names in directories of which this node hears only now, from within
	for known := false; !known; {
		p, segment := l.split(key)
		var heardOf bool
		if known, heardOf = t.doubt(ctx, p, segment, at); !heardOf {
			fresh = append(fresh, func() { t.doubt(ctx, p, segment, at) })
		}
		t.tellDoubt(p, segment, at)
		if p.path == "" {
			break
		}
		key = key[:len(key)-len(segment)-1]
	}
	for _, again := range slices.Backward(fresh) {
		again()
	}
}

// writtenKeys is written of keys that may be in several links to one bucket.
func (t *Tree) writtenKeys(ctx context.Context, links []*link, keys []string) {
	byDir := map[string][]string{}
	for _, key := range keys {
		dir := key[:strings.LastIndexByte(key, '/')+1]
		byDir[dir] = append(byDir[dir], key)
	}
	var work errgroup.Group
	work.SetLimit(atOnce)
	for dir, all := range byDir {
		if len(all) > mostAsked && t.listAgain(ctx, links, dir, len(all)) {
			for _, key := range all[1:] { // other nodes know other names
				t.tellWritten(links, key)
			}
			all = all[:1] // and the directory's own name
		}
		for _, key := range all {
			work.Go(func() error {
				for _, l := range links {
					t.written(ctx, l, key)
				}
				return nil
			})
		}
	}
	_ = work.Wait() // none fails
}

// tellWritten has other nodes doubt a key that was written, as written does, where this one finds
// out in another way what it is here.
func (t *Tree) tellWritten(links []*link, key string) {
	for _, l := range links {
		if l.has(key) {
			p, segment := l.split(key)
			t.tellDoubt(p, segment, t.clock.Now())
		}
	}
}

// listAgain lists a directory in which so many keys were written, and reports whether all links
// have. Of a directory that is not listed, or has many names more, it has not.
func (t *Tree) listAgain(ctx context.Context, links []*link, dir string, written int) bool {
	for _, l := range links {
		if !strings.HasPrefix(dir, l.Prefix) {
			continue
		}
		if !t.small(l, dir, 1000+16*written) {
			return false
		}
		n, err := t.Prefix(ctx, l.Name, dir)
		if err == nil {
			err = t.Refresh(ctx, n.ID, t.Now()+1)
		}
		if err != nil {
			return false
		}
	}
	return true
}

// small reports whether all names right below a prefix of a link's keys are known and are at most
// so many: whether it is cheaper to list them again than to ask for each. Nobody is asked.
func (t *Tree) small(l *link, prefix string, most int) bool {
	id, ok, err := t.idOf(place{link: l, path: prefix[len(l.Prefix):]})
	if !ok || err != nil {
		return false
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return false
	}
	defer d.release()
	if !d.whole(t) {
		return false
	}
	n, err := t.count(d, most+1)
	return err == nil && n <= most
}

// writtenBelow lists again what was listed below prefixes, at most mostListed directories.
func (t *Tree) writtenBelow(ctx context.Context, links []*link, prefixes []string) {
	left := mostListed
	for _, prefix := range prefixes {
		for _, l := range links {
			if strings.HasPrefix(prefix, l.Prefix) {
				t.listBelow(ctx, l, prefix, &left)
			} else if strings.HasPrefix(l.Prefix, prefix) {
				t.listBelow(ctx, l, l.Prefix, &left)
			}
		}
	}
}

// listBelow lists again the directory that a prefix of keys ends in, and whatever was listed of
// those whose keys begin with it, the upper ones first: of what they do not show any more the lower
// ones are not asked for.
func (t *Tree) listBelow(ctx context.Context, l *link, prefix string, left *int) {
	more := []string{prefix[:strings.LastIndexByte(prefix, '/')+1]}
	for ; len(more) > 0 && *left > 0 && ctx.Err() == nil; more = more[1:] {
		dir := more[0]
		n, err := t.Prefix(ctx, l.Name, dir)
		if err != nil || n.ModTime.IsZero() { // when it was listed
			continue
		}
		*left--
		if t.Refresh(ctx, n.ID, t.Now()+1) != nil {
			continue
		}
		_, _ = t.Keys(ctx, l.Name, dir, "", func(o *hearth.Object) bool { // what cannot be told grows old
			if o.Size == hearth.PrefixSize && strings.HasPrefix(o.Key, prefix) {
				more = append(more, o.Key)
			}
			return true
		})
	}
}

// doubt asks again for a segment of a directory, and reports whether the name of that
// directory need not be doubted: names were known in it, and are. heardOf false: this node has
// never heard of the directory.
func (t *Tree) doubt(ctx context.Context, p place, segment string, at int64) (known, heardOf bool) {
	id, ok, err := t.idOf(p)
	if !ok || err != nil {
		return false, false
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return false, true
	}
	defer d.release()
	// Names that come only now were in a directory that may have been gone, for those above it too.
	before, sure := t.holds(d), false
	switch {
	case t.isAsked(d, segment), // perhaps since before the write: what that finds would be believed
		t.leftToAnother(d, segment):
		sure = (&inquiry{t: t, d: d, segment: segment}).ask(ctx)
	default:
		sure = t.askAgain(ctx, d, segment, at, true)
	}
	if !sure {
		t.doubtName(d, segment)
	}
	return before && t.holds(d), true
}

// leftToAnother reports whether another node would be asked for a segment, of which nothing is
// known here: that one may remember what was there before the write.
func (t *Tree) leftToAnother(d *directory, segment string) bool {
	if _, _, has := t.opinion(d, segment); has {
		return false
	}
	w := d.elsewhere()
	if w != nil {
		w.end()
	}
	return w != nil
}

// tellDoubt has the nodes of a ring doubt what they knew of a segment before then. That nothing
// changed here says nothing of them: this node may never have looked, or be about to hear that
// a directory is gone which is back with this write, as all others have heard already.
func (t *Tree) tellDoubt(p place, segment string, at int64) {
	if s := p.sharer(); s != nil {
		s.Changed(hearth.Directory{ID: p.hash(), Link: p.link.Name, Prefix: p.link.Prefix + p.path}, []string{segment}, since(t.clock.Now(), at))
	}
}

// holds reports whether any name is known in a directory.
func (t *Tree) holds(d *directory) bool {
	n, err := t.count(d, 1)
	return err == nil && n > 0
}

// count is how many names are known in a directory; it ends at most.
func (t *Tree) count(d *directory, most int) (int, error) {
	var rows store.Rows
	err := t.db.Scan(&rows, record.NameKey(nil, record.KindEntry, d.hash, ""), record.DirectoryEnd(d.hash), most)
	return rows.Len(), err
}

// doubtName has what a segment stands for asked for again before it is believed: a file by itself.
// Where there is none the directory is listed again, as one may have come; names that are in it
// are told while the origin is away.
func (t *Tree) doubtName(d *directory, segment string) {
	_ = t.change(d, func(e *edit) error { // else its bound will do
		was, ok, err := e.get(segment)
		switch {
		case err != nil:
			return err
		case ok && !was.Doubted:
			e.doubt(segment, was)
		case !ok:
			for _, sort := range []string{segment, segment + "/"} {
				t.neg.Remove(absence{Dir: d.hash, Sort: sort})
			}
			d.doubted = d.running.Load()
			if s := *d.state.Load(); s.listed > listedDoubted {
				s.listed = listedDoubted
				e.setState(s)
			}
		}
		return nil
	})
}

// isAsked reports whether a listing of the directory or a question about the segment is under way.
func (t *Tree) isAsked(d *directory, segment string) bool {
	t.asks.mu.Lock()
	defer t.asks.mu.Unlock()
	return d.running.Load() != nil || t.asks.byName[askKey{d.hash, segment, false}] != nil || t.asks.byName[askKey{d.hash, segment, true}] != nil
}
