package e2e

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/e2e/sim"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// evicting is a mount whose disk holds half of a set, and a simulator that is
// asked for the same.
type evicting struct {
	*env
	h      *hearth
	p      *proxied
	limit  int64
	load   []sim.Request
	keys   map[string]uint32 // of files
	phase  int
	shares []float64 // by phase, as counted at the origin
	lost   []float64 // by phase: the part of its requests that the disk was behind with
	unique int64
	cache  string // its directory
}

// eviction reads a set of twice the disk's budget for four epochs, then scans as
// much again once, changes to another set, and at last follows Zipf's law on a new
// mount - always with nothing in the page cache - and counts at the origin.
func eviction(e *env) {
	o := e.origin()
	sets := map[string][]hearthtest.File{}
	for _, name := range []string{"d1", "scan", "next"} {
		set := e.set("D1", 10, 100, 20, 100)
		set.Groups[0].Dir = name + "/class"
		sets[name] = e.load(o, set)
	}
	x := e.evicting(o, sum(sets["d1"])/2, "cache", "--no-prefetch")
	fourth := x.four(sets["d1"])
	x.epoch("scan", sets["scan"])
	after := x.epoch("after the scan", sets["d1"])
	// The scan's names take their room from the blocks, whose bytes are half of the set.
	if named := float64(x.names()) / float64(x.limit) / 2; after < fourth-0.03-named-x.behind() {
		e.Errorf("after the scan %.3f came without the origin, before it %.3f; names took %.3f of the set", after, fourth, named)
	}
	x.epoch("another set", sets["next"])
	x.epoch("another set, again", sets["next"])
	x.epoch("another set, third epoch", sets["next"])
	x.compare()
	x.h.quit()

	z := e.evicting(o, sum(sets["d1"])/4, "cache-zipf", "--no-prefetch")
	got := z.zipf(sets["d1"])
	lru, s3 := z.simulate(sim.LRU, z.limit).Share(0, 1), z.simulate(sim.S3FIFO, z.limit).Share(0, 1)
	e.Logf("Zipf: %.3f, LRU simulated %.3f, S3-FIFO simulated %.3f", got, lru, s3)
	if got < max(lru, s3)-0.03-z.behind() {
		e.Errorf("Zipf had %.3f without the origin, LRU simulated %.3f, S3-FIFO %.3f", got, lru, s3)
	}
	z.compare()
	z.h.quit()

	if e.level == full { // as users have it
		y := e.evicting(o, sum(sets["d1"])/2, "cache-prefetch")
		if fourth := y.four(sets["d1"]); fourth < 0.44 {
			e.Errorf("the fourth epoch had %.3f without the origin, at least 0.44", fourth)
		}
		y.h.quit()
	}
}

// four reads a set for four epochs, and returns the share of the last.
func (x *evicting) four(set []hearthtest.File) float64 {
	x.Helper()
	for range 3 {
		x.epoch("filling", set)
	}
	fourth := x.epoch("fourth epoch", set)
	x.sparing(sum(set))
	return fourth
}

// evicting mounts with a disk of so many bytes; the simulator knows nothing of a prefetch.
// The blocks have the same names in each run, whatever the origin's port: of 2,000 names
// one set in 400 puts a group before the policy by which it learns a new set an epoch late.
func (e *env) evicting(o *server, limit int64, cache string, flags ...string) *evicting {
	e.Helper()
	p := e.proxy(o)
	if e.level < full {
		p.SetFirstByte(15 * time.Millisecond) // an epoch takes several seconds: uses within one count once
	}
	h := e.mount(o, settings{endpoint: p.endpoint, ram: "16MiB", disk: strconv.FormatInt(limit, 10), cache: cache, fresh: "immutable",
		origin: ", identity: eviction", mount: flags})
	return &evicting{env: e, h: h, p: p, limit: limit, keys: map[string]uint32{}, cache: cache}
}

// epoch reads a set once in random order, and returns the share of files that
// the origin was not asked for.
func (x *evicting) epoch(what string, list []hearthtest.File) float64 {
	x.Helper()
	order := rand.New(rand.NewPCG(uint64(x.phase), 8)).Perm(len(list))
	return x.read(what, list, order)
}

// zipf reads the i-th file of some order with a chance in proportion to 1/i, three
// times as often as there are files.
func (x *evicting) zipf(list []hearthtest.File) float64 {
	x.Helper()
	random := rand.New(rand.NewPCG(9, 9))
	sums, all := make([]float64, len(list)), 0.0
	for i := range sums {
		all += 1 / float64(i+1)
		sums[i] = all
	}
	names := random.Perm(len(list))
	order := make([]int, 3*len(list))
	for i := range order {
		order[i] = names[sort.SearchFloat64s(sums, random.Float64()*all)]
	}
	return x.read("Zipf", list, order)
}

// read reads files in order by four threads, each out of the page cache again
// before the next, and notes the same for the simulator.
func (x *evicting) read(what string, list []hearthtest.File, order []int) float64 {
	x.Helper()
	before, declined := x.p.gets(), x.h.diskTier().Dirs[0].Declined
	var next atomic.Int64
	var mu sync.Mutex // guards r and arrived
	var arrived []int
	r := reading{files: len(order)}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for i := next.Add(1) - 1; i < int64(len(order)); i = next.Add(1) - 1 {
				f := list[order[i]]
				path := filepath.Join(x.h.dir, f.Path)
				mu.Lock()
				arrived = append(arrived, order[i])
				mu.Unlock()
				_, err := readWhole(path, f, 0, buf)
				if err == nil {
					err = dropPages(path)
				}
				if err != nil {
					mu.Lock()
					r.errors = append(r.errors, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, k := range order {
		r.bytes += list[k].Size
	}
	x.good(what, r)
	for i, k := range arrived {
		x.note(list[k], float64(i)/float64(len(order)))
	}
	x.phase++
	share := 1 - float64(x.p.gets()-before)/float64(len(order))
	lost := float64(x.h.diskTier().Dirs[0].Declined-declined) / float64(len(order))
	x.shares, x.lost = append(x.shares, share), append(x.lost, lost)
	x.Logf("%s: %.3f without the origin, the disk was behind with %.3f", what, share, lost)
	return share
}

// behind is how much the disk has cost so far: each block that it declined since it was
// behind may be missed once. A busy machine counts for no more than that.
func (x *evicting) behind() (part float64) {
	for _, lost := range x.lost {
		part += lost
	}
	return part
}

// note adds a request to the simulator's load. A file takes whole pages and a header.
func (x *evicting) note(f hearthtest.File, part float64) {
	const seconds = 600 // of a phase: longer than the clock's step, as in practice
	key, ok := x.keys[f.Path]
	if !ok {
		key = uint32(len(x.keys))
		x.keys[f.Path] = key
		x.unique += f.Size
	}
	x.load = append(x.load, sim.Request{Key: key, Size: (f.Size + 512 + 4095) &^ 4095,
		Now: uint32(1 + seconds*(float64(x.phase)+part)), Phase: x.phase})
}

// dropPages takes a file out of the page cache.
func dropPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// simulate runs a policy over what was read.
func (x *evicting) simulate(make sim.Maker, room int64) *sim.Outcome {
	return sim.Run(make(room, x.load), x.load)
}

// names is what the namespace takes of the budget now.
func (x *evicting) names() (bytes int64) {
	x.Helper()
	err := filepath.WalkDir(x.path(filepath.Join(x.cache, "names")), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // gone meanwhile
		}
		if info, err := d.Info(); err == nil {
			bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	x.must(err, "measure the names")
	return bytes
}

// compare holds the mount against the simulator, phase by phase, and counts what
// was written. The room for blocks is the budget less the names, which grow with
// each set: it is somewhere between what the last of them leave and the whole budget.
// Which blocks the policy watches goes by their names, which the simulator does not
// know: it tries several.
func (x *evicting) compare() {
	x.Helper()
	names := x.names()
	var runs []*sim.Outcome
	for i := range uint32(8) {
		runs = append(runs, x.simulate(sim.OursNamed(i), x.limit-names), x.simulate(sim.OursNamed(i), x.limit))
	}
	for phase, share := range x.shares {
		least, most := 1.0, 0.0
		for _, o := range runs {
			least, most = min(least, o.Share(phase, phase+1)), max(most, o.Share(phase, phase+1))
		}
		x.Logf("phase %d: %.3f without the origin, simulated %.3f to %.3f, with %d bytes of names or none", phase, share, least, most, names)
		if behind := x.lost[phase] + x.lost[max(0, phase-1)]; share < least-0.04-behind || share > most+0.04+behind {
			x.Errorf("phase %d: %.3f without the origin, simulated %.3f to %.3f", phase, share, least, most)
		}
	}
	x.sparing(x.unique)
}

// sparing holds what was written so far against the bytes of the files that were asked for,
// each counted once.
func (x *evicting) sparing(unique int64) {
	x.Helper()
	written := x.h.diskTier().Written
	x.Logf("%d bytes written, %d asked for", written, unique)
	if written == 0 || float64(written) > 1.5*float64(unique) {
		x.Errorf("%d bytes written for %d that were asked for", written, unique)
	}
}
