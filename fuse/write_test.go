package fuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// again is a request's number that the kernel sends a second time.
const again63 = 1<<63 | 7

// writer asks a writable mount as a kernel does. What the mount wants from outside it gets from fakes.
type writer struct {
	*fileSystem
	t       *testing.T
	dir     string
	tree    *fakeTree
	bucket  *fakeBucket
	drafts  *draft.Store
	end     func()   // closes the drafts, once
	behind  []behind // what is to be published behind
	judges  func()   // is called once a name was found not to be temporary
	doubted []string // keys
	asks    bool     // has the tree ask the bucket for those
	said    []string // complaints
	frozen  bool     // the link is immutable
	wrote   func()   // called once the tree knows of a publish, and before the draft does
	kept    []string // names and errors of what a close could not publish
	unique  uint64   // of the last open
}

type behind struct {
	d *draft.Draft
	i draft.Info
}

func newWriter(t *testing.T) *writer {
	return takenOver(t, t.TempDir(), newFakeTree(0), &fakeBucket{objects: map[string]fakeStored{}}, nil)
}

// takenOver is a writable mount in a process that goes on with another one's drafts and handles.
func takenOver(t *testing.T, dir string, tree *fakeTree, bucket *fakeBucket, rows *os.File, instead ...hearth.Uploader) *writer {
	t.Helper()
	w := &writer{t: t, dir: dir, tree: tree, bucket: bucket}
	uploader := func(string) (hearth.Uploader, error) {
		if len(instead) > 0 {
			return instead[0], nil
		}
		return bucket, nil
	}
	var err error
	w.drafts, err = draft.Open(draft.Options{Dirs: []string{filepath.Join(dir, "drafts")}, Uploader: uploader, Base: bucket.base,
		New:        func(string) bool { return w.frozen },
		Conflict:   func(n draft.Name) draft.Name { return draft.Name{Link: n.Link, Key: n.Key + ".conflict"} },
		Conflicted: func(_ *draft.Draft, was draft.Info, _ error) { w.doubted = append(w.doubted, was.Key) },
		Published: func(d *draft.Draft, o hearth.Object) {
			tree.wrote(o.Key, &o, d.Info().ID)
			if i := d.Info(); !i.IsDir() {
				_ = tree.SetAttr(i.ID, keptAttr(i.Attr)) // as node.published does; it cannot fail
			}
			if w.wrote != nil {
				w.wrote()
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	w.end = sync.OnceFunc(func() {
		if err := w.drafts.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.end)
	o := &Options{Tree: tree, Reads: reads(tree), Root: 1, FileMode: 0o644, DirMode: 0o755, Writing: &Writing{Drafts: w.drafts, Keys: tree, Uploader: uploader,
		Wrote:  func(_ context.Context, _, key string, o *hearth.Object, id uint64) { tree.wrote(key, o, id) },
		Frozen: func(string) bool { return w.frozen },
		Kept:   func(d *draft.Draft, i draft.Info, err error) { w.kept = append(w.kept, i.Key+": "+err.Error()) },
		Staged: func(n draft.Name) bool {
			staged := strings.Contains(n.Key, ".tmp")
			if !staged && w.judges != nil {
				w.judges()
			}
			return staged
		},
		Doubted: func(_ context.Context, _, key string) {
			w.doubted = append(w.doubted, key)
			if w.asks {
				tree.wrote(key, bucket.object(key), 0)
			}
		},
		Publish: func(d *draft.Draft, i draft.Info) { w.behind = append(w.behind, behind{d, i}) }}}
	o.Events.Complaint = func(text string) { w.said = append(w.said, text) }
	w.fileSystem = newFileSystem(o)
	w.mode, w.news = Plain, newNews(&fakeKernel{}, &newsOps{})
	if rows == nil {
		w.handles.table, err = newTable()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.handles.table.close)
		return w
	}
	w.handles.table = &table{file: rows}
	all, err := w.handles.table.load()
	if err != nil {
		t.Fatal(err)
	}
	w.holds.inherit(tree.last, time.Time{})
	for row, x := range all { // as takeOver
		switch x.kind {
		case removed:
			w.remade.inherit(row, x)
		case renaming:
			w.renames.inherit(row, x)
		default:
			w.handles.inherit(x)
		}
	}
	return w
}

// next is the process that takes the mount over from w.
func (w *writer) next() *writer {
	w.end()
	x := takenOver(w.t, w.dir, w.fileSystem.o.Tree.(*fakeTree), w.bucket, w.handles.table.file)
	x.unique = w.unique
	return x
}

func (w *writer) is(what string, got, want any) {
	w.t.Helper()
	if s, ok := got.(gofuse.Status); ok {
		got = syscall.Errno(s)
	}
	if got != want {
		w.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

const ok = syscall.Errno(0)

func (w *writer) create(name string, flags uint32, unique uint64) (node, handle uint64, errno syscall.Errno) {
	var out gofuse.CreateOut
	in := gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: 1, Unique: unique}, Flags: flags, Mode: 0o640}
	s := w.Create(nil, &in, name, &out)
	return out.NodeId, out.Fh, syscall.Errno(s)
}

// made is a new open file with some bytes.
func (w *writer) made(name, data string) (node, handle uint64) {
	w.t.Helper()
	node, handle, errno := w.create(name, syscall.O_WRONLY, 0)
	w.is("create "+name, errno, ok)
	if data != "" {
		w.is("write "+name, w.put(node, 0, data), ok)
	}
	return node, handle
}

func (w *writer) open(node uint64, flags uint32) (handle uint64, errno syscall.Errno) {
	var out gofuse.OpenOut
	w.unique += 2
	s := w.Open(nil, &gofuse.OpenIn{InHeader: gofuse.InHeader{NodeId: node, Unique: w.unique}, Flags: flags}, &out)
	return out.Fh, syscall.Errno(s)
}

func (w *writer) put(node uint64, off int, data string) syscall.Errno {
	_, s := w.Write(nil, &gofuse.WriteIn{InHeader: gofuse.InHeader{NodeId: node}, Offset: uint64(off)}, []byte(data))
	return syscall.Errno(s)
}

func (w *writer) read(node uint64) string {
	r, s := w.Read(nil, &gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: node}}, make([]byte, 4096))
	if !s.Ok() {
		return syscall.Errno(s).Error()
	}
	data, _ := r.Bytes(nil) // it cannot fail
	defer r.Done()
	return string(data)
}

func (w *writer) flush(node uint64) gofuse.Status {
	return w.Flush(nil, &gofuse.FlushIn{InHeader: gofuse.InHeader{NodeId: node}})
}

func (w *writer) release(node, handle uint64) {
	flags := uint32(0)
	if w.handles.table.row(rowOf(handle)).value&purposes != forReading {
		flags = syscall.O_WRONLY
	}
	w.Release(nil, &gofuse.ReleaseIn{InHeader: gofuse.InHeader{NodeId: node}, Fh: handle, Flags: flags})
}

func (w *writer) unlinked(name string, unique uint64) gofuse.Status {
	return w.Unlink(nil, &gofuse.InHeader{NodeId: 1, Unique: unique}, name)
}

// look is the node id of a name, 0 if there is none.
func (w *writer) look(name string) uint64 {
	var out gofuse.EntryOut
	if s := w.Lookup(nil, &gofuse.InHeader{NodeId: 1}, name, &out); s != gofuse.OK && s != gofuse.ENOENT {
		w.t.Errorf("look up %s: %v", name, s)
	}
	return out.NodeId
}

// published publishes what was to be published behind, and returns the keys.
func (w *writer) published() string {
	var keys []string
	for _, b := range w.behind {
		keys = append(keys, b.i.Key)
		if _, err := b.d.PublishAt(w.t.Context(), b.i.Name); err != nil && !errors.Is(err, draft.ErrRenamed) {
			w.t.Error(err)
		}
	}
	w.behind = nil
	return strings.Join(keys, " ")
}

// held counts the rows of a node in the table.
func (w *writer) held(node uint64) (n int) {
	for _, x := range w.handles.table.read() {
		if x.node == node && x.kind == held {
			n++
		}
	}
	return n
}

func (w *writer) attrOf(node uint64) string {
	var out gofuse.AttrOut
	if s := w.GetAttr(nil, &gofuse.GetAttrIn{InHeader: gofuse.InHeader{NodeId: node}}, &out); !s.Ok() {
		return syscall.Errno(s).Error()
	}
	return fmt.Sprintf("%o %d", out.Mode, out.Size)
}

func TestCloseAnswersOnceTheBucketHasTheFile(t *testing.T) {
	// A new file is written, read back and closed: then the bucket has it. A second FLUSH sends nothing, one after another write
	// sends once more. With the last RELEASE the draft goes, and the name is the tree's.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.is("write", w.put(node, 5, " you"), ok)
	w.is("read", w.read(node), "hello you")
	w.is("attributes", w.attrOf(node), "100640 9")
	w.is("the name", w.look("a"), node)
	w.is("requests before close", w.bucket.requests(), "")
	for _, want := range []string{"PUT a", ""} {
		w.is("close", w.flush(node), ok)
		w.is("requests", w.bucket.requests(), want)
		w.is("the bucket has", w.bucket.has("a"), "hello you")
		w.is("the name", w.look("a"), node)
	}
	w.is("write", w.put(node, 0, "J"), ok)
	w.is("close", w.flush(node), ok)
	w.is("requests", w.bucket.requests(), "PUT a")
	w.release(node, handle)
	w.is("published behind", w.published(), "")
	if all := w.drafts.All(); len(all) > 0 {
		t.Errorf("drafts are left: %+v", all)
	}
	if id := w.look("a"); id == 0 || id == node {
		t.Errorf("the name has node id %d", id)
	}
	w.is("attributes by the old node id", w.attrOf(node), "100640 9")
	w.is("attributes by the new one", w.attrOf(w.look("a")), "100640 9")
	w.is("rename", w.rename("a", "moved", 0, 0), ok)
	w.is("attributes of what was renamed", w.attrOf(w.look("moved")), "100640 9")
	w.is("rows", w.held(node), 0)
}

func TestTheLastReleasePublishesWhatNoFlushDid(t *testing.T) {
	// A file that was never written (touch) is not sent by FLUSH, but behind its last RELEASE; so is what was written after the
	// last FLUSH.
	for data, want := range map[string]string{"": "", "hello": "hello!"} {
		w := newWriter(t)
		node, first := w.made("a", data)
		second, errno := w.open(node, syscall.O_RDWR)
		w.is("open", errno, ok)
		w.is("close", w.flush(node), ok)
		if data != "" {
			w.bucket.requests()
			w.is("write", w.put(node, 5, "!"), ok)
		}
		w.release(node, first)
		w.is("published behind the first RELEASE", w.published(), "")
		w.is("requests", w.bucket.requests(), "")
		w.release(node, second)
		w.is("published behind the last one", w.published(), "a")
		w.is("the bucket has", w.bucket.has("a"), want)
		w.is("drafts", len(w.drafts.All()), 0)
	}
}

func TestCloseTellsWhatTheBucketSays(t *testing.T) {
	// Each error of the bucket has its errno at close. The draft is kept and can be read, and the next close gets through. (Where
	// another object is in the way: TestAFileThatOthersMadeIsKeptBeside.)
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, c := range []struct {
		flags uint32
		err   error
		want  syscall.Errno
	}{
		{0, fs.ErrPermission, syscall.EACCES},
		{0, syscall.ENOSPC, syscall.ENOSPC},
		{0, syscall.EDQUOT, syscall.EDQUOT},
		{0, syscall.EFBIG, syscall.EFBIG},
		{0, fs.ErrNotExist, syscall.EIO},
		{0, hearth.ErrUnanswered, syscall.EIO},
		{0, refused, syscall.EIO},
		{0, fmt.Errorf("%w: %w", hearth.ErrUnanswered, refused), syscall.EIO},
		{syscall.O_EXCL, fmt.Errorf("%w: %w", hearth.ErrUnanswered, hearth.ErrConflict), syscall.EIO},
		{0, fmt.Errorf("%w: %w", hearth.ErrUnanswered, hearth.ErrConflict), syscall.EIO},
		{0, fmt.Errorf("%w: %w", hearth.ErrUnanswered, fs.ErrPermission), syscall.EIO},
		{0, syscall.EBUSY, syscall.EBUSY},
		{0, errors.New("it is broken"), syscall.EIO},
	} {
		w := newWriter(t)
		node, handle, errno := w.create("a", c.flags, 0)
		w.is("create", errno, ok)
		w.is("write", w.put(node, 0, "hello"), ok)
		w.bucket.meets = func(_ context.Context, request string) error {
			if request == "PUT a" {
				return fmt.Errorf("put a: %w", c.err)
			}
			return nil
		}
		w.is(c.err.Error(), w.flush(node), c.want)
		if len(w.kept) != 1 || !strings.HasPrefix(w.kept[0], "a: ") || !strings.Contains(w.kept[0], c.err.Error()) {
			t.Errorf("told of %q", w.kept)
		}
		w.is("the bucket has", w.bucket.has("a"), "none")
		w.is("read", w.read(node), "hello")
		w.is("the name", w.look("a"), node)
		w.bucket.meets = nil
		w.is("close again", w.flush(node), ok)
		w.is("told of", len(w.kept), 1)
		w.is("the bucket has", w.bucket.has("a"), "hello")
		w.release(node, handle)
		w.is("drafts", len(w.drafts.All()), 0)
	}
}

func TestAFileThatOthersReplacedIsNotOverwritten(t *testing.T) {
	// A file is made with O_EXCL and closed, and is open still when another node replaces it. The name is that version now; who
	// has the file open goes on with it, and gets ESTALE at close, not EEXIST: it was there first.
	w := newWriter(t)
	node, handle, _ := w.create("a", syscall.O_EXCL, 0)
	w.is("write", w.put(node, 0, "mine"), ok)
	w.is("close", w.flush(node), ok)
	o := w.bucket.put("a", "theirs")
	w.tree.putObject(o, 0)
	if id := w.look("a"); id == node || id == 0 {
		t.Errorf("the name has node id %d", id)
	}
	w.is("write", w.put(node, 4, "!"), ok)
	w.is("read", w.read(node), "mine!")
	w.is("close", w.flush(node), syscall.ESTALE)
	w.is("the bucket has", w.bucket.has("a"), "theirs")
	w.is("the name that it is kept under", w.look("a.conflict"), node)
	w.release(node, handle)
}

func TestOpenForWriting(t *testing.T) {
	// O_TRUNC of an object makes a draft that has its node id: who has it open sees what is written. O_TRUNC of a draft empties
	// it. Otherwise an object is opened for writing as for reading: nothing is begun before something is written.
	w := newWriter(t)
	w.tree.ttl = time.Minute // what the mount knows of the object is not true of the draft
	w.tree.put("a", 1, 100)
	node := w.look("a")
	reader, errno := w.open(node, syscall.O_RDONLY)
	w.is("open for reading", errno, ok)
	for _, flags := range []uint32{syscall.O_WRONLY, syscall.O_RDWR, syscall.O_WRONLY | syscall.O_APPEND} {
		handle, errno := w.open(node, flags)
		w.is("open without O_TRUNC", errno, ok)
		w.is("close", w.flush(node), ok)
		w.Release(nil, &gofuse.ReleaseIn{InHeader: gofuse.InHeader{NodeId: node}, Fh: handle, Flags: flags})
		w.is("drafts", len(w.drafts.All()), 0)
	}
	w.is("attributes", w.attrOf(node), "100644 100")
	first, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("open", errno, ok)
	w.is("attributes", w.attrOf(node), "100644 0")
	w.is("write", w.put(node, 0, "hello"), ok)
	w.is("the reader gets", w.read(node), "hello")
	second, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("open", errno, ok)
	w.is("the reader gets", w.read(node), "")
	third, errno := w.open(node, syscall.O_RDWR)
	w.is("open a draft without O_TRUNC", errno, ok)
	w.is("rows", w.held(node), 4)
	w.is("write", w.put(node, 0, "you"), ok)
	w.is("close", w.flush(node), ok)
	w.is("the bucket has", w.bucket.has("a"), "you")
	for _, handle := range []uint64{first, second, third} {
		w.release(node, handle)
	}
	w.is("the reader gets", w.read(node), "you")
	w.is("drafts", len(w.drafts.All()), 1)
	w.release(node, reader)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("write to what is no draft", w.put(node, 0, "x"), syscall.ESTALE)
	_, _, errno = w.create("%_", 0, 0)
	w.is("create what no key is named", errno, syscall.EINVAL)
}

func TestRefusals(t *testing.T) {
	// What a read-only mount refuses is EROFS, what a writable one refuses has the errno that has programs do without it.
	w := newWriter(t)
	w.tree.put("a", 1, 100)
	node := w.look("a")
	ro := newFileSystem(&Options{Tree: w.tree, Root: 1})
	h := gofuse.InHeader{NodeId: 1}
	for what, c := range map[string]struct {
		do   func(f *fileSystem) gofuse.Status
		want syscall.Errno
	}{
		"create": {func(f *fileSystem) gofuse.Status {
			return f.Create(nil, &gofuse.CreateIn{InHeader: h}, "b", &gofuse.CreateOut{})
		}, ok},
		"open": {func(f *fileSystem) gofuse.Status {
			return f.Open(nil, &gofuse.OpenIn{InHeader: gofuse.InHeader{NodeId: node}, Flags: syscall.O_WRONLY | syscall.O_TRUNC}, &gofuse.OpenOut{})
		}, ok},
		"write": {func(f *fileSystem) gofuse.Status {
			_, s := f.Write(nil, &gofuse.WriteIn{InHeader: gofuse.InHeader{NodeId: node}}, []byte("x"))
			return s
		}, syscall.ESTALE},
		"setattr": {func(f *fileSystem) gofuse.Status {
			return f.SetAttr(nil, &gofuse.SetAttrIn{SetAttrInCommon: gofuse.SetAttrInCommon{InHeader: h}}, &gofuse.AttrOut{})
		}, ok},
		"unlink": {func(f *fileSystem) gofuse.Status { return f.Unlink(nil, &h, "c") }, ok},
		"mkdir": {func(f *fileSystem) gofuse.Status {
			return f.Mkdir(nil, &gofuse.MkdirIn{InHeader: h}, "d", &gofuse.EntryOut{})
		}, ok},
		"rmdir":   {func(f *fileSystem) gofuse.Status { return f.Rmdir(nil, &h, "a") }, syscall.ENOTDIR},
		"mknod":   {func(f *fileSystem) gofuse.Status { return f.Mknod(nil, nil, "", nil) }, syscall.EPERM},
		"link":    {func(f *fileSystem) gofuse.Status { return f.Link(nil, nil, "", nil) }, syscall.EPERM},
		"symlink": {func(f *fileSystem) gofuse.Status { return f.Symlink(nil, nil, "", "", nil) }, syscall.EPERM},
		"rename": {func(f *fileSystem) gofuse.Status {
			return f.Rename(nil, &gofuse.RenameIn{InHeader: h, Newdir: 1}, "none", "x")
		}, syscall.ENOENT},
		"tmpfile":     {func(f *fileSystem) gofuse.Status { return f.Tmpfile(nil, nil, nil) }, syscall.EOPNOTSUPP},
		"setxattr":    {func(f *fileSystem) gofuse.Status { return f.SetXAttr(nil, nil, "", nil) }, syscall.EOPNOTSUPP},
		"removexattr": {func(f *fileSystem) gofuse.Status { return f.RemoveXAttr(nil, nil, "") }, syscall.EOPNOTSUPP},
	} {
		w.is(what+", read-only", c.do(ro), syscall.EROFS)
		if what != "open" && what != "create" {
			w.is(what, c.do(w.fileSystem), c.want)
		}
	}
	w.is("flush, read-only", ro.Flush(nil, nil), syscall.ENOSYS)
	w.is("fsync, read-only", ro.Fsync(nil, &gofuse.FsyncIn{InHeader: h}), syscall.ENOSYS)
	w.is("fsyncdir, read-only", ro.FsyncDir(nil, nil), syscall.ENOSYS)
	w.is("fsyncdir", w.FsyncDir(nil, nil), ok)
	w.is("fsync of an object", w.Fsync(nil, &gofuse.FsyncIn{InHeader: gofuse.InHeader{NodeId: node}}), ok)
}

func TestUnlinkedFilesGoOn(t *testing.T) {
	// Who has a file open that is unlinked goes on with it, and nothing of that is published. What the bucket has is deleted,
	// also what an open with O_TRUNC was about to replace; a draft that it never had costs no request.
	for _, c := range []struct {
		object, flushed bool
		want            string
	}{{false, false, ""}, {false, true, "DELETE a"}, {true, false, "DELETE a"}, {true, true, "DELETE a"}} {
		w := newWriter(t)
		var node, handle uint64
		if c.object {
			w.tree.putObject(w.bucket.put("a", "old"), 0)
			node = w.look("a")
			handle, _ = w.open(node, syscall.O_RDWR|syscall.O_TRUNC)
			w.is("write", w.put(node, 0, "hello"), ok)
		} else {
			node, handle = w.made("a", "hello")
		}
		if c.flushed {
			w.is("close", w.flush(node), ok)
		}
		w.bucket.requests()
		w.is("unlink", w.unlinked("a", 0), ok)
		w.is("requests", w.bucket.requests(), c.want)
		w.is("the bucket has", w.bucket.has("a"), "none")
		w.is("the name", w.look("a"), uint64(0))
		w.is("write", w.put(node, 5, "!"), ok)
		w.is("read", w.read(node), "hello!")
		w.is("attributes of the open file", w.attrOf(node)[7:], "6")
		w.is("close", w.flush(node), ok)
		w.is("fsync", w.Fsync(nil, &gofuse.FsyncIn{InHeader: gofuse.InHeader{NodeId: node}}), ok)
		w.release(node, handle)
		w.is("published behind", w.published(), "")
		w.is("requests", w.bucket.requests(), "")
		w.is("unlink again", w.unlinked("a", again63), ok)
	}
}

func TestAFileThatCannotBeRemovedStays(t *testing.T) {
	// The bucket refuses to delete a file, or does not answer: the file has its name still, and what the bucket has not got of it is
	// published. Whoever has it open goes on with the file, not with one that has no name.
	denied := func(_ context.Context, request string) error {
		if strings.HasPrefix(request, "DELETE") {
			return fs.ErrPermission
		}
		return nil
	}
	t.Run("open", func(t *testing.T) {
		w := newWriter(t)
		w.bucket.meets = denied
		node, handle := w.opened("a", "hello", syscall.O_RDWR|syscall.O_APPEND)
		w.is("write", w.put(node, 5, "!"), ok)
		w.is("unlink", w.unlinked("a", 0), syscall.EACCES)
		w.is("the name", w.look("a"), node)
		w.is("write", w.put(node, 6, "?"), ok)
		w.is("close", w.flush(node), ok)
		w.is("the bucket has", w.bucket.has("a"), "hello!?")
		w.release(node, handle)
		w.is("drafts", len(w.drafts.All()), 0)
	})
	t.Run("waiting", func(t *testing.T) {
		w := newWriter(t)
		w.bucket.meets = func(ctx context.Context, request string) error {
			if strings.HasPrefix(request, "PUT") {
				return errors.New("away")
			}
			return denied(ctx, request)
		}
		node, handle := w.opened("a", "hello", syscall.O_RDWR|syscall.O_TRUNC)
		w.is("write", w.put(node, 0, "bye"), ok)
		w.is("close", w.flush(node), syscall.EIO)
		w.release(node, handle)
		w.behind = nil
		w.is("unlink", w.unlinked("a", 0), syscall.EACCES)
		w.is("read", w.read(w.look("a")), "bye")
		w.bucket.meets = denied
		w.is("published behind", w.published(), "a")
		w.is("the bucket has", w.bucket.has("a"), "bye")
		w.is("unlink", w.unlinked("a", 0), syscall.EACCES)
		w.is("the bucket has", w.bucket.has("a"), "bye")
	})
	t.Run("and the process ends", func(t *testing.T) {
		w := newWriter(t)
		w.bucket.meets = denied
		node, handle := w.opened("a", "hello", syscall.O_RDWR)
		w.is("write", w.put(node, 0, "J"), ok)
		w.is("unlink", w.unlinked("a", 0), syscall.EACCES)
		w = w.next()
		w.is("close", w.flush(node), ok)
		w.is("the bucket has", w.bucket.has("a"), "Jello")
		w.release(node, handle)
	})
}

func TestWhatIsReadIsPublished(t *testing.T) {
	// A file is emptied, or made, and nothing is written to it, while somebody reads it on: the bucket gets it when its last writer has
	// gone, and not before.
	w := newWriter(t)
	node, reader := w.opened("a", "hello", syscall.O_RDONLY)
	first, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("open", errno, ok)
	second, errno := w.open(node, syscall.O_WRONLY)
	w.is("open", errno, ok)
	w.is("close", w.flush(node), ok)
	w.release(node, first)
	w.is("published behind", w.published(), "")
	w.is("close", w.flush(node), ok)
	w.release(node, second)
	w.is("published behind", w.published(), "a")
	w.is("the bucket has", w.bucket.has("a"), "")
	w.is("read", w.read(node), "")
	w.release(node, reader)
	w.is("published behind", w.published(), "")
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestTheEndOfAConnectionReleasesWhatIsOpen(t *testing.T) {
	// The connection is cut: the kernel sends no RELEASE any more. What was open is published, or kept, as after its last close.
	w := newWriter(t)
	node, _ := w.made("a", "hello")
	_, errno := w.open(node, syscall.O_RDWR)
	w.is("open", errno, ok)
	w.made("b.tmp", "hello")
	w.opened("c", "read", syscall.O_RDONLY)
	w.handles.releaseAll(w.releasePlain)
	w.is("published behind", w.published(), "a")
	w.is("the bucket has", w.bucket.has("a"), "hello")
	w.is("open", len(w.handles.open)+len(w.handles.writers), 0)
	all := w.drafts.All()
	if len(all) != 1 || all[0].State != draft.Staged || all[0].Users != 0 {
		t.Errorf("drafts: %+v", all)
	}
}

func TestAFileIsUnlinkedAsTheBucketGetsIt(t *testing.T) {
	// A close writes over a file of the bucket when the file is unlinked, and the bucket has it just then. It is deleted once.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.is("write", w.put(node, 0, "J"), ok)
	d, _ := w.drafts.ID(node)
	sent := make(chan struct{})
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "PUT a" {
			close(sent)
			if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return d.Info().Removed }) {
				return errors.New("it is not unlinked")
			}
		}
		return nil
	}
	closed := make(chan gofuse.Status)
	go func() { closed <- w.flush(node) }()
	<-sent
	w.is("unlink", w.unlinked("a", 0), ok)
	w.is("close", <-closed, ok)
	w.is("requests", w.bucket.requests(), "PUT a, HEAD a, DELETE a")
	w.is("the bucket has", w.bucket.has("a"), "none")
	w.is("the name", w.look("a"), uint64(0))
	w.release(node, handle)
	w.is("published behind", w.published(), "")
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestAFileIsUnlinkedWhileItIsPublished(t *testing.T) {
	// A close waits for the bucket when the file is unlinked. It answers 0, as for every unlinked file, and the bucket has nothing.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	sent := make(chan struct{})
	w.bucket.meets = func(ctx context.Context, request string) error {
		if request != "PUT a" {
			return nil
		}
		close(sent)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	closed := make(chan gofuse.Status)
	go func() { closed <- w.flush(node) }()
	<-sent
	w.is("unlink", w.unlinked("a", 0), ok)
	w.is("close", <-closed, ok)
	w.is("the bucket has", w.bucket.has("a"), "none")
	w.release(node, handle)
}
