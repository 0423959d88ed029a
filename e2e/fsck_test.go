package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/fsck"
)

// checked is what `hearth fsck -o json` printed.
type checked struct {
	Findings []check.Finding
	Summary  fsck.Summary
}

// fsck runs `hearth fsck` and expects its exit code.
func (h *hearth) fsck(code int, args ...string) (c checked) {
	h.e.Helper()
	c, got := h.tryFsck(args...)
	if got != code {
		h.e.Fatalf("hearth fsck %v: exit %d, not %d: %+v", args, got, code, c)
	}
	return c
}

// tryFsck runs it and returns its exit code.
func (h *hearth) tryFsck(args ...string) (c checked, code int) {
	h.e.Helper()
	args = append([]string{"fsck", "-o", "json", "--config", h.config}, args...)
	out, code := h.e.run(h.e.hearth, args...)
	if err := json.Unmarshal([]byte(out), &c); err != nil {
		h.e.Fatalf("hearth %v: exit %d, %v:\n%s", args, code, err, out)
	}
	return c, code
}

// filled reads the list until the cache holds each of its blocks, and returns the
// check that says so: a full write queue declines a block now and then, and a byte
// changed in the hole that is there instead is nobody's.
func (h *hearth) filled(list []hearthtest.File) checked {
	e, want := h.e, int64(0)
	e.Helper()
	for _, f := range list {
		want += (f.Size + 1<<20 - 1) >> 20
	}
	for seed := uint64(1); ; seed++ {
		e.good("while the cache fills", epoch(h.dir, list, seed, 8, 0))
		e.settled(h)
		c := h.fsck(0)
		if len(c.Findings) > 0 || c.Summary.Blocks > want {
			e.Fatalf("a clean cache of %d blocks: %+v", want, c)
		}
		if c.Summary.Blocks == want {
			return c
		}
		e.cold(h.dir, list)
	}
}

// settled waits until what was read is written: the cache grows no more.
func (e *env) settled(h *hearth) {
	e.Helper()
	was := h.fsck(0).Summary.Blocks
	e.eventually("all is written", func() bool {
		now := h.fsck(0).Summary.Blocks
		still := now == was
		was = now
		return still
	})
}

// hurt is one changed byte: where, and what has to be fetched again for it.
type hurt struct {
	file  string
	block int64 // bytes
}

// stored is a block in a file of the cache directory.
type stored struct {
	file     string
	off, len int64
}

// blocks finds where blocks lie: records in segments by their headers, as package
// segment has them, and every megabyte of the files of large objects.
func (e *env) blocks() (small, large []stored) {
	e.Helper()
	segments, err := filepath.Glob(e.path("cache/segments/*.segment"))
	e.must(err, "list the segments")
	for _, name := range segments {
		text, err := os.ReadFile(name)
		e.must(err, "read %s", name)
		for at := 4096; at+56 < len(text); at += 64 {
			if string(text[at:at+4]) != "hblk" || text[at+4] != 1 {
				continue
			}
			n := int64(binary.LittleEndian.Uint32(text[at+32:]))
			small = append(small, stored{name, int64(at) + 48 + 8*((n+65535)/65536), n})
		}
	}
	objects, err := filepath.Glob(e.path("cache/objects/*.data"))
	e.must(err, "list the large objects")
	for _, name := range objects {
		s, err := os.Stat(name)
		e.must(err, "stat %s", name)
		for off := int64(0); off < s.Size(); off += 1 << 20 {
			large = append(large, stored{name, off, min(1<<20, s.Size()-off)})
		}
	}
	return small, large
}

// hurtBlocks changes a byte in each of so many blocks, no two in one block: half in
// segments, half in large files, of which one byte lies in a block's checksums.
func (e *env) hurtBlocks(rng *rand.Rand, n int) (all []hurt) {
	e.Helper()
	small, large := e.blocks()
	if len(small) < n || len(large) < n {
		e.Fatalf("%d blocks in segments, %d in files", len(small), len(large))
	}
	for i, at := range rng.Perm(len(small))[:n/2] {
		b := small[at]
		off := []int64{0, b.len - 1, rng.Int64N(b.len)}[i%3]
		hearthtest.FlipByte(e, b.file, b.off+off, 0x40)
		all = append(all, hurt{b.file, b.len})
	}
	for i, at := range rng.Perm(len(large))[:n-n/2] {
		b := large[at]
		if i == 0 {
			sums := strings.TrimSuffix(b.file, "data") + "sums"
			hearthtest.FlipByte(e, sums, 64+144*(b.off>>20)+8+rng.Int64N(16), 0x40)
			all = append(all, hurt{sums, b.len})
			continue
		}
		hearthtest.FlipByte(e, b.file, b.off+rng.Int64N(b.len), 0x40)
		all = append(all, hurt{b.file, b.len})
	}
	return all
}

// names holds findings against what was hurt: each is told once, and nothing else.
func (e *env) names(c checked, all []hurt, repaired bool) {
	e.Helper()
	count := map[string]int{}
	for _, h := range all {
		count[h.file]++
	}
	for _, f := range c.Findings {
		count[f.File]--
		if f.Kind != check.Damaged || f.Version == "" || f.Block < 0 || f.Offset < 0 || f.Repaired != repaired {
			e.Errorf("finding: %+v", f)
		}
	}
	for file, n := range count {
		if n != 0 {
			e.Errorf("%s: %d changed bytes more than findings", file, n)
		}
	}
	if c.Summary.Bad != int64(len(all)) || (c.Summary.Repaired == c.Summary.Bad) != repaired {
		e.Errorf("%d bytes were changed: %+v", len(all), c.Summary)
	}
}

// dropped: a check after the repair is clean, and so many blocks are gone.
func (h *hearth) dropped(before checked, all []hurt) {
	h.e.Helper()
	after := h.fsck(0)
	if len(after.Findings) > 0 || after.Summary.Blocks != before.Summary.Blocks-int64(len(all)) {
		h.e.Fatalf("%d blocks were hurt of %+v; after the repair: %+v", len(all), before.Summary, after)
	}
}

// again reads all from the disk and expects that only what was hurt is fetched, a
// block perhaps twice.
func (h *hearth) again(p *proxied, list []hearthtest.File, all []hurt) {
	h.e.Helper()
	h.e.cold(h.dir, list)
	before, want := p.bytes(), int64(0)
	for _, x := range all {
		want += x.block
	}
	h.e.good("after a check", epoch(h.dir, list, 7, 8, 0))
	// The proxy counts an answer once it has ended, which a reader may be ahead of.
	h.e.eventually("all that was hurt is fetched again", func() bool { return p.bytes()-before >= want })
	if got := p.bytes() - before; got < want || got > want+int64(min(len(all), 2))<<20 {
		h.e.Errorf("%d bytes were fetched again for %d hurt blocks of %d bytes", got, len(all), want)
	}
}

// fsckStopped changes bytes in the cache of a stopped node: a check names each, and
// changes nothing; one with --repair drops exactly the blocks that they lie in, and
// the next is clean.
func fsckStopped(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, ram: "16MiB", mount: []string{"--open", "none"}}
	h := e.mount(o, set)
	h.filled(list)
	h.quit()
	clean := h.fsck(0)
	if len(clean.Findings) > 0 || clean.Summary.Bytes < sum(list) {
		e.Fatalf("a clean cache of %d bytes: %+v", sum(list), clean)
	}
	all := e.hurtBlocks(rand.New(rand.NewPCG(e.seed(), 4)), 12)
	for range 2 {
		e.names(h.fsck(1), all, false)
	}
	e.names(h.fsck(0, "--repair"), all, true)
	h.dropped(clean, all)
	h.launch(o, set)
	h.again(p, list, all)
	h.filled(list)
	h.kill9()
	h.fsckOthers(len(all))
	h.launch(o, set)
	h.again(p, list, nil)
	h.quit()
	e.refused(h)
}

// fsckOthers hurts what is no block's, after a kill: all is named, and made anew
// without a block lost.
func (h *hearth) fsckOthers(dropped int) {
	e := h.e
	e.Helper()
	if c := h.fsck(0, "--repair"); c.Summary.Bad > 0 {
		e.Logf("after a kill: %+v", c.Findings) // what was cut short, if anything
	}
	segments, _ := filepath.Glob(e.path("cache/segments/*.segment"))
	last, err := os.Stat(segments[1])
	e.must(err, "stat %s", segments[1])
	names := []string{segments[0], segments[1], e.path("cache/segments/deaths"), e.path("cache/objects/FORMAT"),
		e.path("cache/hearth.json"), e.path("cache/node-ids"), e.path("cache/scrub.json")}
	for i, off := range []int64{20, last.Size() - 40, 20, 5, 20, 10, 0} {
		hearthtest.FlipByte(e, names[i], off, 0x40)
	}
	orphan := e.path("cache/objects/" + strings.Repeat("ab", 16) + ".data")
	e.must(os.WriteFile(orphan, bytes.Repeat([]byte("x"), 5000), 0o600), "write %s", orphan)
	names = append(names, orphan)
	for _, args := range [][]string{nil, {"--repair"}} {
		c := h.fsck(1-len(args), args...)
		for _, name := range names {
			found := false
			for _, f := range c.Findings {
				found = found || f.File == name && f.Repaired == (args != nil)
			}
			if !found {
				e.Errorf("%v: nothing is said of %s: %+v", args, name, c.Findings)
			}
		}
		// Without the file of deaths the blocks that were dropped before are there again.
		if c.Summary.Bad < int64(len(names)) || c.Summary.Bad > int64(len(names)+dropped) {
			e.Errorf("%v: %d things were hurt: %+v", args, len(names), c.Findings)
		}
	}
	if c := h.fsck(0); len(c.Findings) > 0 {
		e.Errorf("after --repair: %+v", c.Findings)
	}
}

// refused: a directory of somebody else's, or of a newer version, is named and never
// touched; so is one that does not exist.
func (e *env) refused(h *hearth) {
	e.Helper()
	other := e.path("other")
	e.must(os.MkdirAll(other, 0o755), "make a directory")
	e.must(os.WriteFile(filepath.Join(other, "thesis.tex"), []byte("precious"), 0o600), "write a file")
	newer := e.path("cache/objects/FORMAT")
	// The sum of FORMAT is that of its number: this one is what a later version writes.
	e.must(os.WriteFile(newer, []byte("hearth sparse 2 "+sumOfTwo+"\n"), 0o600), "write %s", newer)
	for dir, says := range map[string]string{other: "not hearth's", e.path("cache"): "run the newer hearth"} {
		before := e.listing(dir)
		out, code := e.run(e.hearth, "fsck", "--repair", dir)
		if code != 8 || !strings.Contains(out, says) || e.listing(dir) != before {
			e.Errorf("fsck of %s: exit %d, %s\nbefore %s\nafter %s", dir, code, out, before, e.listing(dir))
		}
	}
	if out, code := e.run(e.hearth, "fsck", e.path("nowhere")); code != 4 {
		e.Errorf("fsck of what is not there: exit %d, %s", code, out)
	}
}

// sumOfTwo is XXH3-64 of "2", as FORMAT has it.
const sumOfTwo = "fb95a7322f5da314"

// listing is what lies below a directory, with sizes, but for the lock.
func (e *env) listing(dir string) string {
	e.Helper()
	out, _ := e.run("find", dir, "-type", "f", "!", "-iname", "lock", "-printf", "%P %s %T@\n")
	return out
}

// fsckRunning does the same under a running node, which checks itself; and a check
// while readers fill and evict finds nothing.
func fsckRunning(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, ram: "16MiB", mount: []string{"--open", "none"}})
	clean := h.filled(list)
	all := e.hurtBlocks(rand.New(rand.NewPCG(e.seed(), 4)), 12)
	e.names(h.fsck(1), all, false)
	e.names(h.fsck(0, "--repair"), all, true)
	h.dropped(clean, all)
	h.again(p, list, all)
	h.quit()

	// A cache of half the set, so that blocks come and go under the check.
	h = e.mount(o, settings{endpoint: p.endpoint, ram: "16MiB", cache: "half", floor: "1MiB, scrub: 1GiB/s, scrub_every: 100ms",
		disk: fmt.Sprint(sum(list) / 2), mount: []string{"--open", "none"}})
	done := make(chan reading)
	go func() {
		var r reading
		for round := range 6 {
			r = epoch(h.dir, list, uint64(round), 8, 0)
			if len(r.errors) > 0 {
				break
			}
		}
		done <- r
	}()
	checks, blocks := 0, int64(0)
	for over := false; !over; {
		select {
		case r := <-done:
			e.good("while it was checked", r)
			over = true
		default:
			c := h.fsck(0)
			if checks++; len(c.Findings) > 0 {
				e.Errorf("false damage: %+v", c.Findings)
			}
			blocks += c.Summary.Blocks
		}
	}
	if t := h.diskTier(); blocks == 0 || t.Errors > 0 || t.Dirs[0].Scrub.Bad > 0 || t.Dirs[0].Scrub.Blocks == 0 {
		e.Errorf("%d blocks were checked; %+v", blocks, t)
	}
	e.detail = "and half a cache checked while it fills"
	e.Logf("%d checks of %d blocks; the scrub: %+v", checks, blocks, h.diskTier().Dirs[0].Scrub)
	h.quit()
}

// scrubbed changes bytes that no reader touches under a running node: the scrub finds
// and drops them, status has the figure, and what is read then is right.
func scrubbed(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, ram: "16MiB", floor: "1GiB, scrub: 1GiB/s, scrub_every: 300ms", mount: []string{"--open", "none"}}
	h := e.mount(o, set)
	clean := h.filled(list)
	all := e.hurtBlocks(rand.New(rand.NewPCG(e.seed(), 4)), 8)
	scrub := func() (bad int64) { return h.diskTier().Dirs[0].Scrub.Bad }
	e.eventually("the scrub has found them", func() bool { return scrub() >= int64(len(all)) })
	h.dropped(clean, all)
	out, code := e.run(e.hearth, "status", "--node", "unix://"+h.socket())
	if code != 0 || !strings.Contains(out, "scrub of "+e.path("cache")) || !strings.Contains(out, " 8 bad") {
		e.Errorf("status, exit %d:\n%s", code, out)
	}
	h.again(p, list, all)
	if got := scrub(); got != int64(len(all)) {
		e.Errorf("%d bytes were changed, the scrub found %d", len(all), got)
	}
	h.quit()
	// Where it was is known after a restart: with a day between passes none begins.
	set.floor = "1GiB, scrub: 1GiB/s"
	h = e.mount(o, set)
	if last := h.diskTier().Dirs[0].Scrub.Last; last.Ended == 0 || last.Bytes == 0 {
		e.Errorf("the last pass is forgotten: %+v", last)
	}
	h.quit()
}
