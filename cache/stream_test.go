package cache

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

func TestStreamsAskForNoMoreThanWasRead(t *testing.T) {
	// Whatever is read, runs lie within the object and within the bound, no block is
	// asked for twice by one stream's progress, and all that was asked for is at most
	// what was read and a block.
	rapid.Check(t, func(rt *rapid.T) {
		const blocks = 64
		most := int64(rapid.IntRange(0, 40).Draw(rt, "most")) * hearth.BlockSize
		var s streams
		var read, asked, at, furthest int64
		for range rapid.IntRange(1, 300).Draw(rt, "reads") {
			n := int64(rapid.SampledFrom([]int{4096, 96 << 10, 128 << 10, 1 << 20}).Draw(rt, "n"))
			if rapid.IntRange(0, 9).Draw(rt, "jump") == 0 {
				at = rapid.Int64Range(0, blocks*hearth.BlockSize-1).Draw(rt, "at")
			}
			n = min(n, blocks*hearth.BlockSize-at)
			if n <= 0 {
				at = 0
				continue
			}
			a := s.read(at, n, most, blocks)
			at += n
			read += n
			furthest = max(furthest, at)
			asked += int64(a.n) * hearth.BlockSize
			if a.n < 0 || a.n > hearth.ExtentBlocks || a.n > 0 && (a.first < 0 || a.first+int64(a.n) > blocks) {
				rt.Fatalf("asks for %+v", a)
			}
			if a.n > 0 && (a.first+int64(a.n))*hearth.BlockSize-furthest > most {
				rt.Fatalf("asks for %+v after %d with at most %d", a, furthest, most)
			}
		}
		// Streams forgotten and begun anew may ask again, each for what it read.
		if asked > 2*read+maxStreams*hearth.BlockSize {
			rt.Fatalf("asked for %d bytes, read %d", asked, read)
		}
	})
}

func TestStreamsThatPromised(t *testing.T) {
	// Who has promised to read up to a block is gone ahead of from the first read on, of
	// whatever length: extent by extent, and no further. Forgotten, it is trusted as others are.
	for _, n := range []int64{4096, hearth.BlockSize} {
		s := streams{sure: true}
		const first, end = 3, 3 + 2*hearth.ExtentBlocks
		next := int64(first + 1)
		for off := int64(first * hearth.BlockSize); off < end*hearth.BlockSize; off += n {
			a := s.read(off, n, aheadDefault, end)
			if a.n > 0 && a.first != next || a.first+int64(a.n) > end {
				t.Fatalf("asks for %+v at %d, expected what begins at %d", a, off, next)
			}
			next += int64(a.n)
			if next == first+1 {
				t.Fatalf("asks for nothing at %d", off)
			}
		}
		if next != end {
			t.Errorf("asked up to %d of %d", next, end)
		}
		s.forget()
		if a := s.read(0, n, aheadDefault, end); a.n != 0 {
			t.Errorf("asks for %+v after all", a)
		}
	}
}

func TestStreamsGrow(t *testing.T) {
	// A sequential reader of 128 KiB: nothing for half a block, then runs that grow to
	// whole extents and end at the object's end, each block asked for once.
	var s streams
	next, runs := int64(-1), []int{}
	const blocks = 100
	for off := int64(0); off < blocks*hearth.BlockSize; off += 128 << 10 {
		a := s.read(off, 128<<10, aheadDefault, blocks)
		if a.n == 0 {
			continue
		}
		if off < trusted || next >= 0 && a.first < next {
			t.Errorf("at %d: %+v after block %d", off, a, next)
		}
		next = a.first + int64(a.n)
		runs = append(runs, a.n)
	}
	if next != blocks || runs[0] > 1 || runs[len(runs)-2] != hearth.ExtentBlocks {
		t.Errorf("runs of %v up to block %d", runs, next)
	}
}

func TestStreamsKeepLargeWindowsFull(t *testing.T) {
	// A window of many extents, whose owners are different nodes: once the reader is trusted
	// for all of it no more than an extent of it is ever left to ask for, and each run is one.
	const window, blocks = 16 * hearth.ExtentBlocks, 64 * hearth.ExtentBlocks
	var s streams
	asked := int64(0)
	for off := int64(0); off < blocks*hearth.BlockSize; off += 128 << 10 {
		if a := s.read(off, 128<<10, window*hearth.BlockSize, blocks); a.n > 0 {
			if asked = a.first + int64(a.n); asked%hearth.ExtentBlocks != 0 && off > window*hearth.BlockSize {
				t.Errorf("at %d a run ends at block %d", off, asked)
			}
		}
		here := off / hearth.BlockSize
		if left := min(here+window, blocks) - asked; here > window && left > hearth.ExtentBlocks {
			t.Fatalf("at block %d the next %d blocks of the window are not asked for", here, left)
		}
	}
}

func TestStreamsTellReadersApart(t *testing.T) {
	// Eight sequential readers side by side are all recognised; a ninth that jumps
	// about takes no more than one place from them at a time.
	var s streams
	asked := map[int64]bool{}
	const each = 32 * hearth.BlockSize
	for off := int64(0); off < 8*hearth.BlockSize; off += 128 << 10 {
		for r := range int64(maxStreams) {
			if a := s.read(r*each+off, 128<<10, aheadDefault, 1024); a.n > 0 {
				asked[a.first/32] = true
			}
		}
	}
	if len(asked) != maxStreams {
		t.Errorf("%d of %d readers are recognised", len(asked), maxStreams)
	}
	before := s
	s.read(900*hearth.BlockSize, 4096, aheadDefault, 1024)
	lost := 0
	for i := range s.all {
		if s.all[i].start != before.all[i].start {
			lost++
		}
	}
	if lost != 1 {
		t.Errorf("%d places were taken", lost)
	}
}
