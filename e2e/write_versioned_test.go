package e2e

import (
	"encoding/xml"
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// history is how many versions and markers of deletion a bucket has of each key.
func (e *env) history(c *s3Client, bucket string) (versions, markers map[string]int) {
	e.Helper()
	var list struct {
		IsTruncated           bool
		Version, DeleteMarker []struct{ Key string }
	}
	a := e.wants(c, http.StatusOK, s3Ask{method: http.MethodGet, bucket: bucket, query: "versions="})
	if err := xml.Unmarshal(a.body, &list); err != nil || list.IsTruncated {
		e.Fatalf("list the versions: %v: %s", err, a.body)
	}
	versions, markers = map[string]int{}, map[string]int{}
	for _, v := range list.Version {
		versions[v.Key]++
	}
	for _, m := range list.DeleteMarker {
		markers[m.Key]++
	}
	return versions, markers
}

// writeVersioned writes to a bucket that keeps versions. Each close that wrote makes one and no more, and an unlink or rename makes
// a marker of deletion.
func writeVersioned(e *env) {
	dir := e.path("versions")
	e.must(os.Mkdir(dir, 0o755), "make a directory")
	writeVersionedOf(e, e.originWith(hearthtest.ServerOptions{VersioningDir: dir}))
}

// writeVersionedOf is writeVersioned. versitygw answers If-None-Match: * with 412 where a marker of deletion is, as if there were an
// object, and MinIO does not.
func writeVersionedOf(e *env, o *server) {
	c := newS3Client(e, o.endpoint, o.access, o.secret)
	e.wants(c, http.StatusOK, s3Ask{method: http.MethodPut, bucket: o.bucket, query: "versioning=",
		body: `<VersioningConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Status>Enabled</Status></VersioningConfiguration>`})
	p := e.proxy(o)
	set := writable(settings{endpoint: p.endpoint})
	h := e.mount(o, set)
	versions, markers := map[string]int{}, map[string]int{}
	is := func(what, name string, want []byte, v, m int) {
		e.Helper()
		if versions[name] += v; versions[name] == 0 {
			delete(versions, name)
		}
		if markers[name] += m; markers[name] == 0 {
			delete(markers, name)
		}
		if got, deleted := e.history(c, o.bucket); !maps.Equal(got, versions) || !maps.Equal(deleted, markers) {
			e.Fatalf("after %s the bucket has versions %v, expected %v, and markers %v, expected %v", what, got, versions, deleted, markers)
		}
		got, err := os.ReadFile(filepath.Join(h.dir, name))
		if want == nil && !errors.Is(err, os.ErrNotExist) || want != nil && (err != nil || string(got) != string(want)) {
			e.Errorf("after %s the mount has %d bytes as %s, %v, expected %d", what, len(got), name, err, len(want))
		}
		if there := slices.Contains(e.keys(o), name); there != (want != nil) || there && string(e.object(o, name)) != string(want) {
			e.Errorf("after %s the bucket has %s: %v, or other bytes", what, name, there)
		}
	}
	in := func(name string) string { return filepath.Join(h.dir, name) }
	write := func(name string, flags int, texts ...string) {
		e.Helper()
		f, err := os.OpenFile(in(name), os.O_RDWR|flags, 0o644)
		e.must(err, "open %s", name)
		for _, text := range texts {
			_, err = f.WriteString(text)
			e.must(err, "write %s", name)
			copied, err := syscall.Dup(int(f.Fd()))
			e.must(err, "dup")
			e.must(syscall.Close(copied), "close a copy of %s", name)
			copied, err = syscall.Dup(int(f.Fd()))
			e.must(err, "dup")
			e.must(syscall.Close(copied), "close one more copy of %s", name)
		}
		e.must(f.Close(), "close %s", name)
	}
	for round := range 2 { // over markers of deletion the second time
		const a, large, moved = "a", "large", "moved"
		write(a, os.O_CREATE|os.O_EXCL, "one")
		is("a new file", a, []byte("one"), 1, 0)
		write(a, 0)
		is("an open without a write", a, []byte("one"), 0, 0)
		write(a, os.O_APPEND, ", two", ", three")
		is("two appends, each closed", a, []byte("one, two, three"), 2, 0)
		e.must(os.WriteFile(in(a), []byte("new"), 0o644), "write it anew")
		is("a file that was emptied and written", a, []byte("new"), 1, 0)
		e.must(os.WriteFile(in(a+".tmp"), []byte("renamed"), 0o644), "write a temporary file")
		is("a temporary file", a, []byte("new"), 0, 0)
		e.must(os.Rename(in(a+".tmp"), in(a)), "rename it")
		is("a rename of a draft", a, []byte("renamed"), 1, 0)

		data := fill("large", 40<<20)
		e.must(os.WriteFile(in(large), data, 0o644), "write a file in parts")
		is("a file in parts", large, data, 1, 0)
		f, err := os.OpenFile(in(large), os.O_RDWR, 0)
		e.must(err, "open it")
		_, err = f.WriteAt([]byte("in its midst"), 20<<20)
		e.must(errors.Join(err, f.Close()), "change it")
		copy(data[20<<20:], "in its midst")
		is("a change in place", large, data, 1, 0)
		e.must(os.Rename(in(large), in(moved)), "rename it")
		markers[large]++
		is("a rename of an object", moved, data, 1, 0)
		is("a rename of an object", large, nil, 0, 0)

		// Somebody else writes what is open here.
		f, err = os.OpenFile(in(a), os.O_RDWR, 0)
		e.must(err, "open it")
		_, err = f.WriteString("ours")
		e.must(err, "write it")
		_, err = o.PutBytes(e.ctx, o.bucket, a, []byte("theirs"))
		e.must(err, "put it")
		if err := f.Close(); !errors.Is(err, syscall.ESTALE) {
			e.Errorf("close of what somebody else wrote: %v", err)
		}
		is("a conflict", a, []byte("theirs"), 1, 0)
		kept, err := filepath.Glob(in(a + ".conflict-*"))
		if err != nil || len(kept) != 1 {
			e.Fatalf("beside it are %q, %v", kept, err)
		}
		e.must(os.Rename(kept[0], in(a)), "move it over the other one")
		is("a conflict that was moved over the other", a, []byte("oursmed"), 1, 0)

		for _, name := range []string{a, moved} {
			e.must(os.Remove(in(name)), "remove %s", name)
			is("an unlink", name, nil, 0, 1)
		}
		if round == 0 { // what the next node finds
			h.quit()
			h.launch(o, set)
			is("a restart", a, nil, 0, 0)
		}
	}
	if left := e.uploads(o); len(left) > 0 {
		e.Errorf("uploads are left: %q", left)
	}
	if keys := e.keys(o); len(keys) > 0 {
		e.Errorf("left are %s", strings.Join(keys, ", "))
	}
	total, deleted := 0, 0
	for _, n := range versions {
		total += n
	}
	for _, n := range markers {
		deleted += n
	}
	e.shows("%d versions, %d markers of deletion", total, deleted)
	h.quit()
}
