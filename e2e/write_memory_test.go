package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// writersOfMemory write at once.
const writersOfMemory = 16

// draftsAhead is how far drafts may be ahead of the blocks that give way to them (docs/operations.md).
const draftsAhead = 16 << 20

// memorySize is how much each of them writes.
func memorySize(l level) int64 {
	return map[level]int64{core: 64 << 20, all: 64 << 20, full: 1 << 30}[l]
}

// writeMemory has 16 writers write at once into a cache that reads have filled. The node's memory stays within cache.ram and what
// names, queues, the runtime and the parts in flight may take, and the cache directory within its budget: blocks make room. Then
// writers want more than the budget: some get ENOSPC, and nobody anything else.
func writeMemory(e *env) {
	const ram = 64 << 20
	size := memorySize(e.level)
	all := writersOfMemory * size
	budget := all + all/8
	o := e.origin()
	p := e.proxy(o)
	cached := hearthtest.File{Path: "cached", Size: all / 4}
	e.must(o.PutFile(e.ctx, o.bucket, "", cached, 0), "put an object")
	d := e.ownDisk("own", budget*3/2>>20)
	stop := d.watch()
	h := e.mount(o, writable(settings{endpoint: p.endpoint, ram: strconv.Itoa(ram), disk: strconv.FormatInt(budget, 10), floor: "1MiB", cache: "own/cache"}))
	e.good("what is cached", epoch(h.dir, []hearthtest.File{cached}, 1, 1, 0))
	e.eventually("a cache that is filled", func() bool { return h.diskTier().Used > all/5 })

	var files []*os.File
	for i := range writersOfMemory {
		f, err := os.Create(filepath.Join(h.dir, fmt.Sprintf("w-%d", i)))
		e.must(err, "make a file")
		files = append(files, f)
	}
	e.must(writeAll(files, size, false), "write")
	e.must(writeAll(files, size, true), "close")
	h.boundedMemory(ram, writersOfMemory)
	for _, f := range files {
		e.isWhole(o, filepath.Base(f.Name()), size)
		e.must(o.Delete(e.ctx, o.bucket, filepath.Base(f.Name())), "delete an object") // the machine has room for the budget, not for all
	}
	e.shows("%d MiB of memory at most", h.peakMemory()>>20)

	// More than there is room for.
	files = files[:0]
	for i := range 4 {
		f, err := os.Create(filepath.Join(h.dir, fmt.Sprintf("more-%d", i)))
		e.must(err, "make a file")
		files = append(files, f)
	}
	mapped, err := os.Create(filepath.Join(h.dir, "mapped")) // while there is room for that
	e.must(err, "make a file")
	if err := writeAll(files, budget/3, false); !errors.Is(err, syscall.ENOSPC) {
		e.Errorf("writing 4/3 of the budget: %v, expected %v", err, syscall.ENOSPC)
	}
	e.must(mapsMore(mapped), "map more than there is room for")
	for i, f := range files { // what was written is published all the same
		if i > 0 {
			e.must(os.Remove(f.Name()), "remove what is too much")
		}
		if err := f.Close(); err != nil {
			e.Errorf("close of a file for which there was no room: %v", err)
		}
	}
	e.eventually("room", func() bool { // that of drafts, once they are published
		err := os.WriteFile(filepath.Join(h.dir, "room"), make([]byte, 8<<20), 0o644)
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			e.Fatalf("write where there is room: %v", err)
		}
		return err == nil
	})
	h.quit()
	stop()
	e.shows("of %d MiB of disk %s", budget>>20, d.held)
	const records = 1 << 20 // of drafts, and what the file system itself needs for their extents
	if d.most > budget+writeUnit+draftsAhead+records {
		e.Errorf("%d bytes were taken of a file system, the budget is %d: %s", d.most, budget, d.held)
	}
}

// writeAll writes files up to a size or closes them, all at once, and returns what the first that failed did.
func writeAll(files []*os.File, size int64, ends bool) error {
	var work errgroup.Group
	for _, f := range files {
		work.Go(func() error {
			if ends {
				return f.Close()
			}
			piece := make([]byte, 1<<20)
			for off := int64(0); off < size; off += int64(len(piece)) {
				piece = piece[:min(int64(len(piece)), size-off)]
				hearthtest.Fill(piece, filepath.Base(f.Name()), off, 0)
				if _, err := f.WriteAt(piece, off); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return work.Wait()
}

// isWhole checks an object piece by piece.
func (e *env) isWhole(o *server, key string, size int64) {
	e.Helper()
	r, err := o.Request(e.ctx, http.MethodGet, o.bucket, key, nil)
	e.must(err, "ask for %s", key)
	a, err := http.DefaultClient.Do(r)
	e.must(err, "ask for %s", key)
	defer func() { _ = a.Body.Close() }() // it was only read
	if a.StatusCode != http.StatusOK || a.ContentLength != size {
		e.Errorf("%s: %s, %d bytes of %d", key, a.Status, a.ContentLength, size)
		return
	}
	piece := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(piece)) {
		piece = piece[:min(int64(len(piece)), size-off)]
		_, err := io.ReadFull(a.Body, piece)
		e.must(errors.Join(err, hearthtest.Check(piece, key, off, 0)), "read %s", key)
	}
}

// mapsMore writes more into a mapping of a file without a byte than there is room for: msync says so. The file goes.
func mapsMore(f *os.File) (err error) {
	const size = 64 << 20
	defer func() {
		err = errors.Join(err, os.Remove(f.Name()))
		if closed := f.Close(); !errors.Is(closed, unix.ENOSPC) { // which the kernel may say again
			err = errors.Join(err, closed)
		}
	}()
	if err := f.Truncate(size); err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for i := 0; i < size; i += 4096 {
		m[i] = 1
	}
	if err := unix.Msync(m, unix.MS_SYNC); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("msync: %v, expected %v", err, unix.ENOSPC)
	}
	return unix.Munmap(m)
}
