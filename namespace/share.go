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

// Teller tells names. A Tree tells those of its own directories to other nodes, and another node tells
// its own here.
type Teller interface {
	// Names tells the names of a directory after a sort name, or from the first on, in the bucket's
	// order until each returns false. It tells names as far as they are known when the first one is,
	// and at least one unless there are no more. Sort names are keys without the directory's prefix; a
	// directory's end in "/".
	//
	// What is older than old is asked of the origin anew, but a listing may be as old as CopyShare
	// times its duration. The error hearth.ErrMiss means that there is no such directory.
	Names(ctx context.Context, dir hearth.Directory, behind string, old time.Duration, each func(*hearth.Object) bool) (hearth.Told, error)
	// Find tells what a segment of a key stands for in a directory, under the same rule of age.
	Find(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) (hearth.Found, error)
}

// Sharer is an Origin whose directories have an owner each in a ring, as *share.Shared is. The owner is
// the Teller. After an error of its methods the origin is to be asked.
type Sharer interface {
	Origin
	Teller
	// Elsewhere reports whether another node owns a directory and is to be asked for its names. Until
	// end is called this node answers no other node about it, so that no two nodes wait for each other.
	Elsewhere(dir hearth.Directory) (end func(), elsewhere bool)
	// Changed says that segments of a directory have changed, as the origin said that long ago. It must
	// not block.
	Changed(dir hearth.Directory, segments []string, ago time.Duration)
}

// away is the way to the node that owns a directory. Whoever uses it holds no semaphore for questions
// to an origin, since the owner may need one to answer. Call end before acquiring one.
type away struct {
	Sharer
	dir hearth.Directory
	end func()
}

// sharer is the Sharer of the directory at a place. Nil means that each node asks the origin by itself.
func (p place) sharer() Sharer {
	s, ok := p.link.Origin.(Sharer)
	if !ok || p.link.Freshness.Mode == Strict || p.link.Identity == "" || hearth.IsLocal(p.link.Identity) {
		return nil
	}
	return s
}

// elsewhere is the way to the node that owns a directory. Nil means that the origin is to be asked.
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

// since is how long ago a time was. A time in the future counts as now.
func since(now, at int64) time.Duration { return time.Duration(max(0, now-at)) * time.Millisecond }

// listedAt is when the origin was last asked for what listings say of a sort name, in Unix ms, or 0.
// Like a belief it must be formed before the database is read.
func (d *directory) listedAt(t *Tree, sort string) (at int64) {
	if l := d.running.Load(); l != nil && l.age == t.db.Generation() && l.Passed(sort) {
		at = l.Began()
	}
	if s := d.state.Load(); s.age == t.db.Generation() {
		at = max(at, t.clock.Trusted(s.listed))
	}
	return at
}

// owned is a directory, in use, that another node asks for. The error hearth.ErrMiss means that this
// tree does not have it, or must not share it.
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

// sharedPlace is the place of a directory that another node names. The error hearth.ErrMiss means that
// there is none here, or that its hash differs.
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

// Names tells another node the names of a directory, as Teller says. When what is known is older than
// old, it follows a new listing. It asks only this link's origin.
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

// keyReader gives out all keys that the origin has in a directory after a sort name. Directories are
// Objects of PrefixSize.
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

// told reads for another node, and says how old the names are.
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
		err = cmp.Or(err, l.Err()) // only a reader of this node is served the last known names
		told.Age, told.Took = since(asked, l.Began()), l.watch.ran()
	}
	if told.Last = !r.stop; told.Last {
		told.Hidden = int64(r.d.state.Load().refused)
	}
	return told, err
}

// Find tells another node what a segment of a directory stands for. It asks this link's origin when
// what is known is older than old.
func (t *Tree) Find(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) (f hearth.Found, err error) {
	d, err := t.owned(dir)
	if err != nil {
		return f, err
	}
	defer d.release()
	if _, linked := t.links.Load().below[d.hash][record.Escape(segment)]; linked {
		return f, fmt.Errorf("a link stands at %s%s: %w", d.prefix(), segment, hearth.ErrMiss) // it hides the bucket's name here
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

// found is what is known of a segment. ok means that this was no older than old at the time asked.
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

// askElsewhere asks the node that owns the directory. It returns false when that node did not answer,
// or its answer is not enough.
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
	last := max(q.d.listedAt(q.t, q.segment), q.t.clock.Trusted(k.Checked))
	asked := q.t.clock.Nano()
	now := asked / 1e6
	life := q.d.link.Freshness.Life()
	find := func(last int64) (hearth.Found, error) {
		return w.Find(ctx, w.dir, q.segment, min(life-life/4, since(now, last)))
	}
	f, err := find(cmp.Or(q.heard, last))
	if err == nil && q.heard > 0 && now-f.Age.Milliseconds() <= last {
		// Perhaps the owner has told what is believed here. It measures the age of that by a later message, so that it
		// seems older there, and must not ask the origin for that alone.
		if q.believes(k, &f) {
			return true
		}
		// What is as old as what is believed would not be taken for newer. It can be right all the same: an owner that
		// was told of a removed file says only what its last listing had of both, the file and a directory.
		f, err = find(last + 1)
	}
	if err != nil || f.Age+since(q.t.clock.Now(), now) > life { // the machine may have slept meanwhile
		return false
	}
	if o := f.Object; o != nil && (differs || k.Doubted && !k.Dir && o.Version == object(q.d.link, &k.Entry, o.Key).Version) {
		return false // a reader found that version gone: only the origin may say that it is there
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

// believes reports whether another node says what is believed here. What is doubted is not.
func (q *inquiry) believes(k *knowledge, f *hearth.Found) bool {
	switch {
	case k.Doubted:
		return false
	case f.Object != nil:
		return k.found && !k.Dir && f.Object.Version == object(q.d.link, &k.Entry, f.Object.Key).Version
	case f.Dir:
		return k.found && k.Dir
	}
	return !k.found
}

// objects reports whether the owner is wrong that a directory is gone: a name in it was found later,
// for example by a writer. The owner is told of that.
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

// foundBelow is when any of the first names below a place was found last, in Unix ms. It looks at
// *names names at most. 0 means that none was found.
func (t *Tree) foundBelow(p place, names *int) (at int64) {
	var rows store.Rows
	err := t.db.Scan(&rows, record.NameKey(nil, record.KindEntry, p.hash(), ""), record.DirectoryEnd(p.hash()), *names)
	if err != nil {
		return 0
	}
	*names -= rows.Len()
	listed := sync.OnceValue(func() int64 { return t.wholeAt(p) })
	for i := range rows.Len() {
		e, err := record.ParseEntry(rows.Value(i))
		if err != nil || e.Doubted {
			continue
		}
		if e.Checked == 0 { // a listing found it
			at = max(at, listed())
		} else {
			at = max(at, t.clock.Trusted(e.Checked))
		}
		if e.Dir && *names > 0 {
			at = max(at, t.foundBelow(p.child(record.Segment(string(rows.Key(i)[17:]))), names))
		}
	}
	return at
}

// wholeAt is when the directory at a place was last listed to its end, in Unix ms, or 0.
func (t *Tree) wholeAt(p place) int64 {
	id, ok, err := t.idOf(p)
	if !ok || err != nil {
		return 0
	}
	d, err := t.dirs.get(t, id)
	if err != nil {
		return 0
	}
	defer d.release()
	if !d.whole(t) {
		return 0
	}
	return t.clock.Trusted(d.state.Load().listed)
}

// listBeside begins to list the directory. It returns nil when the directory was listed meanwhile.
func (q *inquiry) listBeside(ctx context.Context, gate <-chan struct{}) *listing {
	l, _ := q.t.listExpired(ctx, q.d, gate) // does not wait
	return l
}

// turn acquires a place of a semaphore, or returns ctx's cause.
func (t *Tree) turn(ctx context.Context, places chan struct{}) (release func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
