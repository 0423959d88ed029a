package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// changedBehind (at the level core only at the long bound) changes objects while they are open and nothing can know it: what
// is read through one open stays one version, by read and mapped, small and large,
// and the next open after an ESTALE shows the new one. With stripped the origin
// never sees an If-Match, as one that does not know it: it answers with the newer
// body and the newer ETag.
func changedBehind(open string, stripped bool) func(e *env) {
	return func(e *env) {
		o := e.origin()
		b := &behind{e: e, o: o, large: hearthtest.File{Path: "dir/large", Size: 18<<20 + 4097},
			small: hearthtest.File{Path: "dir/small", Size: 100<<10 + 17}, kept: hearthtest.File{Path: "dir/kept", Size: 3<<20 + 77}}
		p := e.proxy(o)
		set := settings{endpoint: p.endpoint, mount: []string{"--open", open}}
		if stripped {
			e.public(o, o.bucket)
			p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "/dir/", Strip: "If-Match"})
			set.origin = ", anonymous: true"
		}
		for fresh, test := range map[string]func(){"bounded(1h)": b.backAndForth, "bounded(1s)": b.mappedOver} {
			if e.level == core && fresh != "bounded(1h)" {
				continue
			}
			set.fresh, set.cache = fresh, "cache-"+fresh
			for _, f := range []hearthtest.File{b.large, b.small, b.kept} {
				b.put(f, 0)
			}
			h := e.mount(o, set)
			b.h, b.dir = h, h.dir
			test()
			b.whole()
			h.quit()
		}
	}
}

// behind is what changedBehind works on.
type behind struct {
	e                  *env
	o                  *server
	h                  *hearth
	dir                string
	large, small, kept hearthtest.File
}

func (b *behind) put(f hearthtest.File, version int) {
	b.e.Helper()
	b.e.must(b.o.PutFile(b.e.ctx, b.o.bucket, "", f, version), "put version %d of %s", version, f.Path)
}

func (b *behind) open(f hearthtest.File) *os.File {
	b.e.Helper()
	r, err := os.Open(filepath.Join(b.dir, f.Path))
	b.e.must(err, "open %s", f.Path)
	return r
}

// at reads a page and returns the version that it names.
func (b *behind) at(r io.ReaderAt, f hearthtest.File, off int64) (int, error) {
	buf := make([]byte, hearthtest.PageSize)
	n, err := r.ReadAt(buf, off)
	if err != nil {
		return absent, err
	}
	return pages(buf[:n], f.Path, off)
}

// shows fails the scenario unless a page names the version.
func (b *behind) shows(r io.ReaderAt, f hearthtest.File, off int64, version int) {
	b.e.Helper()
	if got, err := b.at(r, f, off); got != version || err != nil {
		b.e.Fatalf("%s at %d: version %d, %v; expected %d", f.Path, off, got, err, version)
	}
}

// gone fails the scenario unless the read is refused: what it asks for was never
// read before, and its version is not at the origin any more.
func (b *behind) gone(r io.ReaderAt, f hearthtest.File, off int64) {
	b.e.Helper()
	if got, err := b.at(r, f, off); !errors.Is(err, syscall.ESTALE) {
		b.e.Fatalf("%s at %d: version %d, %v; expected ESTALE", f.Path, off, got, err)
	}
}

func (b *behind) inode(r *os.File) uint64 {
	b.e.Helper()
	s, err := r.Stat()
	b.e.must(err, "stat an open file")
	return s.Sys().(*syscall.Stat_t).Ino
}

// backAndForth: A -> B -> A, the same bytes and the same ETag again. An open of the
// first A keeps what it has and gets no byte of B; each version has its own inode.
// At a bound of an hour it is the ESTALE alone from which the node learns, so that
// the next open shows what is there.
func (b *behind) backAndForth() {
	const far = 17 << 20
	f := b.large
	first := b.open(f)
	defer func() { _ = first.Close() }()
	b.shows(first, f, 0, 0)
	b.put(f, 1)
	b.gone(first, f, far)
	b.shows(first, f, 0, 0) // of what was read before nothing changes
	second := b.open(f)
	defer func() { _ = second.Close() }()
	b.shows(second, f, 0, 1)
	b.put(f, 0)
	b.gone(second, f, far)
	b.shows(second, f, 0, 1)
	third := b.open(f)
	defer func() { _ = third.Close() }()
	b.shows(third, f, 0, 0)
	b.shows(third, f, far, 0)
	ids := map[uint64]bool{b.inode(first): true, b.inode(second): true, b.inode(third): true}
	if len(ids) != 3 {
		b.e.Errorf("A, B and A again have the inodes %d, %d, %d", b.inode(first), b.inode(second), b.inode(third))
	}
}

// mappedOver keeps mappings over a change: pages that are there stay what they
// are; others come from the same version or not at all (SIGBUS).
func (b *behind) mappedOver() {
	const far = 17 << 20
	maps := map[string]mappedBytes{}
	for _, f := range []hearthtest.File{b.large, b.small} {
		b.put(f, 2)
		b.refresh(f, 2)
		r := b.open(f)
		m, err := syscall.Mmap(int(r.Fd()), 0, int(f.Size), syscall.PROT_READ, syscall.MAP_SHARED)
		b.e.must(errors.Join(err, r.Close()), "map %s", f.Path)
		defer func() { _ = syscall.Munmap(m) }()
		maps[f.Path] = m
		b.shows(mappedBytes(m), f, 0, 2)
		b.put(f, 3)
		b.refresh(f, 3)
	}
	b.shows(maps[b.small.Path], b.small, 0, 2)
	b.shows(maps[b.large.Path], b.large, 0, 2)
	b.gone(maps[b.large.Path], b.large, far)
	if v, err := b.at(maps[b.small.Path], b.small, 24*hearthtest.PageSize); err == nil && v != 2 {
		b.e.Errorf("a page of the small mapping shows version %d", v)
	}
}

// refresh waits until the bound has passed and an open shows a version.
func (b *behind) refresh(f hearthtest.File, version int) {
	b.e.Helper()
	b.e.eventually(fmt.Sprintf("version %d of %s", version, f.Path), func() bool {
		r := b.open(f)
		defer func() { _ = r.Close() }()
		got, err := b.at(r, f, 0)
		return err == nil && got == version
	})
}

// whole: of an object that is whole in the cache nothing is ever missing: an open
// of it goes on over a change, to its last byte, and so does a child process that
// inherited it. A mount that lends files has lent this one.
func (b *behind) whole() {
	f := b.kept
	_, err := readWhole(filepath.Join(b.dir, f.Path), f, 0, make([]byte, 1<<20))
	b.e.must(err, "read it whole")
	if b.h.status().Mounts[0].Open == "passthrough" {
		b.h.lend([]hearthtest.File{f})
	}
	lent := b.h.status().Mounts[0].Ops["lent"]
	r := b.open(f)
	b.h.lends(lent)
	b.put(f, 1)
	child := exec.CommandContext(b.e.ctx, "sh", "-c", "cat <&3") // it forks once more
	child.ExtraFiles = []*os.File{r}
	var out bytes.Buffer
	child.Stdout = &out
	b.e.must(child.Start(), "start a child with the open file")
	b.e.must(r.Close(), "close the parent's")
	b.e.must(child.Wait(), "the child")
	if err := hearthtest.Check(out.Bytes(), f.Path, 0, 0); err != nil || int64(out.Len()) != f.Size {
		b.e.Errorf("the child with the inherited file read %d bytes: %v", out.Len(), err)
	}
}
