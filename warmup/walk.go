package warmup

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
)

// Entry is a name of the tree and what it means.
type Entry struct {
	// ID is a directory's id in the tree.
	ID   uint64
	Dir  bool
	Name string
	// Object is a file's version.
	Object hearth.Object
	// Unsure means that a file's version must be looked up before its blocks are asked
	// for.
	Unsure bool

	has func(hearth.ID) bool // as in ref
}

// Names is the tree that jobs walk.
type Names interface {
	// Find says what a target means: a file, a directory, or one of each.
	Find(ctx context.Context, target string) ([]Entry, error)
	// ReadSince calls each for the names of a directory behind the name after, in the
	// bucket's order, until each returns false. after is a file's name, or a directory's
	// with "/" at its end, whatever has that name now. A listing later than since (Unix
	// ms) is new enough. Otherwise the tree's own rules say whether the directory is
	// listed again.
	ReadSince(ctx context.Context, dir uint64, since int64, after string, each func(Entry) bool) error
	// Lookup finds a file in a directory, or a directory if the name ends with "/".
	Lookup(ctx context.Context, dir uint64, name string) (Entry, error)
	// Hidden counts the keys right below a directory that cannot be names in the tree.
	Hidden(dir uint64) (int64, error)
	// Now is the clock of listings, in Unix ms.
	Now() int64
}

const (
	pageNames = 512  // how many names of a directory are held at a time
	listPage  = 1000 // how many names an origin lists per request
)

// ref is a file where the walk found it.
type ref struct {
	at     Cursor // the cursor once the file is counted
	target string
	dir    uint64 // 0 means the target itself
	name   string
	object hearth.Object
	part   *Part  // what was counted of it before; nil means nothing
	absent string // why there is nothing to load; "" means that there is something
	broken bool   // absent is an error, and does not tell whether the file exists
	// has tells which blocks are held, if that was asked when the name was read; nil if
	// not.
	has func(hearth.ID) bool
	// archived is shared by the steps of a file that has several. It points to nil until
	// one step finds the file archived; then it holds the reason, which is true of all
	// steps. It is nil for a file of one step.
	archived *atomic.Pointer[string]

	parent  uint64 // in a check, the directory of a target
	changed bool   // in a check, the name was known to mean another version
	gone    *Was   // what a vanished name meant; nil means that it did not vanish
}

func (r *ref) path() string {
	if r.dir == 0 {
		return r.target
	}
	return strings.TrimSuffix(r.target, "/") + "/" + r.at.Path
}

// again asks what the file's name means now.
func (r *ref) again(ctx context.Context, names Names) (hearth.Object, error) {
	if r.dir != 0 {
		n, err := names.Lookup(ctx, r.dir, r.name)
		return n.Object, err
	}
	roots, err := names.Find(ctx, r.target)
	if err != nil {
		return hearth.Object{}, err
	}
	for _, n := range roots {
		if !n.Dir {
			return n.Object, nil
		}
	}
	return hearth.Object{}, fs.ErrNotExist
}

func versionText(o *hearth.Object) string { return hex.EncodeToString(o.Version[:]) }

// walk goes over what a job was asked for, in order.
type walk struct {
	*Options
	since int64 // Unix ms; a directory that was listed later is not listed again
	// targets calls each for the targets from the one at the cursor on.
	targets func(from Cursor, each func(target string, at, next Cursor) error) error
	// goesOn means that a path which cannot be listed or looked up is passed on as
	// absent, and stops nothing. single means that there is one target; that one must
	// exist.
	goesOn, single bool
	each           func(r ref) error
	// ahead asks which blocks of a page of names are held. nil means that nobody is asked
	// ahead.
	ahead func(ctx context.Context, page []Entry) func(hearth.ID) bool
	// breathe is called with the time that each page took, and then with that of the work
	// on it.
	breathe func(ctx context.Context, took time.Duration)

	// These three are for a check: refresh has a directory listed anew, gone passes on
	// the names that vanished from it, start is where the walk began.
	refresh func(ctx context.Context, dir uint64) error
	gone    func(ctx context.Context, w *walk, h here) error
	start   Cursor
}

// find says what a target means. A check believes in a file, or in its absence, only once
// the directory of the target has been listed anew. in is that directory.
func (w *walk) find(ctx context.Context, target string) (roots []Entry, in uint64, err error) {
	roots, err = w.Names.Find(ctx, target)
	file := slices.ContainsFunc(roots, func(n Entry) bool { return !n.Dir })
	if w.refresh == nil || !file && !errors.Is(err, fs.ErrNotExist) {
		return roots, 0, err
	}
	parent, failed := w.Checker.Parent(ctx, target)
	if failed == nil {
		failed = w.refresh(ctx, parent.ID)
	}
	if failed != nil {
		return nil, 0, cmp.Or(err, failed)
	}
	roots, err = w.Names.Find(ctx, target)
	return roots, parent.ID, err
}

// absent passes on a path that cannot be looked up, or ends the walk because of it.
func (w *walk) absent(ctx context.Context, r ref, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.broken = !errors.Is(err, fs.ErrNotExist)
	if r.broken && (!w.goesOn || w.single && r.dir == 0) {
		return err
	}
	r.absent += w.cause(err)
	return w.each(r)
}

// unlisted passes on a directory that cannot be listed to its end, or ends the walk
// because of it. A directory that has vanished since it was found has nothing to load any
// more.
func (w *walk) unlisted(ctx context.Context, h here, err error) error {
	if errors.Is(err, fs.ErrNotExist) && h.path != "" {
		return nil
	}
	r := ref{at: h.at, target: h.target, absent: "it cannot be listed: "}
	r.at.Root = dirRoot + 1 // behind the target
	if h.path != "" {
		r.at.Root, r.at.Path, r.dir = h.at.Root, h.path, h.dir
	}
	return w.absent(ctx, r, err)
}

// page reads at most pageNames names of a directory, behind one of them. If the
// directory's id is no longer known, since the names were collected anew, page finds the
// directory again.
func (w *walk) page(ctx context.Context, h *here, after string, page []Entry) ([]Entry, error) {
	page, err := w.names(ctx, h.dir, after, page)
	if errors.Is(err, hearth.ErrStale) {
		found, _ := w.Names.Find(ctx, strings.TrimSuffix(h.target, "/")+"/"+h.path)
		if i := slices.IndexFunc(found, func(n Entry) bool { return n.Dir }); i >= 0 {
			h.dir = found[i].ID
			return w.names(ctx, h.dir, after, page)
		}
	}
	return page, err
}

func (w *walk) names(ctx context.Context, dir uint64, after string, page []Entry) ([]Entry, error) {
	began := time.Now()
	page = page[:0]
	if w.refresh != nil {
		if err := w.refresh(ctx, dir); err != nil {
			return page, err
		}
	}
	err := w.Names.ReadSince(ctx, dir, w.since, after, func(n Entry) bool {
		page = append(page, n)
		return len(page) < pageNames
	})
	if err == nil {
		w.sure(ctx, dir, page)
	}
	w.breathe(ctx, time.Since(began))
	if err == nil && w.ahead != nil {
		has := w.ahead(ctx, page)
		for i := range page {
			if isSmall(&page[i].Object) {
				page[i].has = has
			}
		}
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return page, err
}

// sureAtOnce is how many look-ups of a page are in flight: the connections that an origin
// has for names.
const sureAtOnce = 16

// sure looks up the files of a page whose versions are unsure. A file that cannot be
// looked up now keeps its last known version. The job loads that, and looks the name up
// again if the version is gone.
func (w *walk) sure(ctx context.Context, dir uint64, page []Entry) {
	var work sync.WaitGroup
	places := make(chan struct{}, sureAtOnce)
	for i := range page {
		n := &page[i]
		if n.Dir || !n.Unsure {
			continue
		}
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			_ = guarded(func() error {
				found, err := w.Names.Lookup(ctx, dir, n.Name)
				if err == nil && !found.Dir {
					n.Object, n.Unsure = found.Object, false
				}
				return err
			})
		})
	}
	work.Wait()
}

// A target may be a file, a directory, or both.
const fileRoot, dirRoot = 0, 1

// from goes over everything behind a cursor, and over the rest of the file at the cursor.
func (w *walk) from(ctx context.Context, start Cursor) error {
	return w.targets(start, func(target string, at, next Cursor) error {
		resumed := Cursor{}
		if at.Target == start.Target {
			resumed = start
		}
		roots, parent, err := w.find(ctx, target)
		if err != nil {
			r := ref{at: next, target: target, parent: parent}
			if w.refresh != nil {
				r.name = path.Base(target)
			}
			return w.absent(ctx, r, err)
		}
		for _, n := range roots {
			i := fileRoot // also where the other one has come or gone since
			if n.Dir {
				i = dirRoot
			}
			at.Root = i
			switch {
			case i < resumed.Root:
			case !n.Dir:
				at.Root++
				r := ref{at: at, target: target, name: n.Name, object: n.Object, parent: parent}
				if i == resumed.Root && resumed.Path == "" {
					r.part = resumed.File
				}
				err = w.each(r)
			case i == resumed.Root:
				err = w.behind(ctx, here{at: at, target: target, dir: n.ID}, resumed.Path, resumed.File)
			default:
				err = w.below(ctx, here{at: at, target: target, dir: n.ID}, "")
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// here is a directory of the walk.
type here struct {
	at     Cursor
	target string
	dir    uint64
	path   string // below the target; "" or ending in "/"
}

func (h here) file(n Entry) ref {
	at := h.at
	at.Path = h.path + n.Name
	return ref{at: at, target: h.target, dir: h.dir, name: n.Name, object: n.Object, has: n.has}
}

func (h here) child(n Entry) here {
	h.dir, h.path = n.ID, h.path+n.Name+"/"
	return h
}

// behind goes over what lies in a directory behind a path. part is what was counted of
// the file at the path. The path is a file's, or, with "/" at its end, that of a
// directory that was passed as a whole.
func (w *walk) behind(ctx context.Context, h here, path string, part *Part) error {
	name, rest, deeper := strings.Cut(path, "/")
	if deeper {
		name += "/"
	}
	if name == "" || deeper && rest == "" && w.start.Gone == "" || !deeper && part == nil {
		return w.below(ctx, h, name)
	}
	if w.refresh != nil {
		if err := w.refresh(ctx, h.dir); err != nil {
			return err
		}
	}
	n, err := w.Names.Lookup(ctx, h.dir, name)
	gone := h.file(Entry{Name: path})
	gone.part = part
	switch {
	case err == nil && deeper:
		err = w.behind(ctx, h.child(n), rest, part)
	case err == nil:
		r := h.file(n)
		r.part = part
		err = w.each(r)
	case part != nil: // it vanished, with its directory or alone
		err = w.absent(ctx, gone, err)
	case !errors.Is(err, fs.ErrNotExist):
		gone.at.Path = h.path + name
		err = w.absent(ctx, gone, err)
	default:
		err = nil
	}
	if err != nil {
		return err
	}
	return w.below(ctx, h, name)
}

// below goes over what lies in a directory behind the name after.
func (w *walk) below(ctx context.Context, h here, after string) error {
	var page []Entry
	for {
		var err error
		if page, err = w.page(ctx, &h, after, page); err != nil {
			return w.unlisted(ctx, h, err)
		}
		if w.gone != nil && after == "" {
			if err := w.gone(ctx, w, h); err != nil {
				return err
			}
		}
		for _, n := range page {
			if n.Dir {
				err = w.below(ctx, h.child(n), "")
			} else {
				err = w.each(h.file(n))
			}
			if err != nil {
				return err
			}
		}
		if len(page) < pageNames {
			return nil
		}
		after = page[len(page)-1].behind()
	}
}

// behind is the entry's name as ReadSince takes it.
func (n *Entry) behind() string {
	if n.Dir {
		return n.Name + "/"
	}
	return n.Name
}

// A count reads countFirst directories at a time at first, and countAhead at most. Each
// is a listing that a kill loses. The namespace has 32 listings, of which readers need
// some.
const countFirst, countAhead = 3, 6

// count goes over everything in no order, several directories at a time.
type count struct {
	walk
	aside  func(do func() error)     // runs do beside others, or at once
	listed func(names, hidden int64) // is called for each directory
}

// all calls each for every file, several at a time.
func (c *count) all(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	few := newFew(countFirst, countAhead, cancel)
	c.aside = few.Aside
	err := c.targets(Cursor{}, func(target string, _, _ Cursor) error {
		c.aside(func() error {
			roots, _, err := c.find(ctx, target)
			if err != nil {
				return c.absent(ctx, ref{target: target}, err)
			}
			for _, n := range roots {
				if n.Dir {
					err = c.directory(ctx, here{target: target, dir: n.ID})
				} else {
					err = c.each(ref{target: target, object: n.Object})
				}
				if err != nil {
					return err
				}
			}
			return err
		})
		return context.Cause(ctx)
	})
	few.Wait()
	return firstCause(ctx, err)
}

func (c *count) directory(ctx context.Context, h here) error {
	var page []Entry
	names := int64(0)
	for after := ""; ctx.Err() == nil; after = page[len(page)-1].behind() {
		var err error
		if page, err = c.page(ctx, &h, after, page); err != nil {
			return c.unlisted(ctx, h, err)
		}
		names += int64(len(page))
		for _, n := range page {
			if n.Dir {
				c.aside(func() error { return c.directory(ctx, h.child(n)) })
				continue
			}
			began := time.Now()
			if err := c.each(ref{target: h.target, object: n.Object, has: n.has}); err != nil {
				return err
			}
			c.breathe(ctx, time.Since(began))
		}
		if len(page) < pageNames {
			hidden, err := c.Names.Hidden(h.dir)
			c.listed(names, hidden)
			return err
		}
	}
	return context.Cause(ctx)
}
