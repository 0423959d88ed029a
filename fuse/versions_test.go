package fuse

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// What somebody has open for writing, and what its name means meanwhile.

func TestANameIsItsDraftsWhileThatIsPublished(t *testing.T) {
	// The tree hears of an object before its draft does, and has the kernel ask for the name again: whoever looks it up then has the
	// same file as its writer.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_WRONLY|syscall.O_APPEND)
	for at, data := range map[int]string{5: "!", 6: "?"} {
		w.is("write", w.put(node, at, data), ok)
		var seen uint64
		var names string
		end := w.tree.Subscribe(func(namespace.Change) { seen, names = w.look("a"), w.names(1) })
		w.is("close", w.flush(node), ok)
		end()
		w.is("the name as it is published", seen, node)
		w.is("names", names, "a")
	}
	w.release(node, handle)
}

func TestTwoOpensEmptyAFile(t *testing.T) {
	// Two opens with O_TRUNC, or one and a first write, meet: the second finds the other's draft, and empties it.
	w := newWriter(t)
	node, _ := w.opened("a", "hello", syscall.O_RDWR)
	w.is("write", w.put(node, 0, "J"), ok)
	for range 2 {
		if _, err := w.empty(t.Context(), node); err != nil {
			t.Error(err)
		}
		w.is("read", w.read(node), "")
	}
}

func TestAWriterWhoseFileIsReplacedWritesNowhere(t *testing.T) {
	// A file that is open for writing, and was not written, is renamed over: what its writer then writes, even into what it has emptied,
	// is as in an unlinked file, and the new one stays.
	for _, from := range []string{"new", "new.tmp"} {
		for _, empties := range []bool{false, true} {
			w := newWriter(t)
			node, handle := w.opened("a", "hello", syscall.O_RDWR)
			fresh, h := w.made(from, "fresh")
			w.is("close", w.flush(fresh), ok)
			w.release(fresh, h)
			w.is("rename over", w.rename(from, "a", 0, 0), ok)
			if empties {
				w.is("ftruncate", w.set(node, gofuse.FATTR_SIZE, 0, 0), ok)
			}
			w = w.next()
			w.is("write", w.put(node, 0, "old"), ok)
			if empties { // else the rest is of what the bucket has not any more
				w.is("read", w.read(node), "old")
			}
			w.is("close", w.flush(node), ok)
			w.release(node, handle)
			w.is("published behind", w.published(), "")
			w.is("the bucket has", w.bucket.has("a"), "fresh")
			w.is("drafts", len(w.drafts.All()), 0)
		}
	}
}

func TestAFileIsWrittenWhileItIsRenamed(t *testing.T) {
	// Whoever has a file of the bucket open begins to write it while the bucket copies it to another name: that is what the close writes.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.bucket.meets = func(_ context.Context, request string) error {
		if strings.HasPrefix(request, "COPY") {
			w.is("write", w.put(node, 0, "J"), ok)
		}
		return nil
	}
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.bucket.meets = nil
	w.is("close", w.flush(node), ok)
	w.is("the bucket has", w.bucket.has("b"), "Jello")
	w.is("the bucket has", w.bucket.has("a"), "none")
	w.release(node, handle)
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestAnothersObjectIsRenamedWhileOursIsOpen(t *testing.T) {
	// Another node replaces a file that is open here, and published: mv takes what the name shows. What is written here is a conflict.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.is("write", w.put(node, 5, "!"), ok)
	w.is("close of another descriptor", w.flush(node), ok)
	w.theirs("a")
	w.is("rename", w.rename("a", "b", 0, 0), ok)
	w.is("the bucket has", w.bucket.has("b"), "theirs")
	w.is("write", w.put(node, 6, "!"), ok)
	w.is("close", w.flush(node), syscall.ESTALE)
	w.is("what is kept", w.look("a.conflict"), node)
	w.release(node, handle)
}

func TestTwoVersionsHaveWriters(t *testing.T) {
	// Somebody has a file open, another node replaces it, and somebody opens that and writes it. Whoever has the old one gets ESTALE
	// for the next write, and takes nothing from the other: the bucket has what is of its version.
	for _, written := range []bool{false, true} {
		w := newWriter(t)
		old, first := w.opened("a", "hello", syscall.O_RDWR)
		if written {
			w.is("write of the old one", w.put(old, 5, "!"), ok)
			w.is("close of another descriptor", w.flush(old), ok)
		}
		w.theirs("a")
		node := w.look("a")
		second, errno := w.open(node, syscall.O_RDWR)
		w.is("open", errno, ok)
		w.is("write", w.put(node, 6, "1"), ok)
		w.is("close of another descriptor", w.flush(node), ok)
		w.is("write of the old one", w.put(old, 0, "J"), syscall.ESTALE)
		w.is("write", w.put(node, 7, "2"), ok)
		w.is("close", w.flush(node), ok)
		w.is("the bucket has", w.bucket.has("a"), "theirs12")
		w.release(node, second)
		w.release(old, first)
		w.is("the bucket has", w.bucket.has("a"), "theirs12")
		w.is("drafts", len(w.drafts.All()), 0)
	}
}

func TestAnOpenThatComesAgainIsOne(t *testing.T) {
	// A process ends after it has noted an open and before its answer, and the kernel asks the next one: there is one open, and once that
	// is released the draft goes, and truncate(2) is in the bucket when it answers.
	w := newWriter(t)
	w.tree.putObject(w.bucket.put("a", "hello"), 0)
	node := w.look("a")
	var out gofuse.OpenOut
	in := &gofuse.OpenIn{InHeader: gofuse.InHeader{NodeId: node, Unique: 8}, Flags: syscall.O_RDWR}
	w.is("open", w.Open(nil, in, &out), ok)
	w = w.next()
	in.Unique |= 1 << 63
	w.is("open again", w.Open(nil, in, &out), ok)
	w.is("rows", w.held(node), 1)
	w.is("write", w.put(node, 0, "J"), ok)
	w.is("close", w.flush(node), ok)
	w.release(node, out.Fh)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("truncate", w.set(w.look("a"), gofuse.FATTR_SIZE, 2, 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "Je")
}

func TestAReadOnlyMountBesideKeepsAVersion(t *testing.T) {
	// A file is open through a read-only mount, and is changed in place through a writable one beside it, which has the same node id: size
	// and bytes of the open file are those of the version that it was opened with, and who looks the name up gets the new one.
	const size = 3 << 20
	w := newWriter(t)
	first := w.bucket.put("a", strings.Repeat("a", size))
	w.tree.putObject(first, 0)
	node := w.look("a")
	ro := newFileSystem(&Options{Tree: w.tree, Reads: reads(w.tree), Root: 1, FileMode: 0o644, DirMode: 0o755})
	ro.mode, ro.news = Plain, newNews(&fakeKernel{}, &newsOps{})
	both := func(mount *fileSystem, node uint64, at int) string {
		var out gofuse.AttrOut
		w.is("attributes", mount.GetAttr(nil, &gofuse.GetAttrIn{InHeader: gofuse.InHeader{NodeId: node}}, &out), ok)
		r, s := mount.Read(nil, &gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: node}, Offset: uint64(at)}, make([]byte, 1))
		w.is("read", s, ok)
		data, _ := r.Bytes(nil) // it cannot fail
		defer r.Done()
		return fmt.Sprintf("%d %s", out.Size, data)
	}
	w.tree.literal = map[string][]byte{"a": []byte(strings.Repeat("a", size))}
	old := fmt.Sprintf("%d a", size)
	w.is("read-only", both(ro, node, size-1), old)
	w.is("writable", both(w.fileSystem, node, size-1), old)
	w.tree.putObject(w.bucket.put("a", strings.Repeat("b", size+1)), node) // as a draft of that id is published
	w.records.drop(node)                                                   // as it began
	w.is("read-only", both(ro, node, size-1), old)
	w.tree.literal["a"], w.tree.gone[first.Version] = []byte(strings.Repeat("b", size+1)), true
	w.is("writable, by the id that was written", both(w.fileSystem, node, size), fmt.Sprintf("%d b", size+1))
	if id := w.look("a"); id == node {
		t.Error("the name has the old node id")
	}
}

// afterLookup is a tree in whose look-ups something happens between its answer and the kernel's.
type afterLookup struct {
	*fakeTree
	then func()
}

func (t afterLookup) Lookup(ctx context.Context, dir uint64, name string) (namespace.Node, error) {
	n, err := t.fakeTree.Lookup(ctx, dir, name)
	t.then()
	return n, err
}

func TestALookUpBesideAFirstWrite(t *testing.T) {
	// A file of the bucket is written for the first time while somebody looks it up: its size is what was written, then and once that is
	// published. (A kernel that is told of the old one cuts the file, and an append goes into its midst.)
	w := newWriter(t)
	w.tree.ttl = time.Minute
	node, handle := w.opened("a", "hello", syscall.O_WRONLY|syscall.O_APPEND)
	w.records.drop(node)
	tree := w.write.Tree
	once := sync.OnceFunc(func() { w.is("write", w.put(node, 5, "!"), ok) })
	w.write.Tree = afterLookup{tree.(*fakeTree), once}
	w.look("a")
	w.write.Tree = tree
	w.is("attributes", w.attrOf(node), "100644 6")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("attributes", w.attrOf(node), "100644 6")
}

func TestAForgetBesideAnOpen(t *testing.T) {
	// The kernel forgets a file, and somebody looks it up and opens it before that is done: the open stands.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w.handles.forget(node, w.holds.has, w.releasePlain)
	w.is("rows", w.held(node), 1)
	w.is("write", w.put(node, 0, "J"), ok)
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("rows", w.held(node), 0)
}

func TestAnOpenAsTheDraftGoes(t *testing.T) {
	// A file is opened while its draft, which was published, goes with its last handle: the open is ESTALE, for which the kernel looks the
	// name up again. Else the file were open by two nodes, and a write by one of them were ESTALE.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.is("close", w.flush(node), ok)
	last := sync.OnceFunc(func() { w.release(node, handle) })
	w.write.w.Frozen = func(string) bool { // it is asked once the draft was found
		last()
		return false
	}
	_, errno := w.open(node, syscall.O_RDWR)
	w.is("open of what is going", errno, syscall.ESTALE)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("rows", w.held(node), 0)
	now := w.look("a")
	handle, errno = w.open(now, syscall.O_RDWR)
	w.is("open", errno, ok)
	w.is("write", w.put(now, 0, "J"), ok)
	w.is("close", w.flush(now), ok)
	w.release(now, handle)
	w.is("the bucket has", w.bucket.has("a"), "Jello")
}

func TestAFileIsOpenByOneNode(t *testing.T) {
	// Somebody looks up a file while it is a draft, and opens it when that has gone: the open is ESTALE, for which the kernel looks the
	// name up again. Else two would write one file by two nodes, and the later one's write were ESTALE. A draft that was never written
	// leaves the node as it was. So it is if the process that looked it up was another one.
	for _, killed := range []bool{false, true} {
		openByOneNode(newWriter(t), killed)
	}
}

func openByOneNode(w *writer, killed bool) {
	node, handle := w.made("a", "hello")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	if killed {
		w = w.next()
	}
	for _, flags := range []uint32{syscall.O_RDONLY, syscall.O_WRONLY | syscall.O_APPEND, syscall.O_WRONLY | syscall.O_TRUNC} {
		_, errno := w.open(node, flags)
		w.is("open of what is looked up before", errno, syscall.ESTALE)
	}
	w.is("the bucket has", w.bucket.has("a"), "hello")
	now := w.look("a")
	handle, errno := w.open(now, syscall.O_RDWR)
	w.is("open", errno, ok)
	w.is("rename to a temporary name", w.rename("a", "a.tmp", 0, 0), syscall.EXDEV)
	w.release(now, handle)
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("the name", w.look("a"), now)
	_, errno = w.open(now, syscall.O_RDWR)
	w.is("open again", errno, ok)
}

func TestALookUpBesideAPublish(t *testing.T) {
	// A file is written and published while somebody looks it up, who has found no draft before: it is the draft's node. An open by the
	// node that the tree gives the name is ESTALE, as long as there is the draft.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_WRONLY|syscall.O_APPEND)
	var of uint64
	publish := func() {
		w.is("write", w.put(node, 5, "!"), ok)
		w.is("close of another descriptor", w.flush(node), ok)
		n, err := w.tree.Lookup(t.Context(), 1, "a")
		if of = n.ID; err != nil || of == node {
			t.Errorf("the tree gives node %d, %v", of, err)
		}
	}
	tree := w.write.Tree
	w.write.Tree = beforeLookup{tree.(*fakeTree), sync.OnceFunc(publish)}
	w.is("the name", w.look("a"), node)
	w.write.Tree = tree
	_, errno := w.open(of, syscall.O_RDWR)
	w.is("open by the tree's node", errno, syscall.ESTALE)
	w.release(node, handle)
	_, errno = w.open(of, syscall.O_RDWR)
	w.is("open by the tree's node", errno, ok)
}

// beforeLookup is a tree in whose look-ups something happens before the tree looks.
type beforeLookup struct {
	*fakeTree
	first func()
}

func (t beforeLookup) Lookup(ctx context.Context, dir uint64, name string) (namespace.Node, error) {
	t.first()
	return t.fakeTree.Lookup(ctx, dir, name)
}

func TestWhatARenameReplacedIsWrittenOnAfterAKill(t *testing.T) {
	// A process ends in the midst of a rename over a file that somebody writes: they go on, as in an unlinked file, and the new one stays.
	w := newWriter(t)
	node, handle := w.made("a", "mine")
	fresh, h := w.made("a.tmp", "fresh")
	w.is("close", w.flush(fresh), ok)
	w.release(fresh, h)
	w.bucket.meets = func(context.Context, string) error { return hearth.ErrUnanswered }
	w.is("rename", w.rename("a.tmp", "a", 0, 0), syscall.EIO)
	w.bucket.meets = nil
	w = w.next()
	w.is("write", w.put(node, 4, "!"), ok)
	w.is("read", w.read(node), "mine!")
	w.drafts.Unheld()
	w.is("ftruncate", w.set(node, gofuse.FATTR_SIZE, 2, 0), ok)
	w.is("read", w.read(node), "mi")
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("the name", w.look("a"), fresh)
	w.is("drafts", len(w.drafts.All()), 1)
}
