package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// limits are the scenarios of budgets under load: work waits or is shed, and
// nothing grows.
func limits(by func(small, reduced, whole string) func(level) string) []scenario {
	const behind = "versitygw behind the fault proxy"
	handles := by("", "10,000 handles of 2,000 files", "10,000 handles of 20,000 files")
	return []scenario{
		{name: "disk-budget", root: true, from: all, limit: 3 * time.Minute, origin: "versitygw", size: by("", "10 x 32 MiB, 3 files lent", "10 x 256 MiB, 3 files lent"), run: diskBudget},
		{name: "others-fill-the-disk", root: true, from: all, limit: 3 * time.Minute, origin: "versitygw", size: by("", "192 MiB", "2 GiB"), run: othersFillTheDisk},
		{name: "open-handles-none", root: true, from: all, limit: 3 * time.Minute, origin: behind, size: handles, run: openHandles("none")},
		{name: "open-handles-passthrough", root: true, from: all, limit: 3 * time.Minute, origin: behind, size: handles, run: openHandles("passthrough")},
		{name: "million-names", from: all, limit: 3 * time.Minute, origin: "gofakes3 behind the fault proxy", size: by("", "20,000 names", "1,000,000 names"), run: millionNames},
		{name: "large-readers", from: all, limit: 3 * time.Minute, origin: behind, size: by("", "64 readers of 16 x 16 MiB", "64 readers of 64 x 64 MiB"), run: largeReaders},
	}
}

// ownDisk is a file system that only the cache uses, and what was ever taken of it.
type ownDisk struct {
	e     *env
	dir   string
	free  int64  // when it was new
	most  int64  // bytes that were ever taken, read once the watch has ended
	held  string // by whom, then
	ended chan struct{}
	wait  sync.WaitGroup
}

// ownDisk makes one of so many MiB.
func (e *env) ownDisk(name string, mib int64) *ownDisk {
	e.Helper()
	d := &ownDisk{e: e, dir: e.path(name), ended: make(chan struct{})}
	image := e.path(name + ".img")
	e.must(os.WriteFile(image, nil, 0o600), "make an image")
	e.must(os.Truncate(image, mib<<20), "size the image")
	e.must(os.Mkdir(d.dir, 0o755), "make a mount point")
	e.ext4(image, d.dir, nil, "-m", "0")
	d.free = d.left()
	return d
}

// left is what the file system has free: unlinked files that are open are not.
func (d *ownDisk) left() int64 {
	var st unix.Statfs_t
	d.e.must(unix.Statfs(d.dir, &st), "statfs")
	return int64(st.Bfree) * st.Bsize
}

// watch looks at what is taken, each 2 ms, until the returned func is called.
func (d *ownDisk) watch() (stop func()) {
	d.wait.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			var st unix.Statfs_t
			if unix.Statfs(d.dir, &st) == nil {
				if now := d.free - int64(st.Bfree)*st.Bsize; now > d.most {
					d.most = now
					data, names := d.e.cacheBytes(filepath.Base(d.dir) + "/cache")
					d.held = fmt.Sprintf("%.1f MiB: %.1f of data, %.1f of names", float64(now)/(1<<20), float64(data)/(1<<20), float64(names)/(1<<20))
				}
			}
			select {
			case <-tick.C:
			case <-d.ended:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(d.ended); d.wait.Wait() })
	d.e.Cleanup(stop)
	return stop
}

// writeUnit is by which a budget may be exceeded (docs/operations.md).
const writeUnit = 4 << 20

// diskBudget reads ten times the budget of a cache that has a file system to
// itself, while readers hold files that were lent to them: whatever is written,
// evicted, unlinked and still open, the file system never has more taken than the
// budget and one write unit; and what is lent stays right.
func diskBudget(e *env) {
	budget := map[level]int64{all: 32 << 20, full: 256 << 20}[e.level]
	o := e.origin()
	list := e.tenBudgets(o, budget)
	var lent []hearthtest.File
	for i := range 3 {
		f := hearthtest.File{Path: fmt.Sprintf("lent/%d", i), Size: budget/10 + int64(i)}
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
		lent = append(lent, f)
	}
	d := e.ownDisk("own", 3*budget>>20)
	stop := d.watch()
	h := e.mount(o, settings{ram: "32MiB", disk: strconv.FormatInt(budget, 10), floor: "1MiB", cache: "own/cache", mount: []string{"--open", "passthrough"}})
	h.lend(lent)
	r := e.reader(job{Op: "hold", Dir: h.dir, Files: lent, Loop: true})
	e.eventually("the files are open", func() bool { return h.lent() == len(lent) })
	for round := range uint64(2) {
		e.good("ten times the budget", epoch(h.dir, list, round, 8, 0))
	}
	if n := h.lent(); n != len(lent) {
		e.Errorf("%d files are lent, %d are held open", n, len(lent))
	}
	r.end()
	r.well("the reader of lent files")
	e.eventually("what was lent is taken back", func() bool { return h.lent() == 0 })
	e.good("once more", epoch(h.dir, list, 3, 8, 0))
	h.quit()
	stop()
	e.detail = "at most " + d.held
	if d.most > budget+writeUnit || d.most < budget/2 {
		e.Errorf("%d bytes were taken of a file system, the budget is %d: %s", d.most, budget, d.held)
	}
}

// lend reads files until the next open of each is lent to the kernel.
func (h *hearth) lend(list []hearthtest.File) {
	h.e.Helper()
	h.e.eventually("all are lent", func() bool {
		h.e.good("the files to lend", epoch(h.dir, list, 1, 4, 0))
		before := h.status().Mounts[0].Ops["lent"]
		for _, f := range list {
			r, err := os.Open(filepath.Join(h.dir, f.Path))
			h.e.must(err, "open %s", f.Path)
			_ = unix.Fadvise(int(r.Fd()), 0, 0, unix.FADV_DONTNEED) // what the disk had no time to take is asked for again
			_ = r.Close()
		}
		return h.status().Mounts[0].Ops["lent"] == before+int64(len(list))
	})
	h.e.eventually("none is open", func() bool { return h.lent() == 0 })
}

// lent is how many files the kernel reads itself now.
func (h *hearth) lent() int {
	h.e.Helper()
	ops := h.status().Mounts[0].Ops
	return int(ops["lent_files"] - ops["taken_back"])
}

// well ends a looping reader and fails the scenario unless all of its calls went well.
func (r *reader) well(what string) {
	r.env.Helper()
	if a := r.result(time.Minute); a.Done == 0 || len(a.Errors) > 0 || len(a.Wrong) > 0 {
		r.env.Errorf("%s: done %d times, errors %v, wrong: %v", what, a.Done, a.Errors, a.Wrong)
	}
	if code := r.exit(30 * time.Second); code != 0 {
		r.env.Errorf("%s ended with %d:\n%s", what, code, r.out)
	}
}

// othersFillTheDisk: somebody else writes to the cache's file system until less
// than the floor would be free, step by step: the cache gives way, down to
// nothing, says so, and grows back when there is room. Reads are right meanwhile.
func othersFillTheDisk(e *env) {
	mib := map[level]int64{all: 192, full: 2048}[e.level]
	budget, floor := mib<<20/2, mib<<20/8
	o := e.origin()
	list := e.fileSet(o, budget*7/10)
	d := e.ownDisk("shared", mib)
	h := e.mount(o, settings{ram: "16MiB", disk: strconv.FormatInt(budget, 10), floor: strconv.FormatInt(floor, 10), cache: "shared/cache"})
	fill := func(what string) {
		e.Helper()
		seed := e.seed()
		e.eventually(what, func() bool {
			seed++ // another order each time
			e.cold(h.dir, list)
			e.good(what, epoch(h.dir, list, seed, 8, 0))
			return h.diskTier().Used > sum(list)*8/10
		})
	}
	fill("the cache fills")
	reads := make(chan reading)
	go func() { // beside the writer
		var r reading
		for round := uint64(0); r.errors == nil && e.ctx.Err() == nil && h.diskTier().Budget > 0; round++ {
			r = epoch(h.dir, list, round, 4, 0)
		}
		reads <- r
	}()
	foreign, err := os.Create(filepath.Join(d.dir, "foreign"))
	e.must(err, "make a foreign file")
	defer func() { _ = foreign.Close() }()
	steps := []int64{floor, d.free - floor - 3*budget/4, d.free - floor - budget/4, d.free - floor/2}
	for _, size := range steps {
		e.write(foreign, size)
		free := min(floor, d.free-size)
		e.eventually(fmt.Sprintf("the cache gives way to %d bytes of others", size), func() bool {
			_, names := e.cacheBytes("shared/cache") // which stay
			return d.left() >= free-names-writeUnit
		})
		if t := h.diskTier(); t.Budget > max(0, d.free-size-floor)+writeUnit {
			e.eventually("status tells the room there is", func() bool { return h.diskTier().Budget <= max(0, d.free-size-floor)+writeUnit })
		}
	}
	e.good("while others fill the disk", <-reads)
	e.eventually("nothing can be cached", func() bool { return strings.HasPrefix(h.status().Says, "nothing can be cached in "+d.dir) })
	e.cold(h.dir, list)
	e.good("without room", epoch(h.dir, list, 9, 8, 0))
	e.must(errors.Join(foreign.Truncate(0), os.Remove(foreign.Name())), "remove what is foreign")
	e.eventually("status is well", func() bool { return h.status().Says == "ok" })
	fill("the cache grows back")
	h.quit()
}

// fileSet loads about so many bytes: half small files, half such as get a file of
// their own in a cache directory.
func (e *env) fileSet(o *server, bytes int64) []hearthtest.File {
	e.Helper()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(10, int(bytes/2/(110<<10)/10)))
	for i := range 8 {
		f := hearthtest.File{Path: fmt.Sprintf("large/%d", i), Size: bytes/16 + int64(i)}
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
		list = append(list, f)
	}
	return list
}

// write makes a file so large, as a program writes that tries again while the disk
// is full.
func (e *env) write(f *os.File, size int64) {
	e.Helper()
	at, err := f.Seek(0, io.SeekEnd)
	e.must(err, "seek")
	piece := make([]byte, 1<<20)
	e.eventually(fmt.Sprintf("others can write %d bytes", size), func() bool {
		for at < size {
			n, err := f.Write(piece[:min(int64(len(piece)), size-at)])
			at += int64(n)
			if errors.Is(err, syscall.ENOSPC) {
				return false
			}
			e.must(err, "write a foreign file")
		}
		return true
	})
	e.must(f.Sync(), "sync a foreign file")
}
