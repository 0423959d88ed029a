package disk

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestAHugeObjectIsNoFailureOfTheDevice(t *testing.T) {
	// A sparse file of an origin has 200 TiB. What lies behind the first 128 TiB of it is declined before it is fetched, by Put and by
	// Keep, evicts nothing and is no error; what lies before is kept. That it is replaced takes no walk over its blocks.
	s := openReal(t, Options{Dirs: []DirOptions{{Path: t.TempDir(), Budget: 8 << 20}}})
	d := s.dirs[0]
	keep := func(o *hearth.Object, i int64, want error) {
		t.Helper()
		v := hearthtest.View(t, d.opt.Pool, o.Block(i), 1)
		defer v.Release()
		if err := s.Keep(t.Context(), o.Block(i), v); !errors.Is(err, want) {
			t.Errorf("keep block %d: %v, want %v", i, err, want)
		}
	}
	huge := hearthtest.NewObject("huge", 200<<40, 1)
	for i := range int64(6) {
		keep(huge, i, nil)
	}
	for i := range int64(2 * ejectAfter) {
		keep(huge, 1<<27+i, ErrTooFar)
		if b := huge.Block(1<<27 + i); s.Takes(b) {
			t.Errorf("block %d would be taken", b.Index)
		}
	}
	if st := s.Stats().Dirs[0]; st.Ejected || st.Faults.Errors > 0 || st.Blocks != 6 || st.Evicted > 0 {
		t.Errorf("%+v", st)
	}
	keep(huge, 1<<27-1, nil)
	hearthtest.CheckGet(t, s, huge.Block(1<<27-1), 0, hearth.BlockSize, 1)
	s.Replaced(huge)
	keep(hearthtest.NewObject("next", hearth.BlockSize, 1), 0, nil)
	if n := s.Stats().Dirs[0].Blocks; n != 1 {
		t.Errorf("%d blocks are held once the huge object was replaced", n)
	}
}

func TestAFileThatIsTooLargeForItsFileSystem(t *testing.T) {
	// A limit on the size of files, as ulimit -f sets it and as file systems have one, is met by each object's file: its blocks are packed.
	// Where no segment can be written either, the directory has no room, and that is said. It is not ejected.
	if os.Getenv("HEARTH_TEST_LIMIT") == "" {
		for _, limit := range []string{"12", "2"} {
			cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
			cmd.Env = append(os.Environ(), "HEARTH_TEST_LIMIT="+limit)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("files of %s MiB: %v\n%s", limit, err, out)
			}
		}
		return
	}
	mib, err := strconv.ParseUint(os.Getenv("HEARTH_TEST_LIMIT"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	var full atomic.Int64
	s := openReal(t, Options{Dirs: []DirOptions{{Path: t.TempDir(), Budget: 80 << 20}}, Events: Events{Full: func(string, error) { full.Add(1) }}})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: mib << 20, Max: mib << 20}); err != nil {
		t.Fatal(err)
	}
	d, large, held := s.dirs[0], hearthtest.NewObject("large", 16<<20, 1), 0
	for i := range int64(2 * ejectAfter) {
		b := large.Block(i)
		v := hearthtest.View(t, d.opt.Pool, b, 1)
		err := s.Keep(t.Context(), b, v)
		if v.Release(); err == nil && s.Has(b.ID()) {
			held++
			hearthtest.CheckGet(t, s, b, 0, b.Len(), 1)
		}
	}
	if st := s.Stats().Dirs[0]; st.Ejected || held < int(mib)-1 || (held == 2*ejectAfter) != (mib == 12) || (full.Load() > 0) != (mib == 2) {
		t.Errorf("%d MiB: %d held, %d times full, %+v", mib, held, full.Load(), st)
	}
}
