package main

import (
	"cmp"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/warmup"
)

// distant brings a data set to the origin and puts that at its distance, for the
// figures that do runs.
func (b *bench) distant(set hearthtest.DataSet, do func() error) error {
	if err := errors.Join(b.load(set), b.origin.resident(set)); err != nil {
		return err
	}
	return b.afar(do)
}

// afar runs do with the origin at its distance, and keeps how long its first bytes
// took, by its proxy's own clock.
func (b *bench) afar(do func() error) error {
	p := b.origin.proxy
	p.Reset()
	p.SetFirstByte(firstByte)
	defer p.SetFirstByte(0)
	if err := do(); err != nil {
		return err
	}
	return b.keep(map[string]any{"first_byte": p.Stats().FirstByte})
}

// fresh runs do with a node on an empty cache directory, and takes both away.
func (h *build) fresh(freshness string, do func(m *mounted) (side, error)) (s side, err error) {
	return h.emptied(launch{cache: "fresh", ram: "512MiB", open: "none", fresh: freshness}, do)
}

// emptied is fresh with a node of one's own.
func (h *build) emptied(l launch, do func(m *mounted) (side, error)) (s side, err error) {
	defer func() { _ = os.RemoveAll(filepath.Join(h.dir, l.cache)) }()
	m, err := h.mount(l)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	syscall.Sync()
	return do(m)
}

// warmUp runs `hearth warmup` to its end.
func (m *mounted) warmUp(args ...string) (s side, v warmup.View, err error) {
	cmd := exec.Command(m.of.Path, append([]string{"warmup", "-o", "json", "--node", "unix://" + m.of.socket()}, args...)...)
	s, out, err := m.of.command(m, cmd)
	if err == nil {
		err = json.Unmarshal(out, &v)
	}
	return s, v, err
}

// loadSet warms up a data set whose objects are not held yet, and makes sure that
// all of them are then.
func (m *mounted) loadSet(set hearthtest.DataSet) (side, error) {
	s, v, err := m.warmUp("/" + folder(set))
	if err != nil {
		return s, err
	}
	files, bytes := set.Count()
	if want := (warmup.Tally{Files: int64(files), Bytes: bytes}); v.State != warmup.Done || v.Counters.Done != want || v.Counters.Sum() != want {
		return s, fmt.Errorf("the warm-up of %s ended %s with %+v, but there are %+v", set.Name, v.State, v.Counters, want)
	}
	s.Units, s.Bytes = int64(files), bytes
	return s, nil
}

// warmUps is how long `hearth warmup` takes from its start to its exit, on an empty
// cache before the far origin.
func (b *bench) warmUps() error {
	for _, name := range []string{"D1", "D1s", "D2"} {
		f := figure{name: "warm-up " + name, targets: []float64{0.9}, unit: "file"}
		if !b.wanted(f.name) {
			continue
		}
		set := b.scaled(name)
		err := b.distant(set, func() error {
			return b.compare(f, func(h *build, r round) (side, error) {
				return h.fresh("", func(m *mounted) (side, error) {
					s, err := m.loadSet(set)
					if err != nil || !r.last {
						return s, err
					}
					s.Checked = true
					s.Wrong, err = wrongBytes(m.dir, pathsOf(set))
					return s, err
				})
			}, b.downloader(set))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cold is W1 over what nobody has loaded: eight readers in an order that the node does
// not know.
func (b *bench) cold() error {
	f := figure{name: "cold W1 D1", targets: []float64{0.7, 3}, threads: 8, unit: "file"}
	if !b.wanted(f.name) {
		return nil
	}
	set := b.scaled("D1")
	paths := pathsOf(set)
	pass := func(dir string, r round) (sum, error) { return epoch(under(dir, paths), f.threads, 900+r.number) }
	return b.distant(set, func() error {
		return b.compare(f, func(h *build, r round) (side, error) {
			return h.fresh("", func(m *mounted) (side, error) {
				s, err := b.reading(m, func() (sum, error) { return pass(m.dir, r) })
				if err == nil {
					s.Told, err = h.told()
				}
				if err != nil || !r.last {
					return s, err
				}
				s.Checked = true
				s.Wrong, err = wrongBytes(m.dir, paths)
				return s, err
			})
		}, b.downloader(set), b.rclone(pass))
	})
}

// told is what the node's status counts as fetched and never read, wherever it does;
// nil: nowhere.
func (h *build) told() (*int64, error) {
	out, err := exec.Command(h.Path, "status", "-o", "json", "--node", "unix://"+h.socket()).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // it exits with 6 while something is wrong
		return nil, err
	}
	var status any
	if err := json.Unmarshal(out, &status); err != nil {
		return nil, fmt.Errorf("read the node's status: %w", err)
	}
	return wastedIn(status), nil
}

func wastedIn(document any) (total *int64) {
	add := func(n *int64) {
		if n != nil && total != nil {
			*n += *total
		}
		total = cmp.Or(n, total)
	}
	switch d := document.(type) {
	case []any:
		for _, x := range d {
			add(wastedIn(x))
		}
	case map[string]any:
		for key, x := range d {
			if value, is := x.(float64); is && key == "wasted_bytes" {
				n := int64(value)
				add(&n)
			} else {
				add(wastedIn(x))
			}
		}
	}
	return total
}

// million is a warm-up of names alone: a million real files that versitygw gives out
// as objects.
func (b *bench) million() error {
	f := figure{name: "warm-up names", targets: []float64{1 / 1.3}, unit: "name"}
	if !b.wanted(f.name) {
		return nil
	}
	set := b.scaled("D3")
	set.Groups = set.Groups[:1]
	set.Groups[0].Dir = "million/dir"
	dir := filepath.Join(b.origin.Dir, "bench")
	defer func() { _ = os.RemoveAll(filepath.Join(dir, folder(set))) }()
	if err := makeKeys(dir, set); err != nil {
		return fmt.Errorf("make the keys: %w", err)
	}
	files, _ := set.Count()
	ours := func(m *mounted) (side, error) {
		s, v, err := m.warmUp("--metadata-only", "/"+folder(set))
		if err == nil && (v.State != warmup.Done || v.Plan.Total.Files != int64(files)) {
			err = fmt.Errorf("the warm-up ended %s with %d names of %d", v.State, v.Plan.Total.Files, files)
		}
		s.Units = int64(files)
		return s, err
	}
	return b.afar(func() error {
		return b.compare(f, func(h *build, _ round) (side, error) { return h.fresh("", ours) }, b.lister(set, 1), b.lister(set, 16))
	})
}

// makeKeys makes a set's files right in versitygw's directory, where a million PUTs
// would take an hour: each has its size, without bytes on disk, and the extended
// attribute that the server takes for its ETag.
func makeKeys(dir string, set hearthtest.DataSet) error {
	group := new(errgroup.Group)
	group.SetLimit(4)
	made := ""
	for f := range set.Files() {
		name := filepath.Join(dir, f.Path)
		if in := filepath.Dir(name); in != made {
			made = in
			if err := os.MkdirAll(in, 0o755); err != nil {
				return err
			}
		}
		group.Go(func() error {
			fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return fmt.Errorf("make %s: %w", name, err)
			}
			etag := fmt.Sprintf("%x", md5.Sum([]byte(f.Path)))
			return errors.Join(unix.Ftruncate(fd, f.Size), unix.Fsetxattr(fd, "user.etag", []byte(etag), 0), unix.Close(fd))
		})
	}
	return group.Wait()
}
