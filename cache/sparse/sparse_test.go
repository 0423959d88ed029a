package sparse

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestWrongArgumentsAreRefused(t *testing.T) {
	// Calls with missing blocks, short data and ranges past the end change nothing.
	x := start(t, Options{})
	o, data := sample(1, mib+100)
	for _, err := range []error{
		x.Put(o, 2, data[:1]), x.Put(o, -1, data[:mib]), x.Put(o, 0, data[:mib-1]), x.Put(o, 1, data[:101]),
		x.PutMany(o, 1, [][]byte{data[:100], data[:100]}),
	} {
		if !errors.Is(err, unix.EINVAL) {
			t.Errorf("got %v", err)
		}
	}
	x.put(o, data, 0)
	if _, err := x.Get(context.Background(), o.Block(0), mib-5, 6); err == nil {
		t.Error("a range past the end was answered")
	}
	if x.has(o, data, 1) || x.Has(o.Block(2).ID()) || x.Has(hearth.ID{Version: o.Version, Index: -1}) {
		t.Error("a block is held that nobody put")
	}
	longer := *o
	longer.Size++
	if err := x.Put(&longer, 0, data[:mib]); err == nil {
		t.Error("an object changed its size")
	}
}

func TestForeignNamesAreLeftAlone(t *testing.T) {
	// Somebody else uses the directory, too. Names that are not ours stay, and are counted; halves
	// of our own pairs are removed.
	dir := t.TempDir()
	o, data := sample(1, 100)
	name := (&object{version: o.Version}).dataName()
	half, _ := sample(2, 100)
	orphan := filepath.Join(dir, (&object{version: half.Version}).sumsName())
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "README"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "0123.data"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "lost+found"), 0o700),
		os.Symlink("/etc/passwd", filepath.Join(dir, name)),
		os.WriteFile(orphan, []byte("x"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	x := start(t, Options{Dir: dir})
	if s := x.Stats(); s.Foreign != 4 || s.Orphans != 1 || s.Objects != 0 {
		t.Fatalf("stats %+v", s)
	}
	if err := x.Put(o, 0, data); !errors.Is(err, os.ErrExist) {
		t.Fatalf("put onto a foreign name: %v", err)
	}
	if target, err := os.Readlink(filepath.Join(dir, name)); err != nil || target != "/etc/passwd" {
		t.Fatalf("the foreign link is gone: %v", err)
	}
	if _, err := os.Stat(orphan); err == nil {
		t.Fatal("the orphan stayed")
	}
	if s := x.Stats(); s.Objects != 0 || x.Used() != 0 {
		t.Fatalf("stats %+v", s)
	}
}

func TestNewerFormatsAreRefused(t *testing.T) {
	// A newer hearth used the directory, or one of its files. Neither is read or removed, and the
	// error names file and cure.
	x := start(t, Options{})
	o, data := sample(1, mib)
	x.putAll(o, data)
	h := header{formatVersion + 1, o.Version, o.Size}
	if err := os.WriteFile(x.sumsFile(o), h.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	x.reopen()
	var refused *FormatError
	if _, err := x.Get(context.Background(), o.Block(0), 0, 1); !errors.As(err, &refused) || refused.File != x.sumsFile(o) {
		t.Fatalf("get: %v", err)
	}
	if err := x.Put(o, 0, data); !errors.As(err, &refused) {
		t.Fatalf("put: %v", err)
	}
	if x.Sample(1, 10, func(Candidate) { t.Fatal("offered for eviction") }); x.Stats().Objects != 1 {
		t.Fatal("the object is gone")
	}
	format := filepath.Join(x.opt.Dir, formatName)
	if err := os.WriteFile(format, []byte(formatText(formatVersion+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(x.opt); !errors.As(err, &refused) || refused.File != format || refused.Format != formatVersion+1 {
		t.Fatalf("open: %v", err)
	}
	// A FORMAT that cannot be parsed is written anew, also with a flipped digit or if it is a
	// directory.
	flipped := strings.Replace(formatText(formatVersion), " 1 ", " 3 ", 1)
	for _, text := range []string{"???", flipped, ""} {
		err := os.WriteFile(format, []byte(text), 0o600)
		if text == "" {
			err = errors.Join(os.Remove(format), os.MkdirAll(filepath.Join(format, "x"), 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
		x.reopen()
		if got, _ := os.ReadFile(format); string(got) != formatText(formatVersion) {
			t.Fatalf("FORMAT is %q after %q", got, text)
		}
	}
}

func TestDescriptorsAndIndexesAreBounded(t *testing.T) {
	// Forty objects are used in turn, with four descriptor pairs and a Pool without room for forty
	// indexes. All are served, and nothing is lost.
	pool := hearth.NewPool(0)
	x := start(t, Options{MaxOpen: 4, Pool: pool})
	var objects []*hearth.Object
	var all [][]byte
	for i := range 40 {
		o, data := sample(uint64(i), 70_000)
		x.putAll(o, data)
		objects, all = append(objects, o), append(all, data)
	}
	rest := pool.Stats().Budget - pool.Stats().Used - 1<<20
	if !pool.Reserve(rest) {
		t.Fatal("the pool is full")
	}
	for range 2 {
		for i, o := range objects {
			if !x.has(o, all[i], 0) {
				t.Fatalf("object %d is missing", i)
			}
			if s := x.Stats(); s.Open > 4 {
				t.Fatalf("%d objects open", s.Open)
			}
		}
	}
	var filler []int64
	for n := int64(1 << 20); n > 0; n /= 2 { // not a byte is left
		for pool.Reserve(n) {
			filler = append(filler, n)
		}
	}
	x.Files.mu.Lock()
	for x.indexes.list.Len() > 0 {
		x.dropIndexLocked(x.indexes.oldest())
	}
	x.Files.mu.Unlock()
	one := pool.Stats()
	pool.Reserve(one.Budget - one.Used - extentBytes) // room for one index
	for i, o := range objects {
		if !x.Has(o.Block(0).ID()) {
			t.Fatalf("object %d is not found by the one index", i)
		}
	}
	if s := x.Stats(); s.Indexed != 1 {
		t.Fatalf("%d indexes", s.Indexed)
	}
	if got := pool.Stats(); got.Used > got.Budget {
		t.Fatalf("pool %+v", got)
	}
	pool.Unreserve(one.Budget - one.Used - extentBytes)
	for _, n := range append(filler, rest) {
		pool.Unreserve(n)
	}
}

func TestFailedWriteIsABlockNotHeld(t *testing.T) {
	// The device is full within an object. Put says so, the block is a miss, the others stay, and
	// later the same Put succeeds.
	x := start(t, Options{})
	o, data := sample(1, 3*mib+10)
	x.put(o, data, 0)
	full, err := unix.Open("/dev/full", unix.O_RDWR, 0)
	if err != nil {
		t.Skip("no /dev/full")
	}
	x.mu.Lock()
	h := x.objects[o.Version].handle
	x.mu.Unlock()
	saved, _ := unix.FcntlInt(uintptr(h.data), unix.F_DUPFD_CLOEXEC, 0)
	if err := unix.Dup3(full, h.data, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(full)
	if err := x.Put(o, 1, blockOf(o, data, 1)); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v", err)
	}
	if err := unix.Dup3(saved, h.data, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(saved)
	if x.has(o, data, 1) || !x.has(o, data, 0) {
		t.Fatal("the failed block is held, or the one before it lost")
	}
	x.put(o, data, 3, 2, 1)
	if release := x.local(o, data); release == nil {
		t.Fatal("the object is not whole")
	} else {
		release()
	}
	x.checkUsed()
}

func TestSampleDrawsUnitsAlike(t *testing.T) {
	// There is one object of 40 extents with a hole, and four whole ones. Each unit is drawn about
	// equally often, with the size that its eviction would free.
	x := start(t, Options{})
	big, data := sampleObject(1, 40*16*mib), make([]byte, mib)
	hearthtest.Fill(data, big.Key, 0, 1)
	for e := range int64(40) {
		x.put(big, data, 0)
		if e > 0 {
			if err := x.Put(big, e*16, blockOf(big, data, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range uint64(4) {
		o, data := sample(2+i, 5000)
		x.putAll(o, data)
	}
	if s := x.Stats(); s.Units != 44 {
		t.Fatalf("%d units", s.Units)
	}
	drawn := make(map[hearth.ID]int)
	const n = 44 * 200
	x.Sample(7, n, func(c Candidate) {
		drawn[c.ID]++
		if c.Whole != (c.ID.Version != big.Version) || !c.Whole && c.Size != mib || c.Whole && c.Size > 32<<10 {
			t.Fatalf("candidate %+v", c)
		}
	})
	for id, times := range drawn {
		if times < 100 || times > 300 {
			t.Errorf("%v was drawn %d times of 200", id, times)
		}
	}
	if len(drawn) != 44 {
		t.Errorf("%d units were drawn", len(drawn))
	}
	for x.Stats().Units > 0 {
		x.Sample(uint64(x.Stats().Units), 1, func(c Candidate) {
			if x.Evict(c) <= 0 {
				t.Fatalf("evicting %+v freed nothing", c)
			}
		})
	}
	if x.Used() != 0 || x.onDevice() != 0 || x.Stats().Objects != 0 {
		t.Fatalf("after the last eviction %d used, %d on the device", x.Used(), x.onDevice())
	}
}

func TestPolicyHearsOfHits(t *testing.T) {
	// New blocks get a fresh state, a hit touches the state of its extent, and the
	// clock is asked once per hit.
	now := uint32(10)
	x := start(t, Options{
		Now:   func() uint32 { return now },
		Fresh: func(now uint32) uint32 { return now * 1000 },
		Touch: func(state, now uint32) uint32 { return state + now },
	})
	o, data := sample(1, 17*mib)
	x.put(o, data, 0, 16)
	now = 3
	//lint:ignore SA4000 twice: the first changes what the second finds
	if !x.has(o, data, 0) || !x.has(o, data, 0) {
		t.Fatal("missing")
	}
	got := make(map[int64]uint32)
	x.Sample(1, 64, func(c Candidate) { got[c.ID.Index] = c.State })
	if got[0] != 10_006 || got[16] != 10_000 {
		t.Fatalf("states %v", got)
	}
}

func TestOpenReadsNoFile(t *testing.T) {
	// A thousand objects are opened by names and sizes. Hardly a byte is read, and rotten sidecars
	// are found only at first use.
	dir := t.TempDir()
	const n = 1000
	for i := range uint64(n) {
		var version [16]byte
		binary.BigEndian.PutUint64(version[:], mix(i))
		x := &object{version: version}
		for _, name := range []string{x.dataName(), x.sumsName()} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("rotten"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	x := start(t, Options{Dir: dir})
	x.stop()
	before := bytesRead(t)
	x.reopen()
	if read := bytesRead(t) - before; read > 4096 {
		t.Errorf("%d bytes were read", read)
	}
	if s := x.Stats(); s.Objects != n || s.Open != 0 || s.Indexed != 0 || s.Damaged != 0 {
		t.Fatalf("stats %+v", s)
	}
	x.checkUsed()
	var first Candidate
	x.Sample(1, 1, func(c Candidate) { first = c })
	if x.Has(first.ID) || x.Stats().Damaged != 1 || x.Stats().Objects != n-1 {
		t.Fatalf("stats %+v", x.Stats())
	}
}

// bytesRead returns the bytes that this process has read by system calls.
func bytesRead(t *testing.T) (n int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("no I/O accounting")
	}
	if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCloseWaitsForReaders(t *testing.T) {
	// Eight readers and a writer work when the node stops. Each call in flight ends rightly, and
	// then each call gets the error.
	x := start(t, Options{})
	o, data := sample(1, 20*mib)
	x.putAll(o, data[:o.Size])
	var started, ended sync.WaitGroup
	files := x.Files
	for i := range 9 {
		started.Add(1)
		ended.Go(func() {
			var err error
			var v *hearth.View
			for n := 0; err == nil; n++ {
				if n == 3 {
					started.Done()
				}
				if i == 0 {
					files.EvictObject(o.Version)
					if err = files.Put(o, 3, data[3*mib:4*mib]); errors.Is(err, ErrBusy) {
						err = nil
					}
				} else if v, err = files.Get(context.Background(), o.Block(int64(n%20)), 5, 70_000); err == nil {
					v.Release()
				} else if err == hearth.ErrMiss {
					err = nil
				}
			}
			if !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
		})
	}
	started.Wait()
	x.stop()
	ended.Wait()
}
