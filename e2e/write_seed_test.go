package e2e

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// written are files that a scenario writes.
func (e *env) written(dir string, version int, files ...hearthtest.File) (sum int64) {
	e.Helper()
	for _, f := range files {
		data := make([]byte, f.Size)
		hearthtest.Fill(data, f.Path, 0, version)
		e.must(os.WriteFile(filepath.Join(dir, f.Path), data, 0o644), "write %s", f.Path)
		sum += f.Size
	}
	return sum
}

// isSeeded waits until so many bytes that a node has written are in the cache, and the files of its drafts have gone.
func (e *env) isSeeded(h *hearth, cache string, bytes int64) {
	e.Helper()
	e.eventually("the seed", func() bool {
		if dropped := h.metric("hearth_drafts_unseeded_bytes_total"); dropped > 0 {
			e.Fatalf("%d bytes were not seeded", dropped)
		}
		left, err := filepath.Glob(filepath.Join(e.path(cache), "drafts", "*.data"))
		return h.metric("hearth_drafts_seeded_bytes_total") == bytes && err == nil && len(left) == 0
	})
}

// readsBack reads files that the kernel has not in its page cache, and checks every byte.
func (e *env) readsBack(dir string, version int, files ...hearthtest.File) {
	e.Helper()
	for _, f := range files {
		path := filepath.Join(dir, f.Path)
		e.eventually(f.Path, func() bool { _, err := os.Stat(path); return err == nil })
		e.must(dropPages(path), "drop the pages of %s", f.Path)
		data, err := os.ReadFile(path)
		e.must(err, "read %s", f.Path)
		if int64(len(data)) != f.Size || hearthtest.Check(data, f.Path, 0, version) != nil {
			e.Errorf("%s: %d bytes of %d, %v", f.Path, len(data), f.Size, hearthtest.Check(data, f.Path, 0, version))
		}
	}
}

// toSeed are files of one block, of several extents, and of nothing.
func toSeed() []hearthtest.File {
	files := []hearthtest.File{{Path: "large", Size: 40<<20 + 7}, {Path: "one", Size: 1 << 20}, {Path: "empty"}}
	for i := range 50 {
		files = append(files, hearthtest.File{Path: fmt.Sprintf("small-%02d", i), Size: int64(100 + i*1000)})
	}
	return files
}

// writeSeed writes files of which nobody has read anything yet. Once the node has seeded them, it reads them back without asking the
// bucket for any, before a restart and after. A file that was replaced has its old bytes for who has it open. With seed: off the
// first reader asks the bucket.
func writeSeed(e *env) {
	files := toSeed()
	o := e.origin()
	p := e.proxy(o)
	set := writable(settings{endpoint: p.endpoint, cache: "alone"})
	h := e.mount(o, set)
	sum := e.written(h.dir, 1, files...)
	e.isSeeded(h, "alone", sum)
	gets := p.gets()
	e.readsBack(h.dir, 1, files...)
	if n := p.gets() - gets; n != 0 {
		e.Errorf("%d GETs for what this node has written", n)
	}
	old, err := os.Open(filepath.Join(h.dir, "one"))
	e.must(err, "open a file")
	e.must(dropPages(old.Name()), "drop its pages")
	e.written(h.dir, 2, hearthtest.File{Path: "one.tmp", Size: 5})
	e.must(os.Rename(filepath.Join(h.dir, "one.tmp"), old.Name()), "replace it")
	data, err := io.ReadAll(old)
	e.must(err, "read the replaced file")
	if len(data) != 1<<20 || hearthtest.Check(data, "one", 0, 1) != nil {
		e.Errorf("the replaced file has %d bytes: %v", len(data), hearthtest.Check(data, "one", 0, 1))
	}
	e.must(old.Close(), "close it")
	e.isSeeded(h, "alone", sum+5)
	h.quit()
	h = e.mount(o, set)
	gets = p.gets()
	e.readsBack(h.dir, 1, files[0])
	e.readsBack(h.dir, 1, files[2:]...)
	if n := p.gets() - gets; n != 0 {
		e.Errorf("%d GETs for what the node before has written", n)
	}
	h.quit()

	set.cache, set.link = "off", ", seed: off"
	h = e.mount(o, set)
	e.written(h.dir, 3, files[0])
	e.eventually("the draft's end", func() bool {
		left, err := filepath.Glob(filepath.Join(e.path("off"), "drafts", "*.data"))
		return err == nil && len(left) == 0
	})
	gets = p.gets()
	e.readsBack(h.dir, 3, files[0])
	if n := p.gets() - gets; n == 0 || h.metric("hearth_drafts_seeded_bytes_total")+h.metric("hearth_drafts_unseeded_bytes_total") != 0 {
		e.Errorf("with seed: off %d GETs, %d bytes seeded", n, h.metric("hearth_drafts_seeded_bytes_total"))
	}
	h.quit()
}

// writeSeedRing has one node of a ring write files. Once they are seeded, each node of the ring reads them, and the bucket is asked
// for none.
func writeSeedRing(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	files := toSeed()
	nodes := r.add(3, 0)
	nodes[0].set = writable(nodes[0].set)
	r.start(nodes[0])
	r.start(nodes[1:]...)
	r.agree(nodes...)
	sum := e.written(nodes[0].dir, 1, files...)
	e.isSeeded(nodes[0].hearth, "cache-n1", sum)
	if _, gets := r.asked(func() {
		for _, m := range nodes {
			e.readsBack(m.dir, 1, files...)
		}
	}); gets != 0 {
		e.Errorf("%d GETs for what a node of the ring has written", gets)
	}
	e.shows("%d bytes written and read by 3 nodes, 0 GETs", sum)
	r.quit(nodes...)
}
