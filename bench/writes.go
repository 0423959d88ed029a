package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

const (
	// writtenSize is the large file of W10 in bytes, and draftSize that which is written and read back on this disk.
	writtenSize = 4 << 30
	draftSize   = 1 << 30
	// uploaders is how many parts of one file a node sends at once at most, and uploadPart how large they are: its
	// defaults.
	uploaders  = 8
	uploadPart = 16 << 20
	// smallDirs directories of smallFiles files of smallSize bytes are W11.
	smallDirs, smallFiles, smallSize = 100, 100, 4 << 10
)

// through are the flags of a writable mount.
func through() []string { return []string{"--write", "through"} }

// sized is a size at the bench's scale: whole parts, two at least.
func (b *bench) sized(n int64) int64 {
	if b.scale >= 1 {
		return n
	}
	return max(2, int64(float64(n)*b.scale)/uploadPart) * uploadPart
}

// writes are W10 and W11: what is written through a mount.
func (b *bench) writes() error {
	if !b.wanted("W10") && !b.wanted("W11") {
		return nil
	}
	if err := errors.Join(b.drafts(false, "W10 draft written"), b.drafts(true, "W10 draft read back")); err != nil {
		return err
	}
	if !b.wanted("W10 written") && !b.wanted("W10 renamed") && !b.wanted("W11") {
		return nil
	}
	return b.inMemory(func() error {
		if err := b.largeWrites(); err != nil {
			return err
		}
		for _, w := range []struct {
			threads int
			wanted  float64
		}{{8, 0.7}, {64, 0.6}} {
			if err := b.smallWrites(w.threads, w.wanted); err != nil {
				return err
			}
		}
		return nil
	})
}

// inMemory runs do with another origin, 20 ms away, whose files lie in memory: its disk would be ours, on which the
// drafts lie. Joining the parts of an object, it has the object twice.
func (b *bench) inMemory(do func() error) (err error) {
	room := 2*b.sized(writtenSize) + 512<<20
	if free := available(); free < room+b.sized(writtenSize)/2+1<<30 {
		return fmt.Errorf("W10 and W11 need %d MiB of memory for the bucket, and as much as half of the file beside it; %d MiB are available: take a smaller -scale", room>>20, free>>20)
	}
	dir := filepath.Join(b.dir, "far")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("bench", dir, "tmpfs", 0, fmt.Sprintf("size=%d", room)); err != nil {
		return fmt.Errorf("mount a tmpfs for the bucket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, 0)) }()
	far, err := startOrigin(b, "far")
	if err != nil {
		return err
	}
	near := b.origin
	b.origin = far
	defer func() {
		b.origin = near
		far.stop()
	}()
	far.proxy.SetFirstByte(firstByte)
	return do()
}

// available is how much memory programs can still have, in bytes.
func available() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// bucket is the directory of the bucket.
func (o *origin) bucket() string { return filepath.Join(o.Dir, "bench") }

// clear removes all objects.
func (o *origin) clear() error {
	names, err := os.ReadDir(o.bucket())
	for _, n := range names {
		if n.Name() != ".sgwtmp" { // where versitygw keeps uploads that have not ended
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.bucket(), n.Name())))
		}
	}
	return err
}

// writer runs a writer; m is the node that works for it; nil means that none does.
func (b *bench) writer(m *mounted, w writing) (s side, err error) {
	text, err := json.Marshal(w)
	if err != nil {
		return s, err
	}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	cmd := exec.Command(self, writerProgram, string(text))
	cmd.Env = b.environ()
	p := b.origin.proxy
	p.Reset()
	s, out, err := b.command(m, cmd)
	if err != nil {
		return s, err
	}
	var did written
	if err := json.Unmarshal(out, &did); err != nil {
		return s, err
	}
	s.Seconds, s.Units, s.Bytes, s.latencies, s.Connections = did.Seconds, did.Units, did.Bytes, did.latencies, w.Threads
	st := p.Stats()
	s.OriginRequests, s.Sent, s.AtOnce = st.Requests()+st.Other.Requests, st.Received, st.Most
	return s, b.keep(map[string]any{"writer": w, "first_byte": st.FirstByte})
}

// writable runs do with a writable mount of a node with an empty cache over the empty bucket, and with an empty page
// cache. The bucket is empty afterwards.
func (h *build) writable(do func(m *mounted) (side, error)) (side, error) {
	l := launch{cache: "fresh", ram: "512MiB", open: "auto", fresh: "bounded(10m)", flags: through()}
	return h.emptied(l, func(m *mounted) (s side, err error) {
		if err := dropCaches(); err != nil {
			return s, err
		}
		return do(m)
	})
}

// largeWrites are the figures of one large file, open to close: under its name, and under a temporary one that is
// renamed.
func (b *bench) largeWrites() error {
	if !b.wanted("W10 written") && !b.wanted("W10 renamed") {
		return nil
	}
	size, source := b.sized(writtenSize), filepath.Join(b.dir, "source")
	defer func() { _ = os.Remove(source) }()
	if b.old == nil {
		w := writing{Do: "file", To: source, Size: size, Sync: true, Threads: 1}
		if _, err := b.writer(nil, w); err != nil {
			return err
		}
	}
	plain := baseline{Name: "plain uploader", Command: "bench writer WORK: upload", Version: fmt.Sprint(b.common["commit"]),
		run: func(r round) (s side, err error) {
			defer func() { err = errors.Join(err, b.origin.clear()) }()
			if err := dropCaches(); err != nil {
				return s, err
			}
			s, err = b.writer(nil, writing{Do: "upload", To: "checkpoint", From: source, Part: uploadPart, Threads: uploaders})
			if err == nil {
				err = b.origin.has("checkpoint", size)
			}
			return s, err
		}}
	for _, x := range []struct {
		name, as string
		wanted   float64 // nothing is of a rename, which also has an fsync
	}{{"W10 written", "", 0.8}, {"W10 renamed", "checkpoint.tmp", 0}} {
		f := figure{name: x.name, targets: []float64{x.wanted}, threads: 1, unit: "file", writes: true}
		err := b.compare(f, func(h *build, r round) (s side, err error) {
			defer func() { err = errors.Join(err, b.origin.clear()) }()
			return h.writable(func(m *mounted) (side, error) {
				w := writing{Do: "file", To: filepath.Join(m.dir, "checkpoint"), As: x.as, Size: size, Threads: 1}
				s, err := b.writer(m, w)
				if err != nil {
					return s, err
				}
				if err := b.origin.has("checkpoint", size); err != nil || !r.last {
					return s, err
				}
				s.Checked = true
				s.Wrong, err = wrongPattern(filepath.Join(b.origin.bucket(), "checkpoint"))
				return s, err
			})
		}, plain)
		if err != nil {
			return err
		}
	}
	return nil
}

// has makes sure that the bucket has an object of that size.
func (o *origin) has(key string, size int64) error {
	info, err := os.Stat(filepath.Join(o.bucket(), key))
	if err == nil && info.Size() != size {
		err = fmt.Errorf("it has %d bytes of %d", info.Size(), size)
	}
	if err != nil {
		return fmt.Errorf("the bucket has not got %s: %w", key, err)
	}
	return nil
}

// wrongPattern reads a large file, and returns the bytes of the reads in which anything was wrong.
func wrongPattern(name string) (wrong int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	want, buf := pattern(), make([]byte, writeSize)
	for at := int64(0); ; at += writeSize {
		n, err := io.ReadFull(f, buf)
		if !bytes.Equal(buf[:n], want[at%patternSize:][:n]) {
			wrong += int64(n)
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return wrong, nil
		}
		if err != nil {
			return wrong, err
		}
	}
}

// smallWrites is W11: many small files, open to close each, beside as many connections that each put one object after
// another. Their directories are there.
func (b *bench) smallWrites(threads int, wanted float64) error {
	f := figure{name: fmt.Sprintf("W11 %d writers", threads), targets: []float64{wanted}, threads: threads, unit: "file", writes: true}
	w := writing{Do: "put", Dirs: max(1, int(smallDirs*min(1, b.scale))), Files: smallFiles, Small: smallSize, Threads: threads}
	set := w.set()
	paths := pathsOf(set)
	plain := baseline{Name: "plain PUTs", Command: "bench writer WORK: put", Version: fmt.Sprint(b.common["commit"]),
		run: func(r round) (s side, err error) {
			defer func() { err = errors.Join(err, b.origin.clear()) }()
			if err := makeDirectories(b.origin.bucket(), paths); err != nil {
				return s, err
			}
			if err := dropCaches(); err != nil {
				return s, err
			}
			return b.writer(nil, w)
		}}
	return b.compare(f, func(h *build, r round) (s side, err error) {
		defer func() { err = errors.Join(err, b.origin.clear()) }()
		return h.writable(func(m *mounted) (side, error) {
			if err := makeDirectories(m.dir, paths); err != nil {
				return side{}, err
			}
			mine := w
			mine.Do, mine.To = "files", m.dir
			s, err := b.writer(m, mine)
			if err != nil || !r.last {
				return s, err
			}
			s.Checked = true
			s.Wrong, err = wrongBytes(b.origin.bucket(), paths)
			return s, err
		})
	}, plain)
}

// makeDirectories makes those that files lie in.
func makeDirectories(root string, paths []string) error {
	made := ""
	for _, p := range paths {
		if dir := filepath.Dir(p); dir != made {
			made = dir
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// drafts is what a file costs that is written and synced under a temporary name, which no bucket gets, or what it costs
// to read that back, beside a file on the same file system.
func (b *bench) drafts(back bool, name string) error {
	size := b.sized(draftSize)
	run := func(m *mounted, dir string, hot bool) (s side, err error) {
		w := writing{Do: "file", To: filepath.Join(dir, ".tmpdraft"), Size: size, Sync: true, Threads: 1}
		defer func() { err = errors.Join(err, os.Remove(w.To)) }()
		if err := dropCaches(); err != nil {
			return s, err
		}
		s, err = b.writer(m, w)
		if err != nil || !back {
			return s, err
		}
		return b.round(m, hot, func() (sum, error) { return sequential([]string{w.To}) }, nil)
	}
	for _, hot := range []bool{false, true} {
		f := figure{name: name, threads: 1, unit: "file"}
		if back {
			f.name += " " + state(hot)
		}
		if !b.wanted(f.name) {
			continue
		}
		local := b.ext4(func(dir string, _ round) (side, error) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return side{}, err
			}
			return run(nil, dir, hot)
		})
		err := b.compare(f, func(h *build, _ round) (side, error) {
			return h.writable(func(m *mounted) (side, error) { return run(m, m.dir, hot) })
		}, local)
		if err != nil || !back {
			return err
		}
	}
	return nil
}

// writableEpochs is W1 of a writable mount, beside read-only ones of the same cache: one that opens files plainly, too, and
// the usual one. After each read that the node has answered the kernel asks once more for a file's attributes, on a mount that may be written: the
// time of its last access may be another one. The first hot epoch has that, and the next one ("hot again") has not.
func (b *bench) writableEpochs() error {
	const group = "W1 of a writable mount"
	if !b.wanted(group) {
		return nil
	}
	set := b.scaled("D1")
	paths := pathsOf(set)
	if err := b.load(set); err != nil {
		return err
	}
	const cache = "cache-writable"
	if err := b.hearth.fill(set, cache, "none"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(filepath.Join(b.hearth.dir, cache)) }()
	run := func(l launch, hot, again bool, r round, check bool) (s side, err error) {
		l.cache, l.ram = cache, "64MiB"
		m, err := b.hearth.mount(l)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, m.stop()) }()
		pass := func() (sum, error) {
			if again {
				again = false
				if _, err := epoch(under(m.dir, paths), 8, 1300+r.number); err != nil {
					return sum{}, err
				}
			}
			return epoch(under(m.dir, paths), 8, 1300+r.number)
		}
		return b.round(m, hot, pass, b.checked(m.dir, paths, r.last && check))
	}
	for _, name := range []string{"disk", "hot", "hot again"} {
		hot, again := name != "disk", name == "hot again"
		other := func(name string, l launch) baseline {
			return baseline{Name: name, Command: "hearth mount " + strings.Join(append([]string{"--open", l.open}, l.flags...), " "), Version: b.hearth.Version,
				run: func(r round) (side, error) { return run(l, hot, again, r, false) }}
		}
		f := figure{name: group + " " + name, targets: []float64{0.97}, threads: 8, unit: "file"}
		err := b.compare(f, func(_ *build, r round) (side, error) {
			return run(launch{open: "auto", flags: through()}, hot, again, r, true)
		},
			other("a read-only mount that opens plainly", launch{open: "none", flags: []string{"--fuse-without", "open"}}),
			other("a read-only mount, --open none", launch{open: "none"}))
		if err != nil {
			return err
		}
	}
	return nil
}

// writings are the figures of what is written, a row for each.
func (b *bench) writings(w *tabwriter.Writer) {
	fmt.Fprint(w, "| figure\t| of\t| ratio\t| spread\t| wanted\t| seconds, its\t| per second\t| bytes sent / byte written, its\t| requests, its\t| at once, its"+
		"\t| writer CPU s, its\t| daemon CPU s\t| device bytes written / byte\t| p50 / p99 / max us\t| wrong bytes\t| VmHWM MiB\t|\n")
	fmt.Fprint(w, "|---\t|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	both := func(f figure, format string, of func(side) float64) string {
		return fmt.Sprintf(format+", "+format, median(f.ours, of), median(f.sides[0], of))
	}
	for _, f := range b.kind(writingly) {
		one := func(of func(side) float64) float64 { return median(f.ours, of) }
		speed := fmt.Sprintf("%.0f %ss", float64(f.ours[0].Units)/one(func(s side) float64 { return s.Seconds }), f.unit)
		if f.ours[0].Units == 1 {
			speed = fmt.Sprintf("%.0f MiB", float64(f.ours[0].Bytes>>20)/one(func(s side) float64 { return s.Seconds }))
		}
		last := f.ours[len(f.ours)-1]
		fmt.Fprintf(w, "| %s\t| %s\t| %.2f\t| %.2f-%.2f\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %.2f\t| %.2f\t| %.0f / %.0f / %.0f\t| %d\t| %.0f\t|\n",
			b.shown(f.name), f.baselines[0].Name, median(f.ratios[0], same), slices.Min(f.ratios[0]), slices.Max(f.ratios[0]), least(f.wanted(0)),
			both(f, "%.2f", func(s side) float64 { return s.Seconds }), speed,
			both(f, "%.4f", func(s side) float64 { return float64(s.Sent) / float64(max(1, s.Bytes)) }),
			both(f, "%.0f", func(s side) float64 { return float64(s.OriginRequests) }), both(f, "%.0f", func(s side) float64 { return float64(s.AtOnce) }),
			both(f, "%.2f", func(s side) float64 { return s.ReaderCPU }), one(func(s side) float64 { return s.DaemonCPU }),
			one(func(s side) float64 { return float64(s.DaemonWritten) / float64(max(1, s.Bytes)) }),
			one(func(s side) float64 { return s.P50us }), one(func(s side) float64 { return s.P99us }), one(func(s side) float64 { return s.MaxUs }),
			last.Wrong, one(func(s side) float64 { return float64(s.DaemonPeak) / (1 << 20) }))
	}
}
