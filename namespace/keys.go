package namespace

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/age"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// File finds the file of a whole key of a link, byte for byte and whatever its
// name in the mount is. *Absent: the tree has none.
func (t *Tree) File(ctx context.Context, link, key string) (Node, error) {
	dir, last := key[:strings.LastIndexByte(key, '/')+1], key[strings.LastIndexByte(key, '/')+1:]
	d, err := t.Prefix(ctx, link, dir)
	if err != nil {
		return Node{}, err
	}
	n, err := t.segment(ctx, d.ID, record.Meaning{Segment: last})
	if err == nil && n.Dir { // the file beside it has another name in the mount
		n, err = t.segment(ctx, d.ID, record.Meaning{Segment: last, File: true})
	}
	return n, err
}

// Prefix finds the directory of all keys of a link that begin with prefix, which
// ends in "/" or is the link's own. *Absent: the tree has none.
func (t *Tree) Prefix(ctx context.Context, link, prefix string) (Node, error) {
	l := t.links.Load().named(link)
	if l == nil || !strings.HasPrefix(prefix, l.Prefix) {
		return Node{}, &Absent{}
	}
	id, err := t.placeID(place{link: l})
	if err != nil {
		return Node{}, err
	}
	n, err := t.Node(ctx, id)
	for rest := prefix[len(l.Prefix):]; rest != "" && err == nil; {
		var segment string
		segment, rest, _ = strings.Cut(rest, "/")
		if n, err = t.segment(ctx, n.ID, record.Meaning{Segment: segment}); err == nil && !n.Dir {
			err = &Absent{TTL: n.TTL}
		}
	}
	return n, err
}

// segment looks up what a segment of a key means in a directory.
func (t *Tree) segment(ctx context.Context, dir uint64, m record.Meaning) (Node, error) {
	t.stats.lookups.Add(1)
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return Node{}, err
	}
	defer d.release()
	if d.link == nil || !record.Representable(d.prefix()+m.Segment+"/") {
		return Node{}, &Absent{}
	}
	return t.lookup(ctx, d, m)
}

// Keys calls each for what a link's origin has right below a prefix, which ends in "/" or is
// the link's own, in the order of keys, until each returns false: whatever mounts call it, and
// what other links hide in them. Directories are Objects of PrefixSize, their keys ending in
// "/". behind is the last part of a key, and they begin behind it; with "/" at its end it is a
// directory's, and all of that is passed. Names come as of ReadDir. hidden counts the keys
// there that it cannot give, as far as is known then, and those given that are doubted. *Absent: there is no such directory; an
// origin may have keys all the same where the tree has no such link, or cannot have the prefix,
// and then it is another error.
func (t *Tree) Keys(ctx context.Context, link, prefix, behind string, each func(*hearth.Object) bool) (hidden int64, err error) {
	l := t.links.Load().named(link)
	if l == nil || !strings.HasPrefix(prefix, l.Prefix) || !record.Representable(prefix) {
		return 0, fmt.Errorf("keys below %q of link %q: the tree does not have them", prefix, link)
	}
	if _, err := t.Prefix(ctx, link, prefix); err != nil {
		return 0, err
	}
	id, err := t.placeID(place{link: l, path: prefix[len(l.Prefix):]})
	if err != nil {
		return 0, err
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return 0, err
	}
	defer d.release()
	r, doubted := t.keyReader(d, behind, each), int64(0)
	tell := r.tell
	r.tell = func(sort string, e *record.Entry) bool {
		if e.Doubted || !e.Dir && l.differs.Load() != nil { // perhaps it is another, or gone; or the origin lists another ETag
			doubted++
		}
		return tell(sort, e)
	}
	err = r.since(ctx, math.MaxInt64, "")
	if l := d.running.Load(); l != nil { // the state has them once it ends
		hidden = l.refused.Load()
	}
	return max(hidden, int64(d.state.Load().refused)) + doubted, err
}

// Asks reports whether Keys of a prefix would have its names asked for. With ahead that begins
// now, for one who will read them soon; a strict link's would be asked for again then, and are not.
func (t *Tree) Asks(link, prefix string, ahead bool) bool {
	l := t.links.Load().named(link)
	if l == nil || !strings.HasPrefix(prefix, l.Prefix) || !record.Representable(prefix) {
		return false
	}
	id, ok, err := t.idOf(place{link: l, path: prefix[len(l.Prefix):]})
	if !ok || err != nil {
		return true
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return true
	}
	defer d.release()
	strict := l.Freshness.Mode == Strict
	switch {
	case strict:
	case d.listingLeft(t) > 0, d.running.Load() != nil, d.whole(t) && l.believes() && l.down.Load() != nil:
		return false
	case ahead:
		t.kick(d)
	}
	return true
}

// Written is told that a link's origin has answered a write of a key, which may have made,
// changed or removed it. What is believed of it, and of directories that come or go with it, is
// asked for again before it returns; mounts hear of what changed, and other nodes are to doubt
// all of it, whatever was known here. ctx bounds the wait, not the doubt: a name that could not
// be asked for is not believed before it was, nor is that it is not there.
func (t *Tree) Written(ctx context.Context, link, key string) {
	l := t.links.Load().named(link)
	if l == nil || !strings.HasPrefix(key, l.Prefix) || !record.Representable(key) {
		return
	}
	at := t.clock.Now() + 1 // what was asked for in this very millisecond may be older
	path := key[len(l.Prefix):]
	var fresh []func() // names in directories of which this node hears only now, from within
	for end, known := len(path), false; !known && end >= 0; {
		slash := strings.LastIndexByte(path[:end], '/') + 1
		p, segment := place{link: l, path: path[:slash]}, path[slash:end]
		var heardOf bool
		if known, heardOf = t.doubt(ctx, p, segment, at); !heardOf {
			fresh = append(fresh, func() { t.doubt(ctx, p, segment, at) })
		}
		t.tellDoubt(p, segment, at)
		end = slash - 1
	}
	for _, again := range slices.Backward(fresh) {
		again()
	}
}

// Tell has other nodes doubt keys that were written, as Written does, for who finds out in
// another way what they are here.
func (t *Tree) Tell(link string, keys []string) {
	l := t.links.Load().named(link)
	for _, key := range keys {
		if l != nil && strings.HasPrefix(key, l.Prefix) && record.Representable(key) {
			slash := strings.LastIndexByte(key[len(l.Prefix):], '/') + 1 + len(l.Prefix)
			t.tellDoubt(place{link: l, path: key[len(l.Prefix):slash]}, key[slash:], t.clock.Now())
		}
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

// Small reports whether all names right below a prefix of a link's keys are known and are at most
// so many: whether it is cheaper to list them again than to ask for each. Nobody is asked.
func (t *Tree) Small(link, prefix string, most int) bool {
	l := t.links.Load().named(link)
	if l == nil || !strings.HasPrefix(prefix, l.Prefix) {
		return false
	}
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
				t.neg.Remove(age.Absence{Dir: d.hash, Sort: sort})
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

// Hidden counts the keys right below a directory that its listing could not show.
func (t *Tree) Hidden(dir uint64) (int64, error) {
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return 0, err
	}
	defer d.release()
	return int64(d.state.Load().refused), nil
}

// Below calls each for everything below a directory: each directory before what is
// in it, names in the bucket's order, paths from "/" on. Directories that are to be
// listed are listed some at a time ahead of that. It also counts the keys that are
// hidden there.
func (t *Tree) Below(ctx context.Context, dir uint64, each func(path string, n Node) error) (hidden int64, err error) {
	w := walker{t: t, each: each}
	err = w.walk(ctx, "", dir)
	return w.hidden, err
}
