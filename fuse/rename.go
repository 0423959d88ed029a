package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

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

func (f *fileSystem) rename(ctx context.Context, in *gofuse.RenameIn, oldName, newName string) error {
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
	switch {
	case err != nil:
		return err
	case from.Link != to.Link:
		return syscall.EXDEV
	case from == to:
		return nil
	case only && target != nil && target.Info().Object == nil:
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
	if i.Object == nil {
		// Before, so that a kernel that asks again does not find it under the old name. The draft has taken its place.
		if err := f.removeHidden(ctx, &i); err != nil {
			return err
		}
	}
	err = d.Rename(ctx, to, only, !f.staged(to) && !f.handles.written(i.ID))
	switch {
	case errors.Is(err, draft.ErrPublished):
		if err = f.publishForRename(ctx, d); err != nil {
			return err
		}
		i = d.Info()
		return f.copy(ctx, &namespace.Node{ID: i.ID, Object: *i.Object}, from, to, d, target, only)
	case err == nil && f.staged(to):
		return d.Stage()
	}
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
	if resent(in.Unique) && errors.Is(err, fs.ErrNotExist) {
		return f.renamed(ctx, to, target)
	}
	switch {
	case err != nil:
		return err
	case n.Dir:
		return syscall.EXDEV
	}
	return f.copy(ctx, &n, from, to, nil, target, in.Flags&unix.RENAME_NOREPLACE != 0)
}

// renamed goes on with a rename that the process before this one has begun, and may have ended: the old name is gone.
func (f *fileSystem) renamed(ctx context.Context, to draft.Name, d *draft.Draft) error {
	switch {
	case d == nil || f.staged(to):
		return nil
	case d.Info().IsDir():
		return f.moveDir(ctx, asDir(to), asDir(to))
	}
	return f.publishForRename(ctx, d)
}

// copy renames an object, of which d is the draft if somebody has that open still.
func (f *fileSystem) copy(ctx context.Context, n *namespace.Node, from, to draft.Name, d, target *draft.Draft, only bool) error {
	up, err := f.write.w.Uploader(from.Link)
	if err != nil {
		return err
	}
	switch {
	case f.staged(to):
		return fmt.Errorf("%s is in the bucket, and %s would not be: %w", from.Key, to.Key, syscall.EXDEV)
	case target != nil && target.Info().Object == nil:
		return fmt.Errorf("what was written to %s is not in the bucket yet: %w", to.Key, syscall.EXDEV)
	}
	o, err := up.Copy(ctx, &hearth.Upload{Key: to.Key, Size: n.Object.Size, IfNone: only}, &n.Object)
	if err != nil {
		if errors.Is(err, hearth.ErrUnanswered) {
			f.write.w.Doubted(ctx, to.Link, to.Key)
		}
		if only && errors.Is(err, hearth.ErrConflict) {
			err = fmt.Errorf("%w: %w", syscall.EEXIST, err)
		}
		return err
	}
	if target != nil {
		if err := target.Remove(ctx); err != nil {
			return err
		}
	}
	if d != nil {
		if err := d.Renamed(ctx, to, o); err != nil {
			return err
		}
	}
	err = up.Delete(ctx, from.Key, n.Object.ETag)
	if errors.Is(err, hearth.ErrConflict) {
		err = nil // somebody has written it meanwhile, and that stays
	}
	f.wrote(ctx, from.Link, from.Key, nil, 0, err)
	f.wrote(ctx, to.Link, to.Key, &o, n.ID, nil)
	f.records.drop(n.ID)
	return err
}

// renameDir renames a directory that is a draft.
func (f *fileSystem) renameDir(ctx context.Context, from, to draft.Name, newDir uint64, newName string) error {
	// The kernel has seen that what stands there is a directory. It is replaced if it is empty.
	if err := f.rmdir(ctx, newDir, newName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.moveDir(ctx, from, to)
}

func (f *fileSystem) moveDir(ctx context.Context, from, to draft.Name) error {
	err := f.write.w.Drafts.RenameDir(ctx, from, to, func(i draft.Info) bool {
		return !f.staged(i.Name) && !f.handles.written(i.ID)
	}, func(ctx context.Context, o hearth.Object) error { return f.remove(ctx, o.Link, o.Key) })
	if errors.Is(err, draft.ErrPublished) {
		return syscall.EXDEV
	}
	return err
}
