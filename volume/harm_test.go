package volume

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
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
	// The headers of some segments cannot be read, for good or for now. All others are used, the volume is known, and
	// it stays in use. Where a sector is bad, writing goes on in other segments.
	for name, cause := range map[string]error{"bad": unix.EIO, "now": errors.New("no answer")} {
		r := newRig(t, 16, nil)
		r.mustKeep(1, 1000)
		r.flush()
		bad := func(off int64) bool {
			n := (off - firstSegment) / minSegment
			return off >= firstSegment && (off-firstSegment)%minSegment == 0 && n%3 == 1
		}
		r.dev.fails(func(op string, off int64) error {
			if op == "read" && bad(off) {
				return cause
			}
			return nil
		})
		gone := r.v
		r.attach() // waits until all is known
		if s := r.v.State(); s.Away != nil || r.v.Stats().Outages != 0 || !r.held(1, 1000) {
			t.Errorf("%s: %+v", name, s)
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
