package volume

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// This file has what a device, or somebody at it, does to a node.

func TestAVolumeThatWasFormattedAnewIsLeft(t *testing.T) {
	// The device is formatted for another cluster under a node that has a segment open. The node's flush fails, the
	// volume is out of use, and no segment of the new volume is begun by it.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	if _, err := MakeVolume(r.dev, FormatOptions{Cluster: [16]byte{7}, Segment: minSegment, Force: true}); err != nil {
		t.Fatal(err)
	}
	r.mustKeep(2, 1000) // nobody has looked at the device yet
	if err := r.v.Flush(t.Context()); !errors.Is(err, ErrForeign) {
		t.Errorf("flush: %v", err)
	}
	for i := 3; i < 40; i++ {
		if err := r.keep(i, 500_000); err == nil {
			t.Fatal("it is in use still")
		}
	}
	if err := r.v.State().Away; !errors.Is(err, ErrForeign) {
		t.Errorf("away: %v", err)
	}
	g, err := look(r.dev)
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, pageSize)
	for n := range g.count {
		if _, err := r.dev.ReadAt(page, g.offset(n)); err != nil || !bytes.Equal(page, make([]byte, pageSize)) {
			t.Errorf("segment %d of the new volume has a header: %v", n, err)
		}
	}
}

func TestAHeaderThatIsNeverTheSame(t *testing.T) {
	// A target gives a segment another header at each read. A block is dropped then, with an error that says why, and
	// the volume can be closed.
	r := newRig(t, 1, nil)
	h := header{format: Format, volume: r.v.g.volume, generation: 5, node: [16]byte{1}, began: 1}
	page, reads := make([]byte, pageSize), atomic.Int64{}
	r.dev.fails(func(op string, off int64) error {
		if op == "read" && off == firstSegment {
			h.salt = uint64(1000 + reads.Add(1)) // only the writer reads
			h.put(page)
			r.dev.mu.Lock()
			r.dev.cached[off] = bytes.Clone(page)
			r.dev.mu.Unlock()
		}
		return nil
	})
	if err := r.keep(1, 1000); err == nil || err.Error() != errContended.Error() {
		t.Errorf("keep: %v", err)
	}
	if n := reads.Load(); n > 2*contended {
		t.Errorf("%d reads of a header for one block", n)
	}
	r.close()
}

func TestAFailedWriteAmidReclaim(t *testing.T) {
	// The first write of a segment fails while blocks that were hit move into it. The block that needed it is dropped
	// with an error, nothing is written past the device, and the next ones are kept.
	r := newRig(t, 3, nil)
	const size = 500_000
	var fail atomic.Bool
	var beyond atomic.Int64
	r.dev.fails(func(op string, off int64) error {
		if op == "write" && off >= r.dev.Size() {
			beyond.Store(off)
		}
		if op == "write" && (off-firstSegment)%minSegment == 0 && fail.CompareAndSwap(true, false) {
			return errors.New("a write failed")
		}
		return nil
	})
	failed := 0
	for i := range 60 {
		if i == 30 {
			fail.Store(true)
		}
		if err := r.keep(i, size); err != nil {
			failed++
		} else if !r.held(i, size) {
			t.Errorf("block %d was kept, and is not there", i)
		}
	}
	if failed != 1 || fail.Load() || beyond.Load() != 0 {
		t.Errorf("%d blocks failed; a write at %d of a device of %d bytes", failed, beyond.Load(), r.dev.Size())
	}
	r.flush()
	if n := r.count(50, 60, size); n != 10 {
		t.Errorf("%d of the last 10 blocks are there", n)
	}
}

func TestWhatMayStillBeWrittenIsNotWrittenOtherwise(t *testing.T) {
	// After a write that failed, perhaps only for now, no other bytes are written to the same pages of the segment. The
	// blocks behind the hole are found by a node that comes later.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	var fail atomic.Bool
	fail.Store(true)
	seen := map[int64]bool{} // only the writer writes
	r.dev.fails(func(op string, off int64) error {
		if op != "write" {
			return nil
		}
		if seen[off] {
			t.Errorf("a second write at %d", off)
		}
		seen[off] = true
		if fail.CompareAndSwap(true, false) {
			return errors.New("no answer")
		}
		return nil
	})
	if err := r.keep(2, 1000); err == nil {
		t.Error("a write that failed keeps a block")
	}
	r.mustKeep(3, 1000)
	r.flush()
	r.dev.fails(nil)
	gone := r.v
	r.attach()
	if !r.held(1, 1000) || r.held(2, 1000) || !r.held(3, 1000) {
		t.Error("not what was kept is there")
	}
	_ = gone.Close()
}

func TestBadSectorsAreNoOutage(t *testing.T) {
	// The headers of some segments cannot be read, for good, or the first times. All others are used, the volume is known,
	// and it stays in use. Where sectors are bad, writing goes on in other segments, and a check says that it does not
	// know what lies there.
	for name, cause := range map[string]error{"bad": unix.EIO, "now": errors.New("no answer")} {
		r := newRig(t, 16, nil)
		r.mustKeep(1, 1000)
		r.flush()
		bad := func(off int64) bool {
			n := (off - firstSegment) / minSegment
			return off >= firstSegment && (off-firstSegment)%minSegment == 0 && n%3 == 1
		}
		var tries [32]atomic.Int32 // of each segment
		r.dev.fails(func(op string, off int64) error {
			if op != "read" || !bad(off) {
				return nil
			}
			if n := tries[(off-firstSegment)/minSegment].Add(1); cause == unix.EIO || n < failures {
				return cause
			}
			return nil
		})
		gone := r.v
		r.attach() // waits until all is known
		if s := r.v.State(); s.Away != nil || r.v.Stats().Outages != 0 || !r.held(1, 1000) {
			t.Errorf("%s: %+v", name, s)
		}
		absent, _ := r.block(1000, 1000)
		if held, err := over(1, r.v).Verify(t.Context(), absent); held || errors.Is(err, ErrUnread) != (cause == unix.EIO) {
			t.Errorf("%s: what is not there: %v, %v", name, held, err)
		}
		for i := 2; i < 200 && cause == unix.EIO; i++ {
			r.mustKeep(i, 500_000)
		}
		_ = gone.Close()
		r.close()
	}
}

func TestABadSectorOfAKnownSegment(t *testing.T) {
	// The header and the index of segments go bad after they were learned. The writer takes other segments.
	for _, at := range []int64{0, minSegment - pageSize} {
		r := newRig(t, 6, nil)
		for i := range 60 {
			r.mustKeep(i, 500_000)
		}
		r.dev.fails(func(op string, off int64) error {
			if n := off - firstSegment; op == "read" && (n == at || n == 3*minSegment+at) {
				return unix.EIO
			}
			return nil
		})
		for i := 100; i < 200; i++ {
			r.mustKeep(i, 500_000)
		}
		r.flush()
	}
}

func TestASegmentThatIsNotGivenIsAnOutage(t *testing.T) {
	// A device does not give one segment while it is learned, and says nothing of a bad sector. The volume is out of
	// use, and no volume without that segment: once the device gives it, its blocks are there.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	r.flush()
	r.close()
	var times atomic.Int32
	r.dev.fails(func(op string, off int64) error {
		if op == "read" && off == firstSegment && times.Add(1) < 2*failures { // when it is back, too
			return errors.New("no answer")
		}
		return nil
	})
	r.attach()
	if s := r.v.Stats(); s.Outages != 1 || !r.held(1, 1000) {
		t.Errorf("%+v", s)
	}
}

func TestABadBlockIsNoOutage(t *testing.T) {
	// The sectors of blocks cannot be read, and those of the superblock can. Each is a miss and forgotten, so that it is
	// kept again elsewhere. The volume stays in use.
	r := newRig(t, 4, nil)
	for i := range 2 * failures {
		r.mustKeep(i, 100_000)
	}
	r.flush()
	r.dev.fails(func(op string, off int64) error {
		if op == "read" && off >= firstSegment+pageSize {
			return unix.EIO
		}
		return nil
	})
	for i := range 2 * failures {
		if b, _ := r.block(i, 100_000); r.held(i, 100_000) || r.v.Has(b.ID()) {
			t.Errorf("block %d is there", i)
		}
	}
	if s := r.v.Stats(); r.v.State().Away != nil || s.Outages != 0 || s.Lost != 2*failures {
		t.Errorf("%v, %+v", r.v.State().Away, s)
	}
}

func TestADeviceOfWhichNothingCanBeRead(t *testing.T) {
	// All reads of a device fail while its segments are learned. That is an outage, and no volume without blocks: once
	// they can be read, they are there.
	r := newRig(t, 16, nil)
	r.mustKeep(1, 1000)
	r.flush()
	r.dev.fails(func(op string, _ int64) error {
		if op == "read" {
			return unix.EIO
		}
		return nil
	})
	if err := r.v.Relearn(t.Context()); err != nil || !errors.Is(r.v.State().Away, unix.EIO) {
		t.Errorf("%v, %+v", err, r.v.State())
	}
	for len(r.told) > 0 {
		<-r.told
	}
	r.dev.fails(nil)
	r.known()
	if !r.held(1, 1000) {
		t.Error("a block is lost")
	}
}

func TestOneSuperblockThatCannotBeRead(t *testing.T) {
	// The first superblock lies on a bad sector. The second one serves.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	r.close()
	r.dev.fails(func(op string, off int64) error {
		if op == "read" && off == 0 {
			return unix.EIO
		}
		return nil
	})
	r.attach()
	if !r.held(1, 1000) {
		t.Error("a block is lost")
	}
}

func TestADeviceWithoutDiscard(t *testing.T) {
	// A target without Deallocate is formatted: the headers of segments are overwritten in any case.
	d := newDevice(firstSegment + 4*minSegment + pageSize)
	d.fails(func(op string, off int64) error {
		if op == "discard" {
			return errors.ErrUnsupported
		}
		return nil
	})
	if _, err := MakeVolume(d, FormatOptions{Cluster: cluster, Segment: minSegment}); err != nil {
		t.Fatal(err)
	}
	if _, err := Look(d); err != nil {
		t.Error(err)
	}
}

func TestADeviceThatHangsIsAttachedLater(t *testing.T) {
	// A device hangs while a volume is attached, again and again. Each attempt ends with an error, and no one asks the
	// device after that: its owner has closed it.
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(firstSegment + 4*minSegment + pageSize)
		if _, err := MakeVolume(d, FormatOptions{Cluster: cluster, Segment: minSegment}); err != nil {
			t.Fatal(err)
		}
		hang := make(chan struct{})
		d.fails(func(string, int64) error { <-hang; return errors.New("gone") })
		var left *attachError
		for range 3 {
			_, err := Attach(d, Options{Pool: hearth.NewPool(64 << 20), Cluster: cluster})
			if !errors.As(err, &left) {
				t.Fatalf("a device that hangs is attached: %v", err)
			}
			select {
			case <-left.came:
				t.Error("the next attempt does not wait for this one")
			default:
			}
		}
		close(hang)
		synctest.Wait()
		<-left.came
		d.fails(func(op string, _ int64) error { t.Errorf("a %s after the end", op); return errors.New("closed") })
		<-time.After(time.Hour)
	})
}

func TestMemoryIsGivenBackOnceTheWriterIs(t *testing.T) {
	// A volume is closed while its device hangs in a flush. Close does not wait for that; the memory is free once the
	// device lets go. The rig looks at that.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(o *Options) { o.Patience = time.Second })
		for i := range 100 {
			r.mustKeep(i, 1000)
		}
		hang := make(chan struct{})
		r.dev.fails(func(op string, _ int64) error {
			if op == "flush" {
				<-hang
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.v.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := r.v.Close(); err == nil {
			t.Error("closed while the writer hangs")
		}
		r.v = nil
		if s := r.pool.Stats(); s.Used == s.Idle {
			t.Error("the writer's memory is given to others")
		}
		close(hang)
		synctest.Wait()
	})
}

func TestLearningLeavesAWriterThatHangs(t *testing.T) {
	// The writer hangs in a write. Who has the volume learn again waits until that takes it out of use, and no longer.
	// It stays out of use, once, as long as that lasts.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(o *Options) { o.Patience = time.Second })
		hang := make(chan struct{})
		r.dev.fails(func(op string, _ int64) error {
			if op == "write" {
				<-hang
			}
			return nil
		})
		kept := make(chan struct{})
		go func() {
			defer close(kept)
			_ = r.keep(1, 1000) // the device may have it or not
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.v.Relearn(ctx); err != nil || r.v.State().Away == nil {
			t.Errorf("%v, %+v", err, r.v.State())
		}
		<-time.After(time.Hour)
		if n := r.v.Stats().Outages; n != 1 || r.v.State().Away == nil {
			t.Errorf("%d outages, %+v", n, r.v.State())
		}
		close(hang)
		<-kept
		for r.v.State().Away != nil || r.v.reading.Load() > 0 {
			<-r.told
		}
	})
}

func TestASegmentOfTooManyRecords(t *testing.T) {
	// A target forges a segment full of the smallest records, without an index. A node takes no more of them than a
	// segment of its own may have.
	const salt, most = 77, 100
	seg := make([]byte, 1<<20)
	for at := int64(pageSize); at < int64(len(seg)); at += record.UnitSize {
		n := record.Note{ID: hearth.ID{Version: [16]byte{1}, Index: at}, Unit: uint32(at / record.UnitSize), Length: 1}
		record.PutHeader(seg[at:], n, salt, seg[at+56:at+57], nil)
	}
	read := func(b []byte, off int64) error { copy(b, seg[off:]); return nil }
	if notes, err := record.Scan(read, salt, int64(len(seg)), most); len(notes) != most || err != nil {
		t.Errorf("%d records, %v", len(notes), err)
	}
}
