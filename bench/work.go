package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func percentiles(l []time.Duration) (p50, p99, most float64) {
	if len(l) == 0 {
		return 0, 0, 0
	}
	slices.Sort(l)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	return us(l[len(l)/2]), us(l[len(l)*99/100]), us(l[len(l)-1])
}

// sum is what a pass did: units (files, reads, names), bytes, and how long each
// unit took, where that is taken.
type sum struct {
	units, bytes int64
	latency      []time.Duration
}

// spread runs work(i) for each i in order from as many threads, and keeps how
// long each took.
func spread(order []int, threads int, work func(i int, buf []byte) (int64, error)) (sum, error) {
	var next, bytes atomic.Int64
	latency := make([]time.Duration, len(order))
	failed := make(chan error, threads)
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for {
				i := int(next.Add(1) - 1)
				if i >= len(order) {
					return
				}
				start := time.Now()
				n, err := work(order[i], buf)
				latency[i] = time.Since(start)
				bytes.Add(n)
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return sum{}, err
	default:
		return sum{int64(len(order)), bytes.Load(), latency}, nil
	}
}

// epoch reads each file once in a seeded random order: open, fstat, read whole, close.
// It makes the system calls itself, since os.File adds a poller's to each.
func epoch(paths []string, threads int, seed uint64) (sum, error) {
	order := rand.New(rand.NewPCG(seed, 1)).Perm(len(paths))
	return spread(order, threads, func(i int, buf []byte) (int64, error) { return readWhole(paths[i], buf) })
}

func readWhole(path string, buf []byte) (int64, error) {
	fd, err := retry(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = syscall.Close(fd) }()
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", path, err)
	}
	var done int64
	for done < st.Size {
		n, err := retry(func() (int, error) { return syscall.Read(fd, buf) })
		if err != nil || n == 0 {
			return done, fmt.Errorf("read %s at %d: %d bytes, %w", path, done, n, errors.Join(err, io.ErrUnexpectedEOF))
		}
		done += int64(n)
	}
	return done, nil
}

// retry repeats a call that a signal of the Go runtime ended.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != syscall.EINTR {
			return n, err
		}
	}
}

// preads reads count random pieces of size bytes from the files.
func preads(paths []string, size, count, threads int, seed uint64) (sum, error) {
	var fds []int
	var sizes []int64
	defer func() {
		for _, fd := range fds {
			_ = syscall.Close(fd)
		}
	}()
	for _, p := range paths {
		fd, err := retry(func() (int, error) { return syscall.Open(p, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
		if err != nil {
			return sum{}, fmt.Errorf("open %s: %w", p, err)
		}
		fds = append(fds, fd)
		var st syscall.Stat_t
		if err := syscall.Fstat(fd, &st); err != nil {
			return sum{}, err
		}
		sizes = append(sizes, st.Size)
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	type at struct {
		file int
		off  int64
	}
	places := make([]at, count)
	order := make([]int, count)
	for i := range places {
		f := rng.IntN(len(fds))
		places[i], order[i] = at{f, rng.Int64N(sizes[f]/int64(size)) * int64(size)}, i
	}
	return spread(order, threads, func(i int, buf []byte) (int64, error) {
		n, err := retry(func() (int, error) { return syscall.Pread(fds[places[i].file], buf[:size], places[i].off) })
		if err == nil && n != size {
			err = io.ErrUnexpectedEOF
		}
		return int64(n), err
	})
}

// sequential reads each file from its beginning in 1 MiB reads, a thread a file.
func sequential(paths []string) (sum, error) {
	order := make([]int, len(paths))
	for i := range order {
		order[i] = i
	}
	return spread(order, len(paths), func(i int, buf []byte) (int64, error) { return readWhole(paths[i], buf) })
}

// walkMapped maps the file and touches each page in order.
func walkMapped(path string) (sum, error) {
	f, err := os.Open(path)
	if err != nil {
		return sum{}, err
	}
	defer func() { _ = f.Close() }()
	s, err := f.Stat()
	if err != nil {
		return sum{}, err
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, int(s.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return sum{}, fmt.Errorf("map %s: %w", path, err)
	}
	defer func() { _ = syscall.Munmap(data) }()
	var touched byte
	for i := 0; i < len(data); i += 4096 {
		touched += data[i]
	}
	runtime.KeepAlive(touched) // or the compiler drops the walk
	return sum{units: int64(len(data) / 4096), bytes: int64(len(data))}, nil
}

// find walks a tree with a stat of each entry, as find -size would.
func find(root string) (sum, error) {
	var n int64
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		n++
		_, err = e.Info()
		return err
	})
	return sum{units: n}, err
}

// list reads one directory's names, as ls -U would.
func list(dir string) (sum, error) {
	f, err := os.Open(dir)
	if err != nil {
		return sum{}, err
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	return sum{units: int64(len(names))}, err
}

// wrongBytes reads files of a data set whole, by eight readers, and returns the
// bytes of the reads in which anything was not what the generator made.
func wrongBytes(dir string, paths []string) (int64, error) {
	var wrong atomic.Int64
	order := make([]int, len(paths))
	for i := range order {
		order[i] = i
	}
	_, err := spread(order, 8, func(i int, buf []byte) (int64, error) {
		f, err := os.Open(filepath.Join(dir, paths[i]))
		if err != nil {
			return 0, err
		}
		defer func() { _ = f.Close() }()
		for off := int64(0); ; {
			n, err := io.ReadFull(f, buf)
			if err := hearthtest.Check(buf[:n], paths[i], off, 0); err != nil {
				fmt.Fprintln(os.Stderr, "wrong bytes:", err)
				wrong.Add(int64(n))
			}
			off += int64(n)
			if err == io.EOF || err == io.ErrUnexpectedEOF {
				return off, nil
			}
			if err != nil {
				return off, err
			}
		}
	})
	return wrong.Load(), err
}
