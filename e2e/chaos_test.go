package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Of a chaos run: the origin's timeout, within three times of which a system call that
// needs the origin ends; what a cache disk that does not answer adds to it; and for how
// long after a fault readers may still see it: a READ that failed is answered by its
// error for a second, a failed listing is left alone for two.
const (
	chaosTimeout = 400 * time.Millisecond
	chaosStall   = 4 * time.Second
	chaosGrace   = 3 * time.Second
)

// chaosVariable holds "SEED OPERATIONS" of `make chaos`, each of which may be left out: the
// seed is the scenario's then, and the level says how many operations there are.
const chaosVariable = "HEARTH_CHAOS"

// chaosMode is a pair of freshness and open mode that is drawn for each life of the node.
type chaosMode struct{ fresh, open string }

func chaosModes() []chaosMode {
	const bounded = "bounded(300ms)"
	return []chaosMode{{bounded, "none"}, {bounded, "passthrough"}, {bounded, "plain"}, {"strict", "passthrough"}, {"strict", "plain"},
		{"immutable", "none"}, {"immutable", "passthrough"}, {"immutable", "plain"}}
}

// chaos is one run. One goroutine draws all operations from the seed, each with a
// generator of its own, so that what an operation meets changes nothing of what follows:
// the same seed gives the same operations, though not the same timing of threads.
type chaos struct {
	*writing
	*sick // the origin, as the scenarios of sick origins have it
	seed  uint64
	rng   *rand.Rand
	disk  *device
	mode  chaosMode
	life  int           // of the node, counted
	slow  time.Duration // the slowest listing of earlier lives
	held  []*held
	stop  []*copier
	decks map[string][]int
	// ill is the origin's fault that stands, bad the disk's; "": none does.
	ill, bad string
	cure     func()
	sickness []span // when the origin was ill
	// whole has the version of which an object is whole in the cache, while the origin's
	// fault stands and nothing harms the cache.
	whole map[*object]int
	// spoilt: this life's cache has failed, and may take nothing for a while. Then parts of
	// a block are asked for, not the whole.
	spoilt  bool
	version int
	trace   []string

	mu     sync.Mutex // guards what follows: bursts have several readers
	counts map[string]int
	faults map[string]int
}

// held is a file that stays open while other things happen.
type held struct {
	x *object
	f *os.File
	s sighting
}

// chaosRun runs a bounded count of operations, drawn from a seed: readers of every kind,
// changes at the origin, faults of the origin, the disk and the cache's files, and ends
// of the node. Each read is held against what its freshness mode allows.
func chaosRun(e *env) {
	seed, ops := chaosSeed(e), chaosSize(e.level)
	e.detail = fmt.Sprintf("%d operations, seed %d", ops, seed)
	e.Logf("seed %d, %d operations: make chaos SEED=%d OPS=%d", seed, ops, seed, ops)
	o := e.exclusive()
	c := &chaos{writing: &writing{e: e, o: o, start: time.Now()}, sick: &sick{env: e, o: o}, seed: seed, rng: rand.New(rand.NewPCG(seed, 11)),
		decks: map[string][]int{}, counts: map[string]int{}, faults: map[string]int{}}
	e.Cleanup(func() {
		if e.Failed() {
			e.Logf("the operations:\n%s", strings.Join(c.trace, "\n"))
		}
	})
	c.prepare()
	c.p = e.proxy(o)
	c.names = e.nameServer()
	c.disk = e.device("cache", 128, "-O", "^has_journal")
	c.launch()
	for n := range ops {
		c.step(n)
		if c.counts["errors that nothing explains"]+c.counts["wrong bytes"] > 5 || e.ctx.Err() != nil {
			e.Errorf("given up after %d operations", n)
			break
		}
	}
	c.finish()
	c.table(ops)
}

// chaosSize is the number of operations.
func chaosSize(l level) int {
	_, count, _ := strings.Cut(os.Getenv(chaosVariable), " ")
	if n, err := strconv.Atoi(count); err == nil {
		return n
	}
	return map[level]int{all: 250, full: 3000}[l]
}

// chaosSeed is what the operations are drawn from.
func chaosSeed(e *env) uint64 {
	text, _, _ := strings.Cut(os.Getenv(chaosVariable), " ")
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n
	}
	return e.seed()
}

// chaosLimit is the watchdog's: ten times what the operations of `make chaos` take.
func chaosLimit() time.Duration {
	return max(3*time.Minute, time.Duration(chaosSize(all))*300*time.Millisecond)
}

// prepare makes the objects: packed ones, some of several blocks, and three that are
// never deleted, so that their directories stay. The last of these is lent to the kernel.
func (c *chaos) prepare() {
	for i := range 18 {
		f := hearthtest.File{Path: fmt.Sprintf("dir-%d/object-%02d", i%3, i), Size: int64(5000 + 30_000*i)}
		switch {
		case i == 2, i%6 == 4:
			f.Size = 3<<20 + 4097
		case i%6 == 5:
			f.Size = 7<<20 + int64(i)
		}
		x := &object{File: f, past: history{{version: 0}}, changed: make(chan struct{})}
		c.e.must(c.writing.o.PutFile(c.ctx, c.writing.o.bucket, "", f, 0), "put %s", f.Path)
		c.objects = append(c.objects, x)
	}
}

// draw gives the next of n things, each once before any comes again.
func (c *chaos) draw(deck string, n int) int {
	if len(c.decks[deck]) == 0 {
		c.decks[deck] = c.rng.Perm(n)
	}
	at := c.decks[deck][0]
	c.decks[deck] = c.decks[deck][1:]
	return at
}

// step draws an operation and does it.
func (c *chaos) step(n int) {
	type operation struct {
		name   string
		weight int
		do     func(rng *rand.Rand)
	}
	list := []operation{
		{"look", 24, func(rng *rand.Rand) { c.look(c.any(rng), rng) }},
		{"read whole", 8, func(rng *rand.Rand) { c.readWhole(c.any(rng), false) }},
		{"look, change, look again", 5, c.lookAgain}, {"burst", 6, c.burst}, {"list", 6, c.list}, {"change", 20, c.change},
		{"hold", 6, c.hold}, {"read what is held", 8, c.readHeld}, {"release", 3, func(*rand.Rand) { c.release(1) }},
		{"kill a reader", 3, c.killReader}, {"stop a reader", 2, c.stopReader}, {"let a reader go on", 3, func(*rand.Rand) { c.goOn(1) }},
		{"drop the page cache", 2, c.drop}, {"let the bound pass", 2, c.pass},
		{"damage", 6, func(rng *rand.Rand) { c.damage(rng, true) }}, {"remove the cache", 1, c.remove},
		{"origin falls ill", 7, c.fallIll}, {"disk falls ill", 4, c.breakDisk},
		{"end", 2, func(rng *rand.Rand) { c.restart(rng, false) }}, {"kill -9", 3, func(rng *rand.Rand) { c.restart(rng, true) }},
	}
	if c.ill != "" {
		list = append(list, operation{"origin is well", 22, func(*rand.Rand) { c.heal() }})
	}
	if c.bad != "" {
		list = append(list, operation{"disk is well", 22, func(*rand.Rand) { c.mendDisk() }})
	}
	sum := 0
	for _, o := range list {
		sum += o.weight
	}
	at := c.rng.IntN(sum)
	rng := rand.New(rand.NewPCG(c.rng.Uint64(), 12))
	for _, o := range list {
		if at -= o.weight; at < 0 {
			c.trace = append(c.trace, fmt.Sprintf("%4d %9v %s", n, c.now().Round(time.Millisecond), o.name))
			o.do(rng)
			return
		}
	}
}

// note adds to the last line of the trace.
func (c *chaos) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace[len(c.trace)-1] += ": " + fmt.Sprintf(format, args...)
}

func (c *chaos) any(rng *rand.Rand) *object { return c.objects[rng.IntN(len(c.objects))] }

func (c *chaos) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
}

// watch begins a system call and returns what ends it: one that takes longer than it may
// fails the run, which shows what the node does meanwhile.
func (c *chaos) watch(what string) (ended func()) {
	const most = 3*chaosTimeout + chaosStall + machineSlack
	late := time.AfterFunc(most, func() {
		c.add("errors that nothing explains")
		c.e.Errorf("%s takes longer than %v in life %d (%s, %s; origin %q, disk %q); the node's goroutines:\n%s",
			what, most, c.life, c.mode.fresh, c.mode.open, c.ill, c.bad, c.h.goroutines())
	})
	return func() { late.Stop() }
}

// open opens an object; nil: there is nothing to read, and what was seen is noted.
func (c *chaos) open(x *object) *held {
	k := &held{x: x, s: sighting{blank: true, opened: c.now(), life: c.life}}
	ended := c.watch("open " + x.Path)
	f, err := os.Open(filepath.Join(c.h.dir, x.Path))
	ended()
	k.s.open = c.now()
	k.s.bound, k.s.away = c.allowed(k.s.opened, k.s.open)
	switch {
	case err == nil:
		k.f = f
		return k
	case errors.Is(err, fs.ErrNotExist):
		k.s.version, k.s.blank = absent, false
	case errors.Is(err, syscall.ESTALE):
		k.s.stale, k.s.asked, k.s.told = true, k.s.opened, k.s.open
	default:
		c.failed("open "+x.Path, err, k.s.opened, needsPath)
	}
	k.close(c)
	return nil
}

// close ends the open and keeps what was seen.
func (k *held) close(c *chaos) {
	if k.f != nil {
		_ = k.f.Close()
	}
	c.add("opens")
	if k.s.stale {
		c.add("ESTALE")
	}
	k.x.mu.Lock()
	defer k.x.mu.Unlock()
	k.x.seen = append(k.x.seen, k.s)
}

// read reads at a page; false: nothing more may be read.
func (c *chaos) read(k *held, off int64, n int) bool {
	began := c.now()
	what := fmt.Sprintf("read %s at %d", k.x.Path, off)
	ended := c.watch(what)
	stop, err := c.piece(&k.s, k.x, k.f.ReadAt, make([]byte, n), off)
	ended()
	c.add("reads")
	if err != nil {
		c.failed(what, err, began, c.needsBytes(k))
	}
	return !stop && err == nil
}

// look opens an object once and reads some pieces; one in three drops what the kernel
// keeps of it.
func (c *chaos) look(x *object, rng *rand.Rand) {
	k := c.open(x)
	if k == nil {
		return
	}
	for range 1 + rng.IntN(4) {
		page := rng.Int64N((x.Size + hearthtest.PageSize - 1) / hearthtest.PageSize)
		if !c.read(k, page*hearthtest.PageSize, rng.IntN(48)*hearthtest.PageSize+100) {
			break
		}
	}
	if rng.IntN(3) == 0 {
		_ = unix.Fadvise(int(k.f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	k.close(c)
}

// readWhole reads an object from its beginning to its end and returns the version that it
// saw; false: there was none, or not all of it could be read. With drop the kernel keeps
// nothing of it.
func (c *chaos) readWhole(x *object, drop bool) (version int, ok bool) {
	k := c.open(x)
	if k == nil {
		return absent, false
	}
	off := int64(0)
	for off < x.Size && c.read(k, off, 64*hearthtest.PageSize) {
		off += 64 * hearthtest.PageSize
	}
	if drop {
		_ = unix.Fadvise(int(k.f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	k.close(c)
	return k.s.version, off >= x.Size
}

// burst has eight readers at once.
func (c *chaos) burst(rng *rand.Rand) {
	var readers sync.WaitGroup
	for range 8 {
		x, own := c.any(rng), rand.New(rand.NewPCG(rng.Uint64(), 13))
		readers.Go(func() { c.look(x, own) })
	}
	readers.Wait()
}

// list reads a directory: what is there and what is not must be as it was within what
// the freshness allows.
func (c *chaos) list(rng *rand.Rand) {
	dir := fmt.Sprintf("dir-%d", rng.IntN(3))
	began := c.now()
	done := c.watch("list " + dir)
	names, err := os.ReadDir(filepath.Join(c.h.dir, dir))
	done()
	ended := c.now()
	c.add("listings")
	if err != nil {
		c.failed("list "+dir, err, began, needsList)
		return
	}
	bound, away := c.allowed(began, ended)
	since := began - bound
	if away {
		since = 0
	}
	for _, x := range c.objects {
		if filepath.Dir(x.Path) != dir {
			continue
		}
		there := slices.ContainsFunc(names, func(d os.DirEntry) bool { return d.Name() == filepath.Base(x.Path) })
		if may := x.past.current(since, ended); !slices.ContainsFunc(may, func(v int) bool { return (v != absent) == there }) {
			c.add("wrong bytes")
			c.e.Errorf("a listing at %v shows %s: %v; its versions were %v", began, x.Path, there, may)
		}
	}
}

// change writes, deletes or brings back an object, past the proxy that fails.
func (c *chaos) change(rng *rand.Rand) { c.write(rng.IntN(len(c.objects)), rng.IntN(10)) }

func (c *chaos) write(at, dice int) {
	c.version++
	if at < 3 {
		dice = max(dice, 1) // its directory stays
	}
	if c.ill == "stopped" {
		return // the server takes no writes
	}
	c.e.must(c.changeOne(c.objects[at], c.version, dice, c.writing.put), "change %s", c.objects[at].Path)
	c.add("changes")
}

// lookAgain sees an object, changes it, and sees it again once the bound has passed.
func (c *chaos) lookAgain(rng *rand.Rand) {
	at := rng.IntN(len(c.objects))
	c.look(c.objects[at], rng)
	c.write(at, 3+rng.IntN(7))
	bound, _ := c.allowed(c.now(), c.now())
	<-time.After(min(bound, 2*time.Second)) // longer where a listing was slow: that bound is others' to wait for
	c.look(c.objects[at], rng)
}

func (c *chaos) hold(rng *rand.Rand) {
	if k := c.open(c.any(rng)); k != nil {
		c.held = append(c.held, k)
	}
	if len(c.held) > 6 {
		c.release(1)
	}
}

func (c *chaos) readHeld(rng *rand.Rand) {
	if len(c.held) == 0 {
		return
	}
	at := rng.IntN(len(c.held))
	k := c.held[at]
	page := rng.Int64N((k.x.Size + hearthtest.PageSize - 1) / hearthtest.PageSize)
	if !c.read(k, page*hearthtest.PageSize, rng.IntN(16)*hearthtest.PageSize+100) {
		k.close(c)
		c.held = slices.Delete(c.held, at, at+1)
	}
}

// release closes the n that are held longest.
func (c *chaos) release(n int) {
	for ; n > 0 && len(c.held) > 0; n-- {
		c.held[0].close(c)
		c.held = c.held[1:]
	}
}

// pass waits until a change is older than any bound.
func (c *chaos) pass(*rand.Rand) { <-time.After(300*time.Millisecond + overload) }

// finish takes all faults away; then every object is read at its last version, whole and
// without an error, within the bound that holds after a fault.
func (c *chaos) finish() {
	c.trace = append(c.trace, fmt.Sprintf("     %9v finish", c.now().Round(time.Millisecond)))
	c.heal()
	c.mendDisk()
	if c.mode.fresh == "immutable" { // it may show what it saw first
		c.end(false)
		c.mode = chaosModes()[0]
		c.mount()
	}
	c.leave()
	c.pass(nil)
	bound, _ := c.allowed(c.now(), c.now())
	over := c.now() + bound + 3*chaosTimeout + chaosGrace + machineSlack
	left := slices.Clone(c.objects)
	for {
		if left = slices.DeleteFunc(left, c.settled); len(left) == 0 {
			break
		}
		if c.now() > over || c.e.ctx.Err() != nil {
			c.add("errors that nothing explains")
			c.e.Errorf("with all faults taken away for %v, %s is not shown at its last version, %v", c.now()-over, left[0].Path, left[0].past[len(left[0].past)-1])
			break
		}
		<-time.After(100 * time.Millisecond)
	}
	for _, x := range c.objects {
		slices.SortFunc(x.seen, func(a, b sighting) int { return int(a.opened - b.opened) })
		if err := x.past.check(x.seen, 0); err != nil {
			c.add("wrong versions")
			c.e.Errorf("%s, %d bytes: %v\n%v", x.Path, x.Size, err, x.past)
		}
	}
	c.end(false)
	lives := c.counts["lives that lend files"]
	if lives == 0 || c.counts["opens lent"] > 0 {
		return
	}
	c.empty()
	c.mode = chaosModes()[1]
	c.mount()
	c.lend(30 * time.Second)
	c.end(false)
	if c.counts["opens lent"] == 0 {
		c.e.Errorf("in %d lives with passthrough, and one on an empty cache, no open was lent to the kernel", lives)
	}
}

// table prints what the run did and found.
func (c *chaos) table(ops int) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nchaos\tseed %d\t%d operations\t%d lives of the node\n", c.seed, ops, c.life)
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(c.faults)) {
		fmt.Fprintf(w, "fault\t%s\t%d\n", name, c.faults[name])
		sum += c.faults[name]
	}
	for _, name := range []string{"wrong bytes", "wrong versions", "errors that nothing explains"} {
		c.counts[name] += 0
	}
	for _, name := range slices.Sorted(maps.Keys(c.counts)) {
		fmt.Fprintf(w, "count\t%s\t%d\n", name, c.counts[name])
	}
	_ = w.Flush()
	c.e.detail += fmt.Sprintf(", %d faults, %d opens and %d reads checked, %d errors explained", sum, c.counts["opens"], c.counts["reads"], c.counts["errors while a fault stood"])
}
