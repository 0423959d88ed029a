package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// treeClient is a command line that copies trees. Prefixes are "" or end in "/".
type treeClient struct {
	down     func(prefix, dir string) // makes dir what lies below prefix
	up       func(dir, prefix string) // copies, and removes nothing
	sync     func(dir, prefix string) // copies, and removes what dir has not
	compare  func(dir, prefix string) // fails where they differ
	list     func(prefix string) []string
	cat      func(key string, off, n int64) string
	move     func(from, to string) // prefixes
	remove   func(prefix string)
	unlink   func(key string)
	newTrees int    // directories that are made and listed, each once
	odd      string // a name that is odd; "": oddName
}

// oddName is one that every client must escape.
const oddName = "odd names/ä 日+c & d;'(1).txt"

// s3Rclone has rclone copy, sync, compare, list, read, move and remove.
func s3Rclone(e *env, o *server) {
	h, s3 := e.serveS3(o)
	at := "hearth:" + o.bucket + "/"
	run := func(args ...string) string { return s3.rclone(o, args...) }
	s3.tree(o, h, treeClient{
		newTrees: 15,
		down:     func(prefix, dir string) { run("sync", at+prefix, dir) },
		up:       func(dir, prefix string) { run("copy", dir, at+prefix) },
		sync:     func(dir, prefix string) { run("sync", dir, at+prefix) },
		compare:  func(dir, prefix string) { run("check", dir, at+prefix); run("check", "--download", dir, at+prefix) },
		list:     func(prefix string) []string { return lines(run("lsf", "-R", "--files-only", at+prefix)) },
		cat: func(key string, off, n int64) string {
			return run("cat", "--offset", fmt.Sprint(off), "--count", fmt.Sprint(n), at+key)
		},
		move:   func(from, to string) { run("move", at+from, at+to) },
		remove: func(prefix string) { run("purge", at+prefix) },
		unlink: func(key string) { run("deletefile", at+key) },
	})
	h.quit()
}

// s3Mc has MinIO's client do the same.
func s3Mc(e *env, o *server) {
	h, s3 := e.serveS3(o)
	at := "hearth/" + o.bucket + "/"
	run := func(args ...string) string { return s3.mc(o, args...) }
	s3.tree(o, h, treeClient{
		newTrees: 5,
		down:     func(prefix, dir string) { run("mirror", "--quiet", "--overwrite", "--remove", at+prefix, dir) },
		up:       func(dir, prefix string) { run("cp", "--quiet", "--recursive", dir+"/", at+prefix) },
		sync:     func(dir, prefix string) { run("mirror", "--quiet", "--overwrite", "--remove", dir, at+prefix) },
		compare: func(dir, prefix string) {
			// It looks at metadata, too, which versitygw does not list.
			here := strings.ReplaceAll(run("diff", dir, at+prefix), s3.url, "")
			if there := strings.ReplaceAll(run("diff", dir, "origin/"+o.bucket+"/"+prefix), o.endpoint, ""); here != there {
				e.Errorf("mc diff: %.300s\n at the origin: %.300s", here, there)
			}
		},
		list: func(prefix string) (names []string) {
			for _, o := range mcListing(e, run("ls", "--recursive", "--json", at+prefix)) {
				names = append(names, o.Key)
			}
			return names
		},
		cat: func(key string, off, n int64) string {
			out := run("cat", "--offset", fmt.Sprint(off), at+key)
			return out[:min(n, int64(len(out)))]
		},
		move:   func(from, to string) { run("mv", "--quiet", "--recursive", at+from, at+to) },
		remove: func(prefix string) { run("rm", "--quiet", "--recursive", "--force", at+prefix) },
		unlink: func(key string) { run("rm", "--quiet", at+key) },
	})
	h.quit()
}

// mcObject is a line of what mc lists as JSON.
type mcObject struct {
	Key  string
	Size int64
	Type string
}

func mcListing(e *env, out string) (all []mcObject) {
	e.Helper()
	for _, line := range lines(out) {
		var o mcObject
		e.must(json.Unmarshal([]byte(line), &o), "read a line of mc's: %s", line)
		if o.Type == "file" {
			all = append(all, o)
		}
	}
	return all
}

// tree has a client use a bucket as people do; after each step the endpoint, its mount and the
// origin have the same objects, byte for byte.
func (p *endpoint) tree(o *server, h *hearth, c treeClient) {
	p.Helper()
	list := p.load(o, p.few(4, 25))
	here := p.path("here")
	c.down("", here)
	p.good("copied down", epoch(here, list, 1, 2, 0))
	c.up(here, "up/")
	want := p.hashes(here)
	p.holds("copied up", "up/", o, h, want)
	c.compare(here, "up/")

	first := list[0]
	first.Size += 1000
	p.makeFile(here, first, 1)
	p.must(os.Remove(filepath.Join(here, list[1].Path)), "remove a file")
	p.makeFile(here, hearthtest.File{Path: cmp.Or(c.odd, oddName), Size: 12345}, 0)
	c.sync(here, "up/")
	want = p.hashes(here)
	p.holds("synced up", "up/", o, h, want)
	c.compare(here, "up/")
	sameNames(p.env, "listed", c.list("up/"), want)
	f := list[2]
	if out := c.cat("up/"+f.Path, 4097, 5000); len(out) != 5000 || hearthtest.Check([]byte(out), f.Path, 4097, 0) != nil {
		p.Errorf("5,000 bytes of %s from 4,097 on: %d bytes, %v", f.Path, len(out), hearthtest.Check([]byte(out), f.Path, 4097, 0))
	}

	c.move("up/", "moved/")
	p.holds("moved", "moved/", o, h, want)
	p.holds("moved away", "up/", o, h, map[string]string{})
	c.unlink("moved/" + f.Path)
	delete(want, f.Path)
	p.holds("without one", "moved/", o, h, want)
	c.remove("moved/")
	p.holds("removed", "moved/", o, h, map[string]string{})
	p.newTrees(o, h, c)
	again := p.path("again")
	c.down("", again)
	same(p.env, "all of it, copied down", p.hashes(again), p.fetched(p.direct(o), o.bucket, ""))
}

// newTrees copies ten files at a time into directories that nobody has seen yet, and lists each
// right behind its copy.
func (p *endpoint) newTrees(o *server, h *hearth, c treeClient) {
	p.Helper()
	for i := range c.newTrees {
		dir := p.path(fmt.Sprintf("ten-%d", i))
		for j := range 10 {
			p.makeFile(dir, hearthtest.File{Path: fmt.Sprintf("file-%d", j), Size: 10_000 + int64(j)}, i)
		}
		prefix := fmt.Sprintf("new/%02d/", i)
		c.up(dir, prefix)
		want := p.hashes(dir)
		what := fmt.Sprintf("new directory %d", i)
		sameNames(p.env, what+", listed", c.list(prefix), want)
		same(p.env, what+", in the mount", p.hashes(filepath.Join(h.dir, strings.TrimSuffix(prefix, "/"))), want)
	}
}
