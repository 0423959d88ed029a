package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// scanNames is how many names are read from the database at a time, at most. No iterator is open while
// a reader looks at them.
const scanNames = 1024

// ReadDir calls each for the names of a directory after the cursor after, in the bucket's order, until
// each returns false. Node.Behind gives such a cursor. While the directory is being listed, names come
// as the pages do.
func (t *Tree) ReadDir(ctx context.Context, dir uint64, after string, each func(Node) bool) error {
	return t.ReadSince(ctx, dir, math.MaxInt64, after, each)
}

// Now is the clock of listings, in Unix ms; it never goes back while the tree is open.
func (t *Tree) Now() int64 { return t.clock.Now() }

// ReadSince is ReadDir for a reader to whom a listing since that time (Unix ms) is new enough. after
// may end in "/", for a directory, whatever has the name now.
func (t *Tree) ReadSince(ctx context.Context, dir uint64, since int64, after string, each func(Node) bool) error {
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return err
	}
	defer d.release()
	r := &dirReader{t: t, d: d, each: each, links: t.linksIn(d), many: 32, gen: t.db.Generation()}
	if d.link == nil {
		if after != "" {
			err = r.goOnBehind(ctx, nil, after)
		}
		if err == nil {
			_, err = r.upTo("", true)
		}
		return err
	}
	return r.since(ctx, since, after)
}

// since implements ReadSince.
func (r *dirReader) since(ctx context.Context, since int64, after string) (err error) {
	t, d := r.t, r.d
	start := after == "" && r.after == nil
	for range maxRebuilt {
		r.gen = t.db.Generation()
		var l *listing
		if err = nil; ctx.Value(quiet{}) == nil && (!d.whole(t) || t.clock.Trusted(d.state.Load().listed) < since) {
			l, err = t.follow(ctx, d, start)
		}
		if err == nil && after != "" && r.after == nil {
			err = r.goOnBehind(ctx, l, after)
		}
		if err == nil {
			err = r.read(ctx, l)
		}
		if !errors.Is(err, store.ErrRebuilt) {
			break
		}
	}
	return err
}

// Refresh asks the origin for a directory's names, whatever is believed of them, unless that was done
// since that time (Unix ms).
func (t *Tree) Refresh(ctx context.Context, dir uint64, since int64) error {
	d, err := t.dirs.get(t, dir)
	if err != nil {
		return err
	}
	defer d.release()
	l := d.running.Load() // before what it brings
	if d.link == nil || d.whole(t) && t.clock.Trusted(d.state.Load().listed) >= since {
		return nil
	}
	if l == nil || l.began < since || l.away != nil {
		if l, err = t.list(ctx, d, since, nil); err != nil {
			return err
		}
	}
	return cmp.Or(l.Wait(ctx), l.Err())
}

// follow decides what a reader of a directory reads. It returns the listing to follow; nil means what
// the database has.
func (t *Tree) follow(ctx context.Context, d *directory, start bool) (*listing, error) {
	whole := d.whole(t)
	if d.link.Freshness.Mode == Strict {
		since := int64(0)
		switch {
		case start:
			since = t.since(d)
		case whole && d.running.Load() == nil:
			return nil, nil // the listing that this reader began with has ended
		}
		return t.list(ctx, d, since, nil)
	}
	l := d.running.Load() // before listingLeft: this one could end in between, and another begin
	ttl := d.listingLeft(t)
	switch {
	case ttl > 0:
		t.renew(d, ttl)
		return nil, nil
	case whole && d.link.believes() && d.link.down.Load() != nil:
		t.stats.stale.Add(1)
		t.kick(d)
		return nil, nil
	}
	if l != nil && left(l.Began(), t.clock.Now(), d.link.Freshness.Life()) > 0 {
		return l, nil
	} else if l != nil { // It began too long ago for a new reader. Once it has ended, its duration decides.
		l.hurryUp()
		if err := l.Wait(ctx); err != nil {
			return nil, err
		}
		return t.follow(ctx, d, start)
	}
	return t.listExpired(ctx, d, nil)
}

// dirReader is one reader of a directory.
type dirReader struct {
	t     *Tree
	d     *directory
	each  func(Node) bool
	tell  func(sort string, e *record.Entry) bool // if set, called in place of each, for all that the origin has
	links []linkedName                            // those not given out yet
	after *string                                 // the sort name given out last
	many  int                                     // names to read next; doubles, as a kernel asks for few or very many
	rows  store.Rows
	stop  bool
	gen   int64 // generation of the database that it reads

	belief belief
}

// linkedName is a directory that the links put into another.
type linkedName struct {
	sort, name string
	place      place
}

func (t *Tree) linksIn(d *directory) []linkedName {
	var all []linkedName
	for name, p := range t.links.Load().below[d.hash] {
		m, _ := record.ParseName(name)
		all = append(all, linkedName{m.Segment + "/", name, p})
	}
	slices.SortFunc(all, func(a, b linkedName) int { return strings.Compare(a.sort, b.sort) })
	return all
}

// goOnBehind turns a cursor, a name in the mount, into a sort name. It waits until a running listing
// has passed the name: the name was given out, but all names may have been dropped since.
func (r *dirReader) goOnBehind(ctx context.Context, l *listing, name string) error {
	name, dir := strings.CutSuffix(name, "/")
	m, ok := record.ParseName(name)
	if !ok {
		return fmt.Errorf("go on behind %q: %w", name, syscall.EINVAL)
	}
	for l != nil {
		l.hurryUp()
		upTo, any, done, moved := l.Snapshot()
		if err := l.Err(); errors.Is(err, store.ErrRebuilt) {
			return err
		}
		if m.Hashed {
			_, any, _ = r.t.db.Get(nil, record.NameKey(nil, record.KindHashed, r.d.hash, name))
		}
		if done || any && (m.Hashed || upTo >= m.Segment+"/") {
			break
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	sort := m.Segment
	_, linked := r.t.links.Load().below[r.d.hash][name]
	switch {
	case m.Hashed:
		v, ok, err := r.t.db.Get(nil, record.NameKey(nil, record.KindHashed, r.d.hash, name))
		switch {
		case err == nil && r.gen != r.t.db.Generation():
			return store.ErrRebuilt
		case err != nil || !ok:
			return errors.Join(err, staleID(r.d.id))
		}
		sort = string(v)
	case linked || dir:
		sort += "/"
	case !m.File:
		file, isFile, err := r.d.entry(r.t, sort)
		if err != nil {
			return err
		}
		_, isDir, err := r.d.entry(r.t, sort+"/")
		if err != nil {
			return err
		}
		if isDir && (!isFile || file.Beside) {
			sort += "/"
		}
	}
	if r.gen != r.t.db.Generation() {
		return store.ErrRebuilt
	}
	r.after = &sort
	r.links = slices.DeleteFunc(r.links, func(l linkedName) bool { return l.sort <= sort })
	return nil
}

// read gives out names as far as the listing has come, until it has ended.
func (r *dirReader) read(ctx context.Context, l *listing) error {
	if l == nil {
		_, err := r.upTo("", true)
		return err
	}
	l.hurryUp()
	if l.age != r.gen {
		return cmp.Or(l.Wait(ctx), store.ErrRebuilt)
	}
	for {
		// The cursor must be read before the database: what is written in
		// between lies beyond it.
		upTo, any, done, moved := l.Snapshot()
		if done {
			return r.rest(l)
		}
		if any {
			if stop, err := r.upTo(upTo, false); stop || err != nil {
				return err
			}
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// rest gives out what is left once the listing has ended. When it failed, the last known names are
// served, where the link allows it.
func (r *dirReader) rest(l *listing) error {
	if err := l.Err(); err != nil {
		if errors.Is(err, store.ErrRebuilt) || denied(err) || !r.d.whole(r.t) || !r.d.link.believes() {
			return err
		}
		r.t.stats.stale.Add(1)
	}
	_, err := r.upTo("", true)
	return err
}

// upTo gives out names up to the sort name limit, or all. stop means that the reader has enough. A file
// waits until the limit is past the directory that may stand beside it.
func (r *dirReader) upTo(limit string, all bool) (stop bool, err error) {
	if r.d.link == nil {
		return r.linked("", true), nil
	}
	upper := record.DirectoryEnd(r.d.hash)
	for !r.stop {
		lower := record.NameKey(nil, record.KindEntry, r.d.hash, "")
		if r.after != nil {
			lower = append(append(lower, *r.after...), 0)
		}
		r.belief = r.d.belief(r.t)
		many := min(r.many, scanNames)
		r.many = 2 * many
		if err := r.t.db.Scan(&r.rows, lower, upper, many); err != nil {
			return false, err
		}
		if r.gen != r.t.db.Generation() {
			return false, store.ErrRebuilt
		}
		for i := range r.rows.Len() {
			sort := string(r.rows.Key(i)[17:])
			if !all && (sort > limit || !record.IsDir(sort) && sort+"/" > limit) {
				return false, nil
			}
			if r.linked(sort, false) || !r.give(sort, r.rows.Value(i)) {
				return true, nil
			}
			r.after = &sort
		}
		if r.rows.Len() < many {
			if all {
				r.linked("", true)
			}
			break
		}
	}
	return r.stop, nil
}

// linked gives out the directories that links make before a sort name, or all.
func (r *dirReader) linked(before string, all bool) (stop bool) {
	for len(r.links) > 0 && (all || r.links[0].sort <= before) {
		x := r.links[0]
		n, err := r.t.placeNode(x.place, x.name)
		if err == nil && !r.each(n) {
			r.stop = true
			return true
		}
		r.links = r.links[1:]
	}
	return false
}

// give gives out one entry. It returns false when the reader has enough.
func (r *dirReader) give(sort string, value []byte) bool {
	e, err := record.ParseEntry(value)
	if err != nil {
		return true // it will be looked up anew
	}
	if r.tell != nil {
		return r.tell(sort, &e)
	}
	if marks(sort, &e) {
		return true
	}
	if e.Dir {
		if _, hidden := r.t.links.Load().below[r.d.hash][record.MountName(sort, false)]; hidden {
			return true
		}
	}
	r.t.stats.read.Add(1)
	if !r.each(r.d.node(r.t, sort, &e, r.belief.name(sort, &e))) {
		r.stop = true
	}
	return !r.stop
}

// walkAhead is how many directories are listed ahead of a walk.
const walkAhead = 16

// walker is one walk.
type walker struct {
	t      *Tree
	each   func(path string, n Node) error
	hidden int64 // keys that the listings it read could not show
}

func (w *walker) walk(ctx context.Context, path string, dir uint64) error {
	t := w.t
	var names []Node
	for after := ""; ; after = names[len(names)-1].Behind() {
		names = names[:0]
		err := t.ReadDir(ctx, dir, after, func(n Node) bool {
			names = append(names, n)
			return len(names) < scanNames
		})
		if err != nil {
			return fmt.Errorf("list %s: %w", path, err)
		}
		ahead := 0
		for i, n := range names {
			for ; ahead < len(names) && ahead < i+walkAhead; ahead++ {
				if names[ahead].Dir {
					t.listAhead(ctx, names[ahead].ID)
				}
			}
			at := path + "/" + n.Name
			if err := w.each(at, n); err != nil {
				return err
			}
			if !n.Dir {
				continue
			}
			if err := w.walk(ctx, at, n.ID); err != nil {
				return err
			}
		}
		if len(names) < scanNames {
			n, err := t.Hidden(dir)
			w.hidden += n
			return err
		}
	}
}

// listAhead begins to list a directory that will be read soon.
func (t *Tree) listAhead(ctx context.Context, id uint64) {
	d, err := t.dirs.get(t, id)
	if err != nil {
		return
	}
	defer d.release()
	if ctx.Value(quiet{}) == nil && d.link != nil && d.link.Freshness.Mode != Strict && d.listingLeft(t) == 0 {
		t.kick(d)
	}
}
