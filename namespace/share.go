package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// Teller tells names, as a Tree tells those of its directories to other nodes, and as such a
// node tells them here.
type Teller interface {
	// Names tells the names of a directory behind a sort name, or from the first on, in the
	// bucket's order until each returns false: as far as they are known when the first is,
	// and one at least unless they are the last. Sort names are keys without the directory's
	// prefix, with "/" behind them for a directory. What is older than old is asked for
	// anew; but a listing may be as old as CopyShare times what it took. hearth.ErrMiss:
	// there is no such directory.
	Names(ctx context.Context, dir hearth.Directory, behind string, old time.Duration, each func(*hearth.Object) bool) (hearth.Told, error)
	// Find tells what a segment of a key means in a directory, likewise.
	Find(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) (hearth.Found, error)
}

// Sharer is an Origin whose directories each belong to one node of a ring, as *share.Shared
// is. That node is its Teller; after an error the origin is to be asked.
type Sharer interface {
	Origin
	Teller
	// Elsewhere reports whether another node is to be asked for a directory's names. Until
	// end is called this node tells nobody of them, so that no two wait for each other.
	Elsewhere(dir hearth.Directory) (end func(), elsewhere bool)
	// Changed is told that segments of a directory mean other things than this node thought,
	// as its origin said so long ago. It must not block.
	Changed(dir hearth.Directory, segments []string, ago time.Duration)
}

// away is the way to the node that a directory belongs to. Whoever goes it holds no place
// of those that ask an origin, which that node may need to answer: end before taking one.
type away struct {
	Sharer
	dir hearth.Directory
	end func()
}

// sharer is what tells other nodes of the directory at a place, and them of it; nil: each asks
// the origin by itself.
func (p place) sharer() Sharer {
	s, ok := p.link.Origin.(Sharer)
	if !ok || p.link.Freshness.Mode == Strict || p.link.Identity == "" || hearth.IsLocal(p.link.Identity) {
		return nil
	}
	return s
}

// elsewhere is the way to the node that tells of a directory; nil: its origin does.
func (p place) elsewhere() *away {
	s := p.sharer()
	if s == nil {
		return nil
	}
	dir := hearth.Directory{ID: p.hash(), Link: p.link.Name, Identity: p.link.Identity, Prefix: p.link.Prefix + p.path}
	if end, ok := s.Elsewhere(dir); ok {
		return &away{s, dir, sync.OnceFunc(end)}
	}
	return nil
}

// since is how long ago a time was.
func since(now, at int64) time.Duration { return time.Duration(max(0, now-at)) * time.Millisecond }

// listedAt is when the origin was asked last for what listings say of a sort name, in
// Unix ms, or 0. As a belief it must be formed before the database is read.
func (d *directory) listedAt(t *Tree, sort string) (at int64) {
	if l := d.running.Load(); l != nil && l.age == t.db.Generation() && l.Passed(sort) {
		at = l.Began()
	}
	if s := d.state.Load(); s.age == t.db.Generation() {
		at = max(at, t.clock.Trusted(s.listed))
	}
	return at
}

// owned is a directory, in use, that another node asks for. hearth.ErrMiss: this tree
// does not have it, or not as a copy.
func (t *Tree) owned(dir hearth.Directory) (*directory, error) {
	p, err := t.sharedPlace(dir)
	if err != nil {
		return nil, err
	}
	id, err := t.placeID(p)
	if err != nil {
		return nil, err
	}
	return t.dirs.get(t, id)
}

// sharedPlace is the place of a directory that another node names. hearth.ErrMiss: there is none
// here, or it is not the same.
func (t *Tree) sharedPlace(dir hearth.Directory) (p place, err error) {
	l := t.links.Load().named(dir.Link)
	if l == nil || l.Freshness.Mode == Strict || !strings.HasPrefix(dir.Prefix, l.Prefix) || !record.Representable(dir.Prefix) {
		return p, fmt.Errorf("link %q: %w", dir.Link, hearth.ErrMiss)
	}
	p = place{link: l, path: dir.Prefix[len(l.Prefix):]}
	if p.path != "" && !record.IsDir(p.path) || p.hash() != dir.ID {
		return p, fmt.Errorf("directory %q of another link %q: %w", dir.Prefix, dir.Link, hearth.ErrMiss)
	}
	return p, nil
}

// Names tells another node the names of a directory behind a sort name, or from the first
// on, in the bucket's order until each returns false: as its listing brings them if what is
// known is older than old. It asks this link's origin only.
func (t *Tree) Names(ctx context.Context, dir hearth.Directory, behind string, old time.Duration, each func(*hearth.Object) bool) (told hearth.Told, err error) {
	d, err := t.owned(dir)
	if err != nil {
		return told, err
	}
	defer d.release()
	r := t.keyReader(d, behind, each)
	asked := t.clock.Now()
	for range maxRebuilt {
		r.gen = t.db.Generation()
		if told, err = r.told(ctx, asked, old); !errors.Is(err, store.ErrRebuilt) {
			break
		}
	}
	return told, err
}

// keyReader gives out all that the origin has in a directory behind a sort name, directories
// as Objects of PrefixSize.
func (t *Tree) keyReader(d *directory, behind string, each func(*hearth.Object) bool) *dirReader {
	r := &dirReader{t: t, d: d, many: 32}
	if behind != "" {
		r.after = &behind
	}
	r.tell = func(sort string, e *record.Entry) bool {
		o := hearth.Object{Link: d.link.Name, Key: d.prefix() + sort, Size: hearth.PrefixSize}
		if !e.Dir {
			o = object(d.link, e, o.Key)
		}
		r.stop = !each(&o)
		return !r.stop
	}
	return r
}

// told reads for another node, and says how old that is.
func (r *dirReader) told(ctx context.Context, asked int64, old time.Duration) (told hearth.Told, err error) {
	t := r.t
	known := func() bool {
		s := r.d.state.Load()
		told.Age, told.Took = since(asked, t.clock.Trusted(s.listed)), s.took
		return s.listed > listedDoubted && r.d.whole(t) && r.d.link.Freshness.Copies(old, told.Age, told.Took)
	}
	var l *listing
	if !known() {
		if l, err = t.listUnless(ctx, r.d, 0, nil, known); err != nil {
			return told, err
		}
	}
	if err = r.read(ctx, l); l != nil {
		err = cmp.Or(err, l.Err()) // a reader of this node would go on with what was known
		told.Age, told.Took = since(asked, l.Began()), l.watch.ran()
	}
	if told.Last = !r.stop; told.Last {
		told.Hidden = int64(r.d.state.Load().refused)
	}
	return told, err
}

// Find tells another node what a segment of a directory stands for, and asks this link's
// origin if that is older than old.
func (t *Tree) Find(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) (f hearth.Found, err error) {
	d, err := t.owned(dir)
	if err != nil {
		return f, err
	}
	defer d.release()
	if _, linked := t.links.Load().below[d.hash][record.Escape(segment)]; linked {
		return f, fmt.Errorf("a link stands at %s%s: %w", d.prefix(), segment, hearth.ErrMiss) // and hides what it is elsewhere
	}
	asked, m := t.clock.Now(), record.Meaning{Segment: segment}
	for range maxRebuilt {
		var ok bool
		if f, ok, err = t.found(d, m, asked, old); ok || err != nil {
			return f, err
		}
		_, err := t.ask(ctx, d, m, func() bool {
			_, ok, err := t.found(d, m, asked, old)
			return ok && err == nil
		})
		if err != nil {
			return f, err
		}
	}
	return hearth.Found{}, fmt.Errorf("look up %s%s: it changes all the time", d.prefix(), segment)
}

// found is what is known of a segment; ok: that is no older than old for who asked then.
func (t *Tree) found(d *directory, m record.Meaning, asked int64, old time.Duration) (f hearth.Found, ok bool, err error) {
	file, dir := absence{Dir: d.hash, Sort: m.Segment}, absence{Dir: d.hash, Sort: m.Segment + "/"}
	gen, at := t.db.Generation(), d.listedAt(t, m.Segment)
	both, absent := d.listedAt(t, dir.Sort), min(t.neg.Since(file), t.neg.Since(dir))
	k, err := t.known(d, m)
	if err != nil {
		return f, false, err
	}
	switch {
	case !k.found:
		at = max(both, absent)
	case k.Dir:
		at = max(both, t.clock.Trusted(k.Checked))
	default:
		if d.link.differs.Load() != nil {
			at = 0
		}
		at = max(at, t.clock.Trusted(k.Checked))
		o := object(d.link, &k.Entry, d.prefix()+k.sort)
		f.Object = &o
	}
	f.Dir, f.Age = k.found && k.Dir, since(asked, at)
	if d.link.Freshness.Mode == Immutable && k.ttl == Forever {
		f.Age = 0 // what is known does not change
	}
	return f, f.Age <= old && !k.Doubted && gen == t.db.Generation(), nil
}

// askElsewhere asks the node that the directory belongs to; false: it did not answer.
func (q *inquiry) askElsewhere(ctx context.Context, k *knowledge, gate <-chan struct{}) bool {
	differs := q.d.link.differs.Load() != nil
	if differs && k.found && !k.Dir {
		return false // what others know may come from a listing
	}
	w := q.d.elsewhere()
	if w == nil {
		return false
	}
	defer w.end()
	if !k.found && q.heard == 0 {
		q.listBeside(ctx, gate)
	}
	release, err := q.t.turn(ctx, q.t.tokens.finds)
	if err != nil {
		return false
	}
	defer release()
	last := max(q.d.listedAt(q.t, q.segment), q.t.clock.Trusted(k.Checked), q.heard)
	asked := q.t.clock.Nano()
	now := asked / 1e6
	life := q.d.link.Freshness.Life()
	f, err := w.Find(ctx, w.dir, q.segment, min(life-life/4, since(now, last)))
	if err != nil || f.Age+since(q.t.clock.Now(), now) > life { // it was asked for before the machine slept
		return false
	}
	if o := f.Object; o != nil && (differs || k.Doubted && !k.Dir && o.Version == object(q.d.link, &k.Entry, o.Key).Version) {
		return false // it was found gone: the origin is to say that it is there
	}
	if began := now - f.Age.Milliseconds(); f.Object == nil && !f.Dir && q.objects(k, began) {
		return false
	}
	q.copied, q.asked, q.began = true, asked-f.Age.Nanoseconds(), now-f.Age.Milliseconds()
	switch {
	case f.Object != nil:
		q.object, q.file = *f.Object, finding{true, true}
	case f.Dir:
		q.dir = finding{true, true}
	default:
		q.file.known, q.dir.known = true, true
	}
	return true
}

// objects reports whether a directory that another node found gone then is not, since something
// was found in it later, as by who wrote it; the other one hears of that.
func (q *inquiry) objects(k *knowledge, gone int64) bool {
	if !k.found || !k.Dir {
		return false
	}
	names := pageNames
	at := q.t.foundBelow(q.d.child(q.segment), &names)
	if at <= gone {
		return false
	}
	q.t.tellDoubt(q.d.place, q.segment, at)
	return true
}

// foundBelow is when any of the first names below a place was found last, in Unix ms, as far as
// that is known of so many; 0: none is.
func (t *Tree) foundBelow(p place, names *int) (at int64) {
	var rows store.Rows
	err := t.db.Scan(&rows, record.NameKey(nil, record.KindEntry, p.hash(), ""), record.DirectoryEnd(p.hash()), *names)
	if err != nil {
		return 0
	}
	*names -= rows.Len()
	for i := range rows.Len() {
		e, err := record.ParseEntry(rows.Value(i))
		switch {
		case err != nil || e.Doubted:
		case e.Dir && *names > 0:
			at = max(at, t.clock.Trusted(e.Checked), t.foundBelow(p.child(record.Segment(string(rows.Key(i)[17:]))), names))
		default:
			at = max(at, t.clock.Trusted(e.Checked))
		}
	}
	return at
}

// listBeside begins to list the directory, unless that was done meanwhile: then it is nil.
func (q *inquiry) listBeside(ctx context.Context, gate <-chan struct{}) *listing {
	l, _ := q.t.listUnless(ctx, q.d, 0, gate, func() bool { return q.d.listingLeft(q.t) > 0 }) // never waits, since it may be any
	return l
}

// turn waits for a place among those that run.
func (t *Tree) turn(ctx context.Context, places chan struct{}) (release func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
