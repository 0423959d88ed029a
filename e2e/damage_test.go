package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
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
		rel, _ := filepath.Rel(root, p)
		if strings.HasPrefix(rel, "names.corrupt") {
			return nil // set aside: nobody reads it
		}
		if strings.HasPrefix(rel, "names") {
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

// rarest draws a file of a kind that was tried least.
func (e *env) rarest(rng *rand.Rand, kinds map[string][]string, tried map[string]int) (kind, file string) {
	e.Helper()
	names := slices.Sorted(maps.Keys(kinds))
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	kind = slices.MinFunc(names, func(a, b string) int { return tried[a] - tried[b] })
	tried[kind]++
	return kind, kinds[kind][rng.IntN(len(kinds[kind]))]
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
	// A third lies in the first page, where headers are, and a third in the last, where
	// indexes and their trailers end.
	off, page := rng.Int64N(s.Size()), min(s.Size(), 4096)
	switch rng.IntN(3) {
	case 0:
		off = rng.Int64N(page)
	case 1:
		off = s.Size() - 1 - rng.Int64N(page)
	}
	hearthtest.FlipByte(e, name, off, byte(1+rng.IntN(255)))
	return true
}

// rot is a cache whose bytes change, over the lives of its node.
type rot struct {
	*env
	o        *server
	set      settings
	h        *hearth
	open     string
	rng      *rand.Rand
	errors   int64 // of the disk tier, in the lives before
	rebuilds int64 // of the names
	lent     int64 // opens
	log      strings.Builder
}

// live starts the node, or ends it and keeps what it counted and logged.
func (r *rot) live(on bool) {
	r.Helper()
	if on {
		r.h.launch(r.o, r.set)
		return
	}
	r.errors += r.h.diskTier().Errors
	r.rebuilds += r.h.status().Names.Figures["rebuilds"]
	r.lent += r.h.status().Mounts[0].Ops["lent"]
	r.h.quit()
	r.log.WriteString(r.h.out.String())
}

// spare: a file that was verified and handed to the kernel is the local file
// system's word until the node ends (docs/semantics.md).
func (r *rot) spare(up bool) func(kind string) bool {
	return func(kind string) bool { return up && r.open == "passthrough" && kind == "data" }
}

// aim changes a byte of a small object, which every read of it verifies.
func (r *rot) aim() {
	r.Helper()
	small, _ := r.blocks()
	b := small[r.rng.IntN(len(small))]
	hearthtest.FlipByte(r, b.file, b.off+r.rng.Int64N(b.len), 0x40)
}

// aimAtNames changes a byte that the next start reads: of a checksum in the manifest.
func (r *rot) aimAtNames() {
	r.Helper()
	names, err := filepath.Glob(r.path("cache/names/MANIFEST-*"))
	r.must(err, "list the names")
	for _, name := range names {
		hearthtest.FlipByte(r, name, 1, 0x40)
	}
}

// rereads reads all and holds what it counts against where the bytes came from: the
// disk tier found what was aimed at since it counted so many errors - the scrub may have
// been there first -, and memory did not stand in for it.
func (r *rot) rereads(list []hearthtest.File, seed uint64, counted int64) {
	r.Helper()
	before := r.h.status()
	r.good("after flips", epoch(r.h.dir, list, seed, 8, 0))
	after := r.h.status()
	ram, disk := after.Tiers[0].HitBytes-before.Tiers[0].HitBytes, after.Tiers[1].HitBytes-before.Tiers[1].HitBytes
	r.Logf("%d bytes from memory, %d from the disk; its errors %d", ram, disk, after.Tiers[1].Errors-counted)
	if ram > disk/10 {
		r.Errorf("memory gave %d bytes, the disk %d: what was changed is not what was read", ram, disk)
	}
	if after.Tiers[1].Errors <= counted {
		r.Errorf("no error is counted after a byte that was read had changed: %+v", after.Tiers[1])
	}
}

// flips changes single bytes of every kind of file in the cache directory, in turn
// under a running node and while it is down: no byte that a reader gets is wrong,
// no read fails, and counters and the log tell of it.
func flips(open string) func(e *env) {
	return func(e *env) {
		count := map[level]int{core: 20, all: 60, full: 300}[e.level]
		const batch = 10
		o := e.origin()
		list := e.sickSet(o)
		set := settings{ram: "16MiB", mount: opens(open)} // no node has less
		r := &rot{env: e, o: o, set: set, h: e.mount(o, set), open: open, rng: rand.New(rand.NewPCG(e.seed(), 8))}
		e.good("cold", epoch(r.h.dir, list, 1, 8, 0))
		r.live(false) // the names get a table
		r.live(true)
		wanted := []string{"segment", "data", "sums", "deaths", "json", "names/log", "names/sst", "names/MANIFEST-"}
		met, tried := map[string]int{}, map[string]int{}
		for _, kind := range wanted {
			tried[kind] = -1
		}
		for round, done := 0, 0; done < count; round++ {
			up, counted := round%2 == 0, int64(0)
			if up {
				counted = r.h.status().Tiers[1].Errors
			} else {
				r.live(false)
			}
			r.aim()
			kinds := e.cacheFiles(r.spare(up))
			for n := 0; n < batch; {
				if kind, file := e.rarest(r.rng, kinds, tried); e.flip(r.rng, file) {
					met[kind]++
					n++
					e.Logf("up %v: flipped a byte of %s", up, file)
				}
			}
			done += batch
			if !up {
				if r.rebuilds == 0 && done >= count {
					r.aimAtNames()
				}
				r.live(true)
			}
			e.cold(r.h.dir, list)
			r.rereads(list, e.seed()+uint64(round), counted)
		}
		r.live(false)
		e.Logf("flipped by kind: %v; %d errors, %d databases of names begun anew, %d opens lent", met, r.errors, r.rebuilds, r.lent)
		if open == "passthrough" && r.lent == 0 {
			e.Error("no open was lent to the kernel")
		}
		for _, kind := range wanted {
			if met[kind] == 0 && e.level > core {
				e.Errorf("no byte of a %s was flipped", kind)
			}
		}
		told := []string{"what a cache file held is read from the origin"}
		if e.level > core {
			told = append(told, "names are collected anew")
			if r.rebuilds == 0 {
				e.Error("no database of names was begun anew")
			}
		}
		for _, line := range told {
			if !strings.Contains(r.log.String(), line) {
				e.Errorf("the log does not say %q:\n%s", line, r.log.String())
			}
		}
	}
}

// harm is a way to damage a file, and what the node that starts next says of having
// mended those of which there is one.
type harm struct {
	name string
	do   func(file string) error
	told []string
}

func harms() []harm {
	identity, deaths, format := "cache/hearth.json", "cache/segments/deaths", "cache/objects/FORMAT"
	return []harm{
		{"truncated to half", func(file string) error {
			s, err := os.Stat(file)
			if err != nil {
				return err
			}
			return os.Truncate(file, s.Size()/2)
		}, []string{identity, format}},
		{"truncated to nothing", func(file string) error { return os.Truncate(file, 0) }, []string{identity, format}},
		{"deleted", os.Remove, []string{identity}},
		{"chmod 000", func(file string) error { return os.Chmod(file, 0) }, []string{"its owner had no right to it (chmod)"}},
		{"replaced by a directory", func(file string) error {
			return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o755))
		}, []string{"something else stood in its place"}},
		{"foreign", func(file string) error { return os.WriteFile(file, []byte("somebody else's\n"), 0o600) }, []string{identity, deaths, format}},
	}
}

// lost tells the error of a file system whose device had lost writes.
func lost(err error) bool { return errors.Is(err, unix.EUCLEAN) || errors.Is(err, unix.EIO) }

// withoutOverride has root obey the modes of files, as users do. The right to mount
// stays.
func withoutOverride() []string {
	if os.Getuid() != 0 {
		return nil
	}
	const less = "-dac_override,-dac_read_search"
	return []string{"setpriv", "--bounding-set", less, "--inh-caps", less}
}

// obeys fails the scenario if the node may open files whatever their modes are.
func (h *hearth) obeys() {
	h.e.Helper()
	caps, err := strconv.ParseUint(h.e.figure(fmt.Sprintf("/proc/%d/status", h.Process.Pid), "CapEff:"), 16, 64)
	h.e.must(err, "read the node's capabilities")
	if caps&(1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_DAC_READ_SEARCH) != 0 {
		h.e.Fatalf("the node has capabilities %x: chmod 000 is nothing to it", caps)
	}
}

// damaged truncates, deletes, replaces, locks away and overwrites files of every
// kind, under a running node and while it is down.
func damaged(open string) func(e *env) {
	return func(e *env) {
		o := e.origin()
		list := e.sickSet(o)
		set := settings{ram: "16MiB", mount: opens(open), wrap: withoutOverride()}
		rng := rand.New(rand.NewPCG(e.seed(), 9))
		r := &rot{env: e, o: o, set: set, h: e.mount(o, set), open: open, rng: rng}
		r.h.obeys()
		e.good("cold", epoch(r.h.dir, list, 1, 8, 0))
		for _, m := range harms() {
			var said string
			for _, up := range []bool{true, false} {
				if !up {
					r.live(false)
				}
				r.harm(m, up)
				if !up {
					r.live(true)
				}
				e.cold(r.h.dir, list)
				e.good(m.name, epoch(r.h.dir, list, 2, 8, 0))
				said = r.h.out.String() // of the node that found it at its start
			}
			r.told(m, said)
		}
		r.newer(list)
		r.live(false)
		if open == "passthrough" && r.lent == 0 {
			e.Error("no open was lent to the kernel")
		}
		if said := "what a cache file held is read from the origin"; r.errors == 0 || r.rebuilds == 0 || !strings.Contains(r.log.String(), said) {
			e.Errorf("%d errors and %d databases of names begun anew are counted, and the log says:\n%s", r.errors, r.rebuilds, r.log.String())
		}
		// Another bucket of the same keys and sizes, on the directory that the first left.
		other := *o
		other.bucket = o.Bucket(e.T, "other")
		for _, f := range list {
			e.must(o.PutFile(e.ctx, other.bucket, "", f, 1), "put %s", f.Path)
		}
		h := e.mount(&other, set)
		e.good("another origin's directory", epoch(h.dir, list, 3, 8, 1))
		h.quit()
	}
}

// harm damages a file of each kind, and the directory's identity each time.
func (r *rot) harm(m harm, up bool) {
	r.Helper()
	kinds := r.cacheFiles(r.spare(up))
	if i := slices.Index(kinds["json"], r.path("cache/hearth.json")); i >= 0 {
		kinds["identity"] = []string{kinds["json"][i]}
		if kinds["json"] = slices.Delete(kinds["json"], i, i+1); len(kinds["json"]) == 0 {
			delete(kinds, "json")
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		file := kinds[kind][r.rng.IntN(len(kinds[kind]))]
		if err := m.do(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Fatalf("%s: %s of kind %s: %v", m.name, file, kind, err)
		}
	}
}

// told holds what the node says and counts that found the harm at its start.
func (r *rot) told(m harm, said string) {
	r.Helper()
	mended := r.h.diskTier().Dirs[0].Mended
	for _, line := range m.told {
		if !strings.Contains(said, "what was wrong with a cache file is mended") || !strings.Contains(said, line) || mended == 0 {
			r.Errorf("%s: %d files were mended, and the log does not say %q:\n%s", m.name, mended, line, said)
		}
	}
}

// newer gives files the format of a later version, rightly sealed, under the running
// node: it goes on. The next one serves without a large object's file, which it names;
// it refuses what says more than that, with the cure, and starts once that was done.
// Whatever a newer version wrote stays as it is.
func (r *rot) newer(list []hearthtest.File) {
	r.Helper()
	r.refilled(list)
	sums, _ := filepath.Glob(r.path("cache/objects/*.sums"))
	segments, _ := filepath.Glob(r.path("cache/segments/*.segment"))
	for _, c := range []struct {
		file  string
		raise func(file string)
		cure  string // what the line says to remove; "": the node starts
	}{
		{sums[0], func(file string) { r.raise(file, 0) }, ""},
		{r.path("cache/objects/FORMAT"), func(file string) {
			r.must(os.WriteFile(file, []byte("hearth sparse 2 "+sumOfTwo+"\n"), 0o600), "write %s", file)
		}, r.path("cache/objects")},
		{segments[0], func(file string) {
			s, err := os.Stat(file)
			r.must(err, "stat %s", file)
			r.raise(file, 0)
			r.raise(file, s.Size()-64)
		}, r.path("cache/segments")},
	} {
		c.raise(c.file)
		before, err := os.ReadFile(c.file)
		r.must(err, "read %s", c.file)
		r.cold(r.h.dir, list)
		r.good("a newer "+filepath.Base(c.file)+", under the node", epoch(r.h.dir, list, 4, 8, 0))
		r.live(false)
		if c.cure == "" {
			r.live(true)
			for seed := range uint64(12) { // more often than a device may fail
				r.cold(r.h.dir, list)
				r.good("without a newer file", epoch(r.h.dir, list[len(list)-2:], seed, 2, 0))
			}
			r.h.waitFor("what a cache file held is read from the origin")
			if ill := r.h.ill(); ill != "" || !strings.Contains(r.h.out.String(), c.file+" has cache format 2") {
				r.Errorf("directory %q; the log does not name %s:\n%s", ill, c.file, r.h.out)
			}
		} else {
			r.h.spawn(r.o, r.set)
			if code := r.h.exit(30 * time.Second); code != 8 || !strings.Contains(r.h.out.String(), c.file+" has cache format 2") ||
				!strings.Contains(r.h.out.String(), "run the newer hearth again, or remove "+c.cure+" ") {
				r.Errorf("a newer %s: exit %d:\n%s", c.file, code, r.h.out)
			}
		}
		if after, err := os.ReadFile(c.file); err != nil || !bytes.Equal(before, after) {
			r.Errorf("%s was changed, %v", c.file, err)
		}
		if c.cure != "" {
			r.must(os.RemoveAll(c.cure), "do as the line says")
			r.live(true)
			r.good("after the cure", epoch(r.h.dir, list, 5, 8, 0))
		}
	}
}

// refilled has every large object lie in the cache, and several segments closed.
func (r *rot) refilled(list []hearthtest.File) {
	r.Helper()
	r.live(false)
	r.must(os.RemoveAll(r.path("cache")), "remove the cache")
	r.live(true)
	r.good("filling the cache", epoch(r.h.dir, list, 3, 8, 0))
	r.live(false)
	r.live(true)
	r.cold(r.h.dir, list)
	r.good("from the cache", epoch(r.h.dir, list, 3, 8, 0))
}

// raise gives a seal of 64 bytes - a segment's header or trailer, a sidecar's header -
// the next format and the checksum of that.
func (r *rot) raise(name string, off int64) {
	r.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	r.must(err, "open %s", name)
	seal := make([]byte, 64)
	_, err = f.ReadAt(seal, off)
	r.must(err, "read %s", name)
	if binary.LittleEndian.Uint64(seal[56:]) != xxh3.Hash(seal[:56]) || seal[8] != 1 {
		r.Fatalf("%s has no seal of format 1 at %d: %q", name, off, seal)
	}
	seal[8] = 2
	binary.LittleEndian.PutUint64(seal[56:], xxh3.Hash(seal[:56]))
	_, err = f.WriteAt(seal, off)
	r.must(errors.Join(err, f.Close()), "write %s", name)
}
