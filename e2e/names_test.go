package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// wideDirectory asks for one of very many names of one directory, cold: the
// answer comes after at most 3 requests, whatever the directory's size, beside what
// its listing asks for behind; then the listing is whole.
func wideDirectory(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D3")
	e.must(err, "data set")
	set.Groups = set.Groups[1:]
	set.Groups[0].Files = map[level]int{core: 5000, all: 5000, full: 100_000}[e.level]
	list := e.load(o, set)
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint})
	f := list[len(list)*7/10]
	// The directories above are known; nobody has looked into this one.
	_, err = os.Stat(filepath.Dir(filepath.Join(h.dir, f.Path)))
	e.must(err, "stat the directory")
	// Its listing goes on behind, so that its second page may be asked for before this
	// process runs again. The page is held back until then, and counts for none.
	p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Match: "continuation-token", Times: 1, Body: faultproxy.Stall})
	before := p.Stats()
	s, err := os.Stat(filepath.Join(h.dir, f.Path))
	now := p.Stats()
	e.must(err, "stat one of %d names, cold", len(list))
	if s.Size() != f.Size {
		e.Errorf("stat says %d bytes, made with %d", s.Size(), f.Size)
	}
	if asked := now.Requests() - before.Requests() - min(1, now.InFlight); asked > 3 {
		e.Errorf("%d requests before a cold stat was answered", asked)
	}
	p.Down()
	e.must(p.Up(), "let the listing go on")
	_, err = os.Stat(filepath.Join(filepath.Dir(filepath.Join(h.dir, f.Path)), "no-such-name"))
	if !errors.Is(err, fs.ErrNotExist) {
		e.Errorf("stat of a name that is not there: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(filepath.Join(h.dir, f.Path)))
	e.must(err, "list the directory")
	if len(entries) != len(list) {
		e.Errorf("listed %d names of %d", len(entries), len(list))
	}
	h.quit()
}

// find walks a tree with a stat of each entry, cold and warm; warm, the origin is
// not asked.
func find(e *env) {
	o := e.origin()
	set := e.set("D1s", 20, 50, 100, 50)
	for i := range set.Groups {
		set.Groups[i].Min, set.Groups[i].Max = 700, 700 // names matter here, not bytes
	}
	list := e.load(o, set)
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint})
	for _, state := range []string{"cold", "warm"} {
		before := p.requests()
		sizes := map[string]int64{}
		err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				rel, _ := filepath.Rel(h.dir, path)
				sizes[rel] = info.Size()
			}
			return err
		})
		e.must(err, "walk %s", state)
		if len(sizes) != len(list) {
			e.Fatalf("%s: found %d files of %d", state, len(sizes), len(list))
		}
		for _, f := range list {
			if sizes[f.Path] != f.Size {
				e.Fatalf("%s: %s has %d bytes, made with %d", state, f.Path, sizes[f.Path], f.Size)
			}
		}
		if asked := p.requests() - before; state == "warm" && asked != 0 {
			e.Errorf("the warm walk asked the origin %d times", asked)
		}
	}
	h.quit()
}

// changes made with the aws CLI, as a user would, show in the mount within the
// bound: a file overwritten, one added, one deleted.
func changes(e *env) {
	o := e.origin()
	const bound = 2 * time.Second
	h := e.mount(o, settings{fresh: fmt.Sprintf("bounded(%v)", bound)})
	put := func(key string, data []byte) {
		e.must(os.WriteFile(e.path("upload"), data, 0o600), "write the upload")
		e.aws(o, "s3", "cp", "--quiet", e.path("upload"), "s3://"+o.bucket+"/"+key)
	}
	old, fresh := bytes.Repeat([]byte("old "), 5000), bytes.Repeat([]byte("new "), 5000)
	put("dir/changed", old)
	put("dir/deleted", old)
	seen := func(name string) []byte { data, _ := os.ReadFile(filepath.Join(h.dir, "dir", name)); return data }
	e.eventually("the first version", func() bool { return bytes.Equal(seen("changed"), old) && bytes.Equal(seen("deleted"), old) })
	if _, err := os.Stat(filepath.Join(h.dir, "dir/added")); !errors.Is(err, fs.ErrNotExist) {
		e.Fatalf("a name that is not there yet: %v", err)
	}
	put("dir/changed", fresh)
	put("dir/added", fresh)
	e.aws(o, "s3", "rm", "--quiet", "s3://"+o.bucket+"/dir/deleted")
	done := time.Now()
	e.eventually("the changes", func() bool {
		_, err := os.Stat(filepath.Join(h.dir, "dir/deleted"))
		return bytes.Equal(seen("changed"), fresh) && bytes.Equal(seen("added"), fresh) && errors.Is(err, fs.ErrNotExist)
	})
	if took := time.Since(done); took > bound+2*time.Second {
		e.Errorf("the changes showed after %v, bound %v", took, bound)
	}
	names, err := os.ReadDir(filepath.Join(h.dir, "dir"))
	e.must(err, "list")
	if len(names) != 2 {
		e.Errorf("listed %v", names)
	}
	h.quit()
}

// strict answers with what the bucket holds at this moment: the open after a
// finished PUT by the aws CLI reads the new version.
func strict(e *env) {
	o := e.origin()
	h := e.mount(o, settings{fresh: "strict"})
	for version := range 5 {
		f := hearthtest.File{Path: "one", Size: 200 << 10}
		data := make([]byte, f.Size)
		hearthtest.Fill(data, f.Path, 0, version)
		e.must(os.WriteFile(e.path("upload"), data, 0o600), "write version %d", version)
		e.aws(o, "s3", "cp", "--quiet", e.path("upload"), "s3://"+o.bucket+"/one")
		_, err := readWhole(filepath.Join(h.dir, "one"), f, version, make([]byte, 64<<10))
		e.must(err, "read version %d", version)
	}
	h.quit()
}

// twoLinks puts two buckets' prefixes into one tree: a mount of its root shows
// both, each with its own bytes.
func twoLinks(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 10, 4, 50))
	links := fmt.Sprintf("- {path: /second, origin: {url: \"s3://%s/d1\", endpoint: %q, region: us-east-1, path_style: true}}\n", o.bucket, o.endpoint)
	h := e.mount(o, settings{path: "/first", links: links, tree: "/"})
	names, err := os.ReadDir(h.dir)
	e.must(err, "list the root")
	if len(names) != 2 || names[0].Name() != "first" || names[1].Name() != "second" {
		e.Fatalf("the root shows %v", names)
	}
	e.good("the whole bucket", epoch(filepath.Join(h.dir, "first"), list, 1, 4, 0))
	for _, f := range list {
		_, err := readWhole(filepath.Join(h.dir, "second", f.Path[len("d1/"):]), f, 0, make([]byte, 256<<10))
		e.must(err, "read through the second link")
	}
	h.quit()
}

// silentOrigin stops the server in the middle of things: what is cached goes on,
// what is not ends with EIO within the bound, and nothing needs a restart.
func silentOrigin(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 10, 2, 10))
	h := e.mount(o, settings{origin: ", timeout: 2s"})
	half := list[:len(list)/2]
	e.good("cached before", epoch(h.dir, half, 1, 4, 0))
	_, err := os.ReadDir(filepath.Join(h.dir, filepath.Dir(list[len(list)-1].Path)))
	e.must(err, "list the rest")
	e.pause(o.Command.Process)
	if _, err = os.ReadFile(filepath.Join(h.dir, list[len(list)-1].Path)); !errors.Is(err, syscall.EIO) {
		e.Errorf("a read of a silent origin: %v", err)
	}
	e.good("cached, while the origin is silent", epoch(h.dir, half, 2, 4, 0))
	if says := h.status().Says; !strings.Contains(says, "cannot be read") {
		e.Errorf("status says %q", says)
	}
	e.must(o.Command.Process.Signal(syscall.SIGCONT), "let the server go on")
	e.eventually("recovery", func() bool { return len(epoch(h.dir, list, 3, 4, 0).errors) == 0 })
	if says := h.status().Says; says != "ok" {
		e.Errorf("after the recovery status says %q", says)
	}
	h.quit()
}
