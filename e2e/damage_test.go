package e2e

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cacheFiles are the files of a cache directory by their kind: what follows the
// first dot of a name, or the name itself.
func (e *env) cacheFiles(skip func(kind string) bool) map[string][]string {
	e.Helper()
	root := e.path("cache")
	kinds := map[string][]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || lost(err) {
			return nil // removed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		kind := filepath.Base(p)
		if _, suffix, ok := strings.Cut(kind, "."); ok {
			kind = suffix
		}
		if rel, _ := filepath.Rel(root, p); strings.HasPrefix(rel, "names") {
			kind = "names/" + strings.TrimRight(kind, "0123456789")
		}
		if !skip(kind) {
			kinds[kind] = append(kinds[kind], p)
		}
		return nil
	})
	e.must(err, "look through the cache directory")
	return kinds
}

// pick draws a kind, then a file of it: rare kinds come as often as frequent ones.
func (e *env) pick(rng *rand.Rand, kinds map[string][]string) (kind, file string) {
	e.Helper()
	at := rng.IntN(len(kinds))
	kind = slices.Sorted(maps.Keys(kinds))[at]
	files := kinds[kind]
	return kind, files[rng.IntN(len(files))]
}

// flip changes one byte of a file; false: it is empty, or gone.
func (e *env) flip(rng *rand.Rand, name string) bool {
	e.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EISDIR) || lost(err) {
		return false
	}
	e.must(err, "open %s", name)
	defer func() { _ = f.Close() }()
	s, err := f.Stat()
	e.must(err, "stat %s", name)
	if s.Size() == 0 {
		return false
	}
	// Half of the bytes lie in the first page: headers are small.
	off := rng.Int64N(s.Size())
	if rng.IntN(2) == 0 {
		off = rng.Int64N(min(s.Size(), 4096))
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], off)
	e.must(err, "read a byte of %s", name)
	b[0] ^= byte(1 + rng.IntN(255))
	_, err = f.WriteAt(b[:], off)
	e.must(err, "flip a byte of %s", name)
	return true
}

// flips changes single bytes of every kind of file in the cache directory, in turn
// under a running node and while it is down: no byte that a reader gets is wrong,
// and no read fails.
func flips(open string) func(e *env) {
	return func(e *env) {
		count := map[level]int{core: 20, all: 100, full: 300}[e.level]
		const batch = 10
		o := e.origin()
		list := e.sickSet(o)
		set := settings{ram: "16MiB", mount: []string{"--open", open}}
		h := e.mount(o, set)
		e.good("cold", epoch(h.dir, list, 1, 8, 0))
		seed := uint64(time.Now().UnixNano())
		e.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 8))
		met := map[string]int{}
		for round, done := 0, 0; done < count; round++ {
			up := round%2 == 0
			if !up {
				h.quit()
			}
			// A file that was verified and handed to the kernel is the local file system's
			// word until the node ends: docs/semantics.md.
			kinds := e.cacheFiles(func(kind string) bool { return up && open == "passthrough" && kind == "data" })
			for range batch {
				if kind, file := e.pick(rng, kinds); e.flip(rng, file) {
					met[kind]++
					done++
					e.Logf("up %v: flipped a byte of %s", up, file)
				}
			}
			if !up {
				h.launch(o, set)
			}
			e.cold(h.dir, list)
			e.good("after flips", epoch(h.dir, list, seed+uint64(round), 8, 0))
		}
		e.Logf("flipped by kind: %v; status: %+v", met, h.diskTier())
		for _, kind := range []string{"segment", "data", "sums", "deaths", "json", "names/log"} {
			if met[kind] == 0 && e.level > core {
				e.Errorf("no byte of a %s was flipped", kind)
			}
		}
		h.quit()
	}
}

// harm is a way to damage a file.
type harm struct {
	name string
	do   func(file string) error
}

func harms() []harm {
	return []harm{
		{"truncated to half", func(file string) error {
			s, err := os.Stat(file)
			if err != nil {
				return err
			}
			return os.Truncate(file, s.Size()/2)
		}},
		{"truncated to nothing", func(file string) error { return os.Truncate(file, 0) }},
		{"deleted", os.Remove},
		{"chmod 000", func(file string) error { return os.Chmod(file, 0) }},
		{"replaced by a directory", func(file string) error {
			return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o755))
		}},
		{"foreign", func(file string) error { return os.WriteFile(file, []byte("somebody else's\n"), 0o600) }},
	}
}

// lost tells the error of a file system whose device had lost writes.
func lost(err error) bool { return errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EIO) }

// damaged truncates, deletes, replaces, locks away and overwrites files of every
// kind, under a running node and while it is down.
func damaged(e *env) {
	o := e.origin()
	list := e.sickSet(o)
	set := settings{ram: "16MiB"}
	h := e.mount(o, set)
	e.good("cold", epoch(h.dir, list, 1, 8, 0))
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 9))
	for _, m := range harms() {
		for _, up := range []bool{true, false} {
			if !up {
				h.quit()
			}
			kinds := e.cacheFiles(func(kind string) bool { return false })
			for kind, files := range kinds {
				file := files[rng.IntN(len(files))]
				if err := m.do(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
					e.Fatalf("%s: %s of kind %s: %v", m.name, file, kind, err)
				}
			}
			if !up {
				h.launch(o, set)
			}
			e.cold(h.dir, list)
			e.good(m.name, epoch(h.dir, list, 2, 8, 0))
		}
	}
	h.quit()
	// Another bucket of the same keys and sizes, on the directory that the first left.
	other := *o
	other.bucket = o.Bucket(e.T, "other")
	for _, f := range list {
		e.must(o.PutFile(e.ctx, other.bucket, "", f, 1), "put %s", f.Path)
	}
	h = e.mount(&other, set)
	e.good("another origin's directory", epoch(h.dir, list, 3, 8, 1))
	h.quit()
}
