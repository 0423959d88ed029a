package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// scaled reduces a data set to the bench's scale, keeping its files as they are.
func (b *bench) scaled(name string) hearthtest.DataSet {
	set, err := hearthtest.Set(name)
	if err != nil {
		panic(err) // a name in this file
	}
	if b.scale >= 1 {
		return set
	}
	for i, g := range set.Groups {
		if g.Dirs > 1 {
			set.Groups[i].Dirs = max(1, int(float64(g.Dirs)*b.scale))
		} else {
			set.Groups[i].Files = max(2, int(float64(g.Files)*b.scale))
		}
	}
	return set
}

// lay puts a data set on the local file system and into the bucket, and returns
// its paths.
func (b *bench) lay(set hearthtest.DataSet) ([]string, error) {
	group := new(errgroup.Group)
	group.SetLimit(4)
	var paths []string
	for f := range set.Files() {
		paths = append(paths, f.Path)
		group.Go(func() error {
			name := filepath.Join(b.dir, "local", f.Path)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			out, err := os.Create(name)
			if err != nil {
				return err
			}
			if _, err := io.Copy(out, f.Reader(0)); err != nil {
				return err
			}
			return out.Close()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("lay out %s: %w", set.Name, err)
	}
	return paths, b.origin.Load(b.ctx, "bench", set, hearthtest.LoadOptions{})
}

func under(dir string, paths []string) []string {
	full := make([]string, len(paths))
	for i, p := range paths {
		full[i] = filepath.Join(dir, p)
	}
	return full
}

// small is W1: epochs over small files, from disk and hot.
func (b *bench) small() error {
	for _, w := range []struct {
		set       string
		disk, hot float64
	}{{"D1", 0.6, 0.9}, {"D1s", 0.5, 0.7}} {
		if !b.wanted("W1 " + w.set) {
			continue
		}
		paths, err := b.lay(b.scaled(w.set))
		if err != nil {
			return err
		}
		local := under(filepath.Join(b.dir, "local"), paths)
		// A cache of its own: in one that was filled before, an immutable link's root
		// would never show what came later.
		if err := b.fill("cache-"+w.set, func(dir string) error { _, _, _, err := epoch(under(dir, paths), 8, 1); return err }); err != nil {
			return err
		}
		for _, threads := range []int{8, 1} {
			if err := b.epochs(w.set, local, paths, threads, [2]float64{w.disk, w.hot}); err != nil {
				return err
			}
		}
	}
	return nil
}

// wanted tells whether any figure of a group is asked for.
func (b *bench) wanted(group string) bool {
	return strings.HasPrefix(b.only, group+" ") || strings.HasPrefix(group, b.only)
}

// fill reads through a fresh mount until the cache holds what was read.
func (b *bench) fill(cache string, read func(dir string) error) error {
	m, err := b.mount(cache, "512MiB")
	if err != nil {
		return err
	}
	if err := read(m.dir); err != nil {
		_ = m.stop()
		return fmt.Errorf("fill the cache: %w", err)
	}
	return m.stop()
}

// epochs compares one data set in the states disk and hot.
func (b *bench) epochs(set string, local, paths []string, threads int, targets [2]float64) error {
	seed := uint64(100)
	base := func(hot bool) func() (side, error) {
		return func() (side, error) {
			seed++
			if err := b.prepare(hot, func() error { _, _, _, err := epoch(local, 8, seed+1000); return err }); err != nil {
				return side{}, err
			}
			return measure(nil, func() (int64, int64, []time.Duration, error) { return epoch(local, threads, seed) })
		}
	}
	ours := func(hot bool) func() (side, error) {
		return func() (side, error) {
			m, err := b.mount("cache-"+set, "64MiB", "--open", "none")
			if err != nil {
				return side{}, err
			}
			defer func() { _ = m.stop() }()
			files := under(m.dir, paths)
			if err := b.prepare(hot, func() error { _, _, _, err := epoch(files, 8, seed+1000); return err }); err != nil {
				return side{}, err
			}
			return measure(m, func() (int64, int64, []time.Duration, error) { return epoch(files, threads, seed) })
		}
	}
	if err := b.compare(figure{name: "W1 " + set + " disk", target: targets[0], threads: threads}, base(false), ours(false)); err != nil {
		return err
	}
	return b.compare(figure{name: "W1 " + set + " hot", target: targets[1], threads: threads}, base(true), ours(true))
}

// prepare brings a side into its state: hot by reading once, or with empty page
// and name caches.
func (b *bench) prepare(hot bool, read func() error) error {
	if hot {
		return read()
	}
	return dropCaches()
}

// large is W2: sequential and random reads of large files, and a walk over one
// that is mapped; by passthrough.
func (b *bench) large() error {
	if !b.wanted("W2") {
		return nil
	}
	paths, err := b.lay(b.scaled("D2"))
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(filepath.Join(b.dir, "local", "d2")) }()
	local := under(filepath.Join(b.dir, "local"), paths)
	if err := b.fill("large", func(dir string) error { _, _, _, err := sequential(under(dir, paths)); return err }); err != nil {
		return err
	}
	seed := uint64(500)
	work := []struct {
		name    string
		target  float64
		threads int
		hot     bool
		do      func(paths []string) (int64, int64, []time.Duration, error)
	}{
		{"W2 sequential 1 file disk", 0.8, 1, false, func(p []string) (int64, int64, []time.Duration, error) { return sequential(p[:1]) }},
		{"W2 sequential 4 files disk", 0.8, 4, false, func(p []string) (int64, int64, []time.Duration, error) { return sequential(p[:min(4, len(p))]) }},
		{"W2 random 128 KiB disk", 0.9, 8, false, func(p []string) (int64, int64, []time.Duration, error) { return preads(p[:1], 128<<10, 2000, 8, seed) }},
		{"W2 random 128 KiB hot", 0.9, 8, true, func(p []string) (int64, int64, []time.Duration, error) { return preads(p[:1], 128<<10, 20000, 8, seed) }},
		{"W2 mmap walk disk", 0.9, 1, false, func(p []string) (int64, int64, []time.Duration, error) { return walkMapped(p[0]) }},
		{"W2 mmap walk hot", 0.9, 1, true, func(p []string) (int64, int64, []time.Duration, error) { return walkMapped(p[0]) }},
	}
	for _, w := range work {
		run := func(m *mounted, p []string) (side, error) {
			seed++
			warm := func() error { _, _, _, err := sequential(p[:1]); return err }
			if err := b.prepare(w.hot, warm); err != nil {
				return side{}, err
			}
			return measure(m, func() (int64, int64, []time.Duration, error) { return w.do(p) })
		}
		err := b.compare(figure{name: w.name, target: w.target, threads: w.threads},
			func() (side, error) { return run(nil, local) },
			func() (side, error) {
				m, err := b.verified(paths)
				if err != nil {
					return side{}, err
				}
				defer func() { _ = m.stop() }()
				return run(m, under(m.dir, paths))
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// verified mounts with passthrough, and waits until the node has verified the
// files that are read and hands them to the kernel.
func (b *bench) verified(paths []string) (*mounted, error) {
	m, err := b.mount("large", "64MiB", "--open", "passthrough")
	if err != nil {
		return nil, err
	}
	for _, p := range under(m.dir, paths)[:min(4, len(paths))] {
		if err := b.handedOut(m, p); err != nil {
			_ = m.stop()
			return nil, err
		}
	}
	return m, nil
}

// handedOut opens a file again and again until reading it costs the daemon
// nothing: the kernel reads the local file itself.
func (b *bench) handedOut(m *mounted, path string) error {
	const reads = 200
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		before := calls(m.cmd.Process.Pid)
		if _, _, _, err := preads([]string{path}, 128<<10, reads, 1, uint64(time.Now().UnixNano())); err != nil {
			return err
		}
		if calls(m.cmd.Process.Pid)-before < reads/2 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("%s is not handed to the kernel after two minutes; see hearth status", path)
}

// names is W3: walks and listings, warm.
func (b *bench) names() error {
	if !b.wanted("W3") {
		return nil
	}
	if _, err := b.lay(b.scaled("D1")); err != nil {
		return err
	}
	wide := b.scaled("D3")
	wide.Groups = wide.Groups[1:]
	if _, err := b.lay(wide); err != nil {
		return err
	}
	m, err := b.mount("cache-names", "256MiB", "--open", "none")
	if err != nil {
		return err
	}
	defer func() { _ = m.stop() }()
	for _, w := range []struct {
		name string
		dir  string
		do   func(string) (int64, int64, []time.Duration, error)
	}{{"W3 find with stat", "d1", find}, {"W3 ls of 100,000", "d3/wide", list}} {
		at := func(root string) string { return filepath.Join(root, w.dir) }
		if _, _, _, err := w.do(at(m.dir)); err != nil { // warm: the origin was asked before
			return err
		}
		err := b.compare(figure{name: w.name, target: 0.5, threads: 1},
			func() (side, error) {
				return measure(nil, func() (int64, int64, []time.Duration, error) { return w.do(at(filepath.Join(b.dir, "local"))) })
			},
			func() (side, error) {
				return measure(m, func() (int64, int64, []time.Duration, error) { return w.do(at(m.dir)) })
			})
		if err != nil {
			return err
		}
	}
	return nil
}
