//go:build !race

package sparse

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// One goroutine at a time works here: the race detector finds nothing in it, and makes it several
// times slower.

func TestFilesAgainstAMap(t *testing.T) {
	// Random puts, reads, evictions, lent files and restarts, on objects of awkward sizes. At each
	// step the files hold exactly what a map says.
	sizes := []int64{100, mib, 2*mib + 4096, 18*mib + 12345}
	var objects []*hearth.Object
	var data [][]byte
	for i, size := range sizes {
		o, d := sample(uint64(i), size)
		objects, data = append(objects, o), append(data, d)
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{fixture: start(t, Options{MaxOpen: 2, Shared: rapid.Bool().Draw(rt, "shared")}), objects: objects, data: data}
		defer m.stop()
		for range sizes {
			m.held = append(m.held, make(map[int64]bool))
			m.fresh = append(m.fresh, make(map[int64]bool))
		}
		m.opened, m.doomed = make([]func(), len(sizes)), make([]bool, len(sizes))
		rt.Repeat(map[string]func(*rapid.T){
			"put": m.put, "putMore": m.put, "putAgain": m.put, "get": m.get, "evictExtent": m.evictExtent,
			"evictObject": m.evictObject, "localFile": m.localFile, "release": m.release, "restart": m.restart, "": m.check,
		})
		for _, release := range m.opened {
			if release != nil {
				release()
			}
		}
	})
}

func TestBitFlipsAreMisses(t *testing.T) {
	// One bit of data or sidecar is flipped, anywhere. Every Get returns the right bytes or a miss,
	// no file with the flip is lent, and it heals.
	x := start(t, Options{})
	o, data := sample(1, 2*mib+70_001)
	rng := rand.New(rand.NewPCG(5, 6))
	flips := int64(0)
	for round := range 60 {
		x.putAll(o, data)
		x.stop()
		name := x.dataFile(o)
		if round%2 == 1 {
			name = x.sumsFile(o)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := rng.IntN(len(content))
		content[at] ^= 1 << rng.IntN(8)
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		x.reopen()
		if round%4 < 2 { // the kernel asks first, or a reader does
			if release := x.local(o, data); release != nil {
				t.Fatal("handed out before it was verified")
			}
			if x.Stats().Objects > 0 && x.Stats().Damaged == 0 && <-x.verified {
				t.Fatalf("round %d: the flip at %d was verified", round, at)
			}
		}
		held := int64(0)
		for i := range o.Blocks() {
			if x.has(o, data, i) {
				held++
			}
		}
		if held == o.Blocks() {
			t.Fatalf("round %d: the flip of byte %d of %s went unnoticed", round, at, name)
		}
		flips += x.Stats().Damaged
		x.checkUsed()
	}
	if flips < 50 { // a flip of the state byte to zero is no damage
		t.Errorf("%d flips were counted", flips)
	}
}

func TestALentFileKeepsItsBytes(t *testing.T) {
	// A file is lent, and then all happens that could change it. A new Files comes between or not,
	// as after an ejection or a kill. A reader that has the file open or mapped sees the same bytes
	// as before.
	for _, h := range harms {
		for _, mapped := range []bool{false, true} {
			for _, again := range []bool{false, true} {
				t.Run(h.name, func(t *testing.T) { keepsItsBytes(t, h, mapped, again) })
			}
		}
	}
}

func keepsItsBytes(t *testing.T, h harm, mapped, again bool) {
	x := start(t, Options{Shared: true})
	o, data := sample(1, 18*mib+4097)
	x.putAll(o, data)
	reader := lend(t, x, o, mapped)
	want := bytes.Clone(data)
	if h.flips {
		hearthtest.FlipByte(t, x.dataFile(o), mib+99, 8)
		want[mib+99] ^= 8
	}
	if again {
		x.reopen()
	}
	h.do(t, x, o, data)
	if !bytes.Equal(reader.sees(t, o.Size), want) {
		t.Errorf("mapped %v, opened again %v: a reader's bytes changed", mapped, again)
	}
	for i := range o.Blocks() {
		x.has(o, data, i) // right, or a miss
	}
	if !bytes.Equal(reader.sees(t, o.Size), want) {
		t.Errorf("mapped %v, opened again %v: a reader's bytes changed behind reads", mapped, again)
	}
	reader.leave()
	x.reopen() // as sweep a second later
	for i := int64(0); i < o.Blocks(); i += hearth.ExtentBlocks {
		x.EvictExtent(o.Block(i).ID())
	}
	if x.Used() != 0 || x.onDevice() != 0 {
		t.Errorf("%d used, %d on the device: what nobody reads any more stays", x.Used(), x.onDevice())
	}
}

func TestObjectsOfEverySizeComeBack(t *testing.T) {
	// Blocks of sizes around every boundary are written in one call, read in odd ranges, and read
	// again after a restart.
	modes(t, func(t *testing.T, opt Options) {
		x := start(t, opt)
		rng := rand.New(rand.NewPCG(1, 2))
		for i, size := range []int64{1, 4095, 4096, 4097, 65535, 65536, 65537, mib - 1, mib, mib + 1, 2*mib + 70_000, 17*mib + 5} {
			o, data := sample(uint64(i), size)
			x.putAll(o, data)
			x.checkUsed()
			for round := range 2 {
				for b := range o.Blocks() {
					length := o.Block(b).Len()
					off := rng.IntN(length)
					if !x.has(o, data, b) || !x.hasRange(o.Block(b), data, off, 1+rng.IntN(length-off)) {
						t.Fatalf("block %d of %d bytes is missing in round %d", b, size, round)
					}
				}
				x.reopen()
			}
			if st, err := os.Stat(x.dataFile(o)); err != nil || st.Size() != size {
				t.Fatalf("file of %d bytes: %v %v", size, st, err)
			}
		}
		if s := x.Stats(); s.Damaged != 0 || s.Errors != 0 {
			t.Fatalf("stats %+v", s)
		}
	})
}

func TestASharedFileGoesByExtents(t *testing.T) {
	// Some extents of a whole file are to stay while others go. Each is drawn by itself, as used as
	// the file, and lending the file protects all of them. The rest is read and made whole again,
	// also after a restart, when no index is known.
	now := uint32(5)
	x := start(t, Options{Shared: true, Now: func() uint32 { return now }, Touch: func(_, now uint32) uint32 { return now }})
	o, data := sample(1, 40*mib+5)
	x.putAll(o, data)
	now = 9
	release := x.local(o, data)
	if release == nil || x.Stats().Units != 0 || x.EvictExtent(o.Block(0).ID()) != 0 {
		t.Fatalf("handed out: %v, %+v", release != nil, x.Stats())
	}
	release()
	for _, known := range []bool{true, false} {
		if !known {
			x.reopen()
		}
		drawn := make(map[int64]uint32)
		x.Sample(3, 100, func(c Candidate) {
			if drawn[c.ID.Index] = c.State; c.Whole || c.Size > 16*mib || known && c.State != 9 {
				t.Fatalf("candidate %+v", c)
			}
		})
		if len(drawn) != 3 || x.Stats().Units != 3 {
			t.Fatalf("drawn of three extents: %v; %+v", drawn, x.Stats())
		}
		if freed := x.EvictExtent(o.Block(17).ID()); freed < 15*mib || freed > 17*mib {
			t.Fatalf("an extent of a whole file freed %d bytes", freed)
		}
		for i := range o.Blocks() {
			if x.has(o, data, i) != (i/hearth.ExtentBlocks != 1) {
				t.Errorf("block %d of which 16 to 31 went: %v", i, x.has(o, data, i))
			}
		}
		if x.local(o, data) != nil {
			t.Fatal("a file with a hole is handed out")
		}
		for i := range int64(hearth.ExtentBlocks) {
			x.put(o, data, hearth.ExtentBlocks+i)
		}
		x.checkUsed()
		for i := range o.Blocks() {
			if !x.has(o, data, i) {
				t.Errorf("block %d is missing of the file that was made whole again", i)
			}
		}
		if release = x.local(o, data); release == nil {
			t.Fatal("a file that was made whole again is not handed out")
		}
		release()
	}
}

func TestCrashAfterAnyPrefixOfWrites(t *testing.T) {
	// The writer stops after any write, or within it. Blocks with a complete record are served, and
	// others are misses. Nothing is wrong, nothing is leaked, and the object can be completed.
	x := start(t, Options{})
	o, data := sample(1, 3*mib+5000)
	ops := []write{{true, 0, header{formatVersion, o.Version, o.Size}.encode()}}
	order := []int64{2, 0, 3, 1}
	for _, i := range order {
		content := blockOf(o, data, i)
		sums := sumsOf(content)
		record := make([]byte, recordSize)
		encodeRecord(record, o.Block(i).ID(), &sums)
		ops = append(ops, write{false, i * mib, content}, write{true, recordOffset(i), record})
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for n := range ops {
		for _, cut := range []int{0, rng.IntN(len(ops[n].data)), len(ops[n].data) - 1} {
			crash(x, o, ops[:n+1], cut)
			done := max(n-1, 0) / 2 // complete records
			for at, i := range order {
				if got := x.has(o, data, i); got != (at < done) {
					t.Fatalf("stopped in write %d at byte %d: block %d is held: %v", n, cut, i, got)
				}
			}
			x.checkUsed()
			x.putAll(o, data)
			for i := range o.Blocks() {
				if !x.has(o, data, i) {
					t.Fatalf("stopped in write %d at byte %d: block %d cannot be put again", n, cut, i)
				}
			}
			if release := x.local(o, data); release == nil {
				t.Fatal("completed, read, and not handed out")
			} else {
				release()
			}
		}
	}
}

// crash leaves the files as a writer does that stops at byte cut of the last op.
func crash(x *fixture, o *hearth.Object, ops []write, cut int) {
	x.t.Helper()
	x.stop()
	for _, name := range []string{x.dataFile(o), x.sumsFile(o)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			x.t.Fatal(err)
		}
	}
	for n, op := range ops {
		name, content := x.dataFile(o), op.data
		if op.sums {
			name = x.sumsFile(o)
		}
		if n == len(ops)-1 {
			content = content[:cut]
		}
		file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			x.t.Fatal(err)
		}
		if !op.sums && n < 2 {
			if err := file.Truncate(o.Size); err != nil {
				x.t.Fatal(err)
			}
		}
		if _, err := file.WriteAt(content, op.off); err != nil {
			x.t.Fatal(err)
		}
		_ = file.Close()
	}
	x.reopen()
}

func TestShedGoesOnBehindWhatIsRead(t *testing.T) {
	// More unindexed objects are being read than one pass over the directory finds. The next pass
	// goes on behind them, and the one that nobody reads is evicted.
	x := start(t, Options{})
	const n = shedAtOnce + 20
	held := make([]*os.File, 0, n)
	for i := range uint64(n) {
		o, data := sample(i, 100)
		x.putAll(o, data)
		file, err := os.Open(x.dataFile(o))
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, file)
		defer func() { _ = file.Close() }()
	}
	x.stop()
	defer few(t, x.opt.Pool, 0)()
	x.reopen()
	//lint:ignore SA4000 twice: the first changes what the second finds
	if x.Shed(nil) != 0 || x.Shed(nil) != 0 || x.Stats().Unindexed != n {
		t.Errorf("what is read was given up: %+v", x.Stats())
	}
	for _, file := range held {
		_ = file.Close()
		//lint:ignore SA4000 twice: the first changes what the second finds
		if x.Shed(nil) == 0 && x.Shed(nil) == 0 {
			t.Fatalf("%s, which nobody reads, does not go", file.Name())
		}
	}
}
