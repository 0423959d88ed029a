package fuse

import (
	"context"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
)

// rename renames in the root, or in directories that dirs name: of the old name, and of the new one.
func (w *writer) rename(from, to string, flags uint32, unique uint64, dirs ...uint64) gofuse.Status {
	in := &gofuse.RenameIn{InHeader: gofuse.InHeader{NodeId: 1, Unique: unique}, Newdir: 1, Flags: flags}
	if len(dirs) == 2 {
		in.NodeId, in.Newdir = dirs[0], dirs[1]
	}
	return w.Rename(nil, in, from, to)
}

// names are those of a directory in a listing.
func (w *writer) names(dir uint64) string {
	var all []string
	if err := w.fileSystem.tree.ReadDir(w.t.Context(), dir, "", func(n namespace.Node) bool {
		name := n.Name
		if n.Dir {
			name += "/"
		}
		all = append(all, name)
		return true
	}); err != nil {
		w.t.Error(err)
	}
	return strings.Join(all, " ")
}

func TestTheRenameOfATemporaryNameIsTheUpload(t *testing.T) {
	// A file with a temporary name is closed without a request. Its rename writes it under the new name, over what is there; whoever
	// has it open for reading, or the replaced one, goes on.
	w := newWriter(t)
	old, oldHandle := w.made("a", "old")
	w.is("close", w.flush(old), ok)
	w.bucket.requests()
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	reader, errno := w.open(node, syscall.O_RDONLY)
	w.is("open", errno, ok)
	w.is("requests", w.bucket.requests(), "")
	w.is("published behind", w.published(), "")
	w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "PUT a")
	w.is("the bucket has", w.bucket.has("a"), "hello")
	w.is("the name", w.look("a"), node)
	w.is("the old name", w.look("a.tmp"), uint64(0))
	w.is("a reader of it", w.read(node), "hello")
	w.is("a reader of the replaced one", w.read(old), "old")
	w.release(node, reader)
	w.release(old, oldHandle)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("published behind", w.published(), "")
}

func TestARenameUnderAWriter(t *testing.T) {
	// A file that somebody writes still is renamed at once; its last close publishes it under its new name. Renamed to a temporary
	// name it stays.
	w := newWriter(t)
	node, handle := w.made("a.tmp", "hello")
	w.is("close of a copy of the descriptor", w.flush(node), ok)
	w.is("write", w.put(node, 5, "!"), ok)
	w.is("rename", w.rename("a.tmp", "b.tmp", 0, 0), ok)
	w.is("write", w.put(node, 5, "?"), ok) // a rename to a temporary name is as a close
	w.is("rename", w.rename("b.tmp", "b", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "")
	w.is("close", w.flush(node), ok)
	w.is("requests", w.bucket.requests(), "PUT b")
	w.is("the bucket has", w.bucket.has("b"), "hello?")
	w.release(node, handle)

	node, handle = w.made("c.tmp", "")
	w.release(node, handle)
	w.is("rename of an empty file", w.rename("c.tmp", "c", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "PUT c")
}

func TestARenameThatTheBucketRefuses(t *testing.T) {
	// The rename has the bucket's error, and both names are as before.
	w := newWriter(t)
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.bucket.meets = func(context.Context, string) error { return fs.ErrPermission }
	w.is("rename", w.rename("a.tmp", "a", 0, 0), syscall.EACCES)
	w.bucket.meets = nil
	w.is("the old name", w.look("a.tmp"), node)
	w.is("the new name", w.look("a"), uint64(0))
	w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "hello")
}

func TestAnObjectIsRenamed(t *testing.T) {
	// An object is copied, and its old key deleted. Who has it open on this mount reads on by its node id, and writes to its new
	// name. Where the copy fails nothing is deleted.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.is("close", w.flush(node), ok)
	w.bucket.requests()
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "COPY a b" {
			return hearth.ErrUnanswered
		}
		return nil
	}
	w.is("rename without an answer", w.rename("a", "b", 0, 0), syscall.EIO)
	w.is("doubted", len(w.doubted), 1)
	w.bucket.meets = nil
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "COPY a b, DELETE a")
	w.is("the name", w.look("b"), node)
	w.is("the old name", w.look("a"), uint64(0))
	w.is("write", w.put(node, 5, "!"), ok)
	w.is("close", w.flush(node), ok)
	w.is("the bucket has", w.bucket.has("b"), "hello!")
	w.release(node, handle)
	w.is("rename of what nobody has open", w.rename("b", "c", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("c"), "hello!")
	w.is("to a temporary name", w.rename("c", "c.tmp", 0, 0), syscall.EXDEV)

	node, handle = w.made("d", "theirs")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("RENAME_NOREPLACE", w.rename("c", "d", unix.RENAME_NOREPLACE, 0), syscall.EEXIST)
	w.is("RENAME_EXCHANGE", w.rename("c", "d", unix.RENAME_EXCHANGE, 0), syscall.EINVAL)
	w.is("the bucket has", w.bucket.has("d"), "theirs")
	w.is("over it", w.rename("c", "d", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("d"), "hello!")
}

func TestARenameWhoseOldNameStays(t *testing.T) {
	// An object is copied, and the bucket refuses to delete the old one: both are there, and who has the file open writes the old name.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.is("close", w.flush(node), ok)
	w.is("write", w.put(node, 5, "!"), ok)
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "DELETE a" {
			return fs.ErrPermission
		}
		return nil
	}
	w.is("rename", w.rename("a", "b", 0, 0), syscall.EACCES)
	w.bucket.meets = nil
	w.is("the name", w.look("a"), node)
	w.is("the new name is another", w.look("b") != node, true)
	w.is("write", w.put(node, 6, "!"), ok)
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("the bucket has", w.bucket.has("a"), "hello!!")
	w.is("the copy", w.bucket.has("b"), "hello")
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("b"), "hello!!")
	w.is("the old key has", w.bucket.has("a"), "none")
}

func TestWhatWasEmptiedIsRenamed(t *testing.T) {
	// An object that O_TRUNC emptied, and that is renamed before it is closed, is gone from its old key: also where the kernel asks
	// for the rename again, it does not get its old bytes under the new name.
	w := newWriter(t)
	node, handle := w.made("a", "old")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	node = w.look("a")
	handle, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("open", errno, ok)
	w.is("write", w.put(node, 0, "new"), ok)
	w.bucket.requests()
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "DELETE a")
	w.is("again", w.rename("a", "b", 0, again63), ok)
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("the bucket has", w.bucket.has("b"), "new")
	w.is("requests", w.bucket.requests(), "PUT b")
}

func TestARenameBetweenAReleaseAndItsPublish(t *testing.T) {
	// A file that was never written is published by its RELEASE, behind close(2). It gets a temporary name as the RELEASE has just found that
	// its old one is none: nothing gets to the bucket.
	w := newWriter(t)
	node, handle := w.made("a", "")
	w.judges = func() {
		w.judges = nil
		w.is("rename", w.rename("a", "a.tmp", 0, 0), ok)
	}
	w.release(node, handle)
	w.is("published behind", w.published(), "a")
	w.is("requests", w.bucket.requests(), "")
	w.is("names", w.names(1), "a.tmp")
}

func TestAFileThatIsRenamedAndRemovedIsGone(t *testing.T) {
	// A file is emptied, renamed over another one while it is open, and removed: neither name is there, as long as it is open and later.
	w := newWriter(t)
	w.stored("a", "b")
	node := w.look("a")
	handle, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("open", errno, ok)
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("names", w.names(1), "b")
	w.is("unlink", w.unlinked("b", 0), ok)
	w.is("names", w.names(1), "")
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none none")
	w.is("write", w.put(node, 0, "more"), ok)
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("names", w.names(1), "")
}

func TestARenameThatHidesAnObjectAndComesAgain(t *testing.T) {
	// A file was renamed over an object while it was open, and gets another name. The process is killed before the object goes: the next
	// one does not take that for the file which is to be renamed.
	for _, closed := range []bool{false, true} {
		w := newWriter(t)
		w.stored("b")
		node, handle := w.made("a.tmp", "new")
		w.is("rename", w.rename("a.tmp", "b", 0, 0), ok)
		d, _ := w.drafts.ID(node)
		to := d.Info().Name
		to.Key = "c"
		w.renames.begin(w.handles.table, 7, hides)
		if closed { // what the process before it did
			w.release(node, handle)
		}
		if err := d.Rename(t.Context(), to, false, closed); err != nil {
			t.Fatal(err)
		}
		w = w.next()
		w.asks = true
		w.is("RENAME again", w.rename("b", "c", 0, again63), ok)
		if !closed {
			w.is("close", w.flush(node), ok)
			w.release(node, handle)
		}
		w.is("published behind", w.published(), "")
		w.is("the bucket has", w.bucket.has("b")+" "+w.bucket.has("c"), "none new")
		w.is("names", w.names(1), "c")
	}
}

func TestAFailedRenameThatComesAgain(t *testing.T) {
	// The file cannot be published under its new name: what it hides under the old one stays.
	w := newWriter(t)
	w.stored("b")
	node, handle := w.made("a.tmp", "new")
	w.is("rename", w.rename("a.tmp", "b", 0, 0), ok)
	d, _ := w.drafts.ID(node)
	to := d.Info().Name
	to.Key = "c"
	w.renames.begin(w.handles.table, 7, hides)
	w.release(node, handle)
	if err := d.Rename(t.Context(), to, false, false); err != nil {
		t.Fatal(err)
	}
	w = w.next()
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "PUT c" {
			return fs.ErrPermission
		}
		return nil
	}
	w.is("RENAME again", w.rename("b", "c", 0, again63), syscall.EACCES)
	w.is("the bucket has", w.bucket.has("b") != "none", true)
}

func TestARenameThatComesAgain(t *testing.T) {
	// A process is killed within a rename, and the next one is asked again: whatever the first has done, the file is under its new
	// name alone, and is sent once.
	w := newWriter(t)
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
	w = w.next()
	w.is("RENAME again", w.rename("a.tmp", "a", 0, again63), ok)
	w.is("requests", w.bucket.requests(), "PUT a")

	node, handle = w.made("b.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	d, _ := w.drafts.ID(node)
	to := d.Info().Name
	to.Key = "b"
	if err := d.Rename(t.Context(), to, false, false); err != nil {
		t.Fatal(err)
	}
	w = w.next()
	w.is("RENAME again", w.rename("b.tmp", "b", 0, again63), ok)
	w.is("requests", w.bucket.requests(), "PUT b")
}

func TestARenameOverAnOpenFileThatComesAgain(t *testing.T) {
	// A process renames an object over another one that somebody has open for writing, and is killed before or after the tree hears of
	// it. The next one is asked again: the name is the new file's, what is written of the old one goes nowhere, and the name can be
	// replaced again.
	for _, told := range []bool{false, true} {
		w := newWriter(t)
		w.tree.putObject(w.bucket.put("a", "new"), 0)
		w.tree.putObject(w.bucket.put("b", "old!"), 0)
		node := w.look("b")
		handle, errno := w.open(node, syscall.O_WRONLY)
		w.is("open", errno, ok)
		if d := w.orphan(t.Context(), 1, "b"); d == nil {
			t.Fatal("the old file has no draft")
		}
		o := w.bucket.put("b", "new")
		w.is("DELETE", w.bucket.Delete(t.Context(), "a", ""), error(nil))
		if told {
			w.tree.remove("a")
			w.tree.putObject(o, 0)
		}
		w = w.next()
		w.asks = true
		w.is("again", w.rename("a", "b", 0, again63), ok)
		w.is("the name is another file's", w.look("b") != node, true)
		w.is("write to the old file", w.put(node, 0, "OLD!"), ok)
		w.is("close", w.flush(node), ok)
		w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none new")
		w.tree.putObject(w.bucket.put("c", "newer"), 0)
		w.is("rename over it", w.rename("c", "b", 0, 0), ok)
		w.release(node, handle)
		w.is("published behind", w.published(), "")
		w.is("the bucket has", w.bucket.has("b"), "newer")
		w.is("drafts", len(w.drafts.All()), 0)
	}
}

func TestARenameOverAFileThatIsWrittenMeanwhileComesAgain(t *testing.T) {
	// A process copies an object over a file that somebody has open and has not written, and is killed. The file is written before the
	// next process is asked again: it has lost its name all the same, and what is written goes nowhere.
	w := newWriter(t)
	w.stored("a", "b")
	node := w.look("b")
	handle, errno := w.open(node, syscall.O_WRONLY)
	w.is("open", errno, ok)
	if d := w.orphan(t.Context(), 1, "b"); d == nil {
		t.Fatal("the old file has no draft")
	}
	w.renames.begin(w.handles.table, 7, copies)
	from := w.bucket.object("a")
	if _, err := w.bucket.Copy(t.Context(), &hearth.Upload{Key: "b", Size: from.Size}, from); err != nil {
		t.Fatal(err)
	}
	w = w.next()
	w.asks = true
	w.is("write to the old file", w.put(node, 0, "OLD!"), ok)
	w.is("again", w.rename("a", "b", 0, again63), ok)
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none a")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("published behind", w.published(), "")
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none a")
	w.is("names", w.names(1), "b")
}

func TestARenameToATemporaryNameThatComesAgain(t *testing.T) {
	// The file to be renamed is not there, and nothing has the new name: the process before has not renamed it.
	w := newWriter(t).next()
	w.is("to a temporary name", w.rename("a", "a.tmp", 0, again63), syscall.ENOENT)
	w.is("to another", w.rename("a", "b", 0, again63), syscall.ENOENT)
}

func TestARenameOfAnObjectThatComesAgain(t *testing.T) {
	// A process is killed within the rename of an object, before the tree knows of it, and the next one is asked again: the file is
	// under its new name alone, whether somebody has it open or not, and also where it was to replace nothing. The same where the tree
	// knows by then that the old name is gone.
	for _, open := range []bool{false, true} {
		for done := range 3 {
			flags, deleted := uint32(0), done > 0
			if !deleted {
				flags = unix.RENAME_NOREPLACE
			}
			w := newWriter(t)
			node, handle := w.made("a", "hello")
			w.is("close", w.flush(node), ok)
			if !open {
				w.release(node, handle)
			}
			// What the first process has done.
			n, err := w.fileSystem.o.Tree.Lookup(t.Context(), 1, "a")
			if err != nil {
				t.Fatal(err)
			}
			o, err := w.bucket.Copy(t.Context(), &hearth.Upload{Key: "b", Size: 5}, &n.Object)
			if d, held := w.drafts.ID(node); err == nil && held {
				_, err = d.Renamed(t.Context(), draft.Name{Link: "fake", Key: "b"}, n.Object.ETag, o)
			}
			if err == nil && deleted {
				err = w.bucket.Delete(t.Context(), "a", "")
			}
			if done > 1 {
				w.tree.remove("a")
			}
			if err != nil {
				t.Fatal(err)
			}
			w = w.next()
			w.asks = true
			w.is("RENAME again", w.rename("a", "b", flags, again63), ok)
			w.is("the bucket has", w.bucket.has("b"), "hello")
			w.is("the old key has", w.bucket.has("a"), "none")
			w.is("the name is there", w.look("b") != 0, true)
			w.is("the old name", w.look("a"), uint64(0))
		}
	}
}

func TestAnObjectIsRenamedOverWhatIsNotPublished(t *testing.T) {
	// An object replaces a file that was made and closed, and is still to be published behind. One that somebody writes it does not.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	node, handle = w.made("a.tmp", "temporary")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("rename over a temporary name", w.rename("a", "a.tmp", 0, 0), syscall.EXDEV)
	w.is("the bucket has", w.bucket.has("a.tmp"), "none")
	node, handle = w.made("b", "")
	w.is("rename over what somebody writes", w.rename("a", "b", 0, 0), syscall.EXDEV)
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("published behind", w.published(), "b") // which has nothing more to send
	w.is("the bucket has", w.bucket.has("b"), "hello")
	w.is("the old key has", w.bucket.has("a"), "none")
}

func TestAReaderThatTruncatesIsNoWriter(t *testing.T) {
	// Who opens a file with O_RDONLY and O_TRUNC writes no more: a rename publishes the file, and its RELEASE, which does not tell of O_TRUNC,
	// leaves nothing.
	w := newWriter(t)
	node, handle, errno := w.create("a", syscall.O_RDONLY|syscall.O_TRUNC, 0)
	w.is("create", errno, ok)
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "PUT b")
	w.Release(nil, &gofuse.ReleaseIn{InHeader: gofuse.InHeader{NodeId: node}, Fh: handle, Flags: syscall.O_RDONLY})
	w.is("written", w.handles.written(node), false)
}

func TestWhatARenameHidesGoesWithTheName(t *testing.T) {
	// A file that somebody writes is renamed over an object, and then removed or renamed again before it is closed: the object that it
	// has hidden does not come back.
	w := newWriter(t)
	for _, removed := range []bool{true, false} {
		old, oldHandle := w.made("a", "old")
		w.is("close", w.flush(old), ok)
		w.release(old, oldHandle)
		node, handle := w.made("b.tmp", "new")
		w.is("rename", w.rename("b.tmp", "a", 0, 0), ok)
		w.is("the bucket has", w.bucket.has("a"), "old")
		if removed {
			w.is("unlink", w.unlinked("a", 0), ok)
		} else {
			w.is("rename", w.rename("a", "c", 0, 0), ok)
		}
		w.is("the bucket has", w.bucket.has("a"), "none")
		w.is("the name", w.look("a"), uint64(0))
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		w.is("the bucket has", w.bucket.has("a"), "none")
	}
	w.is("the bucket has", w.bucket.has("c"), "new")
}

func TestADirectoryOfDrafts(t *testing.T) {
	// A directory with a temporary name, and all below it, is on this node alone: it is listed, looked up and emptied as any other.
	// Its rename writes all of it. One with an object cannot be renamed.
	w := newWriter(t)
	mkdir := func(parent uint64, name string) uint64 {
		var out gofuse.EntryOut
		w.is("mkdir "+name, w.Mkdir(nil, &gofuse.MkdirIn{InHeader: gofuse.InHeader{NodeId: parent}, Mode: 0o750}, name, &out), ok)
		return out.NodeId
	}
	file := func(dir uint64, name, data string) {
		var out gofuse.CreateOut
		w.is("create "+name, w.Create(nil, &gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: dir}, Flags: syscall.O_WRONLY}, name, &out), ok)
		w.is("write", w.put(out.NodeId, 0, data), ok)
		w.is("close", w.flush(out.NodeId), ok)
		w.release(out.NodeId, out.OpenOut.Fh)
	}
	dir := mkdir(1, "d.tmp")
	sub := mkdir(dir, "sub")
	file(dir, "x", "1")
	file(sub, "y", "2")
	w.is("requests", w.bucket.requests(), "")
	w.is("attributes", w.attrOf(dir), "40750 0")
	w.is("names", w.names(dir), "sub/ x")
	w.is("names", w.names(sub), "y")
	w.is("names above", w.names(1), "d.tmp/")
	w.is("rmdir", w.rmdir("d.tmp", 0), syscall.ENOTEMPTY)
	w.is("rename", w.rename("d.tmp", "e.tmp", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "")
	w.is("the name", w.look("e.tmp"), dir)

	mkdir(1, "e")
	w.is("mkdir", w.bucket.requests(), "PUT e/")
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "PUT e/x" {
			return fs.ErrPermission
		}
		return nil
	}
	w.is("rename that is denied", w.rename("e.tmp", "e", 0, 0), syscall.EACCES)
	w.bucket.meets = nil
	w.is("names above", w.names(1), "e.tmp/ e/")
	w.is("the bucket has e/", w.bucket.has("e/"), "")
	w.is("the bucket has e/sub/y", w.bucket.has("e/sub/y"), "none")
	w.is("rename over an empty directory", w.rename("e.tmp", "e", 0, 0), ok)
	for key, want := range map[string]string{"e/x": "1", "e/sub/y": "2", "e/": "", "e/sub/": ""} {
		w.is("the bucket has "+key, w.bucket.has(key), want)
	}
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("names", w.names(w.look("e")), "sub/ x")
	w.is("rename of what is in the bucket", w.rename("e", "f", 0, 0), syscall.EXDEV)

	gone := mkdir(1, "g.tmp")
	file(gone, "z", "3")
	w.is("unlink", w.Unlink(nil, &gofuse.InHeader{NodeId: gone}, "z"), ok)
	w.is("rmdir", w.rmdir("g.tmp", 0), ok)
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestTheRenameOfADirectoryPublishesWhatIsOnlyRead(t *testing.T) {
	// A file that was made by a descriptor that only reads has no writer: the rename of its directory publishes it, though it is open, and
	// once. From then on it is an object, which gets no temporary name. One that somebody writes is left to its close.
	w := newWriter(t)
	w.is("mkdir", w.mkdir("d.tmp"), ok)
	dir := w.look("d.tmp")
	made := func(name string, flags uint32) (node, handle uint64) {
		var out gofuse.CreateOut
		w.is("create", w.Create(nil, &gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: dir}, Flags: flags}, name, &out), ok)
		return out.NodeId, out.OpenOut.Fh
	}
	read, reader := made("read", syscall.O_RDONLY)
	written, writer := made("written", syscall.O_WRONLY)
	w.is("rename", w.rename("d.tmp", "d", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "PUT d/, PUT d/read")
	w.is("rename to a temporary name", w.rename("read", "x.tmp", 0, 0, w.look("d"), 1), syscall.EXDEV)
	w.is("rename to a temporary name", w.rename("written", "y.tmp", 0, 0, w.look("d"), 1), ok)
	w.release(read, reader)
	w.release(written, writer)
	w.is("published behind", w.published(), "")
	w.is("requests", w.bucket.requests(), "")
}

func TestARenameLeavesWhatOthersWrote(t *testing.T) {
	// The bucket has another one's object of the name, so that close is refused: renamed, the draft is written beside it, and that
	// stays. So it does when the draft is unlinked.
	w := newWriter(t)
	for name, end := range map[string]func() gofuse.Status{
		"a": func() gofuse.Status { return w.rename("a.conflict", "mine", 0, 0) },
		"b": func() gofuse.Status { return w.unlinked("b.conflict", 0) },
	} {
		node, handle := w.made(name, "mine")
		w.bucket.put(name, "other's")
		w.is("close", w.flush(node), syscall.ESTALE)
		w.release(node, handle)
		w.behind = nil // it would be refused again
		w.is(name, end(), ok)
		w.is("the other's object", w.bucket.has(name), "other's")
	}
	w.is("the bucket has", w.bucket.has("mine"), "mine")
}

func TestARenameBesideAPublish(t *testing.T) {
	// A file is renamed while it is published behind: its object is copied, and has the new name alone.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.release(node, handle)
	d, _ := w.drafts.ID(node)
	under, goOn := make(chan bool), make(chan bool)
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "PUT a" {
			close(under)
			<-goOn
		}
		return nil
	}
	done := make(chan error)
	go func() {
		_, err := d.Publish(context.Background())
		done <- err
	}()
	<-under
	renamed := make(chan gofuse.Status)
	go func() { renamed <- w.rename("a", "b", 0, 0) }()
	close(goOn)
	w.is("publish", <-done, nil)
	w.is("rename", <-renamed, ok)
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none hello")
}

func TestAPublishedFileIsRenamedAfterATakeOver(t *testing.T) {
	// A file was published and is still open when another process takes the mount over: it is renamed as before.
	for _, flags := range []uint32{syscall.O_RDONLY, syscall.O_RDWR} {
		w := newWriter(t)
		node, handle := w.made("a", "hello")
		w.is("close", w.flush(node), ok)
		_, errno := w.open(node, flags)
		w.is("open", errno, ok)
		w.release(node, handle)
		w = w.next()
		w.is("rename", w.rename("a", "b", 0, 0), ok)
		w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none hello")
		w.is("a reader", w.read(node), "hello")
	}
}

func TestWhatARenameWasToReplaceIsClosed(t *testing.T) {
	// The file that a rename is to replace is closed while the upload is under way, which fails then: it is published behind.
	w := newWriter(t)
	old, oldHandle := w.made("a", "old")
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.bucket.meets = func(context.Context, string) error {
		w.is("close of the replaced one", w.flush(old), ok)
		w.release(old, oldHandle)
		return fs.ErrPermission
	}
	w.is("rename", w.rename("a.tmp", "a", 0, 0), syscall.EACCES)
	w.bucket.meets = nil
	w.is("published behind", w.published(), "a")
	w.is("the bucket has", w.bucket.has("a"), "old")
}

func TestARenameOfWhichNobodyKnows(t *testing.T) {
	// Nobody knows whether the rename's upload was done: the file has its new name, and is published behind.
	w := newWriter(t)
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.bucket.meets = func(context.Context, string) error { return hearth.ErrUnanswered }
	w.is("rename", w.rename("a.tmp", "a", 0, 0), syscall.EIO)
	w.bucket.meets = nil
	w.is("published behind", w.published(), "a")
	w.is("the bucket has", w.bucket.has("a"), "hello")
}

// copying does something after each copy.
type copying struct {
	hearth.Uploader
	after func()
}

func (c copying) Copy(ctx context.Context, u *hearth.Upload, from *hearth.Object) (hearth.Object, error) {
	o, err := c.Uploader.Copy(ctx, u, from)
	c.after()
	return o, err
}

func TestACloseBesideTheCopyOfARename(t *testing.T) {
	// A writer publishes a file under its old name after that was copied: the new name gets what it wrote, and the old one goes.
	w := newWriter(t)
	node, handle := w.made("a", "one")
	w.is("close", w.flush(node), ok)
	uploader := w.write.w.Uploader
	w.write.w.Uploader = func(link string) (hearth.Uploader, error) {
		up, err := uploader(link)
		return copying{up, func() {
			w.is("write", w.put(node, 0, "TWO"), ok)
			w.is("close", w.flush(node), ok)
		}}, err
	}
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.release(node, handle)
	w.published()
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none TWO")
}

func TestTheReleaseOfAClosedFileComesLate(t *testing.T) {
	// The kernel sends RELEASE some time after close(2): a file that was closed is uploaded by its rename all the same. So is a
	// directory with such a file, also where the RELEASE comes in its midst.
	w := newWriter(t)
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.is("rename", w.rename("a.tmp", "a", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "hello")
	w.release(node, handle)

	var out gofuse.EntryOut
	w.is("mkdir", w.Mkdir(nil, &gofuse.MkdirIn{InHeader: gofuse.InHeader{NodeId: 1}}, "d.tmp", &out), ok)
	var nodes, handles []uint64
	for _, name := range []string{"big", "marker"} {
		var made gofuse.CreateOut
		w.is("create", w.Create(nil, &gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: out.NodeId}, Flags: syscall.O_WRONLY}, name, &made), ok)
		w.is("write", w.put(made.NodeId, 0, name), ok)
		w.is("close", w.flush(made.NodeId), ok)
		nodes, handles = append(nodes, made.NodeId), append(handles, made.OpenOut.Fh)
	}
	w.bucket.meets = func(_ context.Context, request string) error {
		if request == "PUT d/big" {
			w.release(nodes[1], handles[1])
		}
		return nil
	}
	w.is("rename", w.rename("d.tmp", "d", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("d/big")+" "+w.bucket.has("d/marker"), "big marker")
	w.release(nodes[0], handles[0])
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestANameThatIsNotToBeReplaced(t *testing.T) {
	// RENAME_NOREPLACE, as mv(1) asks first: of a name that another node has just made it is EEXIST; asked again after a kill it is
	// the same rename.
	w := newWriter(t)
	node, handle := w.made("a.tmp", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.bucket.put("a", "other's")
	w.is("rename", w.rename("a.tmp", "a", unix.RENAME_NOREPLACE, 0), syscall.EEXIST)
	d, _ := w.drafts.ID(node)
	to := d.Info().Name
	to.Key = "b"
	if err := d.Rename(t.Context(), to, true, false); err != nil {
		t.Fatal(err)
	}
	w = w.next()
	w.is("again", w.rename("a.tmp", "b", unix.RENAME_NOREPLACE, again63), ok)
	w.is("the bucket has", w.bucket.has("b"), "hello")
}

func TestWhatWasEmptiedIsRenamedAgain(t *testing.T) {
	// A process is killed after it has moved the name of an object that O_TRUNC had emptied: asked again, the next one deletes the
	// old key and copies nothing.
	w := newWriter(t)
	node, handle := w.made("a", "old")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	node = w.look("a")
	handle, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("open", errno, ok)
	w.is("write", w.put(node, 0, "new"), ok)
	d, _ := w.drafts.ID(node)
	to := d.Info().Name
	to.Key = "b"
	if err := d.Rename(t.Context(), to, false, false); err != nil {
		t.Fatal(err)
	}
	w.bucket.requests()
	w = w.next()
	w.is("again", w.rename("a", "b", 0, again63), ok)
	w.is("requests", w.bucket.requests(), "DELETE a")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("b"), "none new")
}
