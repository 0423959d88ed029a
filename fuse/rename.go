package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
)

// A rename of a draft is its upload: it answers once the bucket has it under the new name, but where that is temporary, too, or
// somebody writes it still. An object is copied, and its old key is deleted. A directory is renamed if only drafts are in it.

// Rename answers RENAME and RENAME2. The kernel holds the locks of both directories meanwhile.
func (f *fileSystem) Rename(cancel <-chan struct{}, in *gofuse.RenameIn, oldName, newName string) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.requestIn(cancel, &in.InHeader)
	defer r.finish()
	return f.failed(r, f.rename(r, in, oldName, newName))
}

func (f *fileSystem) rename(ctx context.Context, in *gofuse.RenameIn, oldName, newName string) (err error) {
	if in.Flags&^unix.RENAME_NOREPLACE != 0 {
		return syscall.EINVAL
	}
	only := in.Flags&unix.RENAME_NOREPLACE != 0
	oldDir, newDir := f.toTree(in.NodeId), f.toTree(in.Newdir)
	d, from, err := f.write.find(oldDir, oldName)
	if err != nil {
		return err
	}
	target, to, err := f.write.find(newDir, newName)
	if err != nil {
		return err
	}
	w := f.last(ctx, from, to)
	ctx = w.ctx
	defer func() { err = w.end(err) }()
	if d != nil && d.Info().Object != nil {
		if n, err := f.write.Lookup(ctx, oldDir, oldName); err == nil && n.ID != d.Info().ID {
			d = nil // the name shows another one's object: that is renamed
		}
	}
	if !resent(in.Unique) && f.write.w.Frozen != nil {
		_, missing := f.write.lookup(ctx, newDir, newName)
		if err := errors.Join(f.frozen(from, d == nil || d.Info().Base != nil), f.frozen(to, missing == nil)); err != nil {
			return err
		}
	}
	if from != to && from.Link == to.Link && f.handles.writing() {
		if d == nil && !resent(in.Unique) {
			d = f.orphan(ctx, oldDir, oldName) // its writers may begin while it is copied
		}
		if target == nil && !only {
			target = f.orphan(ctx, newDir, newName)
		}
	}
	switch {
	case from.Link != to.Link:
		return syscall.EXDEV
	case from == to:
		return nil
	case d == nil && resent(in.Unique):
		return f.renameObject(ctx, in, oldDir, oldName, from, to, target)
	case only && target != nil && target.Info().Base == nil:
		return syscall.EEXIST
	case d == nil:
		return f.renameObject(ctx, in, oldDir, oldName, from, to, target)
	}
	i := d.Info()
	switch {
	case i.IsDir() && i.Object != nil:
		return syscall.EXDEV // the tree's by now
	case i.IsDir():
		return f.renameDir(ctx, i.Name, asDir(to), newDir, newName)
	}
	hidden, err := f.hidden(ctx, oldDir, oldName, &i)
	if err != nil {
		return err
	}
	if hidden != nil {
		defer f.renames.begin(f.handles.table, in.Unique, hides)()
	}
	err = d.Rename(ctx, to, only, f.due(to, &i))
	if now, _, _ := f.write.find(oldDir, oldName); now == nil && errors.Is(err, draft.ErrRemoved) { // published meanwhile, and gone
		return f.renameObject(ctx, in, oldDir, oldName, from, to, target)
	}
	if errors.Is(err, draft.ErrPublished) {
		if err = f.publishForRename(ctx, d); err != nil {
			return err
		}
		i = d.Info()
		return f.copy(ctx, &namespace.Node{ID: i.ID, Object: *i.Base}, oldDir, from, to, d, target, in)
	}
	if now := d.Info(); err == nil && now.Dirty && f.due(to, &now) { // the last writer has gone meanwhile
		_, err = d.Publish(ctx)
	}
	f.leave(to)
	switch {
	case err != nil && only && conflicts(err):
		return fmt.Errorf("%w: %w", syscall.EEXIST, err)
	case err != nil:
		return f.frozenTo(to, err)
	}
	if hidden != nil {
		f.keep(ctx, oldDir, from)
		if err := f.removeHidden(ctx, hidden); err != nil {
			return err
		}
	}
	if f.staged(to) {
		return d.Stage()
	}
	return nil
}

// due reports whether a draft is to be in the bucket once it has a name: not if that is temporary, or somebody writes on. Whoever
// has closed a staged draft may not have released it yet.
func (f *fileSystem) due(to draft.Name, i *draft.Info) bool {
	return !f.staged(to) && (i.State == draft.Staged || !f.handles.written(i.ID))
}

// leave publishes behind what a rename has left at and below a name, and nobody would publish: a file whose last RELEASE came
// meanwhile, one that was to be replaced, or of which nobody knows whether it was published.
func (f *fileSystem) leave(at draft.Name) {
	f.write.w.Drafts.Below(at.Link, at.Key, func(d *draft.Draft) bool {
		i := d.Info()
		if (i.Key == at.Key || at.IsDir()) && i.Users == 0 && i.Dirty && !i.Removed && !i.Conflict && !f.staged(i.Name) {
			f.write.w.Publish(d, i)
		}
		return i.Key == at.Key || at.IsDir()
	})
}

// hidden is the object that a draft hides under its name: whose place it took, or that it was renamed over. nil means that it hides
// none.
func (f *fileSystem) hidden(ctx context.Context, dir uint64, name string, i *draft.Info) (*hearth.Object, error) {
	if i.Base != nil {
		return nil, nil
	}
	n, err := f.write.Tree.Node(ctx, i.ID)
	if err == nil && n.Object.Key == i.Key {
		return &n.Object, nil
	}
	if i.Attr.New || i.Attr.Exclusive { // the name had none
		return nil, nil
	}
	n, err = f.write.lookup(ctx, dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && n.Dir:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &n.Object, nil
}

// removeHidden deletes the object that a draft, which has the name now or none, has hidden. Another version of it is somebody
// else's, and stays.
func (f *fileSystem) removeHidden(ctx context.Context, o *hearth.Object) error {
	up, err := f.write.w.Uploader(o.Link)
	if err == nil {
		err = up.Delete(ctx, o.Key, o.ETag)
	}
	if errors.Is(err, hearth.ErrConflict) {
		f.write.w.Doubted(ctx, o.Link, o.Key)
		return nil
	}
	f.wrote(ctx, o.Link, o.Key, nil, 0, err)
	return err
}

// publishForRename publishes what was written since the last close, unless somebody writes on.
func (f *fileSystem) publishForRename(ctx context.Context, d *draft.Draft) error {
	if i := d.Info(); !i.Dirty || f.handles.written(i.ID) {
		return nil
	}
	_, err := d.Publish(ctx)
	return err
}

// renameObject renames what the tree has under a name.
func (f *fileSystem) renameObject(ctx context.Context, in *gofuse.RenameIn, oldDir uint64, oldName string, from, to draft.Name, target *draft.Draft) error {
	n, err := f.write.lookup(ctx, oldDir, oldName)
	if resent(in.Unique) {
		if done, err := f.renamed(ctx, in, oldDir, from, n, err, to, target); done {
			return err
		}
	}
	switch {
	case err != nil:
		return err
	case n.Dir:
		return syscall.EXDEV
	}
	err = f.copy(ctx, &n, oldDir, from, to, nil, target, in)
	if resent(in.Unique) && errors.Is(err, hearth.ErrStale) && f.copied(ctx, in, oldDir, oldName, &n, to) {
		_, err = f.replaced(ctx, in, to, target)
	}
	return err
}

func lastName(n draft.Name) string {
	return namespace.MountName(n.Key[strings.LastIndexByte(n.Key, '/')+1:])
}

// copied reports whether the process before this one has renamed an object, and ended before the tree was told of it.
func (f *fileSystem) copied(ctx context.Context, in *gofuse.RenameIn, oldDir uint64, oldName string, n *namespace.Node, to draft.Name) bool {
	f.write.w.Doubted(ctx, n.Object.Link, n.Object.Key)
	f.write.w.Doubted(ctx, to.Link, to.Key)
	_, gone := f.write.lookup(ctx, oldDir, oldName)
	now, err := f.write.lookup(ctx, f.toTree(in.Newdir), lastName(to))
	if !errors.Is(gone, fs.ErrNotExist) || err != nil || now.Dir || now.Object.Size != n.Object.Size {
		return false
	}
	f.wrote(ctx, to.Link, to.Key, &now.Object, n.ID, nil)
	f.records.drop(n.ID)
	return true
}

// renamed goes on with a rename that the process before this one has begun, and may have ended. The old name is gone then, or
// has what the draft has hidden; else it is not done.
func (f *fileSystem) renamed(ctx context.Context, in *gofuse.RenameIn, oldDir uint64, from draft.Name, n namespace.Node, missing error, to draft.Name, d *draft.Draft) (done bool, err error) {
	at, _ := f.write.Tree.Node(ctx, n.ID)
	same := d != nil && d.Info().ID == n.ID
	if d != nil && !same { // the id of what was opened again may stand for the object, and be another one than its name's
		was, err := f.write.Tree.Node(ctx, d.Info().ID)
		same = err == nil && was.Object.Key == n.Object.Key && was.Object.Version == n.Object.Version
	}
	switch {
	case errors.Is(missing, fs.ErrNotExist):
	case missing == nil && !n.Dir && (same || at.Object.Key == to.Key || f.renames.begun(in.Unique) == hides):
		defer func() {
			if done && err == nil {
				f.keep(ctx, oldDir, from)
				err = f.removeHidden(ctx, &n.Object)
			}
		}()
	default:
		return false, nil
	}
	if !f.staged(to) && f.write.hasDrafts(asDir(to)) {
		return true, f.moveDir(ctx, asDir(to), asDir(to))
	}
	switch {
	case f.staged(to):
		return d != nil, nil // else nothing has the new name
	case d == nil: // somebody else may have found out that the old name is gone
		f.write.w.Doubted(ctx, to.Link, to.Key)
		_, err := f.write.lookup(ctx, f.toTree(in.Newdir), lastName(to))
		return !errors.Is(err, fs.ErrNotExist), nil
	}
	if gone, err := f.replaced(ctx, in, to, d); gone || err != nil {
		return true, err
	}
	return true, f.publishForRename(ctx, d)
}

// replaced removes a draft that has a name still, though the process before this one has put an object in its place. It was
// begun for that, for who has the old file open, and goes on for them without a name.
func (f *fileSystem) replaced(ctx context.Context, in *gofuse.RenameIn, to draft.Name, d *draft.Draft) (gone bool, err error) {
	if d == nil {
		return false, nil
	}
	i := d.Info()
	if i.Base == nil || i.Dirty && !i.Untouched {
		return false, nil // what was written of it is not to be lost
	}
	f.write.w.Doubted(ctx, to.Link, to.Key)
	now, err := f.write.lookup(ctx, f.toTree(in.Newdir), lastName(to))
	if err != nil || now.Dir || now.Object.ETag == i.Base.ETag {
		return false, nil // nobody knows of another
	}
	return true, d.Remove(ctx)
}

// copy renames an object, of which d is the draft if somebody has that open still.
func (f *fileSystem) copy(ctx context.Context, n *namespace.Node, oldDir uint64, from, to draft.Name, d, target *draft.Draft, in *gofuse.RenameIn) error {
	only := in.Flags&unix.RENAME_NOREPLACE != 0
	up, err := f.write.w.Uploader(from.Link)
	if err != nil {
		return err
	}
	if f.staged(to) {
		return fmt.Errorf("%s is in the bucket, and %s would not be: %w", from.Key, to.Key, syscall.EXDEV)
	}
	waits := func() bool { // for its close
		i := target.Info()
		return i.Object == nil && (i.Base == nil || !i.Untouched)
	}
	decided := f.renames.begun(in.Unique) == copies // and what was written to the target since goes nowhere
	if target != nil && !decided && waits() {       // if nobody writes it any more, it is being published behind
		if err := f.publishForRename(ctx, target); err != nil {
			return fmt.Errorf("%s cannot be replaced before it is in the bucket: %w: %v", to.Key, syscall.EXDEV, err)
		}
	}
	if target != nil && !decided && waits() {
		return fmt.Errorf("what was written to %s is not in the bucket yet: %w", to.Key, syscall.EXDEV)
	}
	defer f.renames.begin(f.handles.table, in.Unique, copies)()
	o, err := up.Copy(ctx, &hearth.Upload{Key: to.Key, Size: n.Object.Size, IfNone: only, Again: resent(in.Unique)}, &n.Object)
	if err != nil {
		if errors.Is(err, hearth.ErrUnanswered) {
			f.write.w.Doubted(ctx, to.Link, to.Key)
		}
		if only && conflicts(err) {
			err = fmt.Errorf("%w: %w", syscall.EEXIST, err)
		}
		return err
	}
	if target != nil {
		if err := target.Remove(ctx); err != nil {
			return err
		}
	}
	old := n.Object.ETag
	if d != nil {
		if old, err = d.Renamed(ctx, to, old, o); err != nil {
			return err
		}
	}
	if dir := from.Key[:strings.LastIndexByte(from.Key, '/')+1]; !strings.HasPrefix(to.Key, dir) {
		f.keep(ctx, oldDir, from)
	}
	err = up.Delete(ctx, from.Key, old)
	if err != nil && d != nil && old == n.Object.ETag && !conflicts(err) && !errors.Is(err, hearth.ErrUnanswered) {
		_, back := d.Renamed(context.WithoutCancel(ctx), from, o.ETag, n.Object) // whoever writes it writes the old name, which stays
		err = errors.Join(err, back)
	}
	id := n.ID
	if err != nil && !errors.Is(err, hearth.ErrConflict) {
		id = 0 // the old name has it still
	}
	f.wrote(ctx, to.Link, to.Key, &o, id, nil) // first, lest a process that goes on finds neither, and the file's id nowhere
	f.records.drop(n.ID)
	if errors.Is(err, hearth.ErrConflict) { // somebody has written it meanwhile, and that stays
		f.write.w.Doubted(ctx, from.Link, from.Key)
		err = nil
	} else {
		f.wrote(ctx, from.Link, from.Key, nil, 0, err)
	}
	if err == nil && d != nil { // a close may have published in between
		err = f.publishForRename(ctx, d)
	}
	return err
}

// renameDir renames a directory that is a draft.
func (f *fileSystem) renameDir(ctx context.Context, from, to draft.Name, newDir uint64, newName string) error {
	// The kernel has seen that what stands there is a directory. It is replaced if it is empty, and is there again after an error.
	gone := f.rmdir(ctx, newDir, newName)
	if gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		return gone
	}
	err := f.moveDir(ctx, from, to)
	if err != nil && gone == nil && !f.staged(to) {
		again := draft.Name{Link: to.Link, Key: strings.TrimSuffix(to.Key, "/")}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if failed := f.mark(late, again, true); failed != nil && !conflicts(failed) {
			f.o.complain(fmt.Sprintf("make the directory %s again, which a rename that failed was to replace: %v", to.Key, failed))
		}
	}
	return err
}

func (f *fileSystem) moveDir(ctx context.Context, from, to draft.Name) error {
	err := f.write.w.Drafts.RenameDir(ctx, from, to, func(i draft.Info) bool { return f.due(i.Name, &i) }, f.takeBack)
	f.leave(to)
	if errors.Is(err, draft.ErrPublished) {
		return syscall.EXDEV
	}
	return f.frozenTo(to, err)
}

// frozenTo is the error of a rename: EPERM where the bucket had a name that this node did not know of, and the link is immutable.
func (f *fileSystem) frozenTo(to draft.Name, err error) error {
	if err != nil && conflicts(err) && f.frozen(to, true) != nil {
		f.write.w.Doubted(context.Background(), to.Link, to.Key)
		return fmt.Errorf("%w: %v", f.frozen(to, true), err)
	}
	return err
}

// takeBack deletes an object that the rename of a directory has written, if nobody has written another one since.
func (f *fileSystem) takeBack(ctx context.Context, o hearth.Object) error {
	up, err := f.write.w.Uploader(o.Link)
	if err == nil {
		err = up.Delete(ctx, o.Key, o.ETag)
	}
	if errors.Is(err, hearth.ErrConflict) {
		f.write.w.Doubted(ctx, o.Link, o.Key)
		return nil
	}
	f.wrote(ctx, o.Link, o.Key, nil, 0, err)
	return err
}
