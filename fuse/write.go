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
		never := func(uint64) bool { return false }
		f.handles.forget(n.ID, never, func(node, handle uint64, writes bool) { f.handles.drop(node, handle, writes) })
	}
	if out.OpenOut.Fh, _, err = f.handles.add(n.ID, in.Flags, in.Unique); err != nil {
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
		if in.Flags&syscall.O_EXCL != 0 && !resent(in.Unique) {
			return nil, syscall.EEXIST
		}
		if writes(in.Flags) && !resent(in.Unique) {
			d.Claim()
		}
		if in.Flags&syscall.O_TRUNC != 0 {
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
		Exclusive: in.Flags&syscall.O_EXCL != 0, New: in.Flags&syscall.O_TRUNC == 0 || f.frozen(at, true) != nil}, nil)
}

// resent reports whether the kernel asks a second time, since the process that it asked first has ended (FUSE_UNIQUE_RESEND in
// linux/fuse.h). What that one has done is done.
func resent(unique uint64) bool { return unique>>63 != 0 }

// writes reports whether a file is opened to be changed.
func writes(flags uint32) bool { return flags&(syscall.O_WRONLY|syscall.O_RDWR|syscall.O_TRUNC) != 0 }

// canWrite reports whether a descriptor can write. O_TRUNC alone changes a file once, and a RELEASE does not tell of it.
func canWrite(flags uint32) bool { return flags&syscall.O_ACCMODE != syscall.O_RDONLY }

// openPlain answers an OPEN of a writable mount.
func (f *fileSystem) openPlain(ctx context.Context, in *gofuse.OpenIn, out *gofuse.OpenOut) error {
	d, ok := f.isDraft(in.NodeId)
	if !ok && f.outlived(in.NodeId) {
		return hearth.ErrStale // the kernel looks the name up again
	}
	if writes(in.Flags) && !resent(in.Unique) {
		if err := f.mayChange(in.NodeId, d); err != nil {
			return err
		}
	}
	if !ok && in.Flags&syscall.O_TRUNC != 0 {
		if _, err := f.empty(ctx, in.NodeId); err != nil {
			return err
		}
	}
	handle, holds, err := f.handles.add(in.NodeId, in.Flags, in.Unique)
	if err != nil {
		return err
	}
	if ok && holds == nil && f.outlived(in.NodeId) { // its draft has gone since
		f.handles.drop(in.NodeId, handle, canWrite(in.Flags))
		return hearth.ErrStale
	}
	if ok && writes(in.Flags) {
		d.Claim() // it is opened by the name that it is kept under
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

// mayChange is an error for a file of the bucket whose link is immutable. d is its draft, or nil.
func (f *fileSystem) mayChange(id uint64, d *draft.Draft) error {
	if f.write.w.Frozen == nil {
		return nil
	}
	if d != nil {
		i := d.Info()
		return f.frozen(i.Name, i.Base != nil)
	}
	rec, err := f.record(context.Background(), id) // nobody is asked
	if err != nil {
		return err
	}
	return f.frozen(draft.Name{Link: rec.node.Object.Link, Key: rec.node.Object.Key}, true)
}

// frozen is an error for what would change a name that the bucket has, if its link is immutable.
func (f *fileSystem) frozen(at draft.Name, has bool) error {
	if has && f.write.w.Frozen != nil && f.write.w.Frozen(at.Link) {
		return fmt.Errorf("change %s, whose link is immutable: it takes new names alone: %w", at.Key, syscall.EPERM)
	}
	return nil
}

// outlived reports whether a file has another node by now, which was looked up before: a draft's, or this one was a draft's that has
// gone. One file would be open by two nodes, whose writers cannot both have the draft.
func (f *fileSystem) outlived(id uint64) bool {
	was, known := f.handles.wasDraft(id)
	perhaps := was || !known && id <= f.holds.before // an older one may have been a draft's of another process
	if !perhaps && f.write.w.Drafts.Empty() {
		return false
	}
	ctx := namespace.Quiet(context.Background()) // nobody is asked
	n, err := f.write.Tree.Node(ctx, id)
	if err != nil {
		return false
	}
	if d, ok := f.write.w.Drafts.Find(draft.Name{Link: n.Object.Link, Key: n.Object.Key}); ok {
		i := d.Info()
		return i.ID != id && isOf(&n, &i)
	}
	if !perhaps {
		return false
	}
	now, err := f.write.w.Keys.File(ctx, n.Object.Link, n.Object.Key)
	if err == nil && now.ID == id {
		f.handles.wasNone(id)
	}
	return err == nil && now.ID != id
}

// empty begins a draft without bytes in the place of the tree's file, whose node id it takes: who has the file open on this
// mount sees what is written from now on.
func (f *fileSystem) empty(ctx context.Context, id uint64) (*draft.Draft, error) {
	rec, err := f.record(context.Background(), id) // nobody is asked
	if err != nil {
		return nil, err
	}
	o, attr := &rec.node.Object, f.draftAttr(&rec.node)
	attr.ModTime = time.Now()
	d, err := f.handles.begun(ctx, draft.Name{Link: o.Link, Key: o.Key}, id, attr, nil)
	return d, f.began(id, err)
}

// change begins a draft of the tree's file in its place, whose bytes it has until they are written.
func (f *fileSystem) change(ctx context.Context, id uint64) (*draft.Draft, error) {
	rec, err := f.record(context.Background(), id) // nobody is asked
	if err != nil {
		return nil, err
	}
	o := &rec.node.Object
	if f.lostName(id, draft.Name{Link: o.Link, Key: o.Key}) {
		return nil, f.began(id, syscall.EEXIST)
	}
	d, err := f.handles.begun(ctx, draft.Name{Link: o.Link, Key: o.Key}, id, f.draftAttr(&rec.node), o)
	return d, f.began(id, err)
}

// lostName reports whether the name of a file is another version's, which somebody here has written and has open: what is written of
// this one could only be a conflict.
func (f *fileSystem) lostName(id uint64, at draft.Name) bool {
	d, ok := f.write.w.Drafts.Find(at)
	if !ok {
		return false
	}
	if i := d.Info(); i.ID == id || i.Users == 0 {
		return false
	}
	now, err := f.write.w.Keys.File(namespace.Quiet(context.Background()), at.Link, at.Key) // nobody is asked
	return err == nil && now.ID != id
}

// began is the end of empty and change.
func (f *fileSystem) began(id uint64, err error) error {
	switch {
	case errors.Is(err, syscall.EEXIST): // its name is another file's by now
		return fmt.Errorf("write a file that has lost its name: %w", syscall.ESTALE)
	case err == nil:
		f.records.drop(id)
	}
	return err
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
	case i.Writers > 0 || i.Users > 0 && !writes || !i.Dirty || i.Removed || i.Conflict:
	case !f.staged(i.Name):
		f.write.w.Publish(d, i) // whoever reads on sends no FLUSH
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
func (f *fileSystem) Write(cancel <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	if f.write == nil {
		return 0, gofuse.EROFS
	}
	f.ops.writes.Add(1)
	d, ok := f.isDraft(in.NodeId)
	var err error
	switch {
	case ok:
	case f.handles.written(in.NodeId):
		r := f.request(cancel, &in.InHeader)
		d, err = f.change(r, in.NodeId)
		r.finish()
	default:
		err = syscall.ESTALE
	}
	n := 0
	if err == nil {
		n, err = d.WriteAt(data, int64(in.Offset))
	}
	if err != nil && n == 0 {
		return 0, f.failed(nil, err)
	}
	f.ops.writtenBytes.Add(int64(n))
	return uint32(n), gofuse.OK
}

// readDraft answers a READ of a draft.
func (f *fileSystem) readDraft(r *request, d *draft.Draft, off int64, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	n, err := d.Read(r, buf, off)
	if err != nil && !errors.Is(err, io.EOF) { // also after some bytes: the kernel takes fewer than it asked for as the end of the file
		return nil, f.failed(r, err)
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
	case i.Conflict: // it may look temporary
	case f.staged(i.Name) && i.State == draft.Staged: // perhaps by a close that waits for the disk still
		return f.failed(nil, d.Sync())
	case f.staged(i.Name):
		return f.failed(nil, d.Stage())
	}
	return f.publish(cancel, &in.InHeader, d)
}

// publish has the bucket get a draft, and answers once it has.
func (f *fileSystem) publish(cancel <-chan struct{}, in *gofuse.InHeader, d *draft.Draft) gofuse.Status {
	r := f.request(cancel, in)
	defer r.finish()
	before := d.Info()
	_, err := d.PublishAt(r, before.Name)
	i := d.Info()
	switch {
	case errors.Is(err, draft.ErrRenamed) && f.staged(i.Name):
		return f.failed(r, d.Stage())
	case errors.Is(err, draft.ErrRenamed):
		return f.publish(cancel, in, d)
	case err == nil || i.Removed: // it was unlinked meanwhile
		return gofuse.OK
	}
	if kept := f.write.w.Kept; kept != nil && r.Err() == nil {
		kept(d, before, err)
	}
	switch {
	case conflicts(err) && i.Attr.Exclusive && i.Object == nil:
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
	if i := d.Info(); f.write.w.SyncToBucket != nil && f.write.w.SyncToBucket(i.Link) && !i.Removed && !f.staged(i.Name) {
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

// SetAttr answers SETATTR. What is set is kept on this node: of a draft with it, of all else in the tree.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	d, ok := f.isDraft(in.NodeId)
	size, sets := in.GetSize()
	if sets {
		var err error
		if !resent(in.Unique) && (!ok || !f.handles.written(in.NodeId)) {
			err = f.mayChange(in.NodeId, d)
		}
		if err == nil && !ok {
			d, err = f.resize(r, in.NodeId, int64(size))
			ok = d != nil
		}
		if err == nil && ok {
			err = d.Truncate(int64(size))
		}
		if err != nil {
			return f.failed(r, err)
		}
		if ok && d.Info().Users == 0 { // by its name
			d.Claim()
		}
	}
	if !ok {
		return f.setKept(cancel, in, out)
	}
	if err := d.SetAttr(func(a *draft.Attr) { set(in, a) }); err != nil {
		if i := d.Info(); sets && i.Writers == 0 && !f.staged(i.Name) {
			f.write.w.Publish(d, i) // its size was changed, and nobody may close it later
		}
		return f.failed(r, err)
	}
	i := d.Info()
	// The draft goes when it is published. Before that the tree does not know it.
	if err := f.write.w.Keys.SetAttr(i.ID, keptAttr(i.Attr)); err != nil && !errors.Is(err, hearth.ErrStale) {
		return f.failed(r, err)
	}
	n := node(&i)
	f.attr(&n, &out.Attr)
	switch {
	case !sets || f.handles.written(i.ID):
		return gofuse.OK
	case f.staged(i.Name):
		return f.failed(r, d.Stage())
	}
	return f.publishNow(cancel, in, d)
}

// publishNow publishes a draft that truncate(2) made or changed: nobody may close it later.
func (f *fileSystem) publishNow(cancel <-chan struct{}, in *gofuse.SetAttrIn, d *draft.Draft) gofuse.Status {
	s := f.publish(cancel, &in.InHeader, d)
	if i := d.Info(); !s.Ok() && i.Writers == 0 && !i.Conflict && !f.staged(i.Name) {
		f.write.w.Publish(d, i) // as after a close that failed
	}
	return s
}

// resize begins a draft of the tree's file that is to get a size. nil means that it has it.
func (f *fileSystem) resize(ctx context.Context, id uint64, size int64) (*draft.Draft, error) {
	rec, err := f.record(context.Background(), id) // nobody is asked
	switch {
	case err != nil:
		return nil, err
	case rec.node.Dir:
		return nil, syscall.EISDIR
	case size == rec.node.Object.Size:
		return nil, nil
	case size == 0: // whatever it had
		return f.empty(ctx, id)
	}
	return f.change(ctx, id)
}

// set does what SETATTR asks for.
func set(in *gofuse.SetAttrIn, a *draft.Attr) {
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
}

// setKept answers SETATTR for what is no draft.
func (f *fileSystem) setKept(cancel <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	r := f.request(cancel, &in.InHeader)
	defer r.finish()
	id := f.toTree(in.NodeId)
	n, err := f.tree.Node(r, id)
	if err != nil {
		return f.failed(r, err)
	}
	if err := f.write.mayChange(&n); err != nil {
		return f.failed(r, err)
	}
	a := f.draftAttr(&n)
	was := a
	set(in, &a)
	if n.Dir {
		a.ModTime, a.ATime = time.Time{}, time.Time{} // they are its listing's
		was.ModTime, was.ATime = a.ModTime, a.ATime
	}
	if a != was {
		if err := f.write.w.Keys.SetAttr(id, keptAttr(a)); err != nil {
			return f.failed(r, err)
		}
	}
	f.attr(&n, &out.Attr)
	return gofuse.OK
}

// isSet is what was set of a node, or of its draft.
func (f *fileSystem) isSet(id uint64) (namespace.Attr, bool) {
	if d, ok := f.isDraft(id); ok {
		return keptAttr(d.Info().Attr), true
	}
	return f.write.w.Keys.Attr(id)
}

// draftAttr is what a draft of a node begins with: what was set of it, or what the mount shows of all.
func (f *fileSystem) draftAttr(n *namespace.Node) draft.Attr {
	a, set := f.write.w.Keys.Attr(n.ID)
	if !set {
		a = namespace.Attr{Mode: f.o.FileMode, UID: f.o.UID, GID: f.o.GID, ModTime: n.ModTime, ATime: n.ModTime}
		if n.Dir {
			a.Mode = f.o.DirMode
		}
	}
	return draft.Attr{Mode: a.Mode, UID: a.UID, GID: a.GID, ModTime: a.ModTime, ATime: a.ATime}
}

func keptAttr(a draft.Attr) namespace.Attr {
	return namespace.Attr{Mode: a.Mode & 0o7777, UID: a.UID, GID: a.GID, ModTime: a.ModTime, ATime: a.ATime}
}

// Unlink answers UNLINK. Who has the file open goes on with it.
func (f *fileSystem) Unlink(cancel <-chan struct{}, in *gofuse.InHeader, name string) gofuse.Status {
	if f.write == nil {
		return gofuse.EROFS
	}
	r := f.requestIn(cancel, in)
	defer r.finish()
	return f.failed(r, f.unlink(r, f.toTree(in.NodeId), name, resent(in.Unique)))
}

// keep makes the marker of a directory whose last key is about to go, as far as the tree knows: else the directory would go with it.
// What stands by itself needs none: the mount's root, and the root of a link. An error is not the caller's, whose file is to go.
func (f *fileSystem) keep(ctx context.Context, dir uint64, gone draft.Name) {
	n, err := f.tree.Node(ctx, dir)
	if err != nil || dir == f.o.Root || n.Name == "" {
		return
	}
	prefix := gone.Key[:strings.LastIndexByte(strings.TrimSuffix(gone.Key, "/"), '/')+1]
	last := func(ctx context.Context) bool {
		only := false
		_, err = f.write.w.Keys.Keys(ctx, gone.Link, prefix, "", func(o *hearth.Object) bool {
			only = o.Key == gone.Key
			return only
		})
		return only && err == nil
	}
	// What is known of the directory mostly shows another key, and spares the question.
	if !last(namespace.Quiet(ctx)) && err == nil || !last(ctx) {
		return
	}
	at := draft.Name{Link: gone.Link, Key: strings.TrimSuffix(prefix, "/")}
	if err := f.mark(ctx, at, true); err != nil && !errors.Is(err, hearth.ErrConflict) {
		f.o.complain(fmt.Sprintf("keep the directory %s, which is empty now: %v", at.Key, err))
	}
}

// unlink takes a name away. again says that the process before may have done so: what somebody else wrote since stays.
func (f *fileSystem) unlink(ctx context.Context, dir uint64, name string, again bool) error {
	d, at, err := f.write.find(dir, name)
	if err != nil {
		return err
	}
	if err := f.frozen(at, d == nil || d.Info().Base != nil); err != nil {
		return err
	}
	if d == nil && f.handles.writing() {
		d = f.orphan(ctx, dir, name)
	}
	if d == nil && again {
		n, err := f.write.lookup(namespace.Quiet(ctx), dir, name) // as that process knew it
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil && !n.Dir:
			f.keep(ctx, dir, at)
			return f.removeHidden(ctx, &n.Object)
		}
	}
	if d == nil {
		f.keep(ctx, dir, at)
		return f.remove(ctx, at.Link, at.Key)
	}
	return f.unlinkDraft(ctx, dir, name, at, d)
}

// unlinkDraft takes a draft's name away, and then what the bucket has under it. Where that fails the file is there as before, with what
// the bucket has not got of it.
func (f *fileSystem) unlinkDraft(ctx context.Context, dir uint64, name string, at draft.Name, d *draft.Draft) error {
	was := d.Info()
	err := d.Hold() // so that its files stay meanwhile
	holds := err == nil
	switch {
	case holds:
		defer f.leave(at)
		defer d.Release()
	case !errors.Is(err, syscall.ESTALE) && !errors.Is(err, fs.ErrNotExist): // else it is published and just going, or has no files
		return err
	}
	err = d.Remove(ctx)
	i := d.Info() // now: nothing more is published
	var hidden *hearth.Object
	if err == nil && i.Base == nil && was.Base == nil {
		hidden, err = f.hidden(ctx, dir, name, &i)
	}
	switch {
	case err != nil:
	case was.Base != nil && i.Base == nil: // it was deleted with what a publish had made
		f.keep(ctx, dir, at)
		f.wrote(ctx, at.Link, at.Key, nil, 0, nil)
	case i.Base != nil:
		f.keep(ctx, dir, at)
		err = f.remove(ctx, at.Link, at.Key)
	case hidden != nil: // else the bucket never had it, nor a file whose place it took
		f.keep(ctx, dir, at)
		err = f.removeHidden(ctx, hidden)
	}
	if err != nil && holds {
		if failed := d.Restore(was); failed != nil {
			f.o.complain(fmt.Sprintf("give %s its name again, which could not be removed: %v", at.Key, failed))
		}
	}
	return err
}

// orphan begins the draft of a file that somebody has open for writing and that is about to lose its name, to a rename or to nobody:
// what is written then goes with the name, or is published nowhere.
func (f *fileSystem) orphan(ctx context.Context, dir uint64, name string) *draft.Draft {
	n, err := f.write.lookup(ctx, dir, name)
	if err != nil || n.Dir || !f.handles.written(n.ID) {
		return nil
	}
	d, err := f.change(ctx, n.ID)
	if err != nil {
		return nil // its writers get an error with their next write
	}
	return d
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
		made := f.news.make(in.NodeId, name)
		err = f.mark(r, at, !resent(in.Unique) && f.frozen(asDir(at), true) != nil)
		if conflicts(err) {
			f.write.w.Doubted(r, at.Link, at.Key+"/")
			err = fmt.Errorf("%w: %w", syscall.EEXIST, err)
		}
		made() // what changes from now on is told: the name may be looked up before that
		if err == nil {
			n, err = f.tree.Lookup(r, dir, name)
		}
		a := namespace.Attr{Mode: in.Mode & 0o7777, UID: in.Uid, GID: in.Gid}
		if err == nil && (a != namespace.Attr{Mode: f.o.DirMode, UID: f.o.UID, GID: f.o.GID}) {
			err = f.write.w.Keys.SetAttr(n.ID, a)
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

// mark makes a directory's marker; only: if there is none.
func (f *fileSystem) mark(ctx context.Context, at draft.Name, only bool) error {
	up, err := f.write.w.Uploader(at.Link)
	var o hearth.Object
	if err == nil {
		o, err = up.Put(ctx, &hearth.Upload{Key: at.Key + "/", IfNone: only}, strings.NewReader(""))
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
	if err := f.frozen(asDir(at), true); err != nil {
		return err
	}
	empty := true
	err = f.tree.ReadDir(ctx, n.ID, "", func(namespace.Node) bool { empty = false; return false })
	switch {
	case err != nil:
		return err
	case !empty:
		return syscall.ENOTEMPTY
	}
	f.keep(ctx, parent, asDir(at))
	undo := f.remade.next(f.handles.table, n.ID) // before: a process that takes over may find it gone
	if err := f.remove(ctx, at.Link, at.Key+"/"); err != nil {
		undo()
		return err
	}
	return nil
}

// conflicts reports whether another object is known to be in the way.
func conflicts(err error) bool {
	return errors.Is(err, hearth.ErrConflict) && !errors.Is(err, hearth.ErrUnanswered)
}

// failed is the errno of an error that a writer gets: those of its node's disk and of the bucket as they are.
func (f *fileSystem) failed(r *request, err error) gofuse.Status {
	var errno syscall.Errno
	var network *net.OpError
	switch {
	case err == nil:
		return gofuse.OK
	case r != nil && r.interrupted(), errors.As(err, &network): // a socket's errno is no file's
	case errors.Is(err, hearth.ErrUnanswered): // whatever was answered before, or asked for since
		return gofuse.EIO
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
