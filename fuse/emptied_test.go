package fuse

import (
	"context"
	"io/fs"
	"syscall"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
)

// stored makes objects of the bucket that the tree knows of. A directory has no marker, unless it is named.
func (w *writer) stored(keys ...string) {
	for _, key := range keys {
		o := w.bucket.put(key, key)
		w.tree.wrote(key, &o, 0)
	}
	w.bucket.requests()
}

// at is the node id of a path.
func (w *writer) at(path ...string) uint64 {
	id := uint64(1)
	for _, name := range path {
		var out gofuse.EntryOut
		w.Lookup(nil, &gofuse.InHeader{NodeId: id}, name, &out)
		if id = out.NodeId; id == 0 {
			break
		}
	}
	return id
}

func (w *writer) rm(dir uint64, name string) gofuse.Status {
	return w.Unlink(nil, &gofuse.InHeader{NodeId: dir}, name)
}

func TestADirectoryThatIsEmptiedStays(t *testing.T) {
	// rm of the last file of a directory without a marker makes one, so that the directory is there until rmdir, which leaves nothing.
	// One that has other keys, or a marker, and the mount's root cost no request.
	w := newWriter(t)
	w.stored("d/a", "d/b", "root")
	w.is("unlink", w.rm(w.at("d"), "a"), ok)
	w.is("requests", w.bucket.requests(), "DELETE d/a")
	w.is("unlink", w.rm(w.at("d"), "b"), ok)
	w.is("requests", w.bucket.requests(), "PUT d/, DELETE d/b")
	w.is("names", w.names(w.at("d")), "")
	var out gofuse.CreateOut
	in := gofuse.CreateIn{InHeader: gofuse.InHeader{NodeId: w.at("d")}, Flags: syscall.O_WRONLY}
	w.is("create", w.Create(nil, &in, "new", &out), ok)
	w.is("write", w.put(out.NodeId, 0, "x"), ok)
	w.is("close", w.flush(out.NodeId), ok)
	w.release(out.NodeId, out.OpenOut.Fh)
	w.bucket.requests()
	w.is("unlink", w.rm(w.at("d"), "new"), ok)
	w.is("requests", w.bucket.requests(), "DELETE d/new")
	w.is("rmdir", w.rmdir("d", 0), ok)
	w.is("unlink", w.unlinked("root", 0), ok)
	w.is("requests", w.bucket.requests(), "DELETE d/, DELETE root")
	w.is("names", w.names(1), "")
	w.is("objects", len(w.bucket.objects), 0)

	w.stored("e/f/g/h") // rm -r
	for _, c := range []struct{ dir, name string }{{"g", "h"}, {"f", "g"}, {"e", "f"}} {
		dir := map[string]uint64{"e": w.at("e"), "f": w.at("e", "f"), "g": w.at("e", "f", "g")}[c.dir]
		if c.name == "h" {
			w.is("unlink", w.rm(dir, c.name), ok)
			continue
		}
		w.is("rmdir "+c.name, w.Rmdir(nil, &gofuse.InHeader{NodeId: dir}, c.name), ok)
	}
	w.is("rmdir e", w.rmdir("e", 0), ok)
	w.is("requests", w.bucket.requests(), "PUT e/f/g/, DELETE e/f/g/h, PUT e/f/, DELETE e/f/g/, PUT e/, DELETE e/f/, DELETE e/")
	w.is("objects", len(w.bucket.objects), 0)
}

func TestADirectoryWhoseLastFileIsRenamedStays(t *testing.T) {
	// So it is where the last file is renamed away: an object, and one that a draft hides, also when the kernel asks again.
	w := newWriter(t)
	w.stored("d/a", "e/a", "f/a")
	w.is("rename", w.rename("a", "a1", 0, 0, w.at("d"), 1), ok)
	w.is("requests", w.bucket.requests(), "COPY d/a a1, PUT d/, DELETE d/a")
	w.stored("g/a")
	w.is("rename", w.rename("a", "b", 0, 0, w.at("g"), w.at("g")), ok)
	w.is("requests within a directory", w.bucket.requests(), "COPY g/a g/b, DELETE g/a")
	for _, dir := range []string{"e", "f"} {
		id := w.at(dir)
		node := w.at(dir, "a")
		handle, errno := w.open(node, syscall.O_WRONLY|syscall.O_TRUNC)
		w.is("open", errno, ok)
		w.is("write", w.put(node, 0, "new"), ok)
		w.bucket.requests()
		if dir == "e" {
			w.is("rename", w.rename("a", "a2", 0, 0, id, 1), ok)
		} else {
			d, _ := w.drafts.ID(node)
			to := d.Info().Name
			to.Key = "a3"
			if err := d.Rename(t.Context(), to, false, false); err != nil {
				t.Fatal(err)
			}
			w = w.next()
			w.is("rename again", w.rename("a", "a3", 0, again63, id, 1), ok)
		}
		w.is("requests", w.bucket.requests(), "PUT "+dir+"/, DELETE "+dir+"/a")
		w.is("close", w.flush(node), ok)
		w.release(node, handle)
		w.is("the directory", w.names(w.at(dir)), "")
	}
}

func TestAMarkerThatCannotBeMade(t *testing.T) {
	// The bucket takes no marker: the file goes all the same, and the log says why its directory does. A marker that somebody else
	// made is as good.
	for _, c := range []struct {
		err  error
		said int
	}{{fs.ErrPermission, 1}, {hearth.ErrConflict, 0}} {
		w := newWriter(t)
		w.stored("d/a")
		w.bucket.meets = func(_ context.Context, request string) error {
			if request == "PUT d/" {
				return c.err
			}
			return nil
		}
		w.is("unlink", w.rm(w.at("d"), "a"), ok)
		w.is("the bucket has", w.bucket.has("d/a"), "none")
		w.is("complaints", len(w.said), c.said)
	}
}
