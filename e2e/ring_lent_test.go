package e2e

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/faultfs"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// ringLent has files of a ring's member read by the kernel itself, by open descriptors and
// by mappings whose descriptor is closed, while the member's directory stalls, is given up
// and comes back, is filled so that extents go, and its node is killed and started anew:
// every byte stays right, and once nobody reads them the files go.
func ringLent(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	var large []hearthtest.File
	for i := range 3 {
		f := hearthtest.File{Path: fmt.Sprintf("large/%d", i), Size: 18<<20 + int64(i)}
		e.must(r.o.PutFile(e.ctx, r.o.bucket, "", f, 0), "put %s", f.Path)
		large = append(large, f)
	}
	list := e.load(r.o, r.few(20, 100)) // 110 KB each: what the node owns of the first fills its disk
	first, then := list[:1500], list[1500:]
	d := e.device("sick", 512, "-O", "^has_journal")
	nodes := r.add(2, 0)
	m := nodes[0]
	m.set.ram, m.set.disk, m.set.cache, m.set.floor, m.set.mount = "16MiB", "100MiB", "sick/cache", "1MiB", []string{"--open", "passthrough"}
	r.start(m)
	r.start(nodes[1])
	r.agree(nodes...)
	m.lend(large)
	var held []*heldFile
	for i, f := range large {
		held = append(held, m.hold(f, i > 0))
	}
	all := func(when string) {
		e.Helper()
		for _, h := range held {
			e.checkHeld(when, h)
		}
	}
	all("at first")
	m.evicts(first)
	all("behind evictions")

	e.uncached(e.path("sick/cache/objects"))
	d.meet(faultfs.Stall)
	e.eventually("the directory out of use", func() bool {
		e.cold(m.dir, first)
		e.good("while the disk stalls", epoch(m.dir, first[:200], 1, 4, 0))
		return m.ill() != ""
	})
	d.meet(faultfs.None)
	e.eventually("the directory in use again", func() bool { return m.ill() == "" })
	all("after the return")
	m.evicts(then[:250])
	e.good("opened again", epoch(m.dir, large, 8, 4, 0)) // one by the backing file that its open has
	all("behind evictions after the return")

	m.kill9()
	all("without a node")
	m.set.disk = "80MiB" // of which the held files take 54
	r.start(m)
	r.agree(nodes...)
	e.eventually("the directory shrunk", func() bool { return m.diskTier().Used <= 84<<20 })
	e.good("with a smaller directory", epoch(m.dir, then[250:], 3, 4, 0))
	all("with a new node")

	for _, h := range held {
		e.must(unix.Munmap(h.mapping), "unmap")
		if h.file != nil {
			e.must(h.file.Close(), "close")
		}
	}
	e.good("once more", epoch(m.dir, large, 9, 4, 0))
	e.shows("%d files held", len(held))
	r.quit(nodes...)
}

// heldFile is a file that is mapped, and open as well or not.
type heldFile struct {
	hearthtest.File
	file    *os.File
	mapping []byte
}

// hold opens and maps a file, and closes it again if only the mapping is to stay.
func (h *hearth) hold(f hearthtest.File, mapped bool) *heldFile {
	h.e.Helper()
	lent := h.status().Mounts[0].Ops["lent"]
	file, err := os.Open(filepath.Join(h.dir, f.Path))
	h.e.must(err, "open %s", f.Path)
	x := &heldFile{File: f, file: file}
	x.mapping, err = unix.Mmap(int(file.Fd()), 0, int(f.Size), unix.PROT_READ, unix.MAP_SHARED)
	h.e.must(err, "map %s", f.Path)
	if now := h.status().Mounts[0].Ops["lent"]; now != lent+1 {
		h.e.Errorf("%s was not lent to the kernel", f.Path)
	}
	if mapped {
		h.e.must(file.Close(), "close %s", f.Path)
		x.file = nil
	}
	return x
}

// checkHeld compares every byte of a held file, read past what the kernel knows of it.
func (e *env) checkHeld(when string, h *heldFile) {
	e.Helper()
	e.must(unix.Madvise(h.mapping, unix.MADV_DONTNEED), "let go of pages")
	if err := hearthtest.Check(h.mapping, h.Path, 0, 0); err != nil {
		e.Errorf("%s, %s mapped: %v", when, h.Path, err)
	}
	if h.file == nil {
		return
	}
	got := make([]byte, h.Size)
	if _, err := h.file.ReadAt(got, 0); err != nil {
		e.Errorf("%s, %s read: %v", when, h.Path, err)
	} else if err := hearthtest.Check(got, h.Path, 0, 0); err != nil {
		e.Errorf("%s, %s read: %v", when, h.Path, err)
	}
}

// evicts reads files that are new to the node until its disk is full and has taken an eighth
// of their bytes: of what it owns, half of them, and for which extents of others' go.
func (m *member) evicts(list []hearthtest.File) {
	m.e.Helper()
	before := m.diskTier().Written
	for seed := uint64(100); m.e.ctx.Err() == nil; seed++ {
		m.e.good("to push others out", epoch(m.dir, list, seed, 4, 0))
		t := m.diskTier()
		if t.Written >= before+sum(list)/8 && t.Used > t.Budget*9/10 {
			return
		}
		m.e.Logf("%d bytes written, %d used of %d", t.Written-before, t.Used, t.Budget)
		m.e.cold(m.dir, list)
	}
}
