package volume

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

func TestBlocksOutliveTheirNode(t *testing.T) {
	// Blocks of all sizes are there after a close, which closes their segment by an index, and after a
	// node that just went away, whose segment is found by the headers of its records.
	sizes := []int{1, 100, 4096, 65536, 65537, 300_000, hearth.BlockSize}
	for _, closes := range []bool{true, false} {
		r := newRig(t, 8, nil)
		for i, n := range sizes {
			r.mustKeep(i, n)
		}
		if err := r.v.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		gone := r.v
		if closes {
			r.close()
		} else {
			r.dev.cutPower(rand.New(rand.NewPCG(1, 2)))
		}
		r.attach()
		for i, n := range sizes {
			if !r.held(i, n) {
				t.Errorf("closed %v: block %d of %d bytes is lost", closes, i, n)
			}
		}
		r.mustKeep(100, 5000)
		if !r.held(100, 5000) {
			t.Error("a new block is not there")
		}
		if !closes {
			_ = gone.Close()
		}
	}
}

func TestTheOldestGoAndTheHitStay(t *testing.T) {
	// Three times of what a volume holds are written. A few blocks that are read again and again stay, of
	// the others the last ones do, and nothing is ever wrong.
	r := newRig(t, 8, nil)
	const size, hot = 200_000, 8
	total := 3 * 8 * minSegment / size
	for i := range total {
		r.mustKeep(i, size)
		for k := range min(i, hot) {
			if i%10 == 0 && !r.held(k, size) {
				t.Fatalf("after %d blocks the hot block %d is gone", i, k)
			}
		}
	}
	n := 0
	for i := range total {
		if r.held(i, size) {
			n++
		}
	}
	if most := 8 * minSegment / size; n < most/2 || n > most {
		t.Errorf("%d of %d blocks are there, and %d have room", n, total, most)
	}
	for i := total - 60; i < total; i++ {
		if !r.held(i, size) {
			t.Errorf("block %d of %d is gone already", i, total)
		}
	}
	s := r.v.Stats()
	if s.Reclaimed == 0 || s.Moved == 0 || s.Lost != 0 || s.Errors != 0 {
		t.Errorf("%+v", s)
	}
	r.close()
	r.attach()
	for k := range hot {
		if !r.held(k, size) {
			t.Errorf("the hot block %d is gone after a restart", k)
		}
	}
}

func TestTwoWritersOfOneRange(t *testing.T) {
	// Two nodes that both take all ranges for theirs write to one volume at once. They lose blocks to each
	// other, and read no wrong byte, then or after a restart.
	r := newRig(t, 6, nil)
	x := *r
	x.told = make(chan State, 1000)
	x.o.Changed = func(s State) { x.told <- s }
	x.o.Node = [16]byte{8}
	x.attach()
	defer func() { _ = x.v.Close() }()
	const size = 100_000
	lost := 0
	for i := range 250 {
		r.mustKeep(2*i, size)
		x.mustKeep(2*i+1, size)
		for _, k := range []int{i / 2, i, 2 * i} {
			if !r.held(k, size) && k == 2*i {
				lost++
			}
			x.held(k, size)
		}
	}
	if err := errors.Join(r.v.Close(), x.v.Close()); err != nil {
		t.Fatal(err)
	}
	r.attach()
	n := 0
	for i := range 500 {
		if r.held(i, size) {
			n++
		}
	}
	if n < 50 {
		t.Errorf("%d of 500 blocks are there", n)
	}
	t.Logf("%d blocks were lost at once; %d of 500 are there at the end", lost, n)
}

func TestPowerCuts(t *testing.T) {
	// A target with a write cache loses power at any time: what was flushed is there, unless newer blocks
	// took its place, and what was not is there or not, and right.
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r := newRig(t, 5, nil)
		next, flushed, durable := 0, 0, map[int]bool{}
		for range 4 {
			for range 20 + rnd.IntN(60) {
				r.mustKeep(next, 1+next*997%150_000)
				next++
				if rnd.IntN(25) == 0 {
					if err := r.v.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					for ; flushed < next; flushed++ {
						durable[flushed] = true
					}
				}
			}
			gone := r.v
			r.dev.fails(func(string, int64) error { return io.ErrClosedPipe })
			_ = gone.Close()
			r.dev.fails(nil)
			r.dev.cutPower(rnd)
			for len(r.told) > 0 {
				<-r.told
			}
			r.attach()
			// 5 segments hold 250 blocks of 75 KB in the mean; the last ones are never reclaimed.
			for i := range next {
				if held := r.held(i, 1+i*997%150_000); !held && durable[i] && i >= next-60 {
					t.Errorf("seed %d: block %d of %d was flushed, and is lost", seed, i, next)
				}
			}
			flushed = next
		}
		r.close()
	}
}

func TestFlippedBitsAreMisses(t *testing.T) {
	// Whatever bit of a volume flips, no wrong byte is served, and the volume can be attached, or says why not.
	r := newRig(t, 4, nil)
	for i := range 40 {
		r.mustKeep(i, 1000+i*3001)
	}
	r.close()
	whole := append([]byte(nil), r.dev.durable...)
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 25 {
		copy(r.dev.durable, whole)
		at := rnd.IntN(firstSegment + 2*minSegment)
		if rnd.IntN(3) == 0 {
			at = []int{0, firstSegment, firstSegment + minSegment - pageSize}[rnd.IntN(3)] + rnd.IntN(pageSize)
		}
		r.dev.durable[at] ^= 1 << rnd.IntN(8)
		r.attach()
		n := 0
		for i := range 40 {
			if r.held(i, 1000+i*3001) {
				n++
			}
		}
		if n < 38 {
			t.Errorf("a bit at %d costs %d of 40 blocks", at, 40-n)
		}
		r.close()
	}
}

func TestWhatIsRefused(t *testing.T) {
	// Another cluster's volume, a newer one, none at all and a device that shrank are refused by errors that
	// say so. One damaged superblock is no harm.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 1000)
	r.close()
	other := r.o
	other.Cluster = [16]byte{7}
	if _, err := Attach(r.dev, other); !errors.Is(err, ErrForeign) {
		t.Errorf("another cluster's: %v", err)
	}
	whole := append([]byte(nil), r.dev.durable...)
	r.dev.durable[20] ^= 1
	r.attach()
	if !r.held(1, 1000) {
		t.Error("a block is lost with the first superblock")
	}
	r.close()
	r.dev.durable[len(r.dev.durable)-pageSize+20] ^= 1
	if _, err := Attach(r.dev, r.o); !errors.Is(err, ErrNoVolume) {
		t.Errorf("without superblocks: %v", err)
	}
	copy(r.dev.durable, whole)
	g, _ := look(r.dev)
	g.format = Format + 1
	g.put(r.dev.durable)
	if _, err := Attach(r.dev, r.o); !errors.Is(err, ErrNewer) {
		t.Errorf("a newer one: %v", err)
	}
	if _, err := MakeVolume(r.dev, FormatOptions{}); !errors.Is(err, ErrTaken) {
		t.Errorf("format of a newer one: %v", err)
	}
	copy(r.dev.durable, whole)
	r.dev.durable = r.dev.durable[:len(whole)-minSegment]
	if _, err := Attach(r.dev, r.o); err == nil || !strings.Contains(err.Error(), "smaller") {
		t.Errorf("a device that shrank: %v", err)
	}
	if _, err := MakeVolume(r.dev, FormatOptions{}); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "that was larger") {
		t.Errorf("format of what shrank: %v", err)
	}
}

func TestFormatLooksFirst(t *testing.T) {
	// A device that holds something is formatted only with force, and a dry run writes nothing.
	for name, head := range map[string]string{"an XFS file system": "XFSB", "bytes that are not zero": "hello"} {
		d := newDevice(firstSegment + 2*minSegment + pageSize)
		copy(d.durable, head)
		if _, err := MakeVolume(d, FormatOptions{Segment: minSegment}); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := MakeVolume(d, FormatOptions{Segment: minSegment, Force: true, DryRun: true}); err != nil || string(d.durable[:len(head)]) != head || len(d.cached) > 0 {
			t.Errorf("%s: a dry run: %v", name, err)
		}
		info, err := MakeVolume(d, FormatOptions{Segment: minSegment, Force: true, Label: "x"})
		if found, _ := Look(d); err != nil || found != info || info.Label != "x" || info.Segments != 2 {
			t.Errorf("%s: %+v, %+v, %v", name, info, found, err)
		}
	}
	gpt := newDevice(firstSegment + 2*minSegment + pageSize)
	copy(gpt.durable[len(gpt.durable)-512:], "EFI PART")
	if _, err := MakeVolume(gpt, FormatOptions{Segment: minSegment}); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "in its last MiB") {
		t.Errorf("only the second partition table is left: %v", err)
	}
	for _, off := range []int64{0, int64(len(gpt.durable)) - tailLook} { // what is not read is not taken for data
		d := newDevice(firstSegment + 2*minSegment + pageSize)
		d.fails(func(op string, at int64) error {
			if op == "read" && at == off {
				return unix.EIO
			}
			return nil
		})
		_, err := MakeVolume(d, FormatOptions{Segment: minSegment})
		if !errors.Is(err, unix.EIO) || errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "cannot be read") || !strings.Contains(err.Error(), "try again") {
			t.Errorf("what lies at %d cannot be read: %v", off, err)
		}
		if _, err := MakeVolume(d, FormatOptions{Segment: minSegment, Force: true}); err != nil {
			t.Errorf("the same with force: %v", err)
		}
	}
	for _, size := range []int64{0, 1 << 20, firstSegment + minSegment} {
		if _, err := MakeVolume(newDevice(size), FormatOptions{}); err == nil {
			t.Errorf("a device of %d bytes is formatted", size)
		}
	}
	if _, err := MakeVolume(newDevice(64<<20), FormatOptions{Segment: 5000}); err == nil {
		t.Error("segments of 5,000 bytes")
	}
}

func TestADeviceThatFailsComesBack(t *testing.T) {
	// Reads that fail are misses, and after four of them the volume is out of use: nobody asks it. Once it
	// answers again it is in use, with what it had.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 5000)
	r.dev.fails(func(string, int64) error { return errors.New("the path is down") })
	for range failures {
		if r.held(1, 5000) {
			t.Fatal("read from a device that fails")
		}
	}
	s := <-r.told
	if s.Away == nil || s.Away.Error() != "the path is down" {
		t.Fatalf("%+v", s)
	}
	r.dev.mu.Lock()
	reads := r.dev.reads
	r.dev.mu.Unlock()
	b, _ := r.block(1, 5000)
	if r.held(1, 5000) || r.v.Has(b.ID()) || r.v.Takes(b) || r.keep(2, 100) == nil || r.v.Flush(t.Context()) == nil {
		t.Error("it is in use still")
	}
	if r.dev.mu.Lock(); r.dev.reads != reads {
		t.Error("it is asked still")
	}
	r.dev.mu.Unlock()
	r.dev.fails(nil)
	r.known()
	if !r.held(1, 5000) {
		t.Error("a block is lost")
	}
	r.mustKeep(2, 100)
}

func TestADeviceThatTakesNoWrites(t *testing.T) {
	// A device that is read-only serves what it has, says so, and is not asked to write for a second. So is one
	// whose writes fail four times in a row. Once it takes writes again, it is used.
	for name, cause := range map[string]error{"read-only": fmt.Errorf("write: %w", ErrReadOnly), "full": errors.New("no space left")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 4, nil)
			r.mustKeep(1, 5000)
			if err := r.v.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			var writes atomic.Int64
			r.dev.fails(func(op string, _ int64) error {
				if op == "write" {
					writes.Add(1)
					return cause
				}
				return nil
			})
			for range failures {
				if err := r.keep(2, 100); err == nil || !strings.Contains(err.Error(), cause.Error()) {
					t.Error(err)
				}
			}
			if s := <-r.told; !errors.Is(s.Stopped, cause) || s.Away != nil {
				t.Errorf("%+v", s)
			}
			asked := writes.Load()
			if b, _ := r.block(2, 100); r.v.Takes(b) || r.keep(2, 100) == nil || writes.Load() != asked {
				t.Error("it is asked to write still")
			}
			if !r.held(1, 5000) {
				t.Error("a block is lost")
			}
			r.dev.fails(nil)
			for range 1000 { // of a millisecond each
				r.o.Now()
			}
			r.mustKeep(2, 100)
			if s := <-r.told; s.Stopped != nil || !r.held(2, 100) {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestAFlushThatFailsForgets(t *testing.T) {
	// What was written since the last flush is no longer held once a flush has failed, whoever asked for it: nobody
	// knows whether the device has it. The flush that fails says so. What was flushed before stays, and what is
	// written again is held, in a segment of its own.
	r := newRig(t, 6, nil)
	r.mustKeep(1, 5000)
	if err := r.v.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mustKeep(2, 5000)
	r.dev.fails(func(op string, _ int64) error {
		if op == "flush" {
			return errors.New("the target was reached anew")
		}
		return nil
	})
	if err := r.v.Flush(t.Context()); err == nil || !strings.Contains(err.Error(), "reached anew") || !strings.Contains(err.Error(), errLost.Error()) {
		t.Error(err)
	}
	b, _ := r.block(2, 5000)
	if r.v.Has(b.ID()) || !r.held(1, 5000) {
		t.Error("what may be lost is held, or what was flushed is not")
	}
	r.dev.fails(nil)
	r.mustKeep(2, 5000)
	if err := r.v.Flush(t.Context()); err != nil || !r.held(2, 5000) {
		t.Errorf("written again: %v", err)
	}
	r.close()
	r.attach()
	if !r.held(1, 5000) || !r.held(2, 5000) {
		t.Error("a block is lost over a restart")
	}
}

func TestWhoOwnsNothingWritesNothing(t *testing.T) {
	// A node that answers for a block and owns no range of the volume keeps nothing there, and says why. One
	// that does not answer for a block declines it, and forgets its place when it learns again.
	r := newRig(t, 4, func(o *Options) { o.Owns = func([16]byte, int) bool { return false } })
	if err := r.keep(1, 100); err == nil || err.Error() != errNoRange.Error() {
		t.Error(err)
	}
	mine := true
	s := newRig(t, 4, func(o *Options) { o.Mine = func(hearth.ID) bool { return mine } })
	s.mustKeep(1, 100)
	if err := s.v.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	mine = false
	if err := s.v.Relearn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, _ := s.block(1, 100); s.v.Has(b.ID()) || s.v.Takes(b) {
		t.Error("another node's block is known")
	}
}
