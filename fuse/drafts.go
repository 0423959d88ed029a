package fuse

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
)

// Writing is what a writable mount needs besides.
type Writing struct {
	// Drafts are the files that are being written. No other mount shows them.
	Drafts *draft.Store
	// Writes tells whether the mount changes a link: of any other one that it shows nothing is written, EROFS, and no draft is seen.
	// nil means that it changes all.
	Writes func(link string) bool
	// Keys tells what names mean at the origin.
	Keys Keys
	// Uploader is the origin of a link, for what is no draft: markers of directories, and deletions.
	Uploader func(link string) (hearth.Uploader, error)
	// Wrote is told what a key has now, after a write that is no draft's: o, or nothing if it is nil. id is a node id that stands
	// for it besides, if it is not 0. Doubted is told of a key of which nobody knows, since the origin has not answered. They
	// return once the tree has it.
	Wrote   func(ctx context.Context, link, key string, o *hearth.Object, id uint64)
	Doubted func(ctx context.Context, link, key string)
	// Publish publishes a draft that nobody has open any more, some time after it returns. It tells of errors by itself. i is what the
	// draft was when its name was found not to be temporary: under another name it is not published.
	Publish func(d *draft.Draft, i draft.Info)
	// Kept is told of a draft that a close or an fsync could not publish, which was so before: it is kept here. It is not told of what
	// a signal broke off. It may be nil.
	Kept func(d *draft.Draft, before draft.Info, err error)
	// Staged tells whether a name is temporary: what is closed under it stays here until it is renamed. nil means that none is.
	Staged func(draft.Name) bool
	// Slow is told of a rename that has waited for the bucket for 2 s, of how many of how many bytes were sent by then. It is told once
	// more if that fails since none was sent for as long as Patience of the link says: err is not nil then. Slow may be nil, and
	// Patience, too, or 0: then it waits as long as the bucket's own bounds last.
	Slow     func(from, to draft.Name, sent, size int64, err error)
	Patience func(link string) time.Duration
	// Frozen tells whether the objects of a link never change: it takes new names alone. nil means that none is.
	Frozen func(link string) bool
	// SyncToBucket tells whether fsync(2) of a link's files waits for the bucket, and not only for this node's disk. nil means that it
	// never does.
	SyncToBucket func(link string) bool
}

// Keys are what a writable mount asks a tree; *namespace.Tree answers.
type Keys interface {
	// KeyOf returns the key that a name in a directory has at its link's origin, and DirKey what all keys in it begin with.
	KeyOf(dir uint64, name string) (link, key string, err error)
	DirKey(dir uint64) (link, prefix string, err error)
	// File finds the file of a key.
	File(ctx context.Context, link, key string) (namespace.Node, error)
	// Keys calls each for the keys right below a prefix, a directory's own among them, in their order until it returns false.
	Keys(ctx context.Context, link, prefix, behind string, each func(*hearth.Object) bool) (hidden int64, err error)
	// NewID returns a node id that no name has.
	NewID() (uint64, error)
	// Attr returns what was set of a node of the tree, and SetAttr keeps it.
	Attr(id uint64) (namespace.Attr, bool)
	SetAttr(id uint64, a namespace.Attr) error
}

var _ Keys = (*namespace.Tree)(nil)

// drafted is a tree with the drafts of a mount. A name is its draft's while somebody has that open, or while the bucket has not
// got it. A draft's Node has no version: its bytes are in its file.
type drafted struct {
	Tree
	w writing
}

// writing is a Writing whose drafts are those of the mount.
type writing struct {
	*Writing
	Drafts ours
}

// ours are the drafts of the links that a mount changes. Those of others are another mount's, even where that has given a draft the
// id of a file that this mount shows.
type ours struct {
	*draft.Store
	writes func(link string) bool // nil means all
}

func newDrafted(t Tree, w *Writing) *drafted {
	return &drafted{t, writing{w, ours{w.Drafts, w.Writes}}}
}

func (o ours) changes(link string) bool { return o.writes == nil || o.writes(link) }

// ID is the store's.
func (o ours) ID(id uint64) (*draft.Draft, bool) {
	d, ok := o.Store.ID(id)
	if !ok || !o.changes(d.Link()) {
		return nil, false
	}
	return d, true
}

// Find is the store's.
func (o ours) Find(at draft.Name) (*draft.Draft, bool) {
	if !o.changes(at.Link) {
		return nil, false
	}
	return o.Store.Find(at)
}

// Below is the store's.
func (o ours) Below(link, prefix string, each func(*draft.Draft) bool) {
	if o.changes(link) {
		o.Store.Below(link, prefix, each)
	}
}

// Create is the store's.
func (o ours) Create(at draft.Name, id uint64, a draft.Attr) (*draft.Draft, error) {
	if !o.changes(at.Link) {
		return nil, syscall.EROFS
	}
	return o.Store.Create(at, id, a)
}

// Change is the store's.
func (o ours) Change(base *hearth.Object, id uint64, a draft.Attr) (*draft.Draft, error) {
	if !o.changes(base.Link) {
		return nil, syscall.EROFS
	}
	return o.Store.Change(base, id, a)
}

// changes reports whether the mount changes a link that it shows.
func (t *drafted) changes(link string) bool { return t != nil && t.w.Drafts.changes(link) }

// mayChange is syscall.EROFS for a node of a link that the mount does not change. Directories that links make are any mount's.
func (t *drafted) mayChange(n *namespace.Node) error {
	link := n.Object.Link
	if n.Dir {
		var err error
		if link, _, _, err = t.where(n.ID); err != nil && !errors.Is(err, syscall.EROFS) {
			return nil
		}
	}
	if !t.changes(link) {
		return syscall.EROFS
	}
	return nil
}

// readOnly reports whether a file is of a link that the mount does not change.
func (f *fileSystem) readOnly(id uint64) bool {
	if f.write == nil {
		return true
	}
	if f.write.w.Writes == nil {
		return false
	}
	if _, ok := f.isDraft(id); ok {
		return false
	}
	rec, err := f.record(context.Background(), id) // nobody is asked
	return err == nil && !f.write.changes(rec.node.Object.Link)
}

// where is what the names in a directory mean. A directory that is a draft is not in the tree. The error is syscall.EROFS for one of a
// link that the mount does not change: its names are the tree's.
func (t *drafted) where(dir uint64) (link, prefix string, inTree bool, err error) {
	if d, ok := t.w.Drafts.ID(dir); ok {
		i := d.Info()
		return i.Link, i.Key, false, nil
	}
	if link, prefix, err = t.w.Keys.DirKey(dir); err == nil && !t.changes(link) {
		err = syscall.EROFS
	}
	return link, prefix, true, err
}

// find returns the draft that a name has, and the name of a file there.
func (t *drafted) find(dir uint64, name string) (d *draft.Draft, at draft.Name, err error) {
	link, prefix, inTree, err := t.where(dir)
	switch {
	case err != nil:
	case inTree:
		at.Link, at.Key, err = t.w.Keys.KeyOf(dir, name)
	default:
		at.Link = link
		at.Key, err = namespace.KeyIn(prefix, name)
	}
	if err != nil {
		return nil, at, err
	}
	d, ok := t.w.Drafts.Find(at)
	if !ok || inTree && t.beside(dir, name) {
		d, _ = t.w.Drafts.Find(asDir(at))
	}
	return d, at, nil
}

// beside reports whether a name is known to be a directory's in the tree, so that a file of that key has another name. It asks
// nobody.
func (t *drafted) beside(dir uint64, name string) bool {
	if namespace.IsBeside(name) {
		return false
	}
	n, err := t.Tree.Lookup(namespace.Quiet(context.Background()), dir, name)
	return err == nil && n.Dir
}

func asDir(n draft.Name) draft.Name { return draft.Name{Link: n.Link, Key: n.Key + "/"} }

// lookup is Lookup in the tree.
func (t *drafted) lookup(ctx context.Context, dir uint64, name string) (namespace.Node, error) {
	if _, ok := t.w.Drafts.ID(dir); ok {
		return namespace.Node{}, &namespace.Absent{}
	}
	return t.Tree.Lookup(ctx, dir, name)
}

// Lookup is part of Names. The draft of a name that was published since, and that the bucket has in another version by now,
// has no name here any more: it goes on for those who have it open. A directory that was published is the tree's.
func (t *drafted) Lookup(ctx context.Context, dir uint64, name string) (namespace.Node, error) {
	d, at, err := t.find(dir, name)
	if d == nil || err != nil {
		n, err := t.lookup(ctx, dir, name)
		if begun, ok := t.w.Drafts.Find(at); ok && err == nil && !n.Dir { // and perhaps published, as the tree was asked
			if i := begun.Info(); isOf(&n, &i) {
				return node(&i), nil
			}
		}
		return n, err
	}
	for {
		before := d.Info()
		if before.Object == nil {
			return node(&before), nil
		}
		n, err := t.lookup(ctx, dir, name)
		i := d.Info() // it may be published just now
		if err == nil && (isOf(&n, &before) || isOf(&n, &i)) {
			return node(&i), nil
		}
		if i.Object == before.Object && i.Base == before.Base {
			return n, err
		}
	}
}

// isOf reports whether the tree's file is what was published of a draft. The tree hears of that before the draft does.
func isOf(n *namespace.Node, i *draft.Info) bool {
	of := func(o *hearth.Object) bool { return o != nil && !n.Dir && n.Object.Version == o.Version }
	return of(i.Object) || of(i.Base)
}

// node is a draft's. It may be believed for no time: it changes as it is written.
func node(i *draft.Info) namespace.Node {
	key := strings.TrimSuffix(i.Key, "/")
	name := key[strings.LastIndexByte(key, '/')+1:]
	return namespace.Node{ID: i.ID, Dir: i.IsDir(), Name: namespace.MountName(name), ModTime: i.Attr.ModTime,
		Object: hearth.Object{Link: i.Link, Key: i.Key, Size: i.Size, ModTime: i.Attr.ModTime}}
}

// isOfDraft reports whether a node is a draft's.
func isOfDraft(n *namespace.Node) bool { return n.Object.Version == [16]byte{} }

// Node is part of Names.
func (t *drafted) Node(ctx context.Context, id uint64) (namespace.Node, error) {
	if d, ok := t.w.Drafts.ID(id); ok {
		i := d.Info()
		return node(&i), nil
	}
	return t.Tree.Node(ctx, id)
}

// Open is part of Names.
func (t *drafted) Open(ctx context.Context, id uint64) (namespace.Node, error) {
	if d, ok := t.w.Drafts.ID(id); ok {
		i := d.Info()
		return node(&i), nil
	}
	return t.Tree.Open(ctx, id)
}

// ReadDir is part of Names: drafts stand among the names of the tree, in the order of their keys.
func (t *drafted) ReadDir(ctx context.Context, dir uint64, after string, each func(namespace.Node) bool) error {
	link, prefix, inTree, err := t.where(dir)
	if err != nil {
		return t.Tree.ReadDir(ctx, dir, after, each)
	}
	ours := t.in(link, prefix, after)
	more := true
	give := func(n namespace.Node) bool { more = each(n); return more }
	upTo := func(key string) bool { // gives the drafts before a key; "": all
		for len(ours) > 0 && more && (key == "" || ours[0].Key < key) {
			if ours[0].Object == nil {
				n := node(&ours[0])
				if inTree && !n.Dir && t.beside(dir, n.Name) {
					n.Name = namespace.Beside(n.Name)
				}
				give(n)
			}
			ours = ours[1:]
		}
		return more
	}
	if !inTree {
		upTo("")
		return nil
	}
	err = t.Tree.ReadDir(ctx, dir, after, func(n namespace.Node) bool {
		key := n.Object.Key
		if key == "" { // made by links
			key = prefix + n.Name + "/"
		}
		if !upTo(key) {
			return false
		}
		if d, ok := t.w.Drafts.Find(draft.Name{Link: link, Key: key + "/"}); ok && !n.Dir && d.Info().Object == nil {
			return true // a directory here has its name
		}
		if len(ours) > 0 && ours[0].Key == key {
			if i := ours[0]; i.Object == nil || isOf(&n, &i) {
				name := n.Name // beside a directory it is another one
				n = node(&i)
				n.Name = name
			}
			ours = ours[1:]
		}
		return give(n)
	})
	if err == nil {
		upTo("")
	}
	return err
}

// in are the drafts right in a directory, behind a name. Those that the bucket has had are among them.
func (t *drafted) in(link, prefix, after string) (ours []draft.Info) {
	if after != "" {
		name, isDir := strings.CutSuffix(after, "/")
		if key, err := namespace.KeyIn(prefix, name); err == nil {
			after = key
		} else { // a shortened name, or one that links made
			after = prefix + name
		}
		if isDir {
			after += "/"
		}
	}
	t.w.Drafts.Below(link, prefix, func(d *draft.Draft) bool {
		i := d.Info()
		if rest := strings.TrimSuffix(i.Key[len(prefix):], "/"); rest != "" && i.Key > after && !strings.Contains(rest, "/") {
			ours = append(ours, i)
		}
		return true
	})
	return ours
}

// hasDrafts reports whether any draft is below a directory.
func (t *drafted) hasDrafts(at draft.Name) (has bool) {
	t.w.Drafts.Below(at.Link, at.Key, func(d *draft.Draft) bool {
		i := d.Info()
		has = i.Object == nil && i.Key != at.Key
		return !has
	})
	return has
}
