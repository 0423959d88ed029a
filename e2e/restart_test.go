package e2e

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// killed kills the node with SIGKILL while it fills its cache, after so many bytes as are
// drawn: what it said before to be on its disk is then served without the origin, and
// every byte is right.
func killed(e *env) {
	o := e.origin()
	list := e.load(o, fillSet())
	p := e.proxy(o)
	rng := rand.New(rand.NewPCG(e.seed(), 5))
	for range map[level]int{core: 2, all: 4, full: 10}[e.level] {
		killedOnce(e, o, p, list, rng)
	}
}

// fillSet has objects of the kinds that the disk keeps: packed ones of part of a
// block and of a whole one, and large ones with a file each; 555 MiB.
func fillSet() hearthtest.DataSet {
	return hearthtest.DataSet{Name: "fill", Groups: []hearthtest.Group{
		{Dir: "fill/small", Dirs: 4, Files: 100, Min: 60 << 10, Max: 160 << 10},
		{Dir: "fill/block", Dirs: 2, Files: 96, Min: 1 << 20, Max: 1 << 20},
		{Dir: "fill/large", Dirs: 1, Files: 64, Min: 5 << 20, Max: 5 << 20}}}
}

// killedOnce fills an empty cache until so many bytes have come, asks the node what its disk
// holds while it fills on, and kills it at once; the next node reads that.
func killedOnce(e *env, o *server, p *proxied, list []hearthtest.File, rng *rand.Rand) {
	e.must(os.RemoveAll(e.path("cache")), "empty the cache")
	// The bandwidth is what the disk tier writes even on a busy machine: what comes faster
	// is declined.
	set := settings{endpoint: p.endpoint, origin: ", bandwidth: 60MB/s", mount: []string{"--no-prefetch"}}
	h := e.mount(o, set)
	order := rng.Perm(len(list))
	total := sum(list)
	kill := p.bytes() + total*3/10 + rng.Int64N(total*3/10)
	ended := e.fills(h, list, order[:len(order)*9/10]) // so that it is not over before the kill
	e.eventually("the moment to kill", func() bool { return p.bytes() >= kill })
	var held []hearthtest.File
	e.eventually("a disk that holds some of it", func() bool { held = h.onDisk(list); return sum(held) >= total/20 })
	h.written()
	h.kill9()
	ended()
	e.Logf("killed after %d bytes, of which %d were on the disk", kill, sum(held))
	h.launch(o, set)
	before := p.gets()
	e.good("after kill -9", epoch(h.dir, held, 9, 8, 0))
	if n := p.gets() - before; n != 0 {
		e.Errorf("asked the origin %d times for what was on the disk before the kill", n)
	}
	h.quit()
}

// fills has 32 readers read files in order. What it returns waits for their end: the
// node's end is the only error that they may meet.
func (e *env) fills(h *hearth, list []hearthtest.File, order []int) (ended func()) {
	var next atomic.Int64
	var readers sync.WaitGroup
	killed := h.done
	for range 32 {
		readers.Go(func() {
			buf := make([]byte, 1<<20)
			for i := next.Add(1) - 1; i < int64(len(order)); i = next.Add(1) - 1 {
				f := list[order[i]]
				if _, err := readWhole(filepath.Join(h.dir, f.Path), f, 0, buf); err == nil {
					continue
				}
				select {
				case <-killed:
				case <-e.ctx.Done():
					e.Error("a read failed, and the node goes on")
				}
				return
			}
		})
	}
	return readers.Wait
}

// written waits until the disk has what it had taken by now. Its queue is part of what it
// holds, and a kill would lose that; it is written in the order of its coming, and what is
// written is more than the blocks' bytes by less than as much again.
func (h *hearth) written() {
	h.e.Helper()
	before := h.diskTier()
	h.e.eventually("what was queued to be written", func() bool {
		now := h.diskTier()
		return now.Dirs[0].Queued == 0 || now.Written-before.Written >= 2*before.Dirs[0].Queued
	})
}

// onDisk are the files of which the node says that its disk holds each block, if only in
// its queue.
func (h *hearth) onDisk(list []hearthtest.File) (held []hearthtest.File) {
	h.e.Helper()
	for _, f := range list {
		s, err := h.client.Stat(h.e.ctx, "/"+f.Path)
		h.e.must(err, "ask for %s", f.Path)
		if s.Held["disk"] == s.Blocks {
			held = append(held, f)
		}
	}
	return held
}
