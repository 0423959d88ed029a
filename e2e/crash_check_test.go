package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// wideNames are directories whose listings take several pages. Most names stay;
// some come and go.
type wideNames struct {
	dirs  []string
	stay  []string
	moves []string
	there map[string]bool // of moves, by directory and name
}

func newWideNames(c *crashes) *wideNames {
	w := &wideNames{there: map[string]bool{}}
	set := hearthtest.DataSet{Groups: []hearthtest.Group{{Dir: "wide", Dirs: 2, Files: 2300, Min: 700, Max: 700}}}
	for _, f := range c.e.load(c.o, set) {
		if dir := filepath.Dir(f.Path); !slices.Contains(w.dirs, dir) {
			w.dirs = append(w.dirs, dir)
		}
		if filepath.Dir(f.Path) == w.dirs[0] {
			w.stay = append(w.stay, filepath.Base(f.Path))
		}
	}
	for i := range 20 { // before, between and behind the others
		w.moves = append(w.moves, fmt.Sprintf("%06d+", i*150))
	}
	return w
}

// rename has some names of each wide directory come or go.
func (c *crashes) rename() {
	c.e.Helper()
	for _, dir := range c.wide.dirs {
		for range 4 {
			f := hearthtest.File{Path: dir + "/" + c.wide.moves[c.rng.IntN(len(c.wide.moves))], Size: 700}
			if c.wide.there[f.Path] = !c.wide.there[f.Path]; c.wide.there[f.Path] {
				c.e.must(c.o.PutFile(c.e.ctx, c.o.bucket, "", f, 0), "put %s", f.Path)
			} else {
				c.e.must(c.o.Delete(c.e.ctx, c.o.bucket, f.Path), "delete %s", f.Path)
			}
		}
	}
}

// listAll lists the wide directories until the node is dead.
func (c *crashes) listAll(ctx context.Context) {
	failed := c.killedOr(ctx)
	var wg sync.WaitGroup
	for _, dir := range c.wide.dirs {
		wg.Go(func() {
			pace := time.NewTicker(20 * time.Millisecond) // what the kernel keeps is no question to the node
			defer pace.Stop()
			for ctx.Err() == nil {
				if _, err := c.list(dir); err != nil {
					failed(err)
				}
				<-pace.C
			}
		})
	}
	wg.Wait()
}

// list lists a wide directory: what stays is there, and nothing that never was.
// exact: what comes and goes is as the origin has it.
func (c *crashes) list(dir string) (exact bool, err error) {
	begun := time.Now()
	entries, err := os.ReadDir(filepath.Join(c.h.dir, dir))
	if err != nil {
		return false, err
	}
	c.mu.Lock()
	c.listing = max(c.listing, time.Since(begun))
	c.mu.Unlock()
	found := map[string]bool{}
	for _, x := range entries {
		found[x.Name()] = true
	}
	for _, name := range c.wide.stay {
		if !found[name] {
			c.e.Errorf("%s lacks %s", dir, name)
			return false, nil
		}
		delete(found, name)
	}
	exact = true
	for _, name := range c.wide.moves {
		exact = exact && found[name] == c.wide.there[dir+"/"+name]
		delete(found, name)
	}
	if len(found) > 0 {
		c.e.Errorf("%s shows %v", dir, slices.Sorted(maps.Keys(found)))
	}
	return exact, nil
}

// verify reads all that there is through the node that runs, and holds it against
// what the origin had, what the cache held before, and the account of the disk.
func (c *crashes) verify(p phase) {
	e := c.e
	e.Helper()
	c.judge() // of the node that was killed
	var warm, cold int64
	for _, x := range c.objects {
		if v, ok := c.held[x]; ok && v == c.last[x] {
			warm += x.Size
		} else {
			cold += x.Size
		}
	}
	c.readers(e.ctx, c.rng.Uint64(), func(err error) { e.Errorf("after the kill in phase %s: %v", p.name, err) })
	c.room()
	c.asked(p, warm, cold)
	if p.name == "list" {
		for _, dir := range c.wide.dirs {
			e.eventually("the names of "+dir, func() bool {
				exact, err := c.list(dir)
				e.must(err, "list %s", dir)
				return exact || e.Failed()
			})
		}
	}
	seen := c.judge()
	c.settled(p)
	c.hold(seen)
	if e.Failed() {
		e.Fatalf("after the kill in phase %s; %s=%d", p.name, hearthtest.SeedVariable, c.seed)
	}
}

// asked holds what the origin sent since the kill against what was cached before it. Readers
// of an object ask for it in pieces, so that a block that the disk declined may be asked for
// again, by the next piece; and so may one that was evicted, where the disk is full.
func (c *crashes) asked(p phase, warm, cold int64) {
	c.e.Helper()
	const block, first = 1 << 20, 4 << 10 // a node first asks what its origin is
	declined := c.h.diskTier().Dirs[0].Declined
	missed := cold + c.mayLose(p, warm)
	again := min(missed, declined*block)
	if c.full {
		again = missed
	}
	asked := c.p.bytes() - c.before
	c.e.Logf("phase %s: the origin sent %d bytes, of %d, and %d again for %d declined blocks; full: %v", p.name, asked, missed, again, declined, c.full)
	if asked > missed+again+first {
		c.e.Errorf("after the kill in phase %s the origin sent %d bytes; %d were not cached before it, %d were, %d blocks were declined", p.name, asked, cold, warm, declined)
	}
}

// judge holds what was seen since the last time against what the bound allows,
// and returns the version that each object was seen in last.
func (c *crashes) judge() map[*object]int {
	c.e.Helper()
	c.most = max(c.most, c.bound(c.h), 20*c.listing)
	last := map[*object]int{}
	for _, x := range c.objects {
		slices.SortFunc(x.seen, func(a, b sighting) int { return int(a.opened - b.opened) })
		if err := x.past.check(x.seen, c.most+overload); err != nil {
			c.e.Errorf("%s, %d bytes: %v", x.Path, x.Size, err)
		}
		for _, s := range x.seen {
			if !s.blank && !s.stale {
				last[x] = s.version
			}
		}
		x.seen = nil
	}
	return last
}

// hold notes what the disk holds whole, of the versions that were seen last, once
// nothing waits to be written.
func (c *crashes) hold(seen map[*object]int) {
	c.e.Helper()
	c.e.eventually("all to be written", func() bool { return c.h.diskTier().Dirs[0].Queued == 0 })
	c.full = false
	c.room()
	clear(c.held)
	for _, x := range c.objects {
		s, err := c.h.client.Stat(c.e.ctx, "/"+x.Path)
		c.e.must(err, "stat %s", x.Path)
		if v, ok := seen[x]; ok && s.Held["disk"] == s.Blocks {
			c.held[x] = v
		}
	}
}

// room notes whether the disk is full, or was a moment ago, so that something may have
// been evicted.
func (c *crashes) room() {
	c.e.Helper()
	data, names := c.e.cacheBytes(c.cacheName())
	c.full = c.full || data+names > c.limit()-crashSpare
}

// limit is the budget of the disk.
func (c *crashes) limit() int64 {
	c.e.Helper()
	limit, err := strconv.ParseInt(c.set.disk, 10, 64)
	c.e.must(err, "read the budget")
	return limit
}

// mayLose is how much of what was held a reopened node may have to fetch again.
func (c *crashes) mayLose(p phase, held int64) int64 {
	switch {
	case p.evicts:
		return held
	case c.full:
		return min(held, crashSpare)
	}
	return 0
}

// atRest looks at what a killed node left: no more data than its budget and one
// write unit, and nothing that is damaged, or dead and not given back, but for what
// its last write left behind.
func (c *crashes) atRest(cache string) {
	c.e.Helper()
	if data, names := c.e.cacheBytes(cache); data > crashBudget+writeUnit {
		c.e.Errorf("a killed node left %d bytes of data and %d of names; budget %d", data, names, crashBudget)
	}
	if _, err := os.Lstat(filepath.Join(c.e.path(cache), "hearth.json")); errors.Is(err, fs.ErrNotExist) {
		return // it was about to make the directory
	}
	found, _ := c.h.tryFsck()
	for _, f := range found.Findings {
		if c.left++; f.Kind != check.Leftover {
			c.e.Errorf("a killed node left: %s", f)
		}
	}
}

// quit ends the node that runs, and checks what it leaves: nothing that a check finds.
func (c *crashes) quit() {
	c.e.Helper()
	c.h.quit()
	c.clean++
	for _, f := range c.h.fsck(0).Findings {
		c.e.Errorf("a node that ended left: %s", f)
	}
}

// kept holds what the reopened node has on its disk against what was there before
// the kill.
func (c *crashes) kept(p phase) {
	c.e.Helper()
	var warm, lost int64
	var gone []string
	for _, x := range c.objects[1:] { // the first was read to see that it serves
		if v, ok := c.held[x]; !ok || v != c.last[x] {
			continue
		}
		warm += x.Size
		s, err := c.h.client.Stat(c.e.ctx, "/"+x.Path)
		c.e.must(err, "stat %s", x.Path)
		if s.Held["disk"] != s.Blocks {
			lost += x.Size
			gone = append(gone, x.Path)
		}
	}
	c.room()
	c.e.Logf("of %d bytes the kill in phase %s lost %d; full: %v", warm, p.name, lost, c.full)
	if lost > 0 && !p.evicts {
		c.e.Logf("gone: %v", gone)
	}
	if lost > c.mayLose(p, warm) {
		c.e.Errorf("after the kill in phase %s %d bytes of %d are gone; full: %v", p.name, lost, warm, c.full)
	}
}

// settled waits until the reopened node's account agrees with the files that there
// are, all of which are its own, and is within the budget.
func (c *crashes) settled(p phase) {
	e := c.e
	e.Helper()
	limit, cache := c.limit(), c.cacheName()
	var why error
	late := time.Now().Add(crashReady)
	e.eventually("an account that agrees with the files", func() bool {
		used := c.h.diskTier().Used
		data, names := e.cacheBytes(cache)
		why = e.strays(cache)
		switch {
		case why != nil:
		case max(used-data-names, data+names-used) > 256<<10:
			why = fmt.Errorf("status says %d bytes, there are %d of data and %d of names", used, data, names)
		case data+names > limit+writeUnit:
			why = fmt.Errorf("%d bytes of data and %d of names; budget %d", data, names, limit)
		case p.name == "evict" && data+names < limit*6/10:
			why = fmt.Errorf("only %d bytes of data and %d of names are left; budget %d", data, names, limit)
		}
		return why == nil || time.Now().After(late)
	})
	if why != nil {
		e.Errorf("after the kill in phase %s: %v", p.name, why)
	}
	if s := c.h.status(); len(s.Problems) > 0 {
		e.Errorf("after the kill in phase %s status says %q, %+v", p.name, s.Says, c.h.diskTier())
	}
}

// strays says what lies in a cache directory that no node has use for.
func (e *env) strays(cache string) error {
	e.Helper()
	ours := regexp.MustCompile(`^(lock|hearth\.json|node-ids|open-modes\.json|scrub\.json|segments/(deaths|[0-9a-f]{8}\.segment)|objects/(FORMAT|[0-9a-f]{32}\.(data|sums))|names/.*)$`)
	root := e.path(cache)
	var all []error
	names, halves := 0, map[string]int{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		switch stem, half := strings.CutSuffix(strings.TrimSuffix(rel, ".sums"), ".data"); {
		case !ours.MatchString(rel):
			all = append(all, fmt.Errorf("%s is there", rel))
		case strings.HasPrefix(rel, "names/"):
			names++
		case half, strings.HasSuffix(rel, ".sums"):
			halves[stem]++
		}
		return nil
	})
	e.must(err, "look through the cache directory")
	for stem, n := range halves {
		if n != 2 {
			all = append(all, fmt.Errorf("of %s only a half is there", stem))
		}
	}
	if names > 60 {
		all = append(all, fmt.Errorf("%d files of names", names))
	}
	return errors.Join(all...)
}
