package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// raise gives a seal of 64 bytes the next format and the checksum of that.
func raise(text []byte) {
	text[8]++
	binary.LittleEndian.PutUint64(text[56:], xxh3.Hash(text[:56]))
}

func TestNewerFilesBelow(t *testing.T) {
	// A large object's file of a newer hearth is missed, named, and no verdict on the disk; what says that a whole area is newer refuses the directory with the cure. Nothing is touched.
	path := t.TempDir()
	pool := hearthtest.Pool(t, 64<<20)
	var mu sync.Mutex // guards told
	told := map[string]string{}
	o := Options{Pool: pool, Dirs: []DirOptions{{Path: path, Budget: 64 << 20, Floor: -1}},
		Events: Events{Damaged: func(file string, cause error) { mu.Lock(); defer mu.Unlock(); told[file] = cause.Error() }}}
	large, tiny := hearthtest.NewObject("large", 3<<20, 1), small(1, 5000)
	with := func(do func(s *Store)) {
		t.Helper()
		s, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		do(s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	with(func(s *Store) {
		for _, b := range []hearth.Block{large.Block(0), large.Block(1), large.Block(2), tiny.Block(0)} {
			v := hearthtest.View(t, pool, b, 1)
			if err := s.Keep(t.Context(), b, v); err != nil {
				t.Fatal(err)
			}
			v.Release()
		}
	})
	change := func(pattern string, how func(text []byte) []byte) (name string, text []byte) {
		t.Helper()
		names, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil || len(names) != 1 {
			t.Fatalf("%s: %v, %v", pattern, names, err)
		}
		if text, err = os.ReadFile(names[0]); err == nil {
			text = how(text)
			err = os.WriteFile(names[0], text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return names[0], text
	}
	same := func(name string, text []byte) {
		t.Helper()
		if now, err := os.ReadFile(name); err != nil || string(now) != string(text) {
			t.Errorf("%s was changed, %v", name, err)
		}
	}

	sums, text := change(objectsDir+"/*.sums", func(text []byte) []byte { raise(text); return text })
	with(func(s *Store) {
		v := hearthtest.View(t, pool, large.Block(0), 1)
		defer v.Release()
		for range 3 * ejectAfter {
			if !hearthtest.CheckGet(t, s, large.Block(0), 0, 100, 1) {
				t.Fatal("a newer file was read")
			}
			if err := s.Keep(t.Context(), large.Block(0), v); err == nil {
				t.Fatal("a newer file was written")
			}
		}
		if st := s.Stats().Dirs[0]; st.Ejected || st.Errors == 0 || hearthtest.CheckGet(t, s, tiny.Block(0), 0, 5000, 1) {
			t.Errorf("%+v", st)
		}
	})
	mu.Lock()
	if !strings.Contains(told[sums], sums+" has cache format 2") {
		t.Errorf("told: %q", told)
	}
	mu.Unlock()
	same(sums, text)

	for pattern, how := range map[string]func([]byte) []byte{
		objectsDir + "/FORMAT": func([]byte) []byte { return fmt.Appendf(nil, "hearth sparse 2 %016x\n", xxh3.HashString("2")) },
		segmentsDir + "/*.segment": func(text []byte) []byte {
			raise(text)
			raise(text[len(text)-64:])
			return text
		},
	} {
		name, newer := change(pattern, how)
		_, err := Open(o)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), name+" has cache format 2") ||
			!strings.Contains(err.Error(), "run the newer hearth again, or remove "+filepath.Dir(name)+" ") {
			t.Errorf("%s: %v", name, err)
		}
		same(name, newer)
		if err := os.RemoveAll(filepath.Dir(name)); err != nil { // as the line says
			t.Fatal(err)
		}
		with(func(*Store) {})
	}
}
