package sparse

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// looked runs a check and returns what it found.
func looked(t *testing.T, repair bool, do func(r *check.Run) error) ([]check.Finding, *check.Run) {
	t.Helper()
	var all []check.Finding
	r := &check.Run{Repair: repair, Found: func(f check.Finding) { all = append(all, f) }}
	if err := do(r); err != nil {
		t.Fatal(err)
	}
	return all, r
}

func TestCheckFindsEveryChangedBlock(t *testing.T) {
	// A byte is changed in a block, in a record, in the record of a hole and in a sidecar's header.
	// A check names each, of open and of closed files alike. One with repair drops those, and the
	// next is clean.
	modes(t, func(t *testing.T, opt Options) {
		for _, open := range []bool{true, false} {
			x := start(t, opt)
			a, dataA := sample(1, 20*mib+17)
			b, dataB := sample(2, 3*mib)
			x.putAll(b, dataB)
			x.put(a, dataA, 0, 1, 2, 3, 18, 20)
			run := func(r *check.Run) error { return x.Files.Check(t.Context(), r, [16]byte{}, nil) }
			if !open {
				x.stop()
				run = func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) }
			}
			if all, r := looked(t, false, run); len(all) > 0 || r.Blocks.Load() != 9 {
				t.Fatalf("clean: %v, %d blocks", all, r.Blocks.Load())
			}
			hearthtest.FlipByte(t, x.dataFile(a), mib+77, 4)
			hearthtest.FlipByte(t, x.sumsFile(a), recordOffset(18)+20, 4)
			if err := os.WriteFile(x.sumsFile(a)+".x", nil, 0o600); err != nil { // foreign
				t.Fatal(err)
			}
			hearthtest.FlipByte(t, x.sumsFile(a), recordOffset(7), 4)
			hearthtest.FlipByte(t, x.sumsFile(b), 40, 4)
			bad, refused := 4, 1
			if open {
				refused = 0 // names are checked by Open
			}
			for _, repair := range []bool{false, true} {
				all, r := looked(t, repair, run)
				if len(all) != bad+refused || int(r.Bad.Load()) != bad || int(r.Repaired.Load()) != map[bool]int{true: bad}[repair] {
					t.Fatalf("open %v, repair %v: %v", open, repair, all)
				}
			}
			if all, r := looked(t, false, run); len(all) != refused || r.Blocks.Load() != 4 {
				t.Fatalf("open %v, after the repair: %v, %d blocks", open, all, r.Blocks.Load())
			}
			if !open {
				x.reopen()
			}
			for i := range a.Blocks() {
				if want := i == 0 || i == 2 || i == 3 || i == 20; x.has(a, dataA, i) != want {
					t.Errorf("open %v: block %d is held: %v", open, i, !want)
				}
			}
			for _, name := range []string{x.dataFile(a), x.sumsFile(a), x.sumsFile(a) + ".x"} {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
			x.stop()
		}
	})
}

func TestCheckClosedNamesWhatIsLeft(t *testing.T) {
	// There are halves of pairs, a file of another size, and FORMAT of a newer version.
	x := start(t, Options{})
	a, dataA := sample(1, 3*mib)
	x.putAll(a, dataA)
	x.stop()
	orphan := filepath.Join(x.opt.Dir, strings.Repeat("ab", 16)+dataSuffix)
	if err := os.WriteFile(orphan, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(x.dataFile(a), 2*mib); err != nil {
		t.Fatal(err)
	}
	closed := func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) }
	if all, _ := looked(t, false, closed); len(all) != 3 { // its size, and the block that is cut off
		t.Fatalf("%v", all)
	}
	looked(t, true, closed)
	if all, r := looked(t, false, closed); len(all) != 0 || r.Blocks.Load() != 2 {
		t.Fatalf("after the repair: %v, %d blocks", all, r.Blocks.Load())
	}
	if err := os.WriteFile(filepath.Join(x.opt.Dir, formatName), []byte(formatText(2)), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, _ := looked(t, true, closed); len(all) != 1 || all[0].Kind != check.Refused {
		t.Fatalf("a newer format: %v", all)
	}
}

func TestCheckOfWhatChangesIsClean(t *testing.T) {
	// Blocks are written and evicted while a check runs: nothing is damaged.
	x := start(t, Options{})
	a, dataA := sample(1, 20*mib)
	b, dataB := sample(2, 2*mib)
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 120 {
			i := rng.Int64N(a.Blocks())
			if err := x.Put(a, i, blockOf(a, dataA, i)); err != nil {
				continue // busy: it is being evicted
			}
			if rng.IntN(3) == 0 {
				x.EvictExtent(a.Block(rng.Int64N(a.Blocks())).ID())
			}
			if rng.IntN(5) == 0 {
				_ = x.Put(b, 0, blockOf(b, dataB, 0))
				x.EvictObject(b.Version)
			}
		}
	})
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		all, _ := looked(t, true, func(r *check.Run) error { return x.Files.Check(t.Context(), r, [16]byte{}, nil) })
		if len(all) > 0 {
			<-done
			t.Fatalf("%v", all)
		}
	}
}

func TestACheckOfAnEjectedDirectoryLeavesNoMemory(t *testing.T) {
	// The directory is ejected after the header of a file was read. The check ends, and the memory
	// for the file's first block is free.
	x := start(t, Options{})
	a, dataA := sample(1, 2*mib)
	x.putAll(a, dataA)
	steps := 0
	r := &check.Run{Step: func(op func()) bool {
		if steps++; steps > 1 {
			return false
		}
		op()
		return true
	}}
	if err := x.Files.Check(t.Context(), r, [16]byte{}, nil); !errors.Is(err, check.ErrLeft) || x.pool.Stats().Views != 0 {
		t.Errorf("%d Views are kept, %v", x.pool.Stats().Views, err)
	}
}

// sickFile makes each read of a file fail with EIO while it is sick. It then reads our own memory,
// where nothing is mapped.
func sickFile(t *testing.T, name string) (sick func(bool)) {
	t.Helper()
	mounted := false
	sick = func(on bool) {
		err := error(nil)
		switch {
		case on && !mounted:
			if err = unix.Mount("/proc/self/mem", name, "", unix.MS_BIND, ""); err == unix.EPERM {
				t.Skip("only root can make a file unreadable")
			}
		case !on && mounted:
			err = unix.Unmount(name, unix.MNT_DETACH)
		}
		if err != nil {
			t.Fatal(err)
		}
		mounted = on
	}
	t.Cleanup(func() { sick(false) })
	return sick
}

func TestRecordsThatCannotBeReadCostNoBlocks(t *testing.T) {
	// The second batch of a closed file's records cannot be read. Its blocks stay as they are,
	// whether the others are right or bad, and count again once it can be read.
	for _, hurt := range []bool{false, true} {
		x := start(t, Options{})
		one, bytes := sample(1, mib)
		a := &hearth.Object{Key: one.Key, ETag: one.ETag, Size: 470 * mib, Version: one.Version}
		for i := range int64(21) {
			if err := x.Put(a, 447+i, blockOf(one, bytes, 0)); err != nil { // one of the first batch
				t.Fatal(err)
			}
		}
		x.stop()
		left := int64(21)
		if hurt {
			hearthtest.FlipByte(t, x.dataFile(a), 447*mib+77, 4)
			left--
		}
		sick := sickFile(t, x.sumsFile(a))
		var all []check.Finding
		r := &check.Run{Repair: true, Found: func(f check.Finding) {
			if all = append(all, f); f.Block >= 0 {
				return
			}
			sick(false)
		}}
		r.Pace = func(context.Context, int64) error { // called before the first block is read
			r.Pace = nil
			sick(true)
			return nil
		}
		if err := CheckClosed(t.Context(), x.opt.Dir, r); err != nil {
			t.Fatal(err)
		}
		if last := all[len(all)-1]; int64(len(all)) != 22-left || last.Block >= 0 || last.Repaired || last.Kind != check.Damaged {
			t.Errorf("hurt %v: %v", hurt, all)
		}
		all, r = looked(t, true, func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) })
		if len(all) > 0 || r.Blocks.Load() != left {
			t.Errorf("hurt %v: %d blocks are left of %d, %v", hurt, r.Blocks.Load(), left, all)
		}
	}
}

func TestBadBlocksAreNoLeak(t *testing.T) {
	// A closed file has more bad blocks than may leak. Each is reported, with and without repair,
	// and nothing else.
	x := start(t, Options{})
	a, dataA := sample(1, 20*mib)
	x.putAll(a, dataA)
	x.stop()
	for i := range int64(18) {
		hearthtest.FlipByte(t, x.dataFile(a), i*mib+5, 4)
	}
	for _, repair := range []bool{false, true} {
		all, r := looked(t, repair, func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) })
		if len(all) != 18 || (r.Repaired.Load() == 18) != repair {
			t.Errorf("repair %v: %d findings, the last %v", repair, len(all), all[len(all)-1])
		}
	}
	if all, r := looked(t, false, func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) }); len(all) > 0 || r.Blocks.Load() != 2 {
		t.Errorf("after the repair: %d blocks, %v", r.Blocks.Load(), all)
	}
}

func TestCheckGoesOnBehindWhatCannotBeRead(t *testing.T) {
	// A directory stands in place of one object's data, and another in place of a sidecar. Both are
	// reported and not dropped, open and closed, and all other blocks are checked.
	modes(t, func(t *testing.T, opt Options) {
		opt.MaxOpen = 1
		x := start(t, opt)
		for i := range uint64(5) {
			o, data := sample(i+1, 2*mib)
			x.putAll(o, data)
		}
		a, _ := sample(1, 2*mib)
		b, _ := sample(2, 2*mib)
		for _, name := range []string{x.dataFile(a), x.sumsFile(b)} {
			if err := os.Rename(name, name+".away"); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(name, "kept"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		open := func(r *check.Run) error { return x.Files.Check(t.Context(), r, [16]byte{}, nil) }
		closed := func(r *check.Run) error { return CheckClosed(t.Context(), x.opt.Dir, r) }
		for _, repair := range []bool{false, true} {
			if all, r := looked(t, repair, open); len(all) != 2 || r.Repaired.Load() != 0 || r.Blocks.Load() != 6 {
				t.Errorf("open, repair %v: %d blocks, %v", repair, r.Blocks.Load(), all)
			}
		}
		x.stop()
		// Two directories, the halves beside them, and two names that are not ours.
		if all, r := looked(t, true, closed); len(all) != 6 || r.Repaired.Load() != 0 || r.Blocks.Load() != 6 {
			t.Errorf("closed: %d blocks, %v", r.Blocks.Load(), all)
		}
		for _, name := range []string{x.dataFile(a), x.sumsFile(b)} {
			if _, err := os.Stat(filepath.Join(name, "kept")); err != nil {
				t.Error(err)
			}
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestABlockThatIsHandedOutIsRepairedInItsRecordOnly(t *testing.T) {
	// A block of a lent file is bad. A check with repair removes its record, so that no start finds
	// it again, and leaves every byte where it is.
	x := start(t, Options{})
	a, dataA := sample(1, 3*mib)
	x.putAll(a, dataA)
	file, release, err := x.LocalFile(a)
	if err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, x.dataFile(a), mib+77, 4)
	dataA[mib+77] ^= 4
	run := func(r *check.Run) error { return x.Files.Check(t.Context(), r, [16]byte{}, nil) }
	if all, _ := looked(t, true, run); len(all) != 1 || !all[0].Repaired {
		t.Errorf("handed out: %v", all)
	}
	x.inspect(file, dataA)
	release() // the file stays open
	x.reopen()
	if all, _ := looked(t, true, run); len(all) != 0 || x.Has(a.Block(1).ID()) {
		t.Errorf("after a restart: %v", all)
	}
	x.inspect(file, dataA)
	_ = file.Close()
	if st := x.stat(a); allocated(&st) < 3*mib {
		t.Errorf("%d bytes are left before the next start", allocated(&st))
	}
	x.reopen()
	x.Has(a.Block(0).ID())
	if st := x.stat(a); allocated(&st) > 2*mib+mib/2 {
		t.Errorf("%d bytes after a start without readers", allocated(&st))
	}
}

func TestCheckBlock(t *testing.T) {
	// Single blocks are whole, holes, or changed in their bytes, their record or the sidecar's
	// header, and some files were removed, also right after a start. Each is reported for what it
	// is, and dropped.
	modes(t, func(t *testing.T, opt Options) {
		for _, fresh := range []bool{false, true} {
			x := start(t, opt)
			a, dataA := sample(1, 20*mib+17)
			b, dataB := sample(2, 3*mib)
			c, dataC := sample(3, 3*mib)
			d, dataD := sample(4, 3*mib)
			x.put(a, dataA, 0, 1, 2, 18, 20)
			x.putAll(b, dataB)
			x.putAll(c, dataC)
			x.putAll(d, dataD)
			again := func() {
				if fresh {
					x.stop()
					x.reopen()
				}
			}
			again()
			is := func(o *hearth.Object, i int64, held bool, says string) {
				t.Helper()
				all, r := looked(t, true, func(r *check.Run) error {
					got, err := x.Files.CheckBlock(t.Context(), r, o.Block(i))
					if got != held {
						t.Errorf("fresh %v, block %d of %s: held %v", fresh, i, o.Key, got)
					}
					return err
				})
				if (says == "") != (len(all) == 0) || len(all) > 0 && !strings.Contains(all[0].Cause, says) {
					t.Errorf("fresh %v, block %d of %s: %v", fresh, i, o.Key, all)
				}
				if opt.Buffered && held && says == "" && r.Buffered.Load() != 1 {
					t.Errorf("fresh %v, block %d of %s: nobody is told that the page cache was not passed by", fresh, i, o.Key)
				}
				if held && says == "" && r.Bytes.Load() != int64(o.Block(i).Len()) {
					t.Errorf("fresh %v, block %d of %s: %d bytes", fresh, i, o.Key, r.Bytes.Load())
				}
			}
			for _, i := range []int64{0, 1, 2, 18, 20} {
				is(a, i, true, "")
			}
			is(a, 3, false, "")
			again()
			hearthtest.FlipByte(t, x.dataFile(a), mib+77, 4)
			hearthtest.FlipByte(t, x.sumsFile(a), recordOffset(18)+20, 4)
			is(a, 1, true, "its bytes")
			is(a, 18, true, "record")
			is(a, 1, false, "")
			is(a, 18, false, "")
			is(a, 2, true, "")
			again()
			hearthtest.FlipByte(t, x.sumsFile(b), 40, 4)
			is(b, 0, true, "header")
			is(b, 0, false, "")
			for i, name := range []string{x.dataFile(c), x.sumsFile(d)} {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
				is([]*hearth.Object{c, d}[i], 0, true, "removed")
				is([]*hearth.Object{c, d}[i], 1, false, "")
			}
			x.stop()
			for _, name := range []string{x.dataFile(a), x.sumsFile(a)} {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
