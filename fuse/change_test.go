package fuse

import (
	"syscall"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
)

// opened is a file of the bucket that is open for writing.
func (w *writer) opened(name, data string, flags uint32) (node, handle uint64) {
	w.t.Helper()
	w.tree.putObject(w.bucket.put(name, data), 0)
	node = w.look(name)
	handle, errno := w.open(node, flags)
	w.is("open "+name, errno, ok)
	return node, handle
}

func TestAFileOfTheBucketIsChangedInPlace(t *testing.T) {
	// A file of the bucket is written in its midst and at its end, read back and closed: the bucket has it with both, by one request
	// each, and its node id stays as long as it is open, over a take-over, too. What is closed unwritten sends nothing.
	w := newWriter(t)
	node, handle := w.opened("a", "hello world", syscall.O_RDWR)
	w.is("close", w.flush(node), ok)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("write", w.put(node, 6, "there"), ok)
	w.is("read", w.read(node), "hello there")
	w.is("the name", w.look("a"), node)
	w.is("attributes", w.attrOf(node), "100644 11")
	w.is("requests before close", w.bucket.requests(), "")
	w.is("close", w.flush(node), ok)
	w.is("requests", w.bucket.requests(), "PUT a")
	w = w.next()
	w.is("append", w.put(node, 11, "!"), ok)
	w.is("read", w.read(node), "hello there!")
	w.is("close", w.flush(node), ok)
	w.is("the bucket has", w.bucket.has("a"), "hello there!")
	w.is("the name", w.look("a"), node)
	w.release(node, handle)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("rows", w.held(node), 0)

	// Opened by one process, and written by the next one.
	node, handle = w.opened("b", "one", syscall.O_WRONLY|syscall.O_APPEND)
	w = w.next()
	w.is("append", w.put(node, 3, ", two"), ok)
	w = w.next() // which has the draft, and what is the base's
	w.is("read", w.read(node), "one, two")
	w.release(node, handle)
	w.is("published behind", w.published(), "b")
	w.is("the bucket has", w.bucket.has("b"), "one, two")
}

func TestWhatAnotherNodeWroteStays(t *testing.T) {
	// Another node writes a file that is open and changed here: close says ESTALE, the bucket keeps the other's, and the draft stays.
	// Whoever opens the name gets the other's.
	w := newWriter(t)
	node, handle := w.opened("a", "hello world", syscall.O_RDWR)
	w.is("write", w.put(node, 0, "J"), ok)
	other := w.bucket.put("a", "another")
	w.tree.putObject(other, 0)
	w.is("close", w.flush(node), syscall.ESTALE)
	w.is("the bucket has", w.bucket.has("a"), "another")
	if id := w.look("a"); id == node {
		t.Error("the name is the draft's")
	}
	w.release(node, handle)
	if all := w.drafts.All(); len(all) != 1 || all[0].State != draft.Failed {
		t.Errorf("drafts: %+v", all)
	}
}

func TestWhatWasUnlinkedIsWrittenOn(t *testing.T) {
	// A file of the bucket is opened for writing and unlinked, and then written: its writer goes on, and nothing is published. A WRITE
	// for a file that nobody has open for writing is ESTALE.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.is("unlink", w.unlinked("a", 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "none")
	w.is("write", w.put(node, 0, "Jelly"), ok)
	w.is("read", w.read(node), "Jelly")
	w.bucket.requests()
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("published behind", w.published(), "")
	w.is("requests", w.bucket.requests(), "")
	w.is("drafts", len(w.drafts.All()), 0)

	w.tree.putObject(w.bucket.put("b", "hello"), 0)
	w.is("write", w.put(w.look("b"), 0, "x"), syscall.ESTALE)
}

func TestSizesOfFilesOfTheBucket(t *testing.T) {
	// truncate(2) to another size publishes at once, as nobody will close; ftruncate(2) leaves it to close. What is grown is zeros.
	const size = gofuse.FATTR_SIZE
	w := newWriter(t)
	w.tree.putObject(w.bucket.put("a", "hello"), 0)
	a := w.look("a")
	w.is("truncate", w.set(a, size, 2, 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "he")
	w.is("truncate", w.set(w.look("a"), size, 4, 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "he\x00\x00")
	w.is("drafts", len(w.drafts.All()), 0)

	b, handle := w.opened("b", "hello", syscall.O_RDWR)
	w.is("ftruncate", w.set(b, size, 2, 0), ok)
	w.is("ftruncate", w.set(b, size, 3, 0), ok)
	w.is("read", w.read(b), "he\x00")
	w.is("the bucket has", w.bucket.has("b"), "hello")
	w.is("close", w.flush(b), ok)
	w.is("the bucket has", w.bucket.has("b"), "he\x00")
	w.release(b, handle)
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestAReleaseThatComesAgainIsOfItsOpen(t *testing.T) {
	// A process ends after a RELEASE and before its answer, and the file is open again, with the same row: the next process is asked for
	// the RELEASE again. It is of the first open alone, and who has the file open writes on.
	w := newWriter(t)
	node, first := w.opened("a", "hello", syscall.O_RDWR)
	w.release(node, first)
	second, errno := w.open(node, syscall.O_RDWR)
	w.is("open again", errno, ok)
	if first == second || rowOf(first) != rowOf(second) {
		t.Fatalf("handles %x and %x", first, second)
	}
	w = w.next()
	w.Release(nil, &gofuse.ReleaseIn{InHeader: gofuse.InHeader{NodeId: node, Unique: 1<<63 | 2}, Fh: first, Flags: syscall.O_RDWR})
	w.is("write", w.put(node, 0, "Jelly"), ok)
	w.is("close", w.flush(node), ok)
	w.is("the bucket has", w.bucket.has("a"), "Jelly")
	w.release(node, second)
	w.is("rows", w.held(node), 0)
}

func TestANameIsOneInodeWhileItIsPublished(t *testing.T) {
	// A name is looked up, and its directory read, in the moment in which the tree knows of a publish and the draft's holders do not: it
	// is the draft's node still.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.is("write", w.put(node, 0, "J"), ok)
	asked := 0
	w.wrote = func() {
		asked++
		w.is("the name", w.look("a"), node)
		_ = w.write.ReadDir(t.Context(), 1, "", func(n namespace.Node) bool {
			w.is("the name in the directory", n.ID, node)
			return true
		})
	}
	w.is("close", w.flush(node), ok)
	w.is("write", w.put(node, 0, "H"), ok)
	w.is("close", w.flush(node), ok)
	w.is("publishes", asked, 2)
	w.release(node, handle)
}

func TestANewFileWhereTheLastProcessHadPublishedOne(t *testing.T) {
	// A process is killed after a file was published and before its draft had gone. The next one does not know that it is whole, and
	// the kernel the bucket's file: an open of that is looked up again, and the file written, and emptied, by the draft's node.
	for _, flags := range []uint32{syscall.O_RDWR, syscall.O_WRONLY | syscall.O_TRUNC} {
		w := newWriter(t)
		node, handle := w.made("a", "hello")
		w.is("close", w.flush(node), ok)
		w.handles.table.clear(rowOf(handle)) // its RELEASE was answered
		w = w.next()
		of, err := w.tree.Lookup(t.Context(), 1, "a")
		if err != nil || of.ID == node {
			t.Fatalf("the bucket's file has node id %d, %v", of.ID, err)
		}
		_, errno := w.open(of.ID, flags)
		w.is("open by the old node", errno, syscall.ESTALE)
		id := w.look("a")
		handle, errno = w.open(id, flags)
		w.is("open", errno, ok)
		w.is("write", w.put(id, 0, "J"), ok)
		w.is("close", w.flush(id), ok)
		want := "Jello"
		if flags&syscall.O_TRUNC != 0 {
			want = "J"
		}
		w.is("the bucket has", w.bucket.has("a"), want)
		w.release(id, handle)
	}
}

func TestAnImmutableLinkTakesNewNamesAlone(t *testing.T) {
	// Of an immutable link a new file is made, written and renamed. What the bucket has is not opened for writing, emptied, truncated,
	// renamed, replaced or unlinked, nor is a new file once it is closed; the bucket is asked for nothing.
	w := newWriter(t)
	w.frozen = true
	w.tree.putObject(w.bucket.put("a", "hello"), 0)
	a := w.look("a")
	made, handle := w.made("b.tmp", "new")
	w.is("ftruncate of a new file", w.set(made, gofuse.FATTR_SIZE, 2, 0), ok)
	w.is("close", w.flush(made), ok)
	w.release(made, handle)
	w.is("rename over a", w.rename("b.tmp", "a", 0, 0), syscall.EPERM)
	w.is("rename", w.rename("b.tmp", "b", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("b"), "ne")
	w.bucket.requests()
	for _, node := range []uint64{a, w.look("b")} {
		for _, flags := range []uint32{syscall.O_WRONLY, syscall.O_RDWR | syscall.O_TRUNC, syscall.O_WRONLY | syscall.O_APPEND} {
			_, errno := w.open(node, flags)
			w.is("open for writing", errno, syscall.EPERM)
		}
		w.is("truncate", w.set(node, gofuse.FATTR_SIZE, 1, 0), syscall.EPERM)
	}
	for _, name := range []string{"a", "b"} {
		w.is("rename", w.rename(name, "c", 0, 0), syscall.EPERM)
		w.is("unlink", w.unlinked(name, 0), syscall.EPERM)
	}
	w.is("requests", w.bucket.requests(), "")
	if _, errno := w.open(a, syscall.O_RDONLY); errno != ok {
		t.Error(errno)
	}

	// A name that somebody else has made, and this node does not know of, stays that one's.
	w.bucket.put("d", "another's")
	w.bucket.put("run/f", "another's")
	made, handle = w.made("d.tmp", "ours")
	w.release(made, handle)
	w.is("rename over d", w.rename("d.tmp", "d", 0, 0), syscall.EPERM)
	w.is("the bucket has", w.bucket.has("d"), "another's")
	w.is("read", w.read(w.look("d.tmp")), "ours")
	w.is("asked for again", w.doubted[len(w.doubted)-1], "d")
	w.is("mkdir", w.mkdir("run.tmp"), ok)
	var out gofuse.CreateOut
	w.is("create", w.Create(nil, &gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: w.look("run.tmp")}, Flags: syscall.O_WRONLY}, "f", &out), ok)
	w.is("close", w.flush(out.NodeId), ok)
	w.release(out.NodeId, out.OpenOut.Fh)
	w.is("rename a directory", w.rename("run.tmp", "run", 0, 0), syscall.EPERM)
	w.is("the bucket has", w.bucket.has("run/f"), "another's")

	// So does a directory.
	w.is("mkdir", w.mkdir("new"), ok)
	w.is("rmdir", w.rmdir("new", 0), syscall.EPERM)
	w.bucket.put("theirs/", "")
	w.is("mkdir", w.mkdir("theirs"), syscall.EEXIST)
}

func TestAFileThatIsChangedIsRenamed(t *testing.T) {
	// A file of the bucket that somebody writes is renamed: what the bucket has is copied, the writer goes on, and its close writes the
	// new name.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.is("write", w.put(node, 0, "J"), ok)
	w.bucket.requests()
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "COPY a b, DELETE a")
	w.is("read", w.read(node), "Jello")
	w.is("close", w.flush(node), ok)
	w.is("the bucket has", w.bucket.has("b"), "Jello")
	w.is("the bucket has", w.bucket.has("a"), "none")
	w.release(node, handle)
	w.is("drafts", len(w.drafts.All()), 0)
}
