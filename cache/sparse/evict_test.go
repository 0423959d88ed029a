package sparse

import (
	"bytes"
	"context"
	"maps"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// evictTo evicts the extent of a block and returns which blocks were given away before.
func evictTo(t *testing.T, x *fixture, o *hearth.Object, data []byte, index int64) (given []int64, freed int64) {
	t.Helper()
	wants := func(id hearth.ID) bool {
		if !x.Has(id) { // a lock that is held here shows as a hang
			t.Errorf("asked about block %d, which is not held", id.Index)
		}
		return true
	}
	freed = x.EvictTo(o.Block(index).ID(), wants, func(id hearth.ID, v *hearth.View) {
		b := o.Block(id.Index)
		if !bytes.Equal(v.Bytes(), data[b.Offset():b.Offset()+int64(b.Len())]) {
			t.Errorf("block %d is given with wrong bytes", id.Index)
		}
		hearthtest.CheckSums(t, v)
		given = append(given, id.Index)
	})
	return given, freed
}

// blocks returns the indexes [first, end).
func blocks(first, end int64) (all []int64) {
	for i := first; i < end; i++ {
		all = append(all, i)
	}
	return all
}

func TestWhatIsEvictedIsGivenBefore(t *testing.T) {
	// A whole file goes as a whole, or by extents in a ring. It goes as a whole there, too, if the
	// file system cannot tell who reads it, or punches no holes. All that goes is given before.
	const last = 35
	for name, c := range map[string]struct {
		shared, asks, holes bool
		want                []int64
	}{
		"alone":                {false, true, true, blocks(0, last)},
		"in a ring":            {true, true, true, blocks(16, 32)},
		"readers are unknown":  {true, false, true, blocks(0, last)},
		"no holes are punched": {true, true, false, slices.Concat(blocks(16, 32), blocks(0, 16), blocks(32, last))},
	} {
		t.Run(name, func(t *testing.T) {
			x := start(t, Options{Shared: c.shared})
			o := sampleObject(1, (last-1)*mib+5000)
			data := make([]byte, o.Size)
			if c.holes {
				hearthtest.Fill(data, o.Key, 0, 1)
			}
			x.putAll(o, data)
			if !c.holes {
				punchAll(t, x, o) // what a hole would free is free already
			}
			if !c.asks {
				x.reopen()
				x.ask = func(int) readers { return anyReaders }
			}
			given, freed := evictTo(t, x, o, data, 17)
			if !slices.Equal(given, c.want) || c.holes && freed < int64(len(given)-1)*mib {
				t.Errorf("%d bytes were freed, given were %v, want %v", freed, given, c.want)
			}
			for i := range o.Blocks() {
				if x.Has(o.Block(i).ID()) == slices.Contains(c.want, i) {
					t.Errorf("block %d is held: %v", i, x.Has(o.Block(i).ID()))
				}
			}
		})
	}
}

// punchAll frees a file's bytes behind our back, which are all zero.
func punchAll(t *testing.T, x *fixture, o *hearth.Object) {
	t.Helper()
	file, err := os.OpenFile(x.dataFile(o), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := punchRange(int(file.Fd()), 0, o.Size); err != nil {
		t.Fatal(err)
	}
	held, err := x.acquire(t.Context(), o.Version)
	if err != nil {
		t.Fatal(err)
	}
	x.settle(held)
	x.unpin(held)
}

func TestWhatStaysIsNotGiven(t *testing.T) {
	// Nothing is read of a file that is lent or mapped, since it stays, nor of an extent that is empty
	// or being written.
	x := start(t, Options{})
	o, data := sample(1, 18*mib)
	x.putAll(o, data)
	reader := lend(t, x, o, true)
	if given, freed := evictTo(t, x, o, data, 0); given != nil || freed != 0 || !x.Has(o.Block(0).ID()) {
		t.Errorf("of a mapped file %v were given, %d bytes freed", given, freed)
	}
	reader.leave()
	part, data := sample(2, 40*mib)
	x.put(part, data, 17)
	held, err := x.acquire(t.Context(), part.Version)
	if err != nil {
		t.Fatal(err)
	}
	defer x.unpin(held)
	if _, n, err := x.claim(held, 16, 1); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for _, i := range []int64{0, 16, 32} {
		if given, freed := evictTo(t, x, part, data, i); given != nil || freed != 0 {
			t.Errorf("of extent %d %v were given, %d bytes freed", i/16, given, freed)
		}
	}
	x.commit(held, run{first: 16, n: 1}, unix.EIO)
	if given, _ := evictTo(t, x, part, data, 16); !slices.Equal(given, []int64{17}) {
		t.Errorf("given: %v", given)
	}
}

func TestAReadBeforeAnEvictionIsNoUse(t *testing.T) {
	// The policy's states of the object and of its other extents stay, and no read is counted.
	var touched int
	x := start(t, Options{Shared: true, Touch: func(_, now uint32) uint32 { touched++; return now }})
	o, data := sample(1, 34*mib)
	x.putAll(o, data)
	touched = 0
	if given, _ := evictTo(t, x, o, data, 0); len(given) != hearth.ExtentBlocks || touched != 0 || x.Stats().Reads != 0 {
		t.Errorf("%d blocks were given, %d uses, %+v", len(given), touched, x.Stats())
	}
}

func TestBadBlocksAreReportedAndGo(t *testing.T) {
	// A block and the record of another one are damaged. Both are counted once and go with the rest,
	// which is given. Without memory nothing is given, and all goes.
	x := start(t, Options{})
	bad := map[int64]bool{}
	x.Files.opt.Events.Damaged = func(_ string, block int64, _ error) { bad[block] = true }
	o, data := sample(1, 17*mib)
	x.putAll(o, data)
	hearthtest.FlipByte(t, x.dataFile(o), 3*mib+70_000, 1)
	hearthtest.FlipByte(t, x.sumsFile(o), recordOffset(5)+20, 1)
	given, freed := evictTo(t, x, o, data, 0)
	want := slices.DeleteFunc(blocks(0, 17), func(i int64) bool { return i == 3 || i == 5 })
	if !slices.Equal(given, want) || freed < 17*mib || x.Used() != 0 {
		t.Errorf("%d bytes were freed, given were %v", freed, given)
	}
	if s := x.Stats(); s.Damaged != 2 || !maps.Equal(bad, map[int64]bool{3: true, 5: true}) {
		t.Errorf("reported are %v, %+v", bad, s)
	}

	x.putAll(o, data)
	var all []*hearth.View
	for v := x.pool.TryAlloc(mib); v != nil; v = x.pool.TryAlloc(mib) {
		all = append(all, v)
	}
	if given, freed := evictTo(t, x, o, data, 0); given != nil || freed < 17*mib || x.Stats().Damaged != 2 {
		t.Errorf("without memory %v were given, %d bytes freed", given, freed)
	}
	for _, v := range all {
		v.Release()
	}
}

func TestAHoleBelowAReadIsNoDamage(t *testing.T) {
	// Another goroutine evicts the extent while its blocks are read for the same reason: that is no
	// damage.
	x := start(t, Options{})
	o, data := sample(1, 17*mib)
	x.put(o, data, 0, 16)
	held, err := x.acquire(context.Background(), o.Version)
	if err != nil {
		t.Fatal(err)
	}
	s := span{index: 0, n: 1, last: true}
	holes, _, err := x.hit(held, s)
	if err != nil {
		t.Fatal(err)
	}
	x.EvictExtent(o.Block(0).ID())
	if err := x.bad(held, s, holes, unix.EIO); err != hearth.ErrMiss || x.Stats().Damaged != 0 {
		t.Errorf("%v, stats %+v", err, x.Stats())
	}
	x.unpin(held)
}
