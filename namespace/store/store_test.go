package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func key(i int) []byte { return fmt.Appendf(nil, "k%06d", i) }

func mustOpen(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fill(t *testing.T, s *Store, from, to int, sync bool) {
	t.Helper()
	for from < to {
		next := min(from+100, to)
		e := s.Edit()
		for i := from; i < next; i++ {
			e.Set(key(i), bytes.Repeat(key(i), 20))
		}
		switch err := e.Commit(sync); {
		case err == nil:
			from = next
		case !errors.Is(err, ErrRebuilt):
			t.Fatal(err)
		}
	}
}

// check counts the records among the first n that are there. A wrong one is fatal.
func check(t *testing.T, s *Store, n int) (have int) {
	t.Helper()
	for i := range n {
		v, ok, err := s.Get(nil, key(i))
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			have++
			if !bytes.Equal(v, bytes.Repeat(key(i), 20)) {
				t.Fatalf("%s is %q", key(i), v)
			}
		}
	}
	return have
}

func TestTakesWhatItWrites(t *testing.T) {
	// A log takes no room on the disk before there is something to write: the cache's budget counts it.
	dir := t.TempDir() + "/names"
	s := mustOpen(t, Options{Dir: dir})
	fill(t, s, 0, 3000, false)
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var taken int64
	for _, f := range list {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		taken += info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if taken == 0 || taken > 1<<20 {
		t.Errorf("records of 450 KiB take %d bytes", taken)
	}
}

func TestRestart(t *testing.T) {
	// What was put is there after a restart, in order, and what was deleted is not.
	dir := t.TempDir() + "/names"
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, 0, 5000, false)
	e := s.Edit()
	e.Delete(key(7))
	if err := errors.Join(e.Commit(false), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Get(nil, key(1)); err == nil {
		t.Error("a closed store answers")
	}
	s = mustOpen(t, Options{Dir: dir})
	if n := check(t, s, 5000); n != 4999 {
		t.Errorf("%d records", n)
	}
	var rows Rows
	if err := s.Scan(&rows, key(5), key(10), 3); err != nil || rows.Len() != 3 || !bytes.Equal(rows.Key(2), key(8)) {
		t.Errorf("%d rows, %v", rows.Len(), err)
	}
	if _, err := Open(Options{Dir: dir}); err == nil {
		t.Error("two stores in one directory")
	}
}

func TestWhatWasCommittedOutlastsItsProcess(t *testing.T) {
	// With Outlasts, or since Outlast, a killed process leaves all that it committed, down to the last record. A power cut leaves what
	// was made durable, as ever: syncs that do nothing in between are not taken for that.
	for _, later := range []bool{false, true} {
		outlasts(t, later)
	}
}

func outlasts(t *testing.T, later bool) {
	mem := vfs.NewCrashableMem()
	s := mustOpen(t, Options{Dir: "/names", FS: mem, Outlasts: !later})
	if later {
		s.Outlast()
	}
	left := func(percent int) int {
		clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(1, 1))})
		return check(t, mustOpen(t, Options{Dir: "/names", FS: clone}), 2000)
	}
	for i := range 1000 {
		fill(t, s, i, i+1, false)
		if i%100 == 0 {
			if n := left(100); n != i+1 {
				t.Fatalf("of %d records a killed process leaves %d", i+1, n)
			}
		}
	}
	fill(t, s, 1000, 1001, true)
	if n := left(0); n != 1001 {
		t.Errorf("of 1001 records, the last one durable, a power cut leaves %d", n)
	}
}

func TestTooMuchMemory(t *testing.T) {
	// A store in memory starts anew when it outgrows what it was given.
	rebuilt := 0
	random := rand.NewChaCha8([32]byte{1})
	s := mustOpen(t, Options{MemoryBytes: 1 << 20, Rebuilt: func(error) { rebuilt++ }})
	for i := range 40 {
		e := s.Edit()
		value := make([]byte, 1<<20)
		_, _ = random.Read(value)
		e.Set(key(i), value)
		if err := e.Commit(false); err != nil && !errors.Is(err, ErrRebuilt) {
			t.Fatal(err)
		}
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 0, 10, false)
	st := s.Stats()
	if n := check(t, s, 10); n != 10 || rebuilt == 0 || st.Ill != nil || st.MemoryBytes > 24<<20 {
		t.Errorf("%d records, %d rebuilds, %+v", n, rebuilt, st)
	}
}

func TestDamagedManifestLosesAllOrNothing(t *testing.T) {
	// The manifest is damaged anywhere, also in a header. Either all records are there or none: never
	// those that were logged last without those before.
	lost := 0
	for seed := range uint64(16) {
		dir := filepath.Join(t.TempDir(), "names")
		s, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			fill(t, s, 100*i, 100*i+100, false)
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		fill(t, s, 300, 400, false)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		manifests, _ := filepath.Glob(dir + "/MANIFEST-*")
		data, err := os.ReadFile(manifests[len(manifests)-1])
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, 3))
		for range 1 + r.IntN(2) {
			data[r.IntN(len(data))] ^= byte(1 << r.IntN(8))
		}
		if err := os.WriteFile(manifests[len(manifests)-1], data, 0o600); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, Options{Dir: dir})
		switch n := check(t, s, 400); n {
		case 0:
			lost++
		case 400:
		default:
			t.Errorf("seed %d: %d of 400 records", seed, n)
		}
	}
	if lost == 0 {
		t.Error("the damage is not met")
	}
}

func TestAManifestThatNothingNames(t *testing.T) {
	// The marker that names the manifest is gone: no part of the database is taken for the whole, not
	// even a log that a new database would replay. Where a process ended before it had made a marker,
	// there is no database, and no damage.
	dir := filepath.Join(t.TempDir(), "names")
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, 0, 100, false)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 100, 200, false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	markers, err := filepath.Glob(dir + "/marker.manifest*")
	if err != nil || len(markers) == 0 {
		t.Fatal(markers, err)
	}
	for _, m := range markers {
		if err := os.Remove(m); err != nil {
			t.Fatal(err)
		}
	}
	s = mustOpen(t, Options{Dir: dir})
	if n := check(t, s, 200); n != 0 || s.Stats().Rebuilds != 1 {
		t.Errorf("%d records, %+v", n, s.Stats())
	}
	made := filepath.Join(t.TempDir(), "made")
	if err := errors.Join(os.Mkdir(made, 0o700), os.WriteFile(made+"/MANIFEST-000001", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLook(made); !errors.Is(err, ErrUnmade) {
		t.Errorf("a database in the making: %v", err)
	}
}

// damage flips bytes in a file, cuts it, or removes it.
func damage(t *testing.T, dir string, r *rand.Rand) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, files[r.IntN(len(files))].Name())
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	switch k := r.IntN(6); {
	case k == 0:
		err = os.Remove(name)
	case k == 1:
		err = os.Truncate(name, int64(len(data)/2))
	case len(data) > 0:
		for range 10 {
			data[r.IntN(len(data))] ^= byte(1 + r.IntN(255))
		}
		err = os.WriteFile(name, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestManyAtOnce(t *testing.T) {
	// Readers and writers share a store while its database is being replaced.
	s := mustOpen(t, Options{Dir: t.TempDir() + "/names"})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var rows Rows
			for i := range 300 {
				fill(t, s, g*1000+i, g*1000+i+1, i%100 == 0)
				if _, _, err := s.Get(nil, key(i)); err != nil {
					t.Error(err)
				}
				if err := s.Scan(&rows, key(0), key(9999), 100); err != nil {
					t.Error(err)
				}
				if g == 0 && i%100 == 50 {
					s.doom(errors.New("told to"))
				}
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.Rebuilds == 0 {
		t.Errorf("%+v", st)
	}
}

func TestAnEditIsForItsDatabase(t *testing.T) {
	// An Edit for a database that is dropped changes nothing in the next one.
	s := mustOpen(t, Options{Dir: t.TempDir() + "/names"})
	fill(t, s, 0, 1, false)
	e := s.Edit()
	e.Set(key(1), []byte("of the first"))
	s.doom(errors.New("told to"))
	if err := e.Commit(true); !errors.Is(err, ErrRebuilt) || s.Generation() != 1 {
		t.Errorf("%v, generation %d", err, s.Generation())
	}
	if _, ok, err := s.Get(nil, key(1)); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	fill(t, s, 1, 2, true)
	if check(t, s, 2) != 1 {
		t.Error("a later edit is lost")
	}
}
