package fuse

import (
	"syscall"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
)

// theirs is an object that another node writes, and of which this one's tree hears.
func (w *writer) theirs(key string) hearth.Object {
	o := w.bucket.put(key, "theirs")
	w.tree.putObject(o, 0)
	return o
}

func TestAFileThatOthersMadeIsKeptBeside(t *testing.T) {
	// Another node has made the object of a file that is written here: each close tells of it, the other's object is there at once
	// under its name, and what was written beside it, also for the process that takes the mount over. Opened by that name it is
	// a file as any other.
	for flags, errno := range map[uint32]syscall.Errno{0: syscall.ESTALE, syscall.O_EXCL: syscall.EEXIST} {
		w := newWriter(t)
		node, handle, _ := w.create("a", flags, 0)
		w.is("write", w.put(node, 0, "mine"), ok)
		w.theirs("a")
		w.is("close", w.flush(node), errno)
		w.bucket.requests()
		if id := w.look("a"); id == node || id == 0 {
			t.Errorf("the name has node id %d", id)
		}
		w.is("the other name", w.look("a.conflict"), node)
		w.is("names", w.names(1), "a a.conflict")
		w.is("read", w.read(node), "mine")
		w.is("write", w.put(node, 4, "!"), ok)
		w.is("close of another descriptor", w.flush(node), errno)
		w = w.next()
		w.is("close again", w.Flush(nil, &gofuse.FlushIn{InHeader: gofuse.InHeader{NodeId: node, Unique: again63}}), errno)
		w.release(node, handle)
		w.is("published behind", w.published(), "")
		w.is("requests", w.bucket.requests(), "")
		w.is("attributes", w.attrOf(node)[7:], "5")

		_, _, e := w.create("a.conflict", syscall.O_EXCL|syscall.O_WRONLY, 0)
		w.is("make a file of its name", e, syscall.EEXIST)
		w.is("close again", w.flush(node), errno)
		handle, e = w.open(node, syscall.O_RDWR)
		w.is("open by its name", e, ok)
		w.is("write", w.put(node, 5, "!"), ok)
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("a.conflict"), "theirs mine!!")
		w.is("drafts", len(w.drafts.All()), 0)
	}
}

func TestAConflictIsRenamedOrRemoved(t *testing.T) {
	// mv puts what was kept over the other's object, or where it belongs; rm drops it, and the other's object stays. truncate(1) by
	// its name publishes it.
	w := newWriter(t)
	kept := func(name string) uint64 {
		node, handle := w.made(name, "mine")
		w.theirs(name)
		w.is("close", w.flush(node), syscall.ESTALE)
		w.release(node, handle)
		w.bucket.requests()
		return node
	}
	kept("a")
	w.is("rename over the other's", w.rename("a.conflict", "a", 0, 0), ok)
	w.is("requests", w.bucket.requests(), "PUT a")
	w.is("the bucket has", w.bucket.has("a"), "mine")
	staged, handle := w.made("b.tmp", "mine")
	w.is("close", w.flush(staged), ok)
	w.theirs("b.tmp")
	d, _ := w.drafts.ID(staged)
	if _, err := d.Publish(t.Context()); err == nil { // since nobody renames it
		t.Error("it is published over the other's")
	}
	w.is("close of what looks temporary", w.flush(staged), syscall.ESTALE)
	w.release(staged, handle)
	w.is("published behind", w.published(), "")
	w.is("rename elsewhere", w.rename("b.tmp.conflict", "c", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("c"), "mine")
	kept("d")
	w.is("unlink", w.unlinked("d.conflict", 0), ok)
	w.is("requests", w.bucket.requests(), "")
	w.is("the bucket has", w.bucket.has("d"), "theirs")
	node := kept("e")
	in := gofuse.SetAttrIn{SetAttrInCommon: gofuse.SetAttrInCommon{InHeader: gofuse.InHeader{NodeId: node}, Valid: gofuse.FATTR_SIZE, Size: 2}}
	w.is("truncate", w.SetAttr(nil, &in, &gofuse.AttrOut{}), ok)
	w.is("the bucket has", w.bucket.has("e.conflict"), "mi")
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestADirectoryAppearsBesideADraft(t *testing.T) {
	// Somebody else makes a directory of a name that is being written here. The name is the directory, the file is beside it, as if
	// it were published, and nothing that is done to the directory harms it. A file that appears beside a directory with a temporary
	// name is hidden.
	w := newWriter(t)
	node, handle := w.made("a", "mine")
	w.stored("a/b")
	w.is("names", w.names(1), "a%F a/")
	dir := w.look("a")
	if dir == node || w.names(dir) != "b" {
		t.Errorf("a is node %d with %q", dir, w.names(dir))
	}
	w.is("the file", w.look("a%F"), node)
	w.is("unlink", w.rm(dir, "b"), ok)
	w.is("rmdir", w.rmdir("a", 0), ok)
	w.is("the name", w.look("a"), node)
	w.is("names", w.names(1), "a")
	w.stored("a/b")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("the bucket has", w.bucket.has("a")+" "+w.bucket.has("a/b"), "mine a/b")
	node, handle = w.made("c", "mine")
	w.stored("c/b")
	w.is("unlink", w.unlinked("c%F", 0), ok)
	w.release(node, handle)
	w.is("the bucket has", w.bucket.has("c")+" "+w.bucket.has("c/b"), "none c/b")
	w.is("mkdir", w.mkdir("d.tmp"), ok)
	w.theirs("d.tmp")
	w.is("names", w.names(1), "a%F a/ c/ d.tmp/")
}

func TestTwoWritersOfTwoVersions(t *testing.T) {
	// Another node replaces a file that is open here. Who opens its name then has the other's, and cannot write that as long as this one
	// has something that is not published: ESTALE. After a close they may, and the first one's next write is refused.
	w := newWriter(t)
	node, handle := w.made("a", "mine")
	w.is("close", w.flush(node), ok)
	w.theirs("a")
	id := w.look("a")
	if id == node || id == 0 {
		t.Fatalf("the name has node id %d", id)
	}
	w.is("write", w.put(node, 4, "!"), ok)
	_, e := w.open(id, syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("empty the other's", e, syscall.ESTALE)
	other, e := w.open(id, syscall.O_WRONLY)
	w.is("open the other's", e, ok)
	w.is("write the other's", w.put(id, 0, "T"), syscall.ESTALE)
	w.is("close", w.flush(node), syscall.ESTALE)
	w.is("write the other's", w.put(id, 0, "T"), ok)
	w.is("close", w.flush(id), ok)
	w.is("the bucket has", w.bucket.has("a"), "Theirs")
	w.theirs("a")
	next, e := w.open(w.look("a"), syscall.O_WRONLY|syscall.O_TRUNC)
	w.is("empty the next", e, ok)
	w.is("write on", w.put(id, 0, "X"), syscall.ESTALE)
	w.release(w.look("a"), next)
	w.release(id, other)
	w.release(node, handle)
}
