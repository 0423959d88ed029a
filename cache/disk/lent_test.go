//go:build !race

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/cache/sparse"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// The model below does one thing after another, as norace_test.go of cache/sparse.

// lentHolder is a reader whom the kernel serves by itself: by a descriptor, or by a
// mapping that alone is left of it.
type lentHolder struct {
	inode   uint64
	want    []byte // what he read at first, and what was changed on the disk since
	file    *os.File
	mapping []byte
	release func()
}

func (h *lentHolder) sees() ([]byte, error) {
	if h.file == nil {
		return h.mapping, nil
	}
	got := make([]byte, len(h.want))
	_, err := h.file.ReadAt(got, 0)
	return got, err
}

func (h *lentHolder) leave() {
	if h.mapping != nil {
		_ = unix.Munmap(h.mapping)
	}
	if h.file != nil {
		_ = h.file.Close()
		h.release()
	}
}

// lentModel draws what may happen to a directory while its files are lent.
type lentModel struct {
	*Store
	t       *testing.T
	rng     *rand.Rand
	dir     string
	pool    *hearth.Pool
	member  bool // of a ring: it owns all but the large objects' first extents
	budget  int64
	objects []*hearth.Object
	holders []*lentHolder
	fills   int
	full    atomic.Bool // others fill the file system up to the floor
	done    map[string]int
}

const lentBudget = 80 << 20

func (m *lentModel) open() {
	m.t.Helper()
	o := Options{
		Pool: m.pool, Dirs: []DirOptions{{Path: m.dir, Budget: m.budget, Floor: lentBudget}},
		Check: 5 * time.Millisecond, RetryAfter: 5 * time.Millisecond,
		statfs: func(path string, st *unix.Statfs_t) error {
			err := unix.Statfs(path, st)
			if st.Bavail = 1 << 40 / uint64(st.Bsize); m.full.Load() {
				st.Bavail = 0
			}
			return err
		},
	}
	if m.member {
		o.Owns = func(id hearth.ID) bool {
			for _, large := range m.objects {
				if id.Version == large.Version {
					return id.Index >= hearth.ExtentBlocks
				}
			}
			return true
		}
	}
	s, err := Open(o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.Store = s
}

func (m *lentModel) object() *hearth.Object { return m.objects[m.rng.IntN(len(m.objects))] }

// keep writes a block if it is not held; what is declined is no fault.
func (m *lentModel) keep(b hearth.Block) {
	if m.Has(b.ID()) {
		return
	}
	v := hearthtest.View(m.t, m.pool, b, 1)
	defer v.Release()
	_ = m.Keep(m.t.Context(), b, v)
}

func (m *lentModel) fill() {
	for range 1 + m.rng.IntN(30) {
		m.fills++
		m.keep(hearthtest.NewObject(fmt.Sprint("fill/", m.fills), hearth.BlockSize, 1).Block(0))
	}
	_ = m.Flush(m.t.Context())
}

func (m *lentModel) write() { m.writeAll(m.object()) }

func (m *lentModel) writeAll(o *hearth.Object) {
	for i := range o.Blocks() {
		m.keep(o.Block(i))
	}
	_ = m.Flush(m.t.Context())
}

func (m *lentModel) lend() {
	o := m.object()
	m.writeAll(o)
	var file *os.File
	var release func()
	hearthtest.Eventually(m.t.Context(), watchdog, func() bool {
		whole, _ := m.Whole(o)
		var err error
		file, release, err = m.LocalFile(o) // or its verification begins
		return !whole || err == nil
	})
	if file == nil {
		return
	}
	m.done["lent"]++
	h := &lentHolder{want: make([]byte, o.Size), file: file, release: release}
	var st unix.Stat_t
	_, err := file.ReadAt(h.want, 0)
	if err := errors.Join(err, unix.Fstat(int(file.Fd()), &st), hearthtest.Check(h.want, o.Key, 0, 1)); err != nil {
		m.t.Fatalf("lent: %v", err)
	}
	h.inode = st.Ino
	if m.rng.IntN(2) == 0 {
		if h.mapping, err = unix.Mmap(int(file.Fd()), 0, int(o.Size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			m.t.Fatal(err)
		}
		_ = file.Close()
		release()
		h.file = nil
	}
	m.holders = append(m.holders, h)
}

func (m *lentModel) leave() {
	if n := len(m.holders); n > 0 {
		i := m.rng.IntN(n)
		m.holders[i].leave()
		m.holders = append(m.holders[:i], m.holders[i+1:]...)
	}
}

// eject has the directory out of use by a stall or by failed writes, and waits for its return.
func (m *lentModel) eject() {
	d := m.dirs[0]
	if m.rng.IntN(2) == 0 {
		d.hangs("an operation", time.Second)
	} else {
		for range ejectAfter {
			d.writeFailed(unix.EIO)
		}
	}
	if !hearthtest.Eventually(m.t.Context(), watchdog, func() bool { return d.writable() && d.volume.Load() != nil }) {
		m.t.Fatalf("never returned: %+v", m.Stats())
	}
}

// harm changes a byte of an object's file or sidecar on the disk.
func (m *lentModel) harm() {
	names, _ := filepath.Glob(filepath.Join(objectsPath(m.dir), "*.*s*")) // .sums
	data, _ := filepath.Glob(filepath.Join(objectsPath(m.dir), "*.data"))
	if names = append(names, data...); len(names) == 0 {
		return
	}
	name := names[m.rng.IntN(len(names))]
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil || st.Size == 0 {
		return
	}
	off := m.rng.Int64N(st.Size)
	hearthtest.FlipByte(m.t, name, off, 16)
	for _, h := range m.holders {
		if strings.HasSuffix(name, ".data") && h.inode == st.Ino {
			h.want[off] ^= 16
		}
	}
	m.read()
}

func (m *lentModel) read() {
	for _, o := range m.objects {
		for i := range o.Blocks() {
			hearthtest.CheckGet(m.t, m.Store, o.Block(i), 0, o.Block(i).Len(), 1)
		}
	}
}

func (m *lentModel) fsck() {
	r := &check.Run{Repair: m.rng.IntN(2) == 0, Found: func(check.Finding) {}}
	if err := m.Check(m.t.Context(), r, m.dir); err != nil && !errors.Is(err, check.ErrLeft) {
		m.t.Fatal(err)
	}
}

func (m *lentModel) replace() { m.Replaced(m.object()); m.fill() }

// floor has others fill the file system, and then go. The directory knows of both before anything else is done: what it
// evicts for them is the room in which the next files are lent.
func (m *lentModel) floor() {
	m.t.Helper()
	for _, full := range []bool{true, false} {
		m.full.Store(full)
		if !hearthtest.Eventually(m.t.Context(), watchdog, func() bool { return m.Stats().Dirs[0].Limit < m.budget == full }) {
			m.t.Fatalf("it does not know that the file system is full, or not any more (%v): %+v", full, m.Stats())
		}
		if full {
			m.fill()
		}
	}
}

// restart opens the directory anew, perhaps with another budget, in or outside of a ring,
// and behind a repair that nobody was running for.
func (m *lentModel) restart() {
	m.t.Helper()
	if err := m.Close(); err != nil {
		m.t.Fatal(err)
	}
	if m.rng.IntN(2) == 0 {
		r := &check.Run{Repair: true, Found: func(check.Finding) {}}
		if err := errors.Join(segment.CheckClosed(m.t.Context(), segment.Options{Dir: segmentsPath(m.dir), Pool: m.pool}, r), sparse.CheckClosed(m.t.Context(), objectsPath(m.dir), r)); err != nil {
			m.t.Fatal(err)
		}
	}
	m.budget = []int64{lentBudget, lentBudget / 4, 2 * lentBudget}[m.rng.IntN(3)]
	m.member = m.rng.IntN(2) == 0
	m.open()
}

// look holds what each reader sees against what he saw.
func (m *lentModel) look(after string) {
	m.t.Helper()
	m.done[after]++
	for _, h := range m.holders {
		got, err := h.sees()
		if err != nil || !bytes.Equal(got, h.want) {
			at := 0
			for at < len(got) && got[at] == h.want[at] {
				at++
			}
			m.t.Fatalf("after %s a reader's file is another from byte %d on (mapped %v): %v", after, at, h.mapping != nil, err)
		}
	}
}

func TestWhatWasLentIsNeverChanged(t *testing.T) {
	// Files are lent, mapped and given back, while the directory is filled, ejected and
	// comes back, is checked with repair in use and stopped, rots, shrinks, and meets its
	// floor, in a ring and outside: whoever holds a file sees the bytes that he saw, until
	// he lets go of it; and then its space is free.
	for seed := range uint64(2) {
		m := &lentModel{
			t: t, rng: rand.New(rand.NewPCG(seed, 22)), dir: t.TempDir(), pool: hearthtest.Pool(t, 64<<20),
			member: seed%2 == 0, budget: lentBudget, done: map[string]int{},
			objects: []*hearth.Object{hearthtest.NewObject("large/0", 18<<20, 1), hearthtest.NewObject("large/1", 3<<20+777, 1)},
		}
		m.open()
		deeds := []struct {
			name string
			do   func()
		}{{"fill", m.fill}, {"write", m.write}, {"lend", m.lend}, {"lend", m.lend}, {"leave", m.leave}, {"eject", m.eject}, {"harm", m.harm},
			{"read", m.read}, {"fsck", m.fsck}, {"replace", m.replace}, {"floor", m.floor}, {"restart", m.restart}}
		for range 100 {
			d := deeds[m.rng.IntN(len(deeds))]
			d.do()
			m.look(d.name)
		}
		if m.done["lent"] < 5 {
			t.Errorf("seed %d: %v: next to nothing was lent", seed, m.done)
		}
		for len(m.holders) > 0 {
			m.leave()
		}
		m.restart()
		for range 4 {
			m.fill()
		}
		if used := m.Stats().Dirs[0]; used.Used > m.budget+writeUnit {
			t.Errorf("seed %d: %d bytes used of %d", seed, used.Used, m.budget)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
