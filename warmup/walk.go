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
	// ID of a directory, as the tree has it.
	ID   uint64
	Dir  bool
	Name string
	// Object is a file's version.
	Object hearth.Object
	// Unsure is set of a file whose version is to be looked up before it is asked for.
	Unsure bool

	has func(hearth.ID) bool // as ref's
}

// Names is the tree that jobs go over.
type Names interface {
	// Find is what a target means: a file, a directory, or one of each.
	Find(ctx context.Context, target string) ([]Entry, error)
	// ReadSince calls each for the names of a directory behind the name after, in the
	// bucket's order, until it returns false. after is a file's, or a directory's with
	// "/" behind it, whatever has that name now. What was listed since then (Unix ms) is
	// new enough; else the tree's own rules say whether it is listed again.
	ReadSince(ctx context.Context, dir uint64, since int64, after string, each func(Entry) bool) error
	// Lookup finds a file in a directory, or with "/" behind the name a directory.
	Lookup(ctx context.Context, dir uint64, name string) (Entry, error)
	// Hidden counts the keys right below a directory that have no name.
	Hidden(dir uint64) (int64, error)
	// Now is the clock of listings, in Unix ms.
	Now() int64
}

const (
	pageNames = 512  // of a directory are held at a time
	listPage  = 1000 // names are what an origin tells by one request
)

// ref is a file where the walk found it.
type ref struct {
	at     Cursor // as it is once the file is counted
	target string
	dir    uint64 // 0: the target itself
	name   string
	object hearth.Object
	part   *Part  // what was counted of it before; nil: nothing
	absent string // why there is nothing to load; "": there is
	broken bool   // that is an error, and says nothing about whether it exists
	// has is who was asked for its blocks, when its name was read; nil: nobody.
	has func(hearth.ID) bool
	// archived is why a step of a file of several could not be loaded: it is archived, and the
	// others are. nil within: none was so far; nil: it has one step.
	archived *atomic.Pointer[string]

	parent  uint64 // of a target, in a check
	changed bool   // it was known to be another version, in a check
	gone    *Was   // what it was, of a name that vanished; nil: it did not
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
	since int64 // Unix ms: directories that were listed later are not listed again
	// targets calls each for the targets from the one at the cursor on.
	targets func(from Cursor, each func(target string, at, next Cursor) error) error
	// goesOn: what cannot be listed or looked up is passed on as that, and stops nothing.
	// What was asked for must be there, though, where it is one target.
	goesOn, single bool
	each           func(r ref) error
	// ahead asks for the blocks of a page of names, if it is to be asked; nil: it is not.
	ahead func(ctx context.Context, page []Entry) func(hearth.ID) bool
	// breathe is called with the time that each page took, and then what is done with its names.
	breathe func(ctx context.Context, took time.Duration)

	// Of a check: refresh has a directory listed anew, gone passes on what vanished from
	// one. start is where the walk began.
	refresh func(ctx context.Context, dir uint64) error
	gone    func(ctx context.Context, w *walk, h here) error
	start   Cursor
}

// find is what a target means. A check believes in a file, or that there is none, once
// the directory, in, was listed anew.
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

// absent passes on what cannot be looked up, unless that ends the walk.
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

// unlisted passes on a directory that cannot be listed, or not to its end, unless that
// ends the walk. One that has gone since it was found is no more to be loaded.
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

// page reads names of a directory behind one of them, at most pageNames. One whose id is
// not known any more, since the names were collected anew, is found again.
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

// sureAtOnce are the look-ups of a page under way, as many as an origin has connections for names.
const sureAtOnce = 16

// sure looks up the files of a page whose versions nobody vouches for. What cannot be looked up now
// stays as it is: it is loaded last known, and asked for again when that is gone.
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

// What a target may be: a file, a directory, or both.
const fileRoot, dirRoot = 0, 1

// from goes over all behind a cursor, and the rest of the file at it.
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
			i := fileRoot // also where the other has come or gone since
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

// behind goes over what lies below a directory behind a path, of which part was
// counted. The path is a file's, or, with "/" at its end, that of a directory that was
// passed as a whole.
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
	case part != nil: // it vanished, with its directory or by itself
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

// below goes over what lies below a directory behind the name after.
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

// behind is what ReadSince calls the name that the entry had.
func (n *Entry) behind() string {
	if n.Dir {
		return n.Name + "/"
	}
	return n.Name
}

// How many directories are read at a time by a count, at first and at most: each is a
// listing that a kill loses, and the namespace has 32, of which readers want some.
const countFirst, countAhead = 3, 6

// count goes over all of it in no order, several directories at a time.
type count struct {
	walk
	aside  func(do func() error)     // beside others, or at once
	listed func(names, hidden int64) // of a directory
}

// all calls each of the walk for every file, also several at a time.
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
