package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Of the crash matrix: the disk's two budgets, one that holds all and one that has
// to evict half of it, and how long a killed node may take to serve again, which is
// ten times what it takes on a busy machine.
const (
	crashBudget = 96 << 20
	crashShrunk = 32 << 20
	// crashSpare: a disk that has so little room, or less, may have evicted something,
	// and so much at most. Where names grow by a page beyond the budget, the entry that is
	// worth the least goes, and that may be a whole object of 4 MiB; two of them, since
	// names may grow again.
	crashSpare = 10 << 20
	crashReady = 10 * time.Second
)

// phase is what a node is at when it is killed.
type phase struct {
	name string
	// most bounds the number of things that it is seen doing before the kill: changes
	// of its cache directory, or requests that reach the origin.
	most     int
	changes  func(happening) bool
	requests func(p *proxied) int64
	// names, if not 0, bounds the changes of the names' database that half of the kills
	// are counted by instead.
	names int
	// starting: the things are counted from the start of the process on.
	starting bool
	// evicts: a reopened node may have to fetch again what was held. Else it has all of
	// that where the disk has room (crashes.full): a kill takes nothing from the page cache,
	// so how often it is synced does not count, and the write queue was seen empty.
	evicts bool
	// before happens at the origin before it, during while it is counted.
	before func(c *crashes)
	during func(c *crashes, ctx context.Context)
	// crowded, if not nil, tells after a kill whether it came within the phase, by how much
	// the disk holds beyond its budget.
	crowded func(beyond int64) bool
	// other, if not nil, is what the node is at instead for each second kill.
	other *phase
}

func phases() []phase {
	lists := func(p *proxied) int64 { return p.Stats().List.Requests }
	asks := func(p *proxied) int64 { return p.Stats().Head.Requests + p.Stats().List.Requests }
	return []phase{
		{name: "fill", most: 40, changes: written,
			before: func(c *crashes) { c.overwrite(len(c.objects) / 3) }, during: (*crashes).readAll},
		// A start with a smaller budget is still evicting where it holds more than that; a node
		// with that budget is where its disk is full, and each eviction is for what a reader brings.
		{name: "evict", most: 16, changes: given, starting: true, evicts: true, before: (*crashes).fill, crowded: func(beyond int64) bool { return beyond > 0 },
			other: &phase{name: "evict", most: 24, changes: given, evicts: true, before: (*crashes).crowd, during: (*crashes).readAll,
				crowded: func(beyond int64) bool { return beyond > -crashSpare }}},
		{name: "list", most: 10, requests: lists, names: 6,
			before: (*crashes).rename, during: (*crashes).listAll},
		{name: "refresh", most: 150, requests: asks, names: 20,
			before: func(c *crashes) { c.overwrite(8); c.rename() }, during: (*crashes).readAll},
		{name: "start", most: 65, changes: func(happening) bool { return true }, starting: true},
	}
}

// crashes is a run of the matrix, on one cache directory.
type crashes struct {
	*writing // the objects, and what was seen of them
	p        *proxied
	rng      *rand.Rand
	seed     uint64
	base     settings
	set      settings             // of the node that runs
	h        *hearth              // it
	nodes    map[changing]*hearth // by what differs between them
	wide     *wideNames
	last     map[*object]int // version that was put last
	held     map[*object]int // version of which all blocks were on the disk
	full     bool            // since then the disk may have been full
	counts   map[string]int  // of kills, by phase
	missed   int             // kills that came outside of their phase
	stuck    int             // kills whose process did not end by itself
	left     int             // findings of last writes
	clean    int             // ends whose directory was found clean
	slowest  time.Duration   // until a killed node served
	before   int64           // bytes that the origin had sent before the node was started
	most     time.Duration   // that names may have been old so far
	mu       sync.Mutex      // guards listing
	listing  time.Duration   // the longest that a listing took
}

// changing are the settings that differ between kills.
type changing struct{ disk, cache, open string }

// crashMatrix kills a node by SIGKILL at a random point of each phase, again and
// again on one cache directory, while the origin changes between the kills. Each
// time it is ready in seconds, shows no byte that is wrong or older than allowed,
// serves what it held, and its budget and its account of the disk are right.
func crashMatrix(e *env) {
	kills := map[level]int{all: 3, full: 40}[e.level] // of each phase
	c := newCrashes(e)
	list := phases()
	for range kills {
		for _, i := range c.rng.Perm(len(list)) {
			for !c.once(list[i]) {
				if c.missed++; c.missed > kills*len(list) {
					e.Fatalf("%d attempts came outside of their phase; in it: %v", c.missed, c.counts)
				}
			}
		}
	}
	c.quit()
	for _, p := range list {
		e.detail += fmt.Sprintf("%s %d, ", p.name, c.counts[p.name]) // of evict every second by readers
	}
	e.detail += fmt.Sprintf("%d of a new directory, %d outside of their phase, %d that the next node had to cut off, %d leftovers of last writes, %d clean ends, ready within %v, %s=%d",
		c.counts["new"], c.missed, c.stuck, c.left, c.clean, c.slowest.Round(10*time.Millisecond), hearthtest.SeedVariable, c.seed)
}

func newCrashes(e *env) *crashes {
	o := e.origin()
	c := &crashes{writing: &writing{e: e, o: o, start: time.Now(), rules: "bounded(500ms)"}, p: e.proxy(o), nodes: map[changing]*hearth{},
		last: map[*object]int{}, held: map[*object]int{}, counts: map[string]int{}}
	c.seed = e.seed()
	c.rng = rand.New(rand.NewPCG(c.seed, 12))
	// Packed objects of part of a block and of a whole one, and such as get a file.
	for _, f := range e.load(o, hearthtest.DataSet{Groups: []hearthtest.Group{
		{Dir: "small", Dirs: 4, Files: 40, Min: 16 << 10, Max: 240 << 10},
		{Dir: "block", Dirs: 1, Files: 12, Min: 1 << 20, Max: 1 << 20},
		{Dir: "large", Dirs: 1, Files: 5, Min: 4<<20 + 5, Max: 4<<20 + 9999}}}) {
		c.objects = append(c.objects, &object{File: f, past: history{{version: 0}}, changed: make(chan struct{})})
	}
	c.wide = newWideNames(c)
	c.base = settings{endpoint: c.p.endpoint, ram: "16MiB", disk: strconv.Itoa(crashBudget), fresh: c.rules, mount: []string{"--open", "none"}}
	c.set = c.base
	c.h = c.node(c.set)
	c.reopen()
	c.verify(phase{name: "none", evicts: true})
	return c
}

// node is the one of these settings; it has a process, or had one, or will have.
func (c *crashes) node(set settings) *hearth {
	key := changing{set.disk, set.cache, fmt.Sprint(set.mount)}
	if c.nodes[key] == nil {
		c.nodes[key] = c.e.configure(c.o, set)
	}
	return c.nodes[key]
}

// use has a node of these settings run, and no other.
func (c *crashes) use(set settings) {
	c.e.Helper()
	h := c.node(set)
	if h == c.h {
		return
	}
	if c.h != nil {
		c.quit()
	}
	c.h, c.set = h, set
	h.launch(c.o, set)
}

// once kills the node in a phase and looks at what it left and at the node that
// follows it. False: the phase was over before.
func (c *crashes) once(p phase) bool {
	e := c.e
	e.Helper()
	if p.other != nil && c.counts[p.name]%2 == 1 {
		p = *p.other
	}
	kept, full := maps.Clone(c.held), c.full
	set := c.draw(p)
	if p.before != nil {
		p.before(c)
	}
	if p.starting {
		c.end()
		c.h, c.set = c.node(set), set
	} else {
		c.use(set)
	}
	hit := c.kill(p)
	c.room()
	c.atRest(c.cacheName())
	c.reopen()
	c.kept(p)
	c.verify(p)
	if hit {
		c.counts[p.name]++
	}
	if set.cache != "" { // made for this kill alone
		if hit {
			c.counts["new"]++
		}
		c.quit()
		c.h = nil
		e.must(os.RemoveAll(e.path(set.cache)), "remove a cache directory")
		c.use(c.base)
		c.held, c.full = kept, full
	}
	return hit
}

// kill has the node do what the phase is, and kills it meanwhile.
func (c *crashes) kill(p phase) (hit bool) {
	c.e.Helper()
	t := c.trap(p)
	if p.starting {
		c.h.spawn(c.o, c.set)
	}
	t.arm(c.h)
	ctx, stop := context.WithCancel(c.e.ctx)
	var busy sync.WaitGroup
	if p.during != nil {
		busy.Go(func() { p.during(c, ctx) })
	}
	hit = t.wait()
	stop()
	up := len(mountsBelow(c.h.dir)) > 0
	c.kill9()
	busy.Wait()
	t.close()
	data, names := c.e.cacheBytes(c.cacheName())
	beyond := data + names - c.limit()
	c.e.Logf("killed in phase %s (%v) after %d: %s; hit: %v, mounted: %v, %d bytes beyond the budget", p.name, c.set.mount, t.at, t.last, hit, up, beyond)
	return hit && (p.name != "start" || !up) && (p.crowded == nil || p.crowded(beyond))
}

// end ends the node that runs; half of the time there is something to recover for
// the next.
func (c *crashes) end() {
	c.e.Helper()
	if c.rng.IntN(2) == 0 {
		c.kill9()
	} else {
		c.quit()
	}
}

// kill9 kills the node. One that was just telling the kernel of a changed name, in
// whose directory a reader waits for it, cannot end before the next node cuts its
// mount off; nor, perhaps, can that one, whom the same readers wait for. How often is
// shown in the table.
func (c *crashes) kill9() {
	c.e.Helper()
	for !c.ends() {
		c.stuck++
		hung := c.h.process
		c.e.Logf("%s was killed and cannot end", hung.name)
		c.h.launch(c.o, c.set)
		c.h.waitFor("mounted " + c.h.dir)
		select {
		case <-hung.done:
		case <-time.After(crashReady):
			c.e.Fatalf("%s was killed, could not end, and was not cut off", hung.name)
		}
	}
	c.h.kill9()
}

// ends kills the node and reports whether it ended by itself.
func (c *crashes) ends() bool {
	_ = c.h.Process.Kill()
	select {
	case <-c.h.done:
		return true
	case <-time.After(crashReady):
		return false
	}
}

// cacheName is where the node keeps its cache, below the scenario's directory.
func (c *crashes) cacheName() string {
	if c.set.cache != "" {
		return c.set.cache
	}
	return "cache"
}

// draw says how the node runs that is to be killed. A third of the starts is of
// a new cache directory.
func (c *crashes) draw(p phase) settings {
	set := c.base
	if c.e.variant == "" && c.rng.IntN(2) == 0 {
		set.mount = []string{"--open", "passthrough"}
	}
	switch {
	case p.name == "evict":
		set.disk = strconv.Itoa(crashShrunk)
	case p.name == "start" && c.rng.IntN(3) == 0:
		set.cache = "cache-new"
		c.e.must(os.Mkdir(c.e.path(set.cache), 0o700), "make a cache directory")
		clear(c.held)
	}
	return set
}

// reopen starts the killed node again, and holds how long it takes to serve a read
// against the bound.
func (c *crashes) reopen() {
	c.e.Helper()
	c.before = c.p.bytes()
	begun := time.Now()
	c.h.launch(c.o, c.set)
	_, err := c.whole(c.h.dir, c.objects[0])
	c.e.must(err, "read from a reopened node")
	took := time.Since(begun)
	if c.slowest = max(c.slowest, took); took > crashReady+2*time.Second {
		c.e.Errorf("a killed node served after %v", took)
	}
}

// overwrite gives n objects their next version, by eight connections.
func (c *crashes) overwrite(n int) {
	c.e.Helper()
	var next atomic.Int64
	var puts sync.WaitGroup
	order := c.rng.Perm(len(c.objects))[:n]
	for _, i := range order {
		c.last[c.objects[i]]++
	}
	for range 8 {
		puts.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				x := c.objects[order[i]]
				if err := c.changeOne(x, c.last[x], 9, c.put); err != nil {
					c.e.Error(err)
				}
			}
		})
	}
	puts.Wait()
}

// whole reads an object through one open, all of it.
func (c *crashes) whole(dir string, x *object) (sighting, error) {
	s := sighting{blank: true, opened: c.now()}
	f, err := os.Open(filepath.Join(dir, x.Path))
	s.open = c.now()
	if err != nil {
		return s, fmt.Errorf("open: %w", err)
	}
	defer func() { _ = f.Close() }()
	buf := make([]byte, 256<<10)
	for off := int64(0); off < x.Size; off += int64(len(buf)) {
		if stop, err := c.piece(&s, x, f.ReadAt, buf, off); stop || err != nil {
			return s, err
		}
	}
	return s, nil
}

// readers has eight readers read all objects, in an order of the seed, and notes
// what they saw; failed is told of what did not go well.
func (c *crashes) readers(ctx context.Context, seed uint64, failed func(error)) {
	order := rand.New(rand.NewPCG(seed, 3)).Perm(len(c.objects))
	dir := c.h.dir
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(order)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				x := c.objects[order[i]]
				s, err := c.whole(dir, x)
				if err != nil {
					failed(err)
					continue
				}
				x.mu.Lock()
				x.seen = append(x.seen, s)
				x.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// fill has the disk hold more than the smaller budget.
func (c *crashes) fill() {
	if c.set.disk != c.base.disk {
		c.use(c.base)
		c.readers(c.e.ctx, c.seed, func(err error) { c.e.Errorf("filling: %v", err) })
	}
}

// crowd has a node with the smaller budget hold all that it may, of which a third is
// then replaced at the origin.
func (c *crashes) crowd() {
	set := c.base
	set.disk = strconv.Itoa(crashShrunk)
	c.use(set)
	c.readers(c.e.ctx, c.seed, func(err error) { c.e.Errorf("crowding: %v", err) })
	c.e.eventually("a disk within its budget", func() bool {
		data, names := c.e.cacheBytes(c.cacheName())
		return data+names <= crashShrunk+writeUnit
	})
	c.overwrite(len(c.objects) / 3)
}

// readAll reads until the node is dead.
func (c *crashes) readAll(ctx context.Context) {
	for seed := uint64(0); ctx.Err() == nil; seed++ {
		c.readers(ctx, c.seed+seed, c.killedOr(ctx))
	}
}

// killedOr takes the end of the node for the cause of an error, once it has ended.
func (c *crashes) killedOr(ctx context.Context) func(error) {
	h := c.h.process
	return func(err error) {
		select {
		case <-h.done:
		case <-ctx.Done():
		case <-time.After(crashReady):
			c.e.Errorf("before the kill: %v", err)
		}
	}
}
