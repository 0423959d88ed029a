package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpBesideReaders warms up directories while nobody reads, and then while somebody reads
// a page all the time: the origin is asked for many at once, and then for two. What is
// present all, each name of it many times, is found so beside the reader, too. That the two
// steps and the names take half a core is held by the Gate's tests, in virtual time.
func warmUpBesideReaders(e *env) {
	const times, rounds, steps = 10, 6, 2
	o := e.origin()
	load := hearthtest.Group{Dir: "load/d", Dirs: rounds + 1, Files: 40, Min: 256 << 10, Max: 256 << 10}
	list := e.load(o, hearthtest.DataSet{Name: "share", Groups: []hearthtest.Group{load,
		{Dir: "present", Dirs: 8, Files: 100, Min: 1 << 10, Max: 1 << 10}, {Dir: "read", Dirs: 1, Files: 1, Min: 1 << 20, Max: 1 << 20}}})
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, mount: []string{"--open", "none"}, fresh: "immutable"})
	defer h.quit()
	e.walk(h) // so that a warm-up asks for bytes alone
	present := e.dirsOf(filesBelow(list, "present"))
	h.job(0, append([]string{"warmup", "/read"}, present...)...)
	p.SetFirstByte(40 * time.Millisecond) // requests that may be under way at once are
	dirs := e.dirsOf(filesBelow(list, "load"))
	loads := func(dir string) (most int64) {
		p.Reset()
		want := warmup.Tally{Files: 40, Bytes: 10 << 20}
		if v := h.job(0, "warmup", dir); v.Counters.Done != want {
			e.Errorf("a warm-up of %s: %+v, want %+v", dir, v.Counters, want)
		}
		return p.Stats().Most
	}
	alone := loads(dirs[0])
	if alone <= 4*steps {
		e.Errorf("while nobody reads at most %d requests were under way at once", alone)
	}
	r := e.readsOn(filepath.Join(h.dir, filesBelow(list, "read/")[0].Path))
	defer r.stop()
	from := r.count.Load()
	e.eventually("a hundred reads", func() bool { return r.count.Load() > from+100 })
	again := e.path("list")
	e.must(os.WriteFile(again, []byte(strings.Repeat(strings.Join(present, "\n")+"\n", times)), 0o600), "write a list")
	if v := h.job(0, "warmup", "-f", again); v.Counters.Present.Files != 800*times {
		e.Errorf("a warm-up of what is all present: %+v", v)
	}
	beside := int64(0)
	for _, dir := range dirs[1:] {
		r.pause.Store(0)
		beside = loads(dir)
		pause := time.Duration(r.pause.Load())
		e.Logf("beside a reader that paused for %v at most: %d requests at once", pause, beside)
		if beside <= steps {
			break
		}
		if pause < readerPause {
			e.Errorf("beside a reader that paused for %v at most %d requests were under way at once, not %d", pause, beside, steps)
		}
	}
	e.detail = fmt.Sprintf("%d requests at once while nobody reads, %d beside a reader", alone, beside)
}

// dirsOf are the directories of files, as paths of the tree.
func (e *env) dirsOf(list []hearthtest.File) (dirs []string) {
	for _, f := range list {
		if dir := "/" + filepath.Dir(f.Path); len(dirs) == 0 || dirs[len(dirs)-1] != dir {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// readerPause between two reads is short enough for the gate of warm-up, however late it
// looks: it takes readers for gone after 250 ms. A busy machine may take longer, and then a
// round shows nothing.
const readerPause = 100 * time.Millisecond

// pageReader reads on until it is stopped.
type pageReader struct {
	count, pause atomic.Int64 // of reads; the longest from one to the next, in ns
	stop         func()
}

// readsOn reads a page of a file past the kernel's cache some hundred times a second.
func (e *env) readsOn(name string) *pageReader {
	e.Helper()
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
	e.must(err, "open what the reader reads")
	ended, done := make(chan struct{}), make(chan struct{})
	r := &pageReader{stop: func() { close(ended); <-done; _ = f.Close() }}
	go func() {
		defer close(done)
		page := make([]byte, 2<<12)
		page = page[-int(uintptr(unsafe.Pointer(&page[0])))&(1<<12-1):][:1<<12] // aligned
		last := time.Now()
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			if _, err := f.ReadAt(page, 0); err != nil {
				e.Errorf("the reader: %v", err)
				return
			}
			r.count.Add(1)
			now := time.Now()
			r.pause.Store(max(r.pause.Load(), int64(now.Sub(last))))
			last = now
		}
	}()
	return r
}
