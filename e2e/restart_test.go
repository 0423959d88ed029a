package e2e

import (
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// killed kills the node with SIGKILL at random moments while it fills its cache:
// of what had been read a second before, at least 95 % is then served without
// the origin, and every byte is right.
func killed(e *env) {
	rounds := map[level]int{core: 2, all: 4, full: 10}[e.level]
	o := e.origin()
	list := e.load(o, e.set("D1", 30, 150, 60, 100))
	p := e.proxy(o)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 5))
	for round := range rounds {
		// A limit on the origin's bandwidth keeps the fill going until the kill,
		// however fast the machine is.
		set := settings{endpoint: p.endpoint, cache: "cache-" + string(rune('a'+round)), origin: ", bandwidth: 100MB/s"}
		h := e.mount(o, set)
		read, rate := readUntilKilled(e, h, list, uint64(round), time.Duration(1500+rng.IntN(1500))*time.Millisecond)
		e.Logf("killed while filling %.0f MB/s; %d of %d files had been read a second before", rate/1e6, len(read), len(list))
		if len(read) == 0 || len(read) > len(list)*9/10 {
			e.Fatalf("%d of %d files had been read a second before the kill: it did not come while filling", len(read), len(list))
		}
		h.launch(o, set)
		before := p.gets()
		e.good("after kill -9", epoch(h.dir, read, 9, 8, 0))
		if asked := p.gets() - before; float64(asked) > 0.05*float64(len(read)) {
			e.Errorf("asked the origin for %d of %d files that had been read a second before the kill", asked, len(read))
		}
		h.quit()
	}
}

// readUntilKilled reads in random order until the node has been killed, and
// returns the files that had been read a second before the kill, and the rate of
// filling in bytes a second.
func readUntilKilled(e *env, h *hearth, list []hearthtest.File, seed uint64, after time.Duration) ([]hearthtest.File, float64) {
	order := rand.New(rand.NewPCG(seed, 6)).Perm(len(list))
	at := make([]time.Time, len(list))
	var next, bytes atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	var dead atomic.Bool
	for range 16 {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for i := next.Add(1) - 1; i < int64(len(order)) && !dead.Load(); i = next.Add(1) - 1 {
				f := list[order[i]]
				n, err := readWhole(filepath.Join(h.dir, f.Path), f, 0, buf)
				if err == nil {
					at[order[i]] = time.Now()
					bytes.Add(n)
				} else if !dead.Load() {
					// The kill comes between the flag and the read: the end of the mount is
					// the only error allowed, and the process is then gone.
					<-h.done
				}
			}
		})
	}
	<-time.After(after) // the moment is random on purpose
	rate := float64(bytes.Load()) / time.Since(start).Seconds()
	dead.Store(true)
	moment := time.Now()
	h.kill9()
	wg.Wait()
	var read []hearthtest.File
	for i, t := range at {
		if !t.IsZero() && t.Before(moment.Add(-time.Second)) {
			read = append(read, list[i])
		}
	}
	return read, rate
}
