package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// scaled reduces a data set to the bench's scale, keeping its files as they are; of
// a few large ones two stay, which are smaller where they would be too much.
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
			files := max(2, int(float64(g.Files)*b.scale))
			set.Groups[i].Files = files
			if share := b.scale * float64(g.Files) / float64(files); share < 1 && g.Min > hearth.BlockSize {
				size := max(1, int64(float64(g.Min)*share)/hearth.BlockSize) * hearth.BlockSize
				set.Groups[i].Min, set.Groups[i].Max = size, size
			}
		}
	}
	return set
}

// load brings a data set into the bucket, once.
func (b *bench) load(set hearthtest.DataSet) error {
	if b.loaded[set.Name] {
		return nil
	}
	b.loaded[set.Name] = true
	return b.origin.Load(b.ctx, "bench", set, hearthtest.LoadOptions{})
}

func pathsOf(set hearthtest.DataSet) (paths []string) {
	for f := range set.Files() {
		paths = append(paths, f.Path)
	}
	return paths
}

// lay puts a data set on the local file system, where a baseline reads it, and into the bucket,
// and returns its paths.
func (b *bench) lay(set hearthtest.DataSet) ([]string, error) {
	if b.old != nil {
		return pathsOf(set), b.load(set)
	}
	group := new(errgroup.Group)
	group.SetLimit(4)
	for f := range set.Files() {
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
	return pathsOf(set), b.load(set)
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
		set := b.scaled(w.set)
		paths, err := b.lay(set)
		if err != nil {
			return err
		}
		// A cache of its own: in one that was filled before, an immutable link's root
		// would never show what came later.
		if err := b.each(func(h *build) error { return h.fill(set, "cache-"+w.set, "none") }); err != nil {
			return err
		}
		for _, threads := range []int{8, 1} {
			if err := b.epochs(w.set, paths, threads, []float64{w.disk, w.hot}); err != nil {
				return err
			}
		}
	}
	return nil
}

// taken tells whether a figure is asked for.
func (b *bench) taken(figure string) bool {
	return b.only == "" || strings.HasPrefix(figure+" ", b.only+" ")
}

// wanted tells whether any figure of a group is asked for.
func (b *bench) wanted(group string) bool {
	return b.only == "" || b.only == group || strings.HasPrefix(b.only, group+" ") || strings.HasPrefix(group, b.only+" ")
}

// filling is what bringing a data set into an empty cache cost.
type filling struct {
	Set            string  `json:"set"`
	Files          int     `json:"files"`
	Bytes          int64   `json:"bytes"`
	OriginRequests int64   `json:"origin_requests"`
	OriginBytes    int64   `json:"origin_bytes"`
	Written        int64   `json:"written_bytes"`
	DaemonCPU      float64 `json:"daemon_cpu"`
	DaemonPeak     int64   `json:"daemon_peak_bytes"`
	Wrong          int64   `json:"wrong_bytes"`
}

// fill reads through a fresh mount with eight readers, compares every byte, and
// ends the node, so that the cache is whole.
func (h *build) fill(set hearthtest.DataSet, cache, open string) error {
	m, err := h.mount(launch{cache: cache, ram: "512MiB", open: open})
	if err != nil {
		return err
	}
	f := filling{Set: set.Name}
	f.Files, f.Bytes = set.Count()
	s, err := h.measure(m, func() (total sum, err error) {
		f.Wrong, err = wrongBytes(m.dir, pathsOf(set))
		return total, err
	})
	if err := errors.Join(err, m.stop()); err != nil {
		return fmt.Errorf("fill the cache: %w", err)
	}
	f.OriginRequests, f.OriginBytes, f.DaemonCPU, f.DaemonPeak = s.OriginRequests, s.OriginBytes, s.DaemonCPU, s.DaemonPeak
	f.Written = m.written()
	if f.Wrong > 0 {
		fmt.Fprintf(os.Stderr, "filling %s: %d wrong bytes\n", f.Set, f.Wrong)
	}
	h.fillings = append(h.fillings, f)
	return h.keep(map[string]any{"filling": f, "build": h.Name})
}

// epochs compares one data set in the states disk and hot.
func (b *bench) epochs(set string, paths []string, threads int, targets []float64) error {
	for i, hot := range []bool{false, true} {
		pass := func(dir string, r round) func() (sum, error) {
			return func() (sum, error) { return epoch(under(dir, paths), threads, 100+r.number) }
		}
		f := figure{name: fmt.Sprintf("W1 %s %s", set, state(hot)), targets: targets[i : i+1], threads: threads, unit: "file"}
		err := b.compare(f,
			func(h *build, r round) (side, error) {
				m, err := h.mount(launch{cache: "cache-" + set, ram: "64MiB", open: "none"})
				if err != nil {
					return side{}, err
				}
				defer func() { _ = m.stop() }()
				return b.round(m, hot, pass(m.dir, r), b.checked(m.dir, paths, r.last))
			},
			b.ext4(func(local string, r round) (side, error) { return b.round(nil, hot, pass(local, r), nil) }))
		if err != nil {
			return err
		}
	}
	return nil
}

func state(hot bool) string {
	if hot {
		return "hot"
	}
	return "disk"
}

// round measures a pass in a state: with empty page and name caches, or, hot, as
// the second pass after such a one. Then check, where given, compares bytes.
func (b *bench) round(m *mounted, hot bool, pass func() (sum, error), check func() (int64, error)) (side, error) {
	if err := dropCaches(); err != nil {
		return side{}, err
	}
	if hot {
		if _, err := pass(); err != nil {
			return side{}, err
		}
		pass = b.repeated(pass)
	}
	s, err := b.measure(m, pass)
	if err != nil || check == nil {
		return s, err
	}
	if !hot {
		if err := dropCaches(); err != nil {
			return side{}, err
		}
	}
	s.Wrong, err = check()
	s.Checked = true
	return s, err
}

// repeated makes a short pass from the kernel's caches long enough to be compared with another
// build's: again and again for againstPass. What stands beside a baseline is measured once.
func (b *bench) repeated(pass func() (sum, error)) func() (sum, error) {
	if b.old == nil {
		return pass
	}
	return func() (all sum, err error) {
		for begun := time.Now(); all.units == 0 || time.Since(begun) < againstPass; {
			s, err := pass()
			if err != nil || s.units == 0 {
				return s, err
			}
			all.units, all.bytes, all.latency = all.units+s.units, all.bytes+s.bytes, append(all.latency, s.latency...)
		}
		return all, nil
	}
}

// checked compares every byte of files with what the generator made, in a
// figure's last round; nil in the others.
func (b *bench) checked(dir string, paths []string, last bool) func() (int64, error) {
	if !last {
		return nil
	}
	return func() (int64, error) { return wrongBytes(dir, paths) }
}

// large is W2: sequential and random reads of large files, and a walk over one
// that is mapped; by passthrough.
func (b *bench) large() error {
	if !b.wanted("W2") {
		return nil
	}
	set := b.scaled("D2")
	paths, err := b.lay(set)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(filepath.Join(b.dir, "local", "d2")) }()
	if err := b.each(func(h *build) error { return h.fill(set, "large", "passthrough") }); err != nil {
		return err
	}
	for _, w := range largeFigures() {
		used := paths[:min(w.files, len(paths))]
		pass := func(dir string, r round) func() (sum, error) {
			return func() (sum, error) { return w.do(under(dir, used), 500+r.number) }
		}
		local := func(dir string, r round) (side, error) { return b.round(nil, w.hot, pass(dir, r), nil) }
		err := b.compare(figure{name: w.name + " " + state(w.hot), targets: []float64{w.target}, threads: w.threads, unit: "read"},
			func(h *build, r round) (side, error) {
				m, err := h.verified(used)
				if err != nil {
					return side{}, err
				}
				defer func() { _ = m.stop() }()
				return b.round(m, w.hot, pass(m.dir, r), b.checked(m.dir, used, r.last))
			}, b.ext4(local), b.loopback(local))
		if err != nil {
			return err
		}
	}
	return nil
}

// largeWork is one figure of W2.
type largeWork struct {
	name           string
	target         float64
	threads, files int
	hot            bool
	do             func(paths []string, seed uint64) (sum, error)
}

func largeFigures() []largeWork {
	return []largeWork{
		{"W2 sequential 1 file", 0.8, 1, 1, false, func(p []string, _ uint64) (sum, error) { return sequential(p) }},
		{"W2 sequential 4 files", 0.8, 4, 4, false, func(p []string, _ uint64) (sum, error) { return sequential(p) }},
		{"W2 random 128 KiB", 0.9, 8, 1, false, func(p []string, seed uint64) (sum, error) { return preads(p, 128<<10, 2000, 8, seed) }},
		{"W2 random 128 KiB", 0.9, 8, 1, true, func(p []string, seed uint64) (sum, error) { return preads(p, 128<<10, 20000, 8, seed) }},
		{"W2 mmap walk", 0.9, 1, 1, false, func(p []string, _ uint64) (sum, error) { return walkMapped(p[0]) }},
		{"W2 mmap walk", 0.9, 1, 1, true, func(p []string, _ uint64) (sum, error) { return walkMapped(p[0]) }},
	}
}

// verified mounts with passthrough, and waits until the node has verified the
// files that are read and hands them to the kernel.
func (h *build) verified(paths []string) (*mounted, error) {
	m, err := h.mount(launch{cache: "large", ram: "64MiB", open: "passthrough"})
	if err != nil {
		return nil, err
	}
	for _, p := range under(m.dir, paths) {
		if err := m.handedOut(p); err != nil {
			_ = m.stop()
			return nil, err
		}
	}
	return m, nil
}

// handedOut opens a file again and again until reading it costs the daemon
// nothing: the kernel reads the local file itself.
func (m *mounted) handedOut(path string) error {
	const reads = 200
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		before := calls(m.cmd.Process.Pid)
		if _, err := preads([]string{path}, 128<<10, reads, 1, uint64(time.Now().UnixNano())); err != nil {
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
	names, _ := wide.Count()
	nodes, err := b.mountEach(func(*build) launch { return launch{cache: "cache-names", ram: "256MiB", open: "none"} })
	defer func() { _ = nodes.stop() }()
	if err != nil {
		return err
	}
	for _, w := range []struct {
		name string
		dir  string
		do   func(string) (sum, error)
	}{{"W3 find with stat", "d1", find}, {fmt.Sprintf("W3 ls of %d", names), "d3/wide", list}} {
		pass := func(root string) func() (sum, error) {
			return func() (sum, error) { return w.do(filepath.Join(root, w.dir)) }
		}
		for _, m := range nodes { // warm: the origin was asked before
			if _, err := pass(m.dir)(); err != nil {
				return err
			}
		}
		err := b.compare(figure{name: w.name, targets: []float64{0.5}, threads: 1, unit: "name"},
			func(h *build, _ round) (side, error) { return b.measure(nodes[h], b.repeated(pass(nodes[h].dir))) },
			b.ext4(func(local string, _ round) (side, error) { return b.measure(nil, pass(local)) }))
		if err != nil {
			return err
		}
	}
	return nil
}
