package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// warmUpBesideReaders has a reader ask for a page all the time, which costs the node what
// it costs. A warm-up of what is all present, each name of it many times, and one of large
// objects that are not, cost half a core more at most, by the kernel's word, and some for
// Go's own work.
func warmUpBesideReaders(e *env) {
	const half, runtime, times = 0.5, 0.15, 50
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "share", Groups: []hearthtest.Group{
		{Dir: "present", Dirs: 8, Files: 500, Min: 1 << 10, Max: 1 << 10}, {Dir: "large", Dirs: 1, Files: 10, Min: 32 << 20, Max: 32 << 20},
		{Dir: "read", Dirs: 1, Files: 1, Min: 1 << 20, Max: 1 << 20}}})
	h := e.mount(o, settings{mount: []string{"--open", "none"}, fresh: "immutable"})
	defer h.quit()
	var present []string
	for i := range 8 {
		present = append(present, "/"+filepath.Dir(filesBelow(list, "present")[500*i].Path))
	}
	h.job(0, append([]string{"warmup", "/read"}, present...)...)
	reads, stop := e.readsOn(filepath.Join(h.dir, filesBelow(list, "read/")[0].Path))
	defer stop()
	e.eventually("a reader that reads", func() bool { return reads.Load() > 0 })
	alone, _ := h.cores(func() {
		from := reads.Load()
		e.eventually("a hundred reads", func() bool { return reads.Load() > from+100 })
	})
	phase := func(what string, do func()) {
		cores, took := h.cores(do)
		e.detail += fmt.Sprintf("%s %.2f cores for %v; ", what, cores, took.Round(time.Second/10))
		if cores > alone+half+runtime {
			e.Errorf("%s beside a reader: %.2f cores for %v, %.2f without", what, cores, took, alone)
		}
	}
	again := e.path("list")
	e.must(os.WriteFile(again, []byte(strings.Repeat(strings.Join(present, "\n")+"\n", times)), 0o600), "write a list")
	phase("present", func() {
		if v := h.job(0, "warmup", "-f", again); v.Counters.Present.Files != 4000*times {
			e.Errorf("a warm-up of what is all present: %+v", v)
		}
	})
	phase("loaded", func() {
		want := warmup.Tally{Files: 10, Bytes: 320 << 20}
		if v := h.job(0, "warmup", "/large"); v.Counters.Done != want {
			e.Errorf("large objects: %+v, want %+v", v.Counters, want)
		}
	})
	e.detail = fmt.Sprintf("reader alone %.2f cores; ", alone) + e.detail
}

// readsOn reads a page of a file past the kernel's cache some fifty times a second, and
// counts, until stop is called.
func (e *env) readsOn(name string) (count *atomic.Int64, stop func()) {
	e.Helper()
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECT, 0)
	e.must(err, "open what the reader reads")
	count = &atomic.Int64{}
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		page := make([]byte, 2<<12)
		page = page[-int(uintptr(unsafe.Pointer(&page[0])))&(1<<12-1):][:1<<12] // aligned
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			if _, err := f.ReadAt(page, 0); err != nil {
				e.Errorf("the reader: %v", err)
				return
			}
			count.Add(1)
		}
	}()
	return count, func() { close(ended); <-done; _ = f.Close() }
}

// cores is how much of a core the node took on average while do ran, and how long that was.
func (h *hearth) cores(do func()) (cores float64, took time.Duration) {
	h.e.Helper()
	cpu := func() time.Duration {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.Process.Pid))
		h.e.must(err, "read what the node took")
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		sum := 0
		for _, ticks := range f[11:13] { // utime and stime, of 10 ms
			n, err := strconv.Atoi(ticks)
			h.e.must(err, "read %q", text)
			sum += n
		}
		return time.Duration(sum) * 10 * time.Millisecond
	}
	began, before := time.Now(), cpu()
	do()
	took = time.Since(began)
	return (cpu() - before).Seconds() / took.Seconds(), took
}
