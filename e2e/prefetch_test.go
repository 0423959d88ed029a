package e2e

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// prefetchSet has directories for each kind of reader.
func prefetchSet(l level) hearthtest.DataSet {
	random := hearthtest.Group{Dir: "random/d", Dirs: 4, Files: 150, Min: 16 << 10, Max: 48 << 10}
	if l == full {
		random.Dirs, random.Files, random.Max = 20, 1000, 180<<10
	}
	kept := hearthtest.Group{Dir: "ordered/d", Dirs: 1, Files: 200, Min: 8 << 10, Max: 8 << 10}
	left := hearthtest.Group{Dir: "left/d", Dirs: 1, Files: 300, Min: 8 << 10, Max: 8 << 10}
	return hearthtest.DataSet{Name: "prefetch", Groups: []hearthtest.Group{random, kept, left}}
}

// filesBelow are the files whose path begins so.
func filesBelow(list []hearthtest.File, prefix string) (found []hearthtest.File) {
	for _, f := range list {
		if strings.HasPrefix(f.Path, prefix) {
			found = append(found, f)
		}
	}
	return found
}

// walk has the node know all names, so that what is asked of the origin is bytes.
func (e *env) walk(h *hearth) {
	e.Helper()
	e.must(filepath.WalkDir(h.dir, func(_ string, _ fs.DirEntry, err error) error { return err }), "walk the mount")
}

// inTheirOrder has four readers share a list in its own order.
func inTheirOrder(dir string, list []hearthtest.File) reading {
	r := reading{files: len(list)}
	var next atomic.Int64
	var mu sync.Mutex // guards r
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for i := next.Add(1) - 1; i < int64(len(list)); i = next.Add(1) - 1 {
				n, err := readWhole(filepath.Join(dir, list[i].Path), list[i], 0, buf)
				mu.Lock()
				r.bytes += n
				if err != nil {
					r.errors = append(r.errors, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return r
}

// beyondReaders has eight readers take files in random order. Once so many requests as skip
// were answered, none is until more than least are under way.
// It returns how many these were at most.
func (e *env) beyondReaders(h *hearth, p *proxied, what string, skip, least int64, list []hearthtest.File) (most int64) {
	e.Helper()
	const readers = 8
	p.ClearRules()
	p.Reset()
	enough := make(chan struct{})
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Skip: skip, Until: enough})
	read := make(chan reading)
	go func() { read <- epoch(h.dir, list, e.seed(), readers, 0) }()
	e.eventually("more requests than readers", func() bool { return p.Stats().Most > least })
	close(enough)
	e.good(what, <-read)
	most = p.Stats().Most
	e.Logf("%s: at most %d requests at once", what, most)
	if n := h.status().Prefetch.Files; n < (most-readers)/2 {
		e.Errorf("%s: %d files were brought, and %d requests were under way at once", what, n, most)
	}
	return most
}

// prefetch: eight readers who take the files of some directories in random order have
// more requests under way than they are, and each object is asked for once. Readers in
// order, and a mount with --no-prefetch, ask for what they read alone. Of a directory
// that was left, what was brought and not read is told. A full disk is no end of it.
func prefetch(e *env) {
	o := e.origin()
	list := e.load(o, prefetchSet(e.level))
	p := e.proxy(o)
	p.SetFirstByte(20 * time.Millisecond)
	set := settings{endpoint: p.endpoint, fresh: "bounded(10m)"}
	h := e.mount(o, set)
	e.walk(h)

	random := filesBelow(list, "random/")
	e.beyondReaders(h, p, "in random order", int64(len(random))/3, 32, random)
	s, seen := p.Stats(), h.status().Prefetch
	if s.Get.Requests != int64(len(random)) || s.Get.Bytes != sum(random) {
		e.Errorf("%d requests for %d files, %d of %d bytes", s.Get.Requests, len(random), s.Get.Bytes, sum(random))
	}
	if seen.ReadBytes != seen.Bytes || seen.WastedBytes != 0 {
		e.Errorf("what was brought of it: %+v", seen)
	}
	e.detail = fmt.Sprintf("%d of %d brought, at most %d at once", seen.Files, len(random), s.Most)

	ordered := filesBelow(list, "ordered/")[:100]
	p.Reset()
	e.good("in order", inTheirOrder(h.dir, ordered))
	if n := h.status().Prefetch.Files; p.gets() != int64(len(ordered)) || n != seen.Files {
		e.Errorf("in order: %d requests for %d files, %d brought", p.gets(), len(ordered), n-seen.Files)
	}

	left := filesBelow(list, "left/")
	p.Reset()
	e.good("one who stops", epoch(h.dir, left[:48], 1, 1, 0))
	e.eventually("the rest of a directory that was left", func() bool {
		s := h.status().Prefetch
		return p.gets() == int64(len(left)) && s.Bytes == s.ReadBytes+s.UnreadBytes && s.UnreadBytes >= sum(left[48:])
	})
	if out, code := h.ask("status"); code != 0 || !strings.Contains(out, "\nprefetch: ") || !strings.Contains(out, " wasted, ") {
		e.Errorf("status: exit %d\n%s", code, out)
	}
	if e.level == full {
		e.eventually("what was wasted", func() bool { return h.status().Prefetch.WastedBytes >= sum(left[48:]) })
	}
	h.quit()

	set.cache, set.mount = "alone", []string{"--no-prefetch"}
	h = e.mount(o, set)
	e.walk(h)
	p.Reset()
	e.good("without prefetch", epoch(h.dir, left[:200], 2, 8, 0))
	if p.gets() != 200 || h.status().Prefetch.Files != 0 {
		e.Errorf("without prefetch: %d requests for 200 files, %+v", p.gets(), h.status().Prefetch)
	}
	h.quit()
	e.intoFull(o, p)
}

// intoFull: a node whose disk is full of what nobody asks for any more, and whose policy
// has come to replace that, brings the files of another directory in its place, by
// hardly more than a request each.
func (e *env) intoFull(o *server, p *proxied) {
	e.Helper()
	const size = 128 << 10
	list := e.load(o, hearthtest.DataSet{Name: "full", Groups: []hearthtest.Group{{Dir: "old/d", Dirs: 1, Files: 520, Min: size, Max: size},
		{Dir: "again/d", Dirs: 1, Files: 200, Min: size, Max: size}, {Dir: "new/d", Dirs: 1, Files: 160, Min: size, Max: size}}})
	p.SetFirstByte(0)
	h := e.mount(o, settings{endpoint: p.endpoint, fresh: "bounded(10m)", ram: "16MiB", disk: "64MiB", cache: "full"})
	e.walk(h)
	e.good("what fills the disk", inTheirOrder(h.dir, filesBelow(list, "old/")))
	again := filesBelow(list, "again/")
	round := func() {
		e.good("what is read again and again", inTheirOrder(h.dir, again))
		for _, f := range again {
			e.must(dropPages(filepath.Join(h.dir, f.Path)), "drop %s from the page cache", f.Path)
		}
	}
	e.eventually("the policy replaces what it holds", func() bool { round(); return h.status().Tiers[1].Dirs[0].Replaces })
	round() // it evicts, by which is known what would go
	if s := h.status(); s.Prefetch.Files != 0 || s.Tiers[1].Used < s.Tiers[1].Budget*9/10 {
		e.Errorf("before: %+v, %d bytes of %d are used", s.Prefetch, s.Tiers[1].Used, s.Tiers[1].Budget)
	}
	p.SetFirstByte(20 * time.Millisecond)
	late := filesBelow(list, "new/")
	before := int64(len(late)) / 4                                            // are missed by readers alone, or a few more
	e.beyondReaders(h, p, "in random order, the disk full", before, 16, late) // memory of 16 MiB has 16 brought at once
	// What they read and the disk did not keep may be brought once more.
	if s := h.status().Prefetch; p.gets() > int64(len(late))+before+8 || s.ReadBytes < s.Bytes/2 {
		e.Errorf("into a full disk: %d requests for %d files, %d of them before any was brought, %+v", p.gets(), len(late), before, s)
	} else {
		e.detail += fmt.Sprintf("; %d of %d into a full disk, by %d requests", s.Files, len(late), p.gets())
	}
	h.quit()
}
