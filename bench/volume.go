package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/bench/remote"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/volume"
)

// volumeReads is W7's reads: of an in-process NVMe/TCP target, beside plain TCP that frames the same bytes.
func (b *bench) volumeReads() error {
	if !b.wanted("W7 reads") {
		return nil
	}
	return overLink(b.namespace)
}

func (b *bench) namespace(l *link, self string) error {
	for _, x := range []struct {
		name string
		work remote.Work
	}{
		{"4 KiB depth 16", remote.Work{Size: 4 << 10, InFlight: 16, Connections: 1, Reads: 400_000}},
		{"4 KiB depth 32 x 2 queues", remote.Work{Size: 4 << 10, InFlight: 64, Connections: 2, Reads: 400_000}},
		{"1 MiB sequential", remote.Work{Size: 1 << 20, InFlight: 2, Connections: 1, Reads: 5_000, Sequential: true}},
	} {
		w := x.work
		w.Reads = max(100, int(float64(w.Reads)*b.scale))
		f := figure{name: "W7 reads " + x.name, targets: []float64{0.7}, threads: w.InFlight, unit: "read", remote: true}
		framed := baseline{Name: "plain TCP framing", Command: "bench remote framing serve|read ADDRESS WORK", Version: fmt.Sprint(b.common["commit"]),
			run: func(round) (side, error) { return l.run([]string{self, remoteProgram, "framing"}, w) }}
		err := b.compare(f, func(_ *build, r round) (side, error) {
			mine := w
			mine.Check = r.last
			return l.run([]string{self, remoteProgram, "nvme"}, mine)
		}, framed)
		if err != nil {
			return err
		}
	}
	return nil
}

// volumeRoom is how much more than its set a volume has room for: headers, and the one segment that stays reserved.
const volumeRoom = 512 << 20

// newVolume formats a file with room for a set, for the nodes of a cluster.
func (b *bench) newVolume(name string, set hearthtest.DataSet, cluster config.Membership) (path string, err error) {
	path = filepath.Join(b.dir, name)
	_, bytes := set.Count()
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, bytes*5/4+volumeRoom)); err != nil {
		return "", err
	}
	id, err := config.ClusterID(cluster)
	if err != nil {
		return "", err
	}
	f, err := volume.OpenFile(path)
	if err != nil {
		return "", err
	}
	_, err = volume.MakeVolume(f, volume.FormatOptions{Cluster: id, Label: name})
	return path, errors.Join(err, f.Close())
}

// attached waits until nodes know all of their volume, and have written what was to be written. It returns how many
// blocks it has for them.
func (b *bench) attached(sockets ...string) (blocks int64, err error) {
	for _, socket := range sockets {
		n, err := b.attachedTo(socket)
		if err != nil {
			return blocks, err
		}
		blocks += n
	}
	return blocks, nil
}

func (b *bench) attachedTo(socket string) (int64, error) {
	node, err := admin.Dial("unix://" + socket)
	if err != nil {
		return 0, err
	}
	defer node.Close()
	var last status.Volume
	for range 3000 {
		all, err := node.Volumes(b.ctx)
		if err != nil || len(all) != 1 {
			return 0, fmt.Errorf("of one volume the node knows %d: %w", len(all), err)
		}
		if last = all[0]; last.ID != "" && last.Away == "" && last.Learned == last.Segments && last.Queued == 0 {
			return last.Blocks, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0, fmt.Errorf("the volume is not ready within 30 s: %+v", last)
}

// fillings of a volume are tried so often: what a node reads faster than it writes is not written.
const mostFillings = 10

// onVolume has a node write a set to a volume, by reading it over and over with an empty cache.
func (h *build) onVolume(path string, set hearthtest.DataSet) error {
	l := launch{cache: "fresh", ram: "512MiB", open: "none", from: path, fills: true}
	files, _ := set.Count()
	var held int64
	for i := range mostFillings {
		_, err := h.emptied(l, func(m *mounted) (s side, err error) {
			if _, err = h.attached(h.socket()); err != nil {
				return s, err
			}
			if _, err = epoch(under(m.dir, pathsOf(set)), 4, uint64(i)); err == nil {
				held, err = h.attached(h.socket())
			}
			return s, err
		})
		if err != nil {
			return fmt.Errorf("fill the volume: %w", err)
		}
		if held >= int64(files) {
			return nil
		}
	}
	return fmt.Errorf("the volume holds %d blocks of %d files after %d readings", held, files, mostFillings)
}

// volumeEpochs is W7's epoch: memory and disk hold no block, and a volume has all of them. The names are known, since no
// volume has them. The baseline is the same node and readers without the volume: they read from the far origin.
func (b *bench) volumeEpochs() error {
	f := figure{name: "W7 epoch from the volume", targets: []float64{3}, threads: 8, unit: "file"}
	if !b.wanted(f.name) {
		return nil
	}
	set := b.scaled("D1")
	if err := b.load(set); err != nil {
		return err
	}
	path, err := b.newVolume("volume", set, config.Membership{})
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }()
	if err := b.hearth.onVolume(path, set); err != nil {
		return err
	}
	paths := pathsOf(set)
	run := func(from string, r round) (side, error) {
		return b.hearth.emptied(launch{cache: "fresh", ram: "512MiB", open: "none", from: from}, func(m *mounted) (side, error) {
			if from != "" {
				if _, err := b.attached(b.hearth.socket()); err != nil {
					return side{}, err
				}
			}
			if _, _, err := m.warmUp("--metadata-only", "/"+folder(set)); err != nil {
				return side{}, err
			}
			pass := func() (sum, error) { return epoch(under(m.dir, paths), f.threads, 1100+r.number) }
			return b.round(m, false, pass, b.checked(m.dir, paths, r.last && from != ""))
		})
	}
	return b.distant(set, func() error {
		return b.compare(f, func(_ *build, r round) (side, error) { return run(path, r) },
			baseline{Name: "the 20 ms origin", Command: "the same node and readers without the volume", Version: b.hearth.Version,
				run: func(r round) (side, error) { return run("", r) }})
	})
}

// restarted is how many nodes come back empty.
const restarted = 3

// volumeRestarts is how long three nodes take, all of them started anew with empty cache directories, until one of them
// has read a byte that the volume gave. The baseline is the first byte of all, without a volume.
func (b *bench) volumeRestarts() error {
	f := figure{name: "W7 first byte after a restart of three empty nodes", threads: 1, unit: "read"}
	if !b.wanted(f.name) {
		return nil
	}
	set := b.scaled("D1")
	set.Groups[0].Dirs = min(set.Groups[0].Dirs, 10) // enough that each node owns some
	if err := b.load(b.scaled("D1")); err != nil {
		return err
	}
	r, err := b.newRing(restarted)
	if err != nil {
		return err
	}
	defer r.close()
	r.of = b.hearth
	path, err := b.newVolume("shared-volume", set, config.Membership{Cluster: "bench", KeyFile: filepath.Join(r.dir, "key")})
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(path) }()
	near := b.origin.proxy
	b.origin.proxy = r.proxy
	defer func() { b.origin.proxy = near }()
	if err := r.fill(path, set); err != nil {
		return err
	}
	r.proxy.SetFirstByte(firstByte)
	paths := pathsOf(set)
	return b.compare(f, func(*build, round) (side, error) { return r.firstByte(path, paths) },
		baseline{Name: "the first byte of the 20 ms origin", Command: "the same nodes without the volume", Version: b.hearth.Version,
			run: func(round) (side, error) { return r.firstByte("", paths) }})
}

// empty takes the nodes' caches away.
func (r *testbed) empty() error {
	for i := range r.nodes {
		if err := os.RemoveAll(filepath.Join(r.of.dir, fmt.Sprintf("ring-%d", i))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fill writes a set to the nodes' volume.
func (r *testbed) fill(path string, set hearthtest.DataSet) error {
	r.from, r.fills = path, true
	defer func() { r.fills = false }()
	var sockets []string
	for _, m := range r.nodes {
		sockets = append(sockets, m.socket())
	}
	files, _ := set.Count()
	var held int64
	for i := range mostFillings {
		err := errors.Join(r.empty(), r.run(func() (err error) {
			if _, err = r.b.attached(sockets...); err != nil {
				return err
			}
			if _, err = epoch(under(r.nodes[0].mounted.dir, pathsOf(set)), 4, uint64(i)); err == nil {
				held, err = r.b.attached(sockets...)
			}
			return err
		}))
		if err != nil {
			return fmt.Errorf("fill the nodes' volume: %w", err)
		}
		if held >= int64(files) {
			return nil
		}
	}
	return fmt.Errorf("the nodes' volume holds %d blocks of %d files after %d readings", held, files, mostFillings)
}

// firstByte is how long it takes from the start of the first node until a byte was read: with a volume, until one was
// for which the origin was asked for no object.
func (r *testbed) firstByte(from string, paths []string) (s side, err error) {
	r.from = from
	before := r.proxy.Stats().Get.Requests
	if err := errors.Join(r.empty(), dropCaches()); err != nil {
		return s, err
	}
	begun := time.Now()
	err = r.run(func() error {
		for _, p := range under(r.nodes[0].mounted.dir, paths) {
			asked := r.proxy.Stats().Get.Requests
			if err := oneByte(p); err != nil {
				return err
			}
			s.Units++
			if from == "" || r.proxy.Stats().Get.Requests == asked {
				s.Seconds, s.Bytes = time.Since(begun).Seconds(), 1
				s.OriginRequests = r.proxy.Stats().Get.Requests - before
				return nil
			}
		}
		return fmt.Errorf("the origin was asked for each of %d files, and the volume has them", len(paths))
	})
	return s, err
}

func oneByte(path string) error {
	fd, err := retry(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = syscall.Close(fd) }()
	if n, err := retry(func() (int, error) { return syscall.Pread(fd, make([]byte, 1), 0) }); err != nil || n != 1 {
		return fmt.Errorf("read a byte of %s: %d, %w", path, n, err)
	}
	return nil
}
