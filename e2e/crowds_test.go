package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

// openHandles holds 10,000 open files at once, by four processes that read them
// all the time, over a node that may have 320 descriptors: open files cost it
// none, and what does not fit into them is shed, never an error.
func openHandles(open string) func(e *env) {
	return func(e *env) {
		const ram, handles, readers, descriptors = 32 << 20, 10_000, 4, 320
		o := e.origin()
		list := e.load(o, e.set("D1s", 0, 0, 20, 100))
		var large []hearthtest.File
		for i := range 150 { // of two descriptors each
			f := hearthtest.File{Path: fmt.Sprintf("large/%03d", i), Size: 1<<20 + 4097 + int64(i)}
			e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
			large = append(large, f)
		}
		p := e.proxy(o)
		h := e.mount(o, settings{endpoint: p.endpoint, ram: fmt.Sprint(ram), mount: []string{"--open", open},
			wrap: []string{"prlimit", fmt.Sprintf("--nofile=%d:%d", descriptors, descriptors)}})
		list = append(list, large...)
		e.good("cold", epoch(h.dir, list, 1, 8, 0))
		if open == "passthrough" {
			h.lend(large)
		}
		base := h.metric("go_goroutines")
		var holders []*reader
		order := rand.New(rand.NewPCG(1, 12)).Perm(len(list))
		whole := map[string]bool{} // large files that are open
		for i := range readers {
			j := job{Op: "hold", Dir: h.dir, Loop: true}
			for k := range handles / readers {
				f := list[order[(i*handles/readers+k)%len(order)]]
				if j.Files = append(j.Files, f); strings.HasPrefix(f.Path, "large/") {
					whole[f.Path] = true
				}
			}
			holders = append(holders, e.reader(j))
		}
		e.eventually("all handles are open", func() (all bool) {
			n := 0
			for _, r := range holders {
				fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.Process.Pid))
				n += len(fds)
				select {
				case <-r.done:
					e.Fatalf("a reader of %d handles ended:\n%s", handles/readers, r.out)
				default:
				}
			}
			return n >= handles
		})
		for round := range uint64(2) {
			e.cold(h.dir, list)
			e.good("others, meanwhile", epoch(h.dir, list, round, 8, 0))
		}
		if want := map[bool]int{true: len(whole)}[open == "passthrough"]; h.lent() < want {
			e.Errorf("%d files are lent, at least %d are open and whole", h.lent(), want)
		}
		s := h.status()
		e.detail = fmt.Sprintf("%d of %d descriptors, %d goroutines", h.metric("process_open_fds"), descriptors, h.metric("go_goroutines"))
		for _, r := range holders {
			r.end()
			r.well("a reader of many handles")
		}
		if len(s.Problems) > 0 || h.diskTier().Errors > 0 || strings.Contains(h.out.String(), "too many open files") {
			e.Errorf("status says %q, the disk tier %+v; the node:\n%s", s.Says, h.diskTier(), h.out)
		}
		e.eventually("nothing is lent", func() bool { return h.lent() == 0 })
		h.backToBase(base)
		h.boundedMemory(ram, len(list))
		h.quit()
	}
}

// metric is a figure of the node's /metrics without labels.
func (h *hearth) metric(name string) int64 {
	h.e.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", h.socket())
	}}}
	r, err := client.Get("http://node/metrics")
	h.e.must(err, "ask for the metrics")
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	h.e.must(err, "read the metrics")
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			var f float64
			_, err := fmt.Sscan(v, &f)
			h.e.must(err, "read %q", line)
			return int64(f)
		}
	}
	h.e.Fatalf("no metric %s in:\n%s", name, text)
	return 0
}

// backToBase waits until goroutines are about as many as before: two for each
// connection that is kept for the next request, and some that the FUSE library and
// the disk's workers keep waiting.
func (h *hearth) backToBase(base int64) {
	h.e.Helper()
	const some = 2*64 + 64
	h.e.eventually(fmt.Sprintf("goroutines are about %d again", base), func() bool {
		now := h.metric("go_goroutines")
		if now <= base+some {
			h.e.Logf("%d goroutines before, %d after", base, now)
		}
		return now <= base+some
	})
}

// peak keeps the highest of a figure, looked at each 20 ms until stop is called.
func (h *hearth) peak(name string) (stop func() int64) {
	ended, highest := make(chan struct{}), make(chan int64, 1)
	go func() {
		most := int64(0)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				most = max(most, h.metric(name))
			case <-ended:
				highest <- most
				return
			}
		}
	}()
	return func() int64 { close(ended); return <-highest }
}

// millionNames lists a directory of a million names, all of them, and asks for
// names at random; others are served meanwhile, and memory stays bounded.
func millionNames(e *env) {
	const ram = 64 << 20
	count := map[level]int{all: 20_000, full: 1_000_000}[e.level]
	s := hearthtest.StartFakeS3(e.T)
	o := &server{Server: s, endpoint: s.Endpoint, access: s.AccessKey, secret: s.SecretKey, bucket: s.Bucket(e.T, "wide")}
	set := hearthtest.DataSet{Name: "wide", Groups: []hearthtest.Group{{Dir: "wide", Dirs: 1, Files: count, Min: 1, Max: 9}, {Dir: "other", Dirs: 1, Files: 50, Min: 1000, Max: 9000}}}
	begun := time.Now()
	list := e.load(o, set)
	wide, others := list[:count], list[count:]
	e.detail = fmt.Sprintf("put in %.0f s", time.Since(begun).Seconds())
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, ram: fmt.Sprint(ram), fresh: "bounded(10m)", origin: ", timeout: 30s"}) // gofakes3 looks through all keys for each prefix
	_, err := os.ReadDir(filepath.Join(h.dir, "other"))
	e.must(err, "list the others")
	e.must(readAndStat(h.dir, others), "the others, first")
	if e.level < full {
		p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Delay: faultproxy.Duration(50 * time.Millisecond)}) // or the listing ends before others have read
	}
	base, before := h.metric("go_goroutines"), beside(h.status())
	var listing atomic.Bool
	listing.Store(true)
	served := make(chan error, 1)
	go func() {
		rounds := 0
		var err error
		for ; err == nil && listing.Load(); rounds++ {
			err = readAndStat(h.dir, others)
		}
		if err == nil && rounds < 2 {
			err = fmt.Errorf("they were served %d times while the directory was listed", rounds)
		}
		served <- err
	}()
	begun = time.Now()
	e.must(listedWhole(filepath.Join(h.dir, "wide"), wide), "list the directory")
	listing.Store(false)
	e.detail += fmt.Sprintf(", listed cold in %.1f s", time.Since(begun).Seconds())
	e.must(<-served, "others, meanwhile")
	begun = time.Now()
	e.must(listedWhole(filepath.Join(h.dir, "wide"), wide), "list the directory again")
	e.detail += fmt.Sprintf(", again in %.1f s", time.Since(begun).Seconds())
	random := rand.New(rand.NewPCG(3, uint64(count)))
	var some []hearthtest.File
	for range min(count, 20_000) {
		some = append(some, wide[random.IntN(count)])
	}
	var wg sync.WaitGroup
	failed := make([]error, 8)
	for i := range failed {
		wg.Go(func() { failed[i] = stat(h.dir, some[i*len(some)/8:(i+1)*len(some)/8]) })
	}
	wg.Wait()
	e.must(errors.Join(failed...), "stat names at random")
	for i := range 3 {
		if _, err := os.Stat(filepath.Join(h.dir, fmt.Sprintf("wide/absent-%d", i))); !errors.Is(err, os.ErrNotExist) {
			e.Errorf("an absent name: %v", err)
		}
	}
	h.backToBase(base)
	if b := beside(h.status()); b > before+4<<20 { // indexes, and a page of names
		e.Errorf("%d bytes of memory are held beside the RAM tier, %d were before", b, before)
	}
	h.boundedMemory(ram, count)
	e.detail += fmt.Sprintf(", %d MiB resident", h.metric("process_resident_memory_bytes")>>20)
	h.quit()
}

// beside is what counts against the RAM budget and is not the RAM tier's: Views of
// reads and writes under way, and indexes.
func beside(s *status.Status) int64 { return s.Memory.Used - s.Memory.Idle - s.Tiers[0].Used }

func readAndStat(dir string, list []hearthtest.File) error {
	r := epoch(dir, list, 1, 2, 0)
	return errors.Join(append(r.errors, stat(dir, list))...)
}

func stat(dir string, list []hearthtest.File) error {
	for _, f := range list {
		info, err := os.Stat(filepath.Join(dir, f.Path))
		if err != nil {
			return err
		}
		if info.Size() != f.Size {
			return fmt.Errorf("%s: %d bytes by stat, made with %d", f.Path, info.Size(), f.Size)
		}
	}
	return nil
}

// listedWhole lists a directory of such files: each once, and nothing else.
func listedWhole(dir string, list []hearthtest.File) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	missing := make(map[string]bool, len(list))
	for _, f := range list {
		missing[filepath.Base(f.Path)] = true
	}
	for {
		names, err := d.Readdirnames(4096)
		for _, name := range names {
			if !missing[name] {
				return fmt.Errorf("%s: %q is twice there, or should not be", dir, name)
			}
			delete(missing, name)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s: %d names of %d are missing", dir, len(missing), len(list))
	}
	return nil
}

// largeReaders: 64 processes read large objects of a slow origin, half of them in
// order and half at random, and 16 are killed in the midst: memory and goroutines
// stay bounded, the others have every byte, and nothing of it is left.
func largeReaders(e *env) {
	const ram, readers, killed = 64 << 20, 64, 16
	size := map[level]int64{all: 16 << 20, full: 64 << 20}[e.level]
	count := map[level]int{all: 16, full: 64}[e.level]
	o := e.origin()
	var list []hearthtest.File
	for i := range count {
		f := hearthtest.File{Path: fmt.Sprintf("large/%02d", i), Size: size + int64(i)*4099}
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
		list = append(list, f)
	}
	p := e.proxy(o)
	h := e.mount(o, settings{endpoint: p.endpoint, ram: fmt.Sprint(ram), disk: fmt.Sprint(sum(list) / 2), mount: []string{"--open", "none"}})
	base, before := h.metric("go_goroutines"), h.status()
	p.SetFirstByte(100 * time.Millisecond)
	most := h.peak("go_goroutines")
	var all []*reader
	for i := range readers {
		j := job{Op: []string{"read", "random"}[i%2], Dir: h.dir, Files: list[i/2%count : i/2%count+1], Loop: i < killed}
		all = append(all, e.reader(j))
	}
	e.eventually("they wait for the origin", func() bool { return p.Stats().InFlight > 8 && p.bytes() > size })
	for _, r := range all[:killed] {
		e.must(r.Process.Signal(syscall.SIGKILL), "kill a reader")
	}
	for _, r := range all[:killed] {
		r.exit(20 * time.Second)
	}
	for _, r := range all[killed:] {
		r.end()
		r.well("a reader of large objects")
	}
	peak := most()
	// Each READ is a goroutine, and what it waits for another one; and there are 64 connections.
	if bound := base + 20*readers; peak > bound {
		e.Errorf("%d goroutines for %d readers, %d before", peak, readers, base)
	}
	h.backToBase(base)
	e.eventually("Views are released but for those of the RAM tier", func() bool {
		s := h.status()
		return s.Memory.Views <= s.Tiers[0].Used>>20+int64(len(list))+1 && // each object has a short block
			beside(s) <= beside(before)+1<<20 // indexes
	})
	if s := h.status(); len(s.Problems) > 0 || strings.Contains(h.out.String(), "cannot be read") {
		e.Errorf("readers went away, and status says %q; the node:\n%s", s.Says, h.out)
	}
	e.detail = fmt.Sprintf("%d goroutines at most, %d before", peak, base)
	h.boundedMemory(ram, len(list))
	h.quit()
}
