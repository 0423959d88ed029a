package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// reading is what one epoch was like.
type reading struct {
	files  int
	bytes  int64
	errors []error
}

// files of a data set, in its order.
func files(set hearthtest.DataSet) []hearthtest.File { return slices.Collect(set.Files()) }

// epoch reads each file once, in an order of the seed, by so many threads as a
// loader would - open, fstat, read whole, close - and compares every byte with
// what the generator makes for the version.
func epoch(dir string, list []hearthtest.File, seed uint64, threads, version int) reading {
	order := rand.New(rand.NewPCG(seed, 3)).Perm(len(list))
	var next, bytes atomic.Int64
	var mu sync.Mutex // guards failed
	var failed []error
	var wg sync.WaitGroup
	for range threads {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for i := next.Add(1) - 1; i < int64(len(order)); i = next.Add(1) - 1 {
				f := list[order[i]]
				n, err := readWhole(filepath.Join(dir, f.Path), f, version, buf)
				bytes.Add(n)
				if err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return reading{files: len(order), bytes: bytes.Load(), errors: failed}
}

func readWhole(path string, f hearthtest.File, version int, buf []byte) (int64, error) {
	r, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = r.Close() }()
	s, err := r.Stat()
	if err != nil {
		return 0, err
	}
	if s.Size() != f.Size {
		return 0, fmt.Errorf("%s: %d bytes by stat, made with %d", path, s.Size(), f.Size)
	}
	var off int64
	for {
		n, err := r.Read(buf)
		if wrong := hearthtest.Check(buf[:n], f.Path, off, version); wrong != nil {
			return off, wrong
		}
		off += int64(n)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return off, err
		}
	}
	if off != f.Size {
		return off, fmt.Errorf("%s: read %d bytes of %d", path, off, f.Size)
	}
	return off, nil
}

// good fails the scenario unless every byte was right.
func (e *env) good(what string, r reading) {
	e.Helper()
	if len(r.errors) > 0 {
		e.Fatalf("%s: %d of %d files failed, such as: %v", what, len(r.errors), r.files, errors.Join(r.errors[:min(3, len(r.errors))]...))
	}
	e.Logf("%s: %d files, %d bytes, all right", what, r.files, r.bytes)
}

// set gives a data set in the size of the level: dirs and files per directory for
// core and all; full is the whole set.
func (e *env) set(name string, coreDirs, coreFiles, allDirs, allFiles int) hearthtest.DataSet {
	e.Helper()
	s, err := hearthtest.Set(name)
	e.must(err, "data set")
	switch e.level {
	case core:
		return s.Reduced(coreDirs, coreFiles)
	case all:
		return s.Reduced(allDirs, allFiles)
	}
	return s
}

// few is a part of D1 that is as large at each level: for what does not need many files.
func (e *env) few(dirs, files int) hearthtest.DataSet {
	e.Helper()
	s, err := hearthtest.Set("D1")
	e.must(err, "data set")
	return s.Reduced(dirs, files)
}

func (e *env) load(o *server, set hearthtest.DataSet) []hearthtest.File {
	e.Helper()
	e.must(o.Load(e.ctx, o.bucket, set, hearthtest.LoadOptions{}), "load the data set")
	return files(set)
}

func sum(list []hearthtest.File) (bytes int64) {
	for _, f := range list {
		bytes += f.Size
	}
	return bytes
}

// epochs: two readers with different orders over one cold set, then hot, then
// from disk after a restart; the origin is read once.
func epochs(open string) func(e *env) {
	return func(e *env) {
		o := e.origin()
		list := e.load(o, e.set("D1", 5, 60, 20, 100))
		p := e.proxy(o)
		set := settings{endpoint: p.endpoint, mount: []string{"--open", open}}
		h := e.mount(o, set)
		second := make(chan reading)
		go func() { second <- epoch(h.dir, list, 2, 4, 0) }()
		e.good("cold, first reader", epoch(h.dir, list, 1, 4, 0))
		e.good("cold, second reader", <-second)
		if got, most := p.bytes(), float64(sum(list))*1.01; float64(got) > most {
			e.Errorf("the origin sent %d bytes for a set of %d: more than 1.01", got, sum(list))
		}
		before := p.gets()
		e.good("hot", epoch(h.dir, list, 3, 8, 0))
		if again := p.gets() - before; again != 0 {
			e.Errorf("the hot epoch asked the origin %d times", again)
		}
		h.quit()
		h.launch(o, set)
		before = p.gets()
		e.good("disk, after a restart", epoch(h.dir, list, 4, 8, 0))
		if again := p.gets() - before; again != 0 {
			e.Errorf("the epoch from disk asked the origin %d times", again)
		}
		h.quit()
	}
}

// largeRandom reads a large object in random pieces, cold and again from disk,
// by preads of 128 KiB.
func largeRandom(open string) func(e *env) {
	return func(e *env) {
		o := e.origin()
		// 5 GiB is the most that one PUT takes; the others end within a block.
		size := map[level]int64{core: 96<<20 + 12345, all: 512<<20 + 12345, full: 5 << 30}[e.level]
		f := hearthtest.File{Path: "large/one.safetensors", Size: size}
		e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put the large object")
		p := e.proxy(o)
		h := e.mount(o, settings{endpoint: p.endpoint, mount: []string{"--open", open}})
		name := filepath.Join(h.dir, f.Path)
		e.must(randomPieces(name, f, 1), "cold")
		if got := p.bytes(); float64(got) > float64(size)*1.01 {
			e.Errorf("the origin sent %d bytes for an object of %d: more than 1.01", got, size)
		}
		before := p.gets()
		e.must(randomPieces(name, f, 2), "again")
		if again := p.gets() - before; again != 0 {
			e.Errorf("reading what is cached asked the origin %d times", again)
		}
		h.quit()
		h.launch(o, settings{endpoint: p.endpoint, mount: []string{"--open", open}})
		before = p.gets() // the probe of the mount reads, too
		e.must(randomPieces(name, f, 3), "after a restart")
		if again := p.gets() - before; again != 0 {
			e.Errorf("reading what is on disk asked the origin %d times", again)
		}
		h.quit()
	}
}

// randomPieces reads the whole file once, in pieces of 128 KiB in random order,
// by eight threads.
func randomPieces(name string, f hearthtest.File, seed uint64) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	const piece = 128 << 10
	order := rand.New(rand.NewPCG(seed, 4)).Perm(int((f.Size + piece - 1) / piece))
	var next atomic.Int64
	failed := make(chan error, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			buf := make([]byte, piece)
			for i := next.Add(1) - 1; i < int64(len(order)); i = next.Add(1) - 1 {
				off := int64(order[i]) * piece
				want := min(piece, f.Size-off)
				n, err := r.ReadAt(buf, off)
				if int64(n) != want || err != nil && !errors.Is(err, io.EOF) {
					failed <- fmt.Errorf("%d bytes of %d at %d: %w", n, want, off, err)
					return
				}
				if err := hearthtest.Check(buf[:n], f.Path, off, 0); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

// coldLookups reads many small files of many directories cold, each directory's
// first look-ups racing its listing: no name that is there is ever missing.
func coldLookups(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1s", 10, 200, 50, 200))
	for _, fresh := range []string{"immutable", "bounded(60s)"} {
		h := e.mount(o, settings{fresh: fresh, cache: "cache-" + fresh[:7]})
		r := epoch(h.dir, list, 1, 8, 0)
		if len(r.errors) > 0 {
			out, _ := e.run(e.hearth, "ls", "-l", "/", "--node", "unix://"+h.socket())
			e.Logf("root: %s", out)
			again := epoch(h.dir, list, 2, 8, 0)
			e.Logf("a second pass: %d errors", len(again.errors))
		}
		e.good("cold, "+fresh, r)
		h.quit()
	}
}
