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

// The origin is asked again for what may have been written. Where that fails, names are doubted:
//
//	a key     by itself, with the names of directories that come or go with it
//	many keys of a directory: it is listed again, if it was listed before and is not large
//	a prefix  directories that were listed are listed again from the top on, so many at most.
//	          Elsewhere at most single names are wrong, until the bound of the link

const (
	// mostAsked keys of a write are asked for one by one, atOnce at a time. A directory with more
	// of them is listed again, where that is cheaper: LIST tells a thousand names, HEAD one.
	mostAsked, atOnce = 16, 8
	// mostListed directories are listed again after a write of which nobody can say what it
	// touched. With some ms for each that takes a second; names in others grow old.
	mostListed = 256
)

// Written says that a link's origin has answered a write of a key, which may have made, changed or
// removed it. Before it returns it asks the origin again for the key, and for the directories that come
// or go with it. Mounts hear of what changed. Other nodes are told to doubt all of these names,
// whatever was known here.
//
// ctx bounds the wait, not the doubt: a name that could not be asked for is not believed until it was,
// neither as present nor as absent.
func (t *Tree) Written(ctx context.Context, link, key string) {
	if l := t.links.Load().named(link); l != nil {
		t.written(ctx, l, key)
	}
}

// Wrote does what Written does, for a writer whom the origin has told what the key has now: o, or nothing if it is nil. So the
// key itself is not asked for. id, if it is not 0, is a node id by which kernels know the file that was written. It stands for
// this version from now on, as long as one holds it; the name has another one, of which is set what was of id (SetAttr).
func (t *Tree) Wrote(ctx context.Context, link, key string, o *hearth.Object, id uint64) {
	l := t.links.Load().named(link)
	if l == nil {
		return
	}
	t.writtenAs(ctx, l, key, func(q *inquiry) bool {
		if q.file = (finding{true, o != nil}); o != nil {
			q.object = *o
		}
		q.begin()
		err := q.keep()
		if err == nil && o != nil && id != 0 {
			err = t.change(q.d, func(e *edit) error {
				x := fileEntry(l, o)
				now, ok, err := e.get(q.segment)
				if err != nil || ok && now.ID == id { // the same bytes were written: it is the name's still
					return err
				}
				x.ID = id
				e.supersede(q.segment, &x)
				if a, has := t.Attr(id); has && ok && now.Same(&x) {
					t.setAttr(e.w, now.ID, &a)
				}
				return nil
			})
		}
		return err == nil
	})
}

// Touch has front ends forget what they were told of a key's name and its directory: they show other names than the origin has.
func (t *Tree) Touch(link, key string) {
	d, sort, ok := t.find(&hearth.Object{Link: link, Key: key})
	if d != nil {
		defer d.release()
	}
	if ok {
		t.news.Tell([]Change{{Dir: d.id, Name: record.MountName(sort, false)}})
	}
}

func (t *Tree) written(ctx context.Context, l *link, key string) { t.writtenAs(ctx, l, key, nil) }

// writtenAs is written; tell, if it is not nil, takes the place of the question about the key itself.
func (t *Tree) writtenAs(ctx context.Context, l *link, key string, tell func(*inquiry) (sure bool)) {
	if !l.has(key) {
		return
	}
	at := t.clock.Now() + 1 // an answer of this very millisecond may be older than the write
	var fresh []func()      // names in directories that this node first hears of now, the inner ones first
	for known := false; !known; {
		p, segment := l.split(key)
		var heardOf bool
		if known, heardOf = t.doubt(ctx, p, segment, at, tell); !heardOf {
			fresh = append(fresh, func() { t.doubt(ctx, p, segment, at, tell) })
		}
		t.tellDoubt(p, segment, at)
		if p.path == "" {
			break
		}
		key, tell = key[:len(key)-len(segment)-1], nil
	}
	for _, again := range slices.Backward(fresh) {
		again()
	}
}

// writtenKeys does what written does for many keys, in several links to one bucket.
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
			for _, key := range all[1:] { // other nodes may know other names
				t.tellWritten(links, key)
			}
			all = all[:1] // one key stands for the directory's own name
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

// tellWritten makes other nodes doubt a key that was written, as written does. This node itself learns
// of the key by a listing.
func (t *Tree) tellWritten(links []*link, key string) {
	for _, l := range links {
		if l.has(key) {
			p, segment := l.split(key)
			t.tellDoubt(p, segment, t.clock.Now())
		}
	}
}

// listAgain lists a directory in which that many keys were written, and reports whether it did so for
// all links. It does not for a directory that was never listed, or that has many more names.
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

// small reports whether all names directly below a prefix are known, and are at most that many. Then
// listing them again is cheaper than asking for each. It asks nobody.
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

// listBelow lists again the directory that a prefix of keys ends in, and each listed directory whose
// keys begin with the prefix, the upper ones first. A lower one that is gone from the upper ones is not
// asked for.
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

// doubt asks again for a segment of a directory, or takes over what tell knows of it. known means that the directory's own name need not be
// doubted: names were known in it before and after, and it has that name still. heardOf is false when this node has never heard of
// the directory.
func (t *Tree) doubt(ctx context.Context, p place, segment string, at int64, tell func(*inquiry) (sure bool)) (known, heardOf bool) {
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
	case tell != nil:
		sure = tell(&inquiry{t: t, d: d, segment: segment})
	case t.isAsked(d, segment), // perhaps since before the write, and its answer would be believed
		t.leftToAnother(d, segment):
		sure = (&inquiry{t: t, d: d, segment: segment}).ask(ctx)
	default:
		sure = t.askAgain(ctx, d, segment, at, true)
	}
	if !sure {
		t.doubtName(d, segment)
	}
	return before && t.holds(d) && t.stands(p), true
}

// leftToAnother reports whether nothing is known here of a segment, so that its owner would be asked.
// The owner may remember what was there before the write.
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

// tellDoubt makes the nodes of a ring doubt what they knew of a segment before that time. They are told
// even when nothing changed here: this node may never have looked. Or it may be about to hear, after
// all others, that a directory is gone which this write brings back.
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

// count is how many names are known in a directory. It stops counting at most.
func (t *Tree) count(d *directory, most int) (int, error) {
	var rows store.Rows
	err := t.db.Scan(&rows, record.NameKey(nil, record.KindEntry, d.hash, ""), record.DirectoryEnd(d.hash), most)
	return rows.Len(), err
}

// doubtName makes sure that the origin is asked for a segment before it is believed. A file is asked
// for by itself. Where none is known the directory is listed again, as one may have come; its known
// names are served while the origin is away.
func (t *Tree) doubtName(d *directory, segment string) {
	_ = t.change(d, func(e *edit) error { // if this fails, the bound of the link limits the error
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
			e.news(segment, new(record.Entry), 0) // kernels remember that there is none
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
