package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
)

// A file that is written is a draft (package draft). close(2) publishes what was written since the last time, and answers once
// the bucket has it. Handles hold nothing: a request names the draft by its node id.

// isDraft returns the draft of a node id.
func (f *fileSystem) isDraft(id uint64) (*draft.Draft, bool) {
	if f.write == nil {
		return nil, false
	}
	return f.write.w.Drafts.ID(id)
}

// Create answers CREATE. It asks the origin nothing.
func (f *fileSystem) Create(cancel <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.requestIn(cancel, &in.InHeader)
	defer r.finish()
	d, err := f.create(in, name)
	if err != nil {
		return f.failed(r, err)
	}
	i := d.Info()
	n := node(&i)
	if resent(in.Unique) {
		// Nobody has it open: the handle is that of an answer that has not arrived.
		f.handles.forget(n.ID, func(node, handle uint64, writes bool) { f.handles.drop(node, handle, writes) })
	}
	if out.OpenOut.Fh, err = f.handles.add(n.ID, canWrite(in.Flags)); err != nil {
		return f.failed(r, err)
	}
	f.enter(&n, &out.EntryOut)
	out.OpenOut.OpenFlags = gofuse.FOPEN_KEEP_CACHE
	return gofuse.OK
}

func (f *fileSystem) create(in *gofuse.CreateIn, name string) (*draft.Draft, error) {
	d, at, err := f.write.find(f.toTree(in.NodeId), name)
	if err != nil {
		return nil, err
	}
	if d != nil && d.Info().Object == nil {
		switch {
		case in.Flags&syscall.O_EXCL != 0 && !resent(in.Unique):
			return nil, syscall.EEXIST
		case in.Flags&syscall.O_TRUNC != 0:
			err = d.Truncate(0)
		}
		return d, err
	}
	id, err := f.write.w.Keys.NewID()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return f.handles.begin(at, id, draft.Attr{Mode: in.Mode & 0o7777, UID: in.Uid, GID: in.Gid, ModTime: now, ATime: now,
		Exclusive: in.Flags&syscall.O_EXCL != 0, New: in.Flags&syscall.O_TRUNC == 0})
}

// resent reports whether the kernel asks a second time, since the process that it asked first has ended (FUSE_UNIQUE_RESEND in
// linux/fuse.h). What that one has done is done.
func resent(unique uint64) bool { return unique>>63 != 0 }

// writes reports whether a file is opened to be changed.
func writes(flags uint32) bool { return flags&(syscall.O_WRONLY|syscall.O_RDWR|syscall.O_TRUNC) != 0 }

// canWrite reports whether a descriptor can write. O_TRUNC alone changes a file once, and a RELEASE does not tell of it.
func canWrite(flags uint32) bool { return flags&syscall.O_ACCMODE != syscall.O_RDONLY }

// openPlain answers an OPEN of a writable mount.
func (f *fileSystem) openPlain(in *gofuse.OpenIn, out *gofuse.OpenOut) error {
	d, ok := f.isDraft(in.NodeId)
	if !ok && writes(in.Flags) {
		if in.Flags&syscall.O_TRUNC == 0 {
			return f.cannotYet("open", in.NodeId)
		}
		if _, err := f.empty(in.NodeId); err != nil {
			return err
		}
	}
	handle, err := f.handles.add(in.NodeId, canWrite(in.Flags))
	if err != nil {
		return err
	}
	if ok && in.Flags&syscall.O_TRUNC != 0 {
		if err := d.Truncate(0); err != nil {
			f.handles.drop(in.NodeId, handle, canWrite(in.Flags))
			return err
		}
	}
	out.Fh, out.OpenFlags = handle, gofuse.FOPEN_KEEP_CACHE
	if !writes(in.Flags) {
		out.OpenFlags |= gofuse.FOPEN_NOFLUSH
	}
	return nil
}

// cannotYet says which writes this version refuses.
func (f *fileSystem) cannotYet(what string, id uint64) error {
	rec, err := f.record(context.Background(), id) // nobody is asked
	if err != nil {
		return err
	}
	f.o.complain(fmt.Sprintf("%s %s: a file of the bucket is replaced as a whole in this version: open it with O_TRUNC, or write a new one", what, rec.node.Object.Key))
	return syscall.EOPNOTSUPP
}

// empty begins a draft without bytes in the place of the tree's file, whose node id it takes: who has the file open on this
// mount sees what is written from now on.
func (f *fileSystem) empty(id uint64) (*draft.Draft, error) {
	rec, err := f.record(context.Background(), id) // nobody is asked
	if err != nil {
		return nil, err
	}
	o, now := &rec.node.Object, time.Now()
	d, err := f.handles.begin(draft.Name{Link: o.Link, Key: o.Key}, id, draft.Attr{Mode: f.o.FileMode, UID: f.o.UID, GID: f.o.GID, ModTime: now, ATime: now})
	if err == nil {
		f.records.drop(id)
	}
	return d, err
}

// releasePlain answers a RELEASE of a writable mount. What was not published by close(2), since nothing was written or it came
// by a mapping, is published behind.
func (f *fileSystem) releasePlain(node, handle uint64, writes bool) {
	d := f.handles.drop(node, handle, writes)
	if d == nil {
		return
	}
	i := d.Info()
	switch {
	case i.Users > 0 || !i.Dirty || i.Removed:
	case !f.staged(i.Name):
		f.write.w.Publish(d)
	case i.State != draft.Staged:
		if err := d.Stage(); err != nil { // nothing was promised
			f.o.complain(fmt.Sprintf("close %s: %v", i.Key, err))
		}
	}
}

// staged reports whether what is closed under a name stays here.
func (f *fileSystem) staged(n draft.Name) bool {
	return f.write.w.Staged != nil && f.write.w.Staged(n)
}

// Write answers WRITE.
func (f *fileSystem) Write(_ <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	if f.write == nil {
		return 0, gofuse.EROFS
	}
	f.ops.writes.Add(1)
	d, ok := f.isDraft(in.NodeId)
	if !ok {
		return 0, gofuse.Status(syscall.ESTALE)
	}
	n, err := d.WriteAt(data, int64(in.Offset))
	if err != nil && n == 0 {
		return 0, f.failed(nil, err)
	}
	f.ops.writtenBytes.Add(int64(n))
	return uint32(n), gofuse.OK
}

// readDraft answers a READ of a draft.
func (f *fileSystem) readDraft(d *draft.Draft, off int64, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	n, err := d.ReadAt(buf, off)
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return nil, f.failed(nil, err)
	}
	return gofuse.ReadResultData(buf[:n]), gofuse.OK
}

// Flush answers FLUSH, which each close(2) of a descriptor sends.
func (f *fileSystem) Flush(cancel <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	if f.write == nil {
		return gofuse.ENOSYS
	}
	d, ok := f.isDraft(in.NodeId)
	if !ok {
		return gofuse.OK
	}
	i := d.Info()
	switch {
	case !i.Dirty || i.Untouched || i.Removed:
		return gofuse.OK // nothing was written: the last close publishes a new file
	case f.staged(i.Name) && i.State == draft.Staged:
		return gofuse.OK
	case f.staged(i.Name):
		return f.failed(nil, d.Stage())
	}
	return f.publish(cancel, &in.InHeader, d)
}

// publish has the bucket get a draft, and answers once it has.
func (f *fileSystem) publish(cancel <-chan struct{}, in *gofuse.InHeader, d *draft.Draft) gofuse.Status {
	r := f.request(cancel, in)
	defer r.finish()
	_, err := d.Publish(r)
	i := d.Info()
	switch {
	case err == nil || i.Removed: // it was unlinked meanwhile
		return gofuse.OK
	case errors.Is(err, hearth.ErrConflict) && i.Attr.Exclusive && i.Object == nil:
		err = fmt.Errorf("%w: %w", syscall.EEXIST, err)
	case errors.Is(err, fs.ErrNotExist): // of no file: the descriptor has one
		err = fmt.Errorf("%w: %w", syscall.EIO, err)
	}
	return f.failed(r, err)
}

// Fsync answers FSYNC: what was written survives the end of this process and of the machine's power.
func (f *fileSystem) Fsync(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	d, ok := f.isDraft(in.NodeId)
	switch {
	case !ok && f.write == nil:
		return gofuse.ENOSYS
	case !ok:
		return gofuse.OK
	}
	if err := d.Sync(); err != nil {
		return f.failed(nil, err)
	}
	if i := d.Info(); f.write.w.SyncToBucket && !i.Removed && !f.staged(i.Name) {
		return f.publish(cancel, &in.InHeader, d)
	}
	return gofuse.OK
}

// FsyncDir answers FSYNCDIR: names of drafts are on this node's disk with their bytes, all others in the bucket.
func (f *fileSystem) FsyncDir(<-chan struct{}, *gofuse.FsyncIn) gofuse.Status {
	if f.write == nil {
		return gofuse.ENOSYS
	}
	return gofuse.OK
}

// SetAttr answers SETATTR. Attributes of a draft are kept; those of a file of the bucket stay as they are.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	d, ok := f.isDraft(in.NodeId)
	if size, sets := in.GetSize(); sets {
		if !ok {
			return f.truncate(cancel, in, int64(size), out)
		}
		if err := d.Truncate(int64(size)); err != nil {
			return f.failed(r, err)
		}
	}
	if !ok {
		return f.setNothing(cancel, in, out)
	}
	d.SetAttr(func(a *draft.Attr) {
		if mode, ok := in.GetMode(); ok {
			a.Mode = mode & 0o7777
		}
		if uid, ok := in.GetUID(); ok {
			a.UID = uid
		}
		if gid, ok := in.GetGID(); ok {
			a.GID = gid
		}
		if t, ok := in.GetMTime(); ok {
			a.ModTime = t
		}
		if t, ok := in.GetATime(); ok {
			a.ATime = t
		}
	})
	i := d.Info()
	n := node(&i)
	f.attr(&n, &out.Attr)
	switch _, sets := in.GetSize(); {
	case !sets || i.Users > 0:
		return gofuse.OK
	case f.staged(i.Name):
		return f.failed(r, d.Stage())
	}
	return f.publishNow(cancel, in, d)
}

// publishNow publishes a draft that truncate(2) made or changed: nobody may close it later.
func (f *fileSystem) publishNow(cancel <-chan struct{}, in *gofuse.SetAttrIn, d *draft.Draft) gofuse.Status {
	s := f.publish(cancel, &in.InHeader, d)
	if !s.Ok() && d.Info().Users == 0 {
		f.write.w.Publish(d) // as after a close that failed
	}
	return s
}

// truncate answers truncate(2) of a file of the bucket.
func (f *fileSystem) truncate(cancel <-chan struct{}, in *gofuse.SetAttrIn, size int64, out *gofuse.AttrOut) gofuse.Status {
	rec, err := f.record(context.Background(), in.NodeId)
	if err != nil {
		return f.failed(nil, err)
	}
	switch {
	case rec.node.Dir:
		return gofuse.EISDIR
	case size == rec.node.Object.Size:
		return f.setNothing(cancel, in, out)
	case size != 0:
		return f.failed(nil, f.cannotYet("truncate", in.NodeId))
	}
	d, err := f.empty(in.NodeId)
	if err != nil {
		return f.failed(nil, err)
	}
	i := d.Info()
	n := node(&i)
	f.attr(&n, &out.Attr)
	return f.publishNow(cancel, in, d)
}

// setNothing answers SETATTR for what has no attributes of its own. What would stay as it is may be set.
func (f *fileSystem) setNothing(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	s := f.GetAttr(cancel, &gofuse.GetAttrIn{InHeader: in.InHeader}, out)
	mode, setsMode := in.GetMode()
	uid, setsUID := in.GetUID()
	gid, setsGID := in.GetGID()
	if s.Ok() && (setsMode && mode&0o7777 != out.Mode&0o7777 || setsUID && uid != out.Uid || setsGID && gid != out.Gid) {
		return gofuse.EPERM
	}
	return s
}

// Unlink answers UNLINK. Who has the file open goes on with it.
func (f *fileSystem) Unlink(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.requestIn(cancel, in)
	defer r.finish()
	return f.failed(r, f.unlink(r, f.toTree(in.NodeId), name))
}

func (f *fileSystem) unlink(ctx context.Context, dir uint64, name string) error {
	d, at, err := f.write.find(dir, name)
	if err != nil {
		return err
	}
	if d == nil {
		return f.remove(ctx, at.Link, at.Key)
	}
	if err := d.Remove(ctx); err != nil {
		return err
	}
	i := d.Info() // now: nothing more is published
	if i.Base == nil {
		hidden, err := f.hidden(ctx, dir, name, &i)
		if hidden == nil || err != nil {
			return err // nil: the bucket never had it, nor a file whose place it took
		}
		return f.removeHidden(ctx, i.ID, hidden)
	}
	return f.remove(ctx, at.Link, at.Key)
}

// remove deletes a key.
func (f *fileSystem) remove(ctx context.Context, link, key string) error {
	up, err := f.write.w.Uploader(link)
	if err == nil {
		err = up.Delete(ctx, key, "")
	}
	f.wrote(ctx, link, key, nil, 0, err)
	return err
}

// wrote tells the tree what became of a write.
func (f *fileSystem) wrote(ctx context.Context, link, key string, o *hearth.Object, id uint64, err error) {
	switch w := f.write.w; {
	case err == nil:
		w.Wrote(ctx, link, key, o, id)
	case errors.Is(err, hearth.ErrUnanswered):
		w.Doubted(ctx, link, key)
	}
}

// Mkdir answers MKDIR: an empty object at the directory's own key. One with a temporary name, or in such a directory, is a draft.
func (f *fileSystem) Mkdir(cancel <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.requestIn(cancel, &in.InHeader)
	defer r.finish()
	dir := f.toTree(in.NodeId)
	d, at, err := f.write.find(dir, name)
	if err == nil && d != nil && d.Info().Object == nil && !resent(in.Unique) {
		err = syscall.EEXIST
	}
	var n namespace.Node
	switch {
	case err != nil:
	case d != nil && d.Info().Object == nil:
		i := d.Info()
		n = node(&i)
	case f.staged(asDir(at)):
		n, err = f.stageDir(asDir(at), in)
	default:
		if err = f.mark(r, at); err == nil {
			n, err = f.tree.Lookup(r, dir, name)
		}
	}
	if err != nil {
		return f.failed(r, err)
	}
	f.enter(&n, out)
	return gofuse.OK
}

// stageDir makes a directory that the bucket does not get before it is renamed.
func (f *fileSystem) stageDir(at draft.Name, in *gofuse.MkdirIn) (namespace.Node, error) {
	id, err := f.write.w.Keys.NewID()
	if err != nil {
		return namespace.Node{}, err
	}
	now := time.Now()
	d, err := f.write.w.Drafts.Create(at, id, draft.Attr{Mode: in.Mode & 0o7777, UID: in.Uid, GID: in.Gid, ModTime: now, ATime: now})
	if err == nil {
		err = d.Stage() // the names of files in it are to be found after a power cut
	}
	if err != nil {
		return namespace.Node{}, err
	}
	i := d.Info()
	return node(&i), nil
}

// mark makes a directory's marker.
func (f *fileSystem) mark(ctx context.Context, at draft.Name) error {
	up, err := f.write.w.Uploader(at.Link)
	var o hearth.Object
	if err == nil {
		o, err = up.Put(ctx, &hearth.Upload{Key: at.Key + "/"}, strings.NewReader(""))
	}
	f.wrote(ctx, at.Link, at.Key+"/", &o, 0, err)
	return err
}

// Rmdir answers RMDIR.
func (f *fileSystem) Rmdir(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.requestIn(cancel, in)
	defer r.finish()
	err := f.rmdir(r, f.toTree(in.NodeId), name)
	if resent(in.Unique) && errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return f.failed(r, err)
}

func (f *fileSystem) rmdir(ctx context.Context, parent uint64, name string) error {
	d, at, err := f.write.find(parent, name)
	if err != nil {
		return err
	}
	n, err := f.tree.Lookup(ctx, parent, name)
	switch {
	case err != nil:
		return err
	case !n.Dir:
		return syscall.ENOTDIR
	case f.write.hasDrafts(asDir(at)):
		return syscall.ENOTEMPTY
	case d != nil && d.Info().Object == nil:
		return d.Remove(ctx)
	}
	empty := true
	err = f.tree.ReadDir(ctx, n.ID, "", func(namespace.Node) bool { empty = false; return false })
	switch {
	case err != nil:
		return err
	case !empty:
		return syscall.ENOTEMPTY
	}
	undo := f.remade.next(f.handles.table, n.ID) // before: a process that takes over may find it gone
	if err := f.remove(ctx, at.Link, at.Key+"/"); err != nil {
		undo()
		return err
	}
	return nil
}

// failed is the errno of an error that a writer gets: those of its node's disk and of the bucket as they are.
func (f *fileSystem) failed(r *request, err error) gofuse.Status {
	var errno syscall.Errno
	var network *net.OpError
	switch {
	case err == nil:
		return gofuse.OK
	case r != nil && r.interrupted(), errors.As(err, &network): // a socket's errno is no file's
	case errors.Is(err, hearth.ErrConflict) && !errors.Is(err, syscall.EEXIST):
		return gofuse.Status(syscall.ESTALE)
	case errors.As(err, &errno):
		return gofuse.Status(errno)
	case errors.Is(err, fs.ErrPermission):
		return gofuse.EACCES
	}
	if r == nil {
		r = new(request)
	}
	return f.status(r, err)
}
