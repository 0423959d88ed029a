package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// readers is what is left of W1 in state disk while a warm-up of another set runs.
func (b *bench) readers() error {
	const group = "readers of W1 D1 disk"
	if !b.wanted(group) {
		return nil
	}
	d1 := b.scaled("D1")
	// All of them at once: an immutable root never shows what comes later.
	if err := errors.Join(b.load(d1), b.load(b.scaled("D1s")), b.load(b.scaled("D2"))); err != nil {
		return err
	}
	l := launch{cache: "cache-readers", ram: "64MiB", open: "none"}
	if err := b.each(func(h *build) error { return h.loaded(l, d1) }); err != nil {
		return err
	}
	for _, name := range []string{"D1s", "D2"} {
		f := figure{name: group + " while " + name + " is warmed up", targets: []float64{0.8}, threads: 8, unit: "file"}
		if !b.wanted(f.name) {
			continue
		}
		other := b.scaled(name)
		err := b.distant(other, func() error { return b.besides(f, l, d1, other) })
		if err != nil {
			return err
		}
	}
	return nil
}

// loaded warms up a data set in a cache, and ends the node.
func (h *build) loaded(l launch, set hearthtest.DataSet) error {
	m, err := h.mount(l)
	if err != nil {
		return err
	}
	_, err = m.loadSet(set)
	return errors.Join(err, m.stop())
}

// besides compares readers with and without the warm-up of another set beside them.
func (b *bench) besides(f figure, l launch, set, other hearthtest.DataSet) error {
	paths := pathsOf(set)
	// The node was restarted, and the page cache is empty but for what the origin gives
	// out.
	run := func(h *build, r round, beside func() (end func() error, err error)) (s side, err error) {
		m, err := h.mount(l)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, m.stop()) }()
		if err := errors.Join(dropCaches(), b.origin.resident(other)); err != nil {
			return s, err
		}
		end, err := beside()
		if err != nil {
			return s, err
		}
		s, err = b.measure(m, func() (sum, error) { return epoch(under(m.dir, paths), f.threads, 700+r.number) })
		return s, errors.Join(err, end())
	}
	alone := baseline{Name: "readers alone", Command: "the same readers and node without a warm-up", Version: b.hearth.Version,
		run: func(r round) (side, error) {
			return run(b.hearth, r, func() (func() error, error) { return func() error { return nil }, nil })
		}}
	return b.compare(f, func(h *build, r round) (side, error) {
		return run(h, r, func() (func() error, error) { return h.loading(other) })
	}, alone)
}

// loading begins the warm-up of a set and returns once something was asked for. end
// makes sure that it was at work until then, and cancels it.
func (h *build) loading(set hearthtest.DataSet) (end func() error, err error) {
	node, err := admin.Dial("unix://" + h.socket())
	if err != nil {
		return nil, err
	}
	jobs, before := node.Jobs(), h.origin.proxy.Stats().Get.Requests
	v, err := jobs.Submit(h.ctx, warmup.Request{Targets: []string{"/" + folder(set)}}, nil, false)
	if err != nil {
		return nil, err
	}
	atWork := func() error {
		now, err := jobs.Get(h.ctx, v.ID)
		if err == nil && now.State.Over() {
			err = fmt.Errorf("the warm-up of %s was %s before the readers had ended: take a larger -scale", set.Name, now.State)
		}
		return err
	}
	for h.origin.proxy.Stats().Get.Requests == before {
		if err := atWork(); err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
	return func() error {
		defer node.Close()
		return errors.Join(atWork(), jobs.Cancel(h.ctx, v.ID))
	}, nil
}

// asked is what epochs after a warm-up asked the origin for.
type asked struct {
	Name      string  `json:"figure"`
	Freshness string  `json:"freshness"`
	Round     int     `json:"round"`
	Epochs    int     `json:"epochs"`
	Seconds   float64 `json:"seconds"`
	Get       int64   `json:"get"`
	Head      int64   `json:"head"`
	List      int64   `json:"list"`
	// Allowed is the most LIST requests that are wanted.
	Allowed int64 `json:"list_wanted"`
}

// afterWarmUp counts what epochs ask for: under immutable and within half the bound,
// and over two bounds.
func (b *bench) afterWarmUp() error {
	const name = "epochs after a warm-up"
	if !b.wanted(name) {
		return nil
	}
	set := b.scaled("D1")
	return b.distant(set, func() error {
		for round := range b.rounds {
			for _, fresh := range []string{"immutable", "bounded(10m)", "bounded(10s)"} {
				a := asked{Name: name, Freshness: fresh, Round: round}
				if _, err := b.hearth.fresh(fresh, func(m *mounted) (side, error) { return side{}, b.count(m, set, &a) }); err != nil {
					return err
				}
				b.asked = append(b.asked, a)
				if err := b.keep(map[string]any{"asked": a}); err != nil {
					return err
				}
				fmt.Fprintf(os.Stderr, "%s, %s, round %d: %d GET, %d HEAD, %d LIST of at most %d\n", name, fresh, round+1, a.Get, a.Head, a.List, a.Allowed)
			}
		}
		return nil
	})
}

// shortBound is that of bounded(10s).
const shortBound = 10 * time.Second

// count warms up, forgets what the kernel knows, and reads.
func (b *bench) count(m *mounted, set hearthtest.DataSet, a *asked) error {
	if _, err := m.loadSet(set); err != nil {
		return err
	}
	if err := dropCaches(); err != nil {
		return err
	}
	before, start := b.origin.proxy.Stats(), time.Now()
	for last := time.Duration(0); a.Epochs == 0 || a.Freshness == "bounded(10s)" && last < 2*shortBound; last = time.Since(start) {
		if _, err := epoch(under(m.dir, pathsOf(set)), 8, uint64(a.Epochs)); err != nil {
			return err
		}
		a.Epochs++
		a.Seconds = time.Since(start).Seconds()
	}
	now := b.origin.proxy.Stats()
	a.Get, a.Head, a.List = now.Get.Requests-before.Get.Requests, now.Head.Requests-before.Head.Requests, now.List.Requests-before.List.Requests
	if a.Freshness == "bounded(10s)" {
		a.Allowed = directories(set) * int64(math.Ceil(a.Seconds/shortBound.Seconds()))
	}
	return nil
}

// directories counts those that a set lies in, the root among them. Each is one page.
func directories(set hearthtest.DataSet) int64 {
	seen := map[string]bool{}
	for f := range set.Files() {
		for dir := path.Dir(f.Path); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
		}
	}
	return int64(len(seen))
}
