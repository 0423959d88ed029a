package fuse

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/namespace"
)

func TestAHandleIsARow(t *testing.T) {
	// Each open of a writable mount has a row in the mount's table, which RELEASE frees. One that a killed process took leaves its
	// row: FORGET releases that handle, and what was written is published.
	w := newWriter(t)
	node, first := w.made("a", "hello")
	second, errno := w.open(node, syscall.O_RDONLY)
	w.is("open", errno, ok)
	w.is("rows", w.held(node), 2)
	w.release(node, second)
	w.is("rows", w.held(node), 1)
	third, _ := w.open(node, syscall.O_WRONLY)
	w.is("a freed row is taken again", rowOf(third), rowOf(second))
	w.release(node, first)
	w.is("published", w.published(), "")
	w.Forget(node, 1)
	w.is("rows", w.held(node), 0)
	w.is("published", w.published(), "a")
	w.is("the bucket has", w.bucket.has("a"), "hello")
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestAFailedOpenHoldsNothing(t *testing.T) {
	// A CREATE, and an OPEN, that this node's disk refuses leave no row, and the kernel is not thought to hold the file.
	w := newWriter(t)
	node, handle := w.made("a", "hello")
	w.release(node, handle)
	w.Forget(node, 1)
	d, _ := w.drafts.ID(node)
	if err := os.Remove(d.Info().File); err != nil {
		t.Fatal(err)
	}
	if _, _, errno := w.create("a", 0, 0); errno == ok {
		t.Error("CREATE of a file that is gone works")
	}
	if _, errno := w.open(node, syscall.O_RDWR); errno == ok {
		t.Error("OPEN of a file that is gone works")
	}
	w.is("rows", w.held(node), 0)
	w.is("held by the kernel", w.holds.has(node), false)
}

func TestAnotherProcessInheritsHandles(t *testing.T) {
	// A process takes over a mount with two open files. The drafts are held as often as before: what is written is published at
	// close, and each draft goes with its last RELEASE.
	w := newWriter(t)
	a, a1 := w.made("a", "hello")
	a2, _ := w.open(a, syscall.O_RDWR)
	b, b1 := w.made("b", "")
	w = w.next()
	w.is("read", w.read(a), "hello")
	w.is("write", w.put(a, 5, "!"), ok)
	w.is("close", w.flush(a), ok)
	w.is("the bucket has", w.bucket.has("a"), "hello!")
	w.bucket.requests()
	w.release(a, a1)
	d, there := w.drafts.ID(a)
	if !there || d.Info().Users != 1 {
		t.Fatal("the draft is not held by the other handle")
	}
	w = w.next() // and once more: what was published is not sent again
	w.is("close", w.flush(a), ok)
	w.release(a, a2)
	w.release(b, b1)
	w.is("published behind", w.published(), "b")
	w.is("requests", w.bucket.requests(), "PUT b")
	w.is("drafts", len(w.drafts.All()), 0)
	if c, c1 := w.made("c", ""); !slices.Contains([]int{rowOf(a1), rowOf(a2), rowOf(b1)}, rowOf(c1)) || w.held(c) != 1 {
		t.Errorf("a freed row is not taken again: handle %d", c1)
	}
}

func TestRequestsThatComeAgain(t *testing.T) {
	// The kernel asks another process again for what the one before took, and may have done. CREATE with O_EXCL gets the same file;
	// its last RELEASE is the last handle. RELEASE frees one handle, not two. UNLINK, MKDIR and RMDIR are done.
	w := newWriter(t)
	node, _, _ := w.create("a", syscall.O_EXCL, 0)
	w = w.next()
	same, handle, errno := w.create("a", syscall.O_EXCL, again63)
	w.is("CREATE again", errno, ok)
	w.is("the same file", same, node)
	_, _, errno = w.create("a", syscall.O_EXCL, 0)
	w.is("another's CREATE", errno, syscall.EEXIST)
	w.is("rows", w.held(node), 1)
	w.release(node, handle)
	w.is("published behind", w.published(), "a")

	node, first := w.made("b", "hello")
	_, _ = w.open(node, syscall.O_RDWR)
	w.release(node, first)
	w = w.next()
	w.Release(nil, &gofuse.ReleaseIn{InHeader: gofuse.InHeader{NodeId: node, Unique: again63}, Fh: first})
	d, _ := w.drafts.ID(node)
	w.is("handles", d.Info().Users, 1)
	w.is("published behind", w.published(), "")
	x, x1 := w.made("x", "")
	y, y1 := w.made("y", "")
	w.is("rows", fmt.Sprint(w.held(x), w.held(y), x1 != y1), "1 1 true")

	for range 2 {
		w.is("MKDIR", w.mkdir("d"), ok)
	}
	w.is("UNLINK", w.unlinked("b", 0), ok)
	w.is("UNLINK again", w.unlinked("b", again63), ok)
	w.is("RMDIR", w.rmdir("d", 0), ok)
	w.is("RMDIR again", w.rmdir("d", again63), ok)
	w.is("another's RMDIR", w.rmdir("d", 0), syscall.ENOENT)
}

func TestAnUnlinkThatComesAgainTakesNoOthersFile(t *testing.T) {
	// A process deletes an object and is killed before it has noted that. Another node writes the name. The kernel asks again for the
	// unlink: the file of the other node stays, and is shown. If nobody wrote, the name is gone.
	for _, writes := range []bool{false, true} {
		w := newWriter(t)
		w.tree.putObject(w.bucket.put("a", "ours"), 0)
		w.is("DELETE", w.bucket.Delete(t.Context(), "a", ""), error(nil))
		want := "none"
		if writes {
			w.bucket.put("a", "another's")
			want = "another's"
		}
		w = w.next()
		w.asks = true
		w.is("UNLINK again", w.unlinked("a", again63), ok)
		w.is("the bucket has", w.bucket.has("a"), want)
		w.is("the name is there", w.look("a") != 0, writes)
	}
}

func (w *writer) mkdir(name string) gofuse.Status {
	return w.Mkdir(nil, &gofuse.MkdirIn{InHeader: gofuse.InHeader{NodeId: 1}}, name, &gofuse.EntryOut{})
}

func (w *writer) rmdir(name string, unique uint64) gofuse.Status {
	return w.Rmdir(nil, &gofuse.InHeader{NodeId: 1, Unique: unique}, name)
}

func TestNewsOfADirectoryThatIsMade(t *testing.T) {
	// MKDIR's answer tells the kernel of the name. News of it, which would come behind that and take the name from under whoever is in
	// the directory by then, are not told; what changes elsewhere meanwhile, or there later, is.
	w := newWriter(t)
	tell := func(name string) { w.news.add(1, namespace.Change{Dir: 1, Name: name}) }
	told := func() (names []string) {
		for _, c := range w.news.dirs[1].names {
			names = append(names, c.name)
		}
		return names
	}
	wrote := w.write.w.Wrote
	w.write.w.Wrote = func(ctx context.Context, link, key string, o *hearth.Object, id uint64) {
		wrote(ctx, link, key, o, id)
		tell("d")
		tell("other")
	}
	w.is("mkdir", w.mkdir("d"), ok)
	w.is("told", fmt.Sprint(told()), "[other]")
	tell("d")
	w.is("told", fmt.Sprint(told()), "[other d]")
	w.is("names that are made", len(w.news.making), 0)
}

func TestADirectoryThatIsMadeAgainIsAnother(t *testing.T) {
	// The kernel may have a node of a directory that it removed, in which nothing can be made any more. One that is made again under the same
	// node id has another generation, also from a process that takes over, until the kernel has forgotten the node. A directory that
	// stays keeps its own.
	w := newWriter(t)
	look := func() [2]uint64 {
		var out gofuse.EntryOut
		w.is("look up", w.Lookup(nil, &gofuse.InHeader{NodeId: 1}, "d", &out), ok)
		return [2]uint64{out.NodeId, out.Generation}
	}
	w.is("mkdir", w.mkdir("d"), ok)
	first := look()
	w.bucket.meets = func(context.Context, string) error { return fs.ErrPermission }
	w.is("rmdir that the bucket refuses", w.rmdir("d", 0), syscall.EACCES)
	w.bucket.meets = nil
	w.is("the directory", look(), first)
	for i := range uint64(2) {
		w.is("rmdir", w.rmdir("d", 0), ok)
		w.is("mkdir", w.mkdir("d"), ok)
		w.is("the next one", look(), [2]uint64{first[0], i + 1})
	}
	w.bucket.meets = func(context.Context, string) error { return fs.ErrPermission }
	w.is("rmdir that the bucket refuses", w.rmdir("d", 0), syscall.EACCES)
	w.bucket.meets = nil
	w.is("the directory", look(), [2]uint64{first[0], 2})
	w = w.next()
	w.is("after a takeover", look(), [2]uint64{first[0], 2})

	w = newWriter(t)
	w.is("mkdir", w.mkdir("d"), ok)
	first = look()
	w.is("rmdir", w.rmdir("d", 0), ok)
	w.is("removed", w.remade.generation(first[0]), uint64(1))
	w.Forget(first[0], 2)
	w.is("once it was forgotten", w.remade.generation(first[0]), uint64(0))
}

func TestDirectoriesAreMarkers(t *testing.T) {
	// mkdir writes an empty object, rmdir deletes it, if nothing is in the directory: no object and no draft, however deep. Of a
	// request without an answer the tree asks itself.
	w := newWriter(t)
	w.is("mkdir", w.mkdir("d"), ok)
	w.is("requests", w.bucket.requests(), "PUT d/")
	w.is("the bucket has", w.bucket.has("d/"), "")
	dir := w.look("d")
	file := gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: dir}}
	var out gofuse.CreateOut
	w.is("create", w.Create(nil, &file, "f", &out), ok)
	w.is("rmdir with a draft", w.rmdir("d", 0), syscall.ENOTEMPTY)
	w.release(out.NodeId, out.OpenOut.Fh)
	w.is("published behind", w.published(), "d/f")
	w.is("rmdir with an object", w.rmdir("d", 0), syscall.ENOTEMPTY)
	w.is("unlink", w.Unlink(nil, &gofuse.InHeader{NodeId: dir}, "f"), ok)
	if _, err := w.drafts.Create(draft.Name{Link: "fake", Key: "d/e/f"}, 1000, draft.Attr{}); err != nil {
		t.Fatal(err)
	}
	w.is("rmdir with a draft in a directory that is gone", w.rmdir("d", 0), syscall.ENOTEMPTY)
	deep, _ := w.drafts.ID(1000)
	if err := deep.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.bucket.requests()
	w.is("rmdir", w.rmdir("d", 0), ok)
	w.is("requests", w.bucket.requests(), "DELETE d/")
	w.is("the name", w.look("d"), uint64(0))

	node, handle := w.made("a", "")
	w.is("mkdir where a draft is", w.mkdir("a"), syscall.EEXIST)
	w.is("rmdir of a draft", w.rmdir("a", 0), syscall.ENOTDIR)
	w.release(node, handle)
	w.published()
	w.is("mkdir", w.mkdir("d"), ok)
	for _, c := range []struct {
		err    error
		want   syscall.Errno
		doubts bool
	}{{hearth.ErrUnanswered, syscall.EIO, true}, {syscall.EDQUOT, syscall.EDQUOT, false}} {
		w.doubted = nil
		w.bucket.meets = func(context.Context, string) error { return fmt.Errorf("ask: %w", c.err) }
		w.is("mkdir", w.mkdir("e"), c.want)
		w.is("rmdir", w.rmdir("d", 0), c.want)
		w.is("unlink", w.unlinked("a", 0), c.want)
		if want := []string{"e/", "d/", "a"}; c.doubts != slices.Equal(w.doubted, want) {
			t.Errorf("%v: the tree doubts %q", c.err, w.doubted)
		}
	}
}

func TestFsync(t *testing.T) {
	// fsync is of this node's disk: the bucket is asked nothing, and another process has the bytes. Where it is to wait for the
	// bucket, it publishes, once.
	w := newWriter(t)
	node, _ := w.made("a", "hello")
	sync := func() gofuse.Status {
		return w.Fsync(nil, &gofuse.FsyncIn{InHeader: gofuse.InHeader{NodeId: node}})
	}
	w.is("fsync", sync(), ok)
	w.is("requests", w.bucket.requests(), "")
	w = w.next()
	w.is("read", w.read(node), "hello")
	w.write.w.SyncToBucket = func(string) bool { return true }
	for _, want := range []string{"PUT a", ""} {
		w.is("fsync", sync(), ok)
		w.is("requests", w.bucket.requests(), want)
	}
}

func (w *writer) set(node uint64, valid uint32, size uint64, mode uint32) gofuse.Status {
	in := gofuse.SetAttrIn{SetAttrInCommon: gofuse.SetAttrInCommon{InHeader: gofuse.InHeader{NodeId: node}, Valid: valid, Size: size, Mode: mode}}
	return w.SetAttr(nil, &in, &gofuse.AttrOut{})
}

func (w *writer) mtime(node uint64) uint64 {
	var out gofuse.AttrOut
	w.is("attributes", w.GetAttr(nil, &gofuse.GetAttrIn{InHeader: gofuse.InHeader{NodeId: node}}, &out), ok)
	return out.Mtime
}

func TestSetAttr(t *testing.T) {
	// Attributes are kept, of a draft and of an object, over a restart, too; a draft of an object begins with them. Of a directory its times
	// are not. The size of a draft is set. truncate(2) to 0 publishes, since no close will: at once, and behind if the bucket does not take it.
	const size, mode = gofuse.FATTR_SIZE, gofuse.FATTR_MODE
	w := newWriter(t)
	w.tree.putObject(w.bucket.put("a", "old"), 0)
	a := w.look("a")
	w.is("truncate to the size it has", w.set(a, size, 3, 0), ok)
	w.is("truncate a directory", w.set(1, size, 0, 0), syscall.EISDIR)
	w.is("chmod to the mode it has", w.set(a, mode, 0, 0o644), ok)
	w.is("chmod to another", w.set(a, mode, 0, 0o600), ok)
	w.is("attributes", w.attrOf(a), "100600 3")
	w = w.next()
	writes, errno := w.open(a, syscall.O_RDWR)
	w.is("open", errno, ok)
	w.is("chmod to another, open for writing", w.set(a, mode, 0, 0o640), ok)
	w.is("attributes", w.attrOf(a), "100640 3")
	w.is("drafts", len(w.drafts.All()), 0)
	w.release(a, writes)
	a = w.look("a")
	w.is("attributes", w.attrOf(a), "100640 3")
	w.is("requests", w.bucket.requests(), "")
	w.is("truncate to 0", w.set(a, size, 0, 0), ok)
	w.is("the bucket has", w.bucket.has("a"), "")
	w.is("drafts", len(w.drafts.All()), 0)
	w.is("attributes", w.attrOf(w.look("a")), "100640 0")
	w.is("chmod of a directory", w.set(1, mode, 0, 0o700), ok)
	w.is("attributes", w.attrOf(1), "40700 0")
	before := w.mtime(1)
	w.is("utimens of a directory", w.set(1, gofuse.FATTR_MTIME, 0, 0), ok)
	w.is("its time", w.mtime(1), before)
	w.is("utimens", w.set(w.look("a"), gofuse.FATTR_MTIME, 0, 0), ok)
	w.is("its time", w.mtime(w.look("a")), uint64(0))
	w.tree.putObject(w.bucket.put("a", "other"), 0)
	w.is("attributes of what another one wrote", w.attrOf(w.look("a")), "100644 5")

	b, handle := w.made("b", "hello")
	w.is("ftruncate and fchmod", w.set(b, size|mode, 7, 0o4711), ok)
	w.is("attributes", w.attrOf(b), "104711 7")
	w.is("read", w.read(b), "hello\x00\x00")
	w.bucket.requests()
	w.is("requests", w.bucket.requests(), "")
	w.bucket.meets = func(context.Context, string) error { return syscall.EDQUOT }
	w.is("close", w.flush(b), syscall.EDQUOT)
	w.release(b, handle)
	w.behind = nil
	w.is("truncate what nobody has open", w.set(b, size, 4, 0), syscall.EDQUOT)
	w.tree.putObject(w.bucket.put("c", "old"), 0)
	w.is("truncate an object", w.set(w.look("c"), size, 0, 0), syscall.EDQUOT)
	w.bucket.meets = nil
	w.is("published behind", w.published(), "b c")
	w.is("the bucket has", w.bucket.has("b")+w.bucket.has("c"), "hell")
	w.is("drafts", len(w.drafts.All()), 0)
}

func TestNamesOfDrafts(t *testing.T) {
	// Each of three names of a directory is nothing, an object, a directory, or a draft in one of its states, in all combinations. A
	// listing has each name once, in the order of keys, from behind any name on, and a look-up finds the same.
	type entry struct {
		sort, name string
		id         uint64
	}
	w := newWriter(t)
	created := func(dir uint64, name string) uint64 {
		var out gofuse.CreateOut
		w.is("create", w.Create(nil, &gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: dir}}, name, &out), ok)
		return out.NodeId
	}
	lookUp := func(dir uint64, name string) uint64 {
		var out gofuse.EntryOut
		w.is("look up "+name, w.Lookup(nil, &gofuse.InHeader{NodeId: dir}, name, &out), ok)
		return out.NodeId
	}
	kinds := []func(dir uint64, key, name string) []entry{
		func(uint64, string, string) []entry { return nil },
		func(dir uint64, key, name string) []entry { // an object
			w.tree.put(key, 1, 10)
			return []entry{{name, name, lookUp(dir, name)}}
		},
		func(dir uint64, key, name string) []entry { // a directory
			w.tree.put(key+"/x", 1, 10)
			return []entry{{name + "/", name, lookUp(dir, name)}}
		},
		func(dir uint64, key, name string) []entry { // a draft
			return []entry{{name, name, created(dir, name)}}
		},
		func(dir uint64, key, name string) []entry { // a draft in the place of an object
			w.tree.put(key, 1, 10)
			id := lookUp(dir, name)
			_, errno := w.open(id, syscall.O_WRONLY|syscall.O_TRUNC)
			w.is("open", errno, ok)
			return []entry{{name, name, id}}
		},
		func(dir uint64, key, name string) []entry { // one that was published, and is open
			id := created(dir, name)
			w.is("write", w.put(id, 0, "x"), ok)
			w.is("close", w.flush(id), ok)
			return []entry{{name, name, id}}
		},
		func(dir uint64, key, name string) []entry { // one that was published, and replaced elsewhere
			id := created(dir, name)
			w.is("write", w.put(id, 0, "x"), ok)
			w.is("close", w.flush(id), ok)
			w.tree.put(key, 1, 10)
			return []entry{{name, name, lookUp(dir, name)}}
		},
		func(dir uint64, key, name string) []entry { // one that was published, beside a directory
			id := created(dir, name)
			w.is("write", w.put(id, 0, "x"), ok)
			w.is("close", w.flush(id), ok)
			w.tree.put(key+"/x", 1, 10)
			return []entry{{name, name + "%F", id}, {name + "/", name, lookUp(dir, name)}}
		},
	}
	names := []string{"a", "a-", "b"} // "a-" is before "a/"
	for n := range len(kinds) * len(kinds) * len(kinds) {
		path := fmt.Sprintf("d%03d", n)
		w.tree.mu.Lock()
		dir := w.tree.dirLocked(path)
		w.tree.mu.Unlock()
		w.tickets = newTickets(ticketBytes)
		var want []entry
		for i, at := range []int{n % 8, n / 8 % 8, n / 64} {
			want = append(want, kinds[at](dir, path+"/"+names[i], names[i])...)
		}
		slices.SortFunc(want, func(a, b entry) int { return cmp.Compare(a.sort, b.sort) })
		for from := 0; from <= len(want); from++ {
			offset := uint64(dots)
			if from > 0 {
				offset += want[from-1].id
			}
			for _, e := range want[from:] {
				got, next := page(t, w.fileSystem, dir, offset, 1)
				if len(got) != 1 || got[0] != e.name || next-dots != e.id {
					t.Fatalf("%s: %q (%d) behind %d, want %q (%d) of %v", path, got, next-dots, offset-dots, e.name, e.id, want)
				}
				w.is("look up", lookUp(dir, e.name), e.id)
				offset = next
			}
			if got, _ := page(t, w.fileSystem, dir, offset, 1); len(got) > 0 {
				t.Fatalf("%s: %q at the end of %v", path, got, want)
			}
		}
	}
}

func TestListingsHoldDrafts(t *testing.T) {
	// READDIRPLUS gives a draft as LOOKUP does, so the kernel holds it; READDIR gives its name alone. Neither may be believed.
	w := newWriter(t)
	w.tree.ttl = time.Minute
	node, handle := w.made("a", "hello")
	w.Forget(node, 1)
	in := gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: 1}}
	w.is("READDIR", w.ReadDir(nil, &in, gofuse.NewDirEntryList(make([]byte, 4096), 0)), ok)
	w.is("held by the kernel", w.holds.has(node), false)
	w.is("READDIRPLUS", w.ReadDirPlus(nil, &in, gofuse.NewDirEntryList(make([]byte, 4096), 0)), ok)
	w.is("held by the kernel", w.holds.has(node), true)
	var out gofuse.EntryOut
	w.is("LOOKUP", w.Lookup(nil, &in.InHeader, "a", &out), ok)
	w.is("for how long", out.EntryTimeout()+out.AttrTimeout(), time.Duration(0))
	w.release(node, handle)
}

func TestALinkThatTheMountDoesNotWrite(t *testing.T) {
	// A writable mount shows a link that it does not write, as links below a mount of several: each change of it is EROFS, by new and
	// old names, ids and handles. What another mount writes there is not seen, even where its draft has the id of a file. The bucket is
	// asked for nothing, and this node's disk gets nothing.
	w := newWriter(t)
	w.tree.putObject(w.bucket.put("a", "hello"), 0)
	w.tree.putObject(w.bucket.put("d/x", "deep"), 0)
	a, dir := w.look("a"), w.look("d")
	old, errno := w.open(a, syscall.O_RDWR) // as in the process before, whose configuration was another one
	w.is("open", errno, ok)
	drafts, was := len(w.drafts.All()), w.read(a)
	readOnly := func(on bool) {
		w.write.w.Writes = func(link string) bool { return !on && link == "fake" }
		w.write = newDrafted(w.write.Tree, w.write.w.Writing)
		w.fileSystem.tree, w.handles.drafts = w.write, w.write.w.Drafts
	}
	refused := func() {
		t.Helper()
		for _, flags := range []uint32{syscall.O_WRONLY, syscall.O_RDWR, syscall.O_RDWR | syscall.O_TRUNC, syscall.O_TRUNC, syscall.O_WRONLY | syscall.O_APPEND} {
			_, errno := w.open(a, flags)
			w.is("open for writing", errno, syscall.EROFS)
		}
		for _, name := range []string{"a", "b", "new", "x.tmp"} {
			_, _, errno := w.create(name, syscall.O_WRONLY|syscall.O_TRUNC, 0)
			w.is("create "+name, errno, syscall.EROFS)
			w.is("unlink "+name, w.unlinked(name, 0), syscall.EROFS)
			w.is("mkdir "+name, w.mkdir(name), syscall.EROFS)
			w.is("rename "+name, w.rename(name, "c", 0, 0), syscall.EROFS)
		}
		w.is("unlink deep", w.rm(dir, "x"), syscall.EROFS)
		w.is("rmdir", w.rmdir("d", 0), syscall.EROFS)
		w.is("truncate to 0", w.set(a, gofuse.FATTR_SIZE, 0, 0), syscall.EROFS)
		w.is("truncate", w.set(a, gofuse.FATTR_SIZE, 1, 0), syscall.EROFS)
		w.is("write by an old handle", w.put(a, 0, "J"), syscall.EROFS)
		w.is("read", w.read(a), was)
		w.is("attributes", w.attrOf(a), "100644 5")
		w.is("the names", w.names(1), "a d/")
		w.is("the draft of another", w.look("b"), uint64(0))
		w.is("requests", w.bucket.requests(), "")
	}
	w.bucket.requests()
	readOnly(true)
	refused()
	w.is("drafts", len(w.drafts.All()), drafts)
	for id, name := range map[uint64]string{a: "a", 1000: "b"} { // it empties the one, and makes the other
		if _, err := w.drafts.Create(draft.Name{Link: "fake", Key: name}, id, draft.Attr{}); err != nil {
			t.Fatal(err)
		}
	}
	refused()
	handle, errno := w.open(a, syscall.O_RDONLY)
	w.is("open for reading", errno, ok)
	w.release(a, handle)
	w.release(a, old)
	w.is("published behind", w.published(), "")
	for _, i := range w.drafts.All() {
		w.is("who has "+i.Key+" open", i.Users, 0)
	}
	readOnly(false)
	w.is("the draft of a link that is written", w.look("b"), uint64(1000))
	w.is("another link's", w.write.changes("another"), false)
}
