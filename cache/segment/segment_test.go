package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/zeebo/xxh3"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestNoFileIsCleared(t *testing.T) {
	// Directories under the names of the log's files do not keep it from opening: they are removed.
	dir := t.TempDir()
	for _, name := range []string{deathsName, deathsTemp, segmentName(0), segmentName(1)} {
		if err := os.MkdirAll(filepath.Join(dir, name, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Open(Options{Dir: dir, Pool: hearth.NewPool(0)})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Append([]Entry{{ID: hearth.ID{Index: 1}, Data: []byte("bytes")}}); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// blockID names the i-th block of the tests.
func blockID(i int) hearth.ID {
	return hearth.ID{Version: hearth.VersionOf("test", "key", string(binary.LittleEndian.AppendUint32(nil, uint32(i))), 1), Index: int64(i % 5)}
}

// blockData returns the bytes of the i-th block. They are computed, so that any wrong one shows.
func blockData(i, length int) []byte {
	b := make([]byte, length)
	hearthtest.Fill(b, fmt.Sprint(i, length), 0, 1)
	return b
}

func entryOf(i, length int) Entry { return Entry{ID: blockID(i), Data: blockData(i, length)} }

// open opens a log that is closed, and whose Views are counted, at the test's end.
func open(t testing.TB, o Options) *Log {
	t.Helper()
	if o.Pool == nil {
		o.Pool = hearth.NewPool(64 << 20)
	}
	if o.SegmentSize == 0 {
		o.SegmentSize = 4 << 20
	}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if n := o.Pool.Stats().Views; n != 0 {
			t.Errorf("%d Views were not released", n)
		}
		if s := o.Pool.Stats(); s.Used != s.Idle {
			t.Errorf("%d bytes are still reserved", s.Used-s.Idle)
		}
	})
	return l
}

func appendAll(t testing.TB, l *Log, batch ...Entry) {
	t.Helper()
	if err := l.Append(batch); err != nil {
		t.Fatal(err)
	}
}

// read returns a copy of a range, nil for a miss.
func read(t testing.TB, l *Log, id hearth.ID, length int, r [2]int) []byte {
	t.Helper()
	v, err := l.Get(context.Background(), id, length, r[0], r[1])
	if errors.Is(err, hearth.ErrMiss) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	if hearthtest.CheckSums(t, v); r == [2]int{0, length} && v.Sums().Load() == nil {
		t.Errorf("%d bytes were read whole, and their sums are not known", length)
	}
	return bytes.Clone(v.Bytes())
}

func mustHold(t testing.TB, l *Log, i, length int) {
	t.Helper()
	if got := read(t, l, blockID(i), length, [2]int{0, length}); !bytes.Equal(got, blockData(i, length)) {
		t.Fatalf("block %d of %d bytes is wrong (held: %v)", i, length, got != nil)
	}
}

func mustMiss(t testing.TB, l *Log, i, length int) {
	t.Helper()
	if read(t, l, blockID(i), length, [2]int{0, length}) != nil {
		t.Fatalf("block %d of %d bytes is held", i, length)
	}
}

// allocated returns the bytes that the directory takes, by the file system.
func allocated(t testing.TB, dir string) int64 {
	t.Helper()
	var sum int64
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range names {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, e.Name()), &st); err != nil {
			t.Fatal(err)
		}
		sum += st.Blocks * 512
	}
	return sum
}

// lengths are the interesting ones: around units, pages, pieces and the block.
func lengths() []int {
	return []int{1, 7, 8, 9, 63, 64, 1000, 4039, 4040, 4041, 4096, 16384, 65535, 65536, 65537, 102400, 131072, 500000, hearth.BlockSize - 1, hearth.BlockSize}
}

func TestRangesOfEveryLength(t *testing.T) {
	// What is appended is readable at once in any range, after Close, and after a restart.
	dir := t.TempDir()
	check := func(l *Log) {
		r := rand.New(rand.NewPCG(1, 2))
		for i, length := range lengths() {
			data := blockData(i, length)
			ranges := [][2]int{{0, length}, {length - 1, 1}, {0, 1}, {length / 2, length - length/2}}
			for range 10 {
				off := r.IntN(length)
				ranges = append(ranges, [2]int{off, 1 + r.IntN(length-off)})
			}
			for _, g := range ranges {
				if got := read(t, l, blockID(i), length, g); !bytes.Equal(got, data[g[0]:g[0]+g[1]]) {
					t.Fatalf("block of %d bytes, range %v: wrong", length, g)
				}
			}
		}
		mustMiss(t, l, 9999, 5)
		if s := l.Stats(); s.Corrupt != 0 {
			t.Fatalf("corrupt: %d", s.Corrupt)
		}
	}
	l := open(t, Options{Dir: dir})
	var batch []Entry
	for i, length := range lengths() {
		batch = append(batch, entryOf(i, length))
	}
	appendAll(t, l, batch...)
	check(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Get(context.Background(), blockID(1), lengths()[1], 0, 1); err == nil {
		t.Fatal("Get after Close succeeded")
	}
	l = open(t, Options{Dir: dir})
	check(l)
	if s := l.Stats(); s.Recovered != 0 || s.Blocks != int64(len(lengths())) {
		t.Fatalf("after a clean restart: %+v", s)
	}
}

func TestRangeReadsItsPiecesOnly(t *testing.T) {
	// 4 KiB in the middle of a 1 MiB block cost a header page and one piece, not the block.
	l := open(t, Options{Dir: t.TempDir()})
	appendAll(t, l, entryOf(1, hearth.BlockSize))
	before := l.Stats().Read
	read(t, l, blockID(1), hearth.BlockSize, [2]int{700_000, 4096})
	if n := l.Stats().Read - before; n > 3*record.PageSize+hearth.PieceSize {
		t.Fatalf("read %d bytes for 4096", n)
	}
}

func TestPackingWastesLittle(t *testing.T) {
	// Blocks of 1-4 KiB appended in batches take little more than their bytes, and the count of allocated bytes is exact.
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	r := rand.New(rand.NewPCG(3, 4))
	var batch []Entry
	var bytes int64
	for i := range 3000 {
		n := 1024 + r.IntN(3072)
		bytes += int64(n)
		batch = append(batch, entryOf(i, n))
	}
	for len(batch) > 0 {
		n := min(300, len(batch))
		appendAll(t, l, batch[:n]...)
		batch = batch[n:]
	}
	if got := l.Stats().Written; got > bytes*106/100 {
		t.Errorf("%d bytes written for %d", got, bytes)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if got, want := l.Used(), allocated(t, dir); got != want {
		t.Errorf("Used is %d, the file system says %d", got, want)
	}
}

func TestNeedsIsWhatBatchesOfFourTake(t *testing.T) {
	// Small objects that come four at a time take what Needs says, to a percent. One at a time they
	// take at most a page more each; all at once, at most a page less.
	const objects = 400
	for _, batch := range []int{4, 1, objects} {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir})
		var all []Entry
		needs := int64(0)
		for i := range objects {
			n := 10_000 + 17*i
			all = append(all, entryOf(i, n))
			needs += Needs(&hearth.Object{Size: int64(n)})
		}
		for some := range slices.Chunk(all, batch) {
			appendAll(t, l, some...)
		}
		if err := l.Close(); err != nil { // with a footer
			t.Fatal(err)
		}
		off := int64(objects) * record.PageSize
		if batch == 4 {
			off = needs / 100
		}
		if got := allocated(t, dir); got < needs-off || got > needs+off {
			t.Errorf("batches of %d take %d, want %d ± %d", batch, got, needs, off)
		}
	}
}

func TestEvictFreesPages(t *testing.T) {
	// Evicted blocks free their pages, neighbours on shared pages stay, and no evicted block is
	// back after a restart.
	for _, length := range []int{500, 3000, 16384, 102400, hearth.BlockSize} {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir, SegmentSize: 32 << 20})
		const n = 20
		var batch []Entry
		for i := range n {
			batch = append(batch, entryOf(i, length))
		}
		appendAll(t, l, batch...)
		before := l.Used()
		var freed int64
		for i := 0; i < n; i += 2 {
			freed += l.Evict(blockID(i))
			if l.Evict(blockID(i)) != 0 || l.Has(blockID(i)) {
				t.Fatal("evicted twice")
			}
		}
		if length >= 16384 && freed < int64(length)*n/2*6/10 {
			t.Errorf("%d bytes: only %d freed", length, freed)
		}
		check := func(l *Log) {
			for i := range n {
				if i%2 == 0 {
					mustMiss(t, l, i, length)
				} else {
					mustHold(t, l, i, length)
				}
			}
			if l.Stats().Corrupt != 0 {
				t.Error("eviction taken for corruption")
			}
		}
		check(l)
		if got := l.Used(); got != allocated(t, dir) || got > before-freed+2*record.PageSize {
			t.Errorf("%d bytes: used %d, allocated %d, before %d, freed %d", length, got, allocated(t, dir), before, freed)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open(t, Options{Dir: dir})
		if l.Stats().Blocks != n/2 {
			t.Errorf("%d bytes: %d blocks after the restart", length, l.Stats().Blocks)
		}
		check(l)
		for i := 1; i < n; i += 2 {
			l.Evict(blockID(i))
		}
		if s := l.Stats(); s.Segments != 0 || l.used.Load() != 0 {
			t.Errorf("all evicted, but %d segments of %d bytes are left", s.Segments, l.used.Load())
		}
	}
}

func TestLostDeathsAreMisses(t *testing.T) {
	// The power fails before the tombstones are on the device. A punched block is a miss, and not
	// called corrupt.
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	appendAll(t, l, entryOf(1, 102400), entryOf(2, 102400), entryOf(3, 102400))
	l.Evict(blockID(2))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, deathsName)); err != nil {
		t.Fatal(err)
	}
	l = open(t, Options{Dir: dir})
	mustMiss(t, l, 2, 102400)
	mustHold(t, l, 1, 102400)
	mustHold(t, l, 3, 102400)
	if s := l.Stats(); s.Corrupt != 0 || s.Blocks != 2 {
		t.Fatalf("%+v", s)
	}
}

func TestUnlinkedButReadCounts(t *testing.T) {
	// The last block of a segment is evicted while the file is still read. Its bytes count until
	// the reader is done.
	l := open(t, Options{Dir: t.TempDir()})
	appendAll(t, l, entryOf(1, 102400))
	l.turn <- struct{}{}
	err := l.sealLocked()
	<-l.turn
	if err != nil {
		t.Fatal(err)
	}
	l.settler.wait()
	s := (*l.slots.Load())[0]
	if _, err := s.acquire(); err != nil {
		t.Fatal(err)
	}
	if freed := l.Evict(blockID(1)); freed != 0 {
		t.Errorf("freed %d while open", freed)
	}
	if l.used.Load() < 102400 {
		t.Errorf("used %d while open", l.used.Load())
	}
	s.release()
	if l.used.Load() != 0 {
		t.Errorf("used %d after the last reader", l.used.Load())
	}
}

func TestCompact(t *testing.T) {
	// A segment with few live blocks is rewritten. These stay readable, keep their State, and
	// survive a restart.
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	const n = 400 // two segments of 4 MiB and more
	for i := range n {
		e := entryOf(i, 30000)
		e.State = uint32(i)
		appendAll(t, l, e)
	}
	segments := l.Stats().Segments
	for i := range n {
		if i%10 != 0 {
			l.Evict(blockID(i))
		}
	}
	var moved int64
	for {
		m, err := l.Compact(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if m == 0 {
			break
		}
		moved += m
	}
	s := l.Stats()
	if s.Segments >= segments || s.Compacted == 0 || moved != s.Rewritten || moved > int64(n)*30000/8 {
		t.Fatalf("%d segments before, then %+v", segments, s)
	}
	for i := 0; i < n; i += 10 {
		mustHold(t, l, i, 30000)
	}
	l.Sample(7, 50, func(c Candidate) {
		if blockID(int(c.State)) != c.ID || c.Size != record.Size(30000) {
			t.Fatalf("sampled %+v", c)
		}
	})
	if got := l.Used(); got != allocated(t, dir) {
		t.Errorf("used %d, allocated %d", got, allocated(t, dir))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, Options{Dir: dir})
	if l.Stats().Blocks != n/10 {
		t.Fatalf("%d blocks after the restart", l.Stats().Blocks)
	}
	for i := 0; i < n; i += 10 {
		mustHold(t, l, i, 30000)
	}
}

func TestTouchAndState(t *testing.T) {
	// Each Get gives the block its next State, SetState replaces it, and Open begins with Fresh.
	dir := t.TempDir()
	o := Options{Dir: dir, Touch: func(s uint32) uint32 { return s + 1 }, Fresh: 77}
	l := open(t, o)
	appendAll(t, l, Entry{ID: blockID(1), Data: blockData(1, 100), State: 5})
	state := func() (s uint32) {
		l.Sample(1, 1, func(c Candidate) { s = c.State })
		return s
	}
	mustHold(t, l, 1, 100)
	if state() != 6 {
		t.Errorf("state %d after a hit", state())
	}
	if !l.SetState(blockID(1), 0xffffffff) || l.SetState(blockID(2), 1) || state() != 0xffffffff {
		t.Errorf("state %d after SetState", state())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, o)
	if state() != 77 {
		t.Errorf("state %d after Open", state())
	}
}

func TestDeclines(t *testing.T) {
	// When the Pool has no memory for the index, Append declines, and held blocks stay.
	pool := hearth.NewPool(hearth.MinRAM)
	l := open(t, Options{Dir: t.TempDir(), Pool: pool, SegmentSize: 8 << 20})
	appendAll(t, l, entryOf(0, 100))
	var taken int64
	for n := int64(1 << 20); n > 0; n /= 2 {
		for pool.Reserve(n) {
			taken += n
		}
	}
	var err error
	for i := 1; i < 20000 && err == nil; i += 100 {
		var batch []Entry
		for j := range 100 {
			batch = append(batch, entryOf(i+j, 10))
		}
		err = l.Append(batch)
	}
	pool.Unreserve(taken)
	if !errors.Is(err, ErrDeclined) || l.Stats().Declined == 0 {
		t.Fatalf("error %v, %+v", err, l.Stats())
	}
	mustHold(t, l, 0, 100)
	appendAll(t, l, entryOf(30000, 100))
	mustHold(t, l, 30000, 100)
}

func TestFilesStayBounded(t *testing.T) {
	// With more segments than OpenFiles, all are readable and few are open.
	l := open(t, Options{Dir: t.TempDir(), OpenFiles: 3})
	for i := range 40 {
		appendAll(t, l, entryOf(i, hearth.BlockSize))
	}
	if l.Stats().Segments < 10 {
		t.Fatalf("%d segments", l.Stats().Segments)
	}
	for i := range 40 {
		mustHold(t, l, (i*7)%40, hearth.BlockSize)
		if n := l.opened.Load(); n > 4 {
			t.Fatalf("%d files open", n)
		}
	}
}

func TestDeviceErrorsAreReturned(t *testing.T) {
	// A write that the device refuses is an error that names file and cause. The log goes on when
	// the device works again.
	broken := ""
	l := open(t, Options{Dir: t.TempDir(), tap: func(c change) error {
		if c.What == broken {
			return unix.ENOSPC
		}
		return nil
	}})
	for _, broken = range []string{"create", "write"} {
		if err := l.Append([]Entry{entryOf(1, 5000), entryOf(2, 100_000)}); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%s refused: %v", broken, err)
		}
		mustMiss(t, l, 1, 5000)
	}
	broken = ""
	appendAll(t, l, entryOf(1, 5000), entryOf(2, 100_000))
	broken = "write"
	if err := l.Append([]Entry{entryOf(3, 5000), entryOf(4, 100_000)}); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	broken = "punch"
	l.Evict(blockID(2))
	broken = ""
	if err := l.Append(nil); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a punch that failed: %v", err)
	}
	if err := l.Sync(); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("a Sync after what only an Append has heard of: %v", err)
	}
	if err := l.Sync(); err != nil {
		t.Fatalf("it was said: %v", err)
	}
	appendAll(t, l, entryOf(3, 5000))
	mustHold(t, l, 1, 5000)
	mustHold(t, l, 3, 5000)
	mustMiss(t, l, 2, 100_000)
}

func TestEmptiedBehindOurBack(t *testing.T) {
	// Somebody removes the files of a running cache. There are misses, but no errors and no wrong
	// bytes.
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, OpenFiles: 1})
	for i := range 20 {
		appendAll(t, l, entryOf(i, hearth.BlockSize))
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.segment"))
	for _, n := range names {
		if err := os.Remove(n); err != nil {
			t.Fatal(err)
		}
	}
	misses := 0
	for i := range 20 {
		got := read(t, l, blockID(i), hearth.BlockSize, [2]int{0, hearth.BlockSize})
		if got == nil {
			misses++
		} else if !bytes.Equal(got, blockData(i, hearth.BlockSize)) {
			t.Fatal("wrong bytes")
		}
	}
	if misses < 10 {
		t.Errorf("%d misses", misses)
	}
	appendAll(t, l, entryOf(100, 1000))
	mustHold(t, l, 100, 1000)
}

func TestWithoutDirectWrites(t *testing.T) {
	// On a file system that refuses O_DIRECT, everything works through the page cache.
	o := Options{Dir: t.TempDir(), tap: func(c change) error {
		if c.What == "probe" {
			return unix.EINVAL
		}
		return nil
	}}
	l := open(t, o)
	if l.dir.Direct {
		t.Fatal("still direct")
	}
	for i, n := range lengths() {
		appendAll(t, l, entryOf(i, n))
		mustHold(t, l, i, n)
	}
	l.Evict(blockID(3))
	kill(t, l)
	l = open(t, o)
	for i, n := range lengths() {
		if i == 3 {
			mustMiss(t, l, i, n)
			continue
		}
		mustHold(t, l, i, n)
	}
}

func TestTinyBlocksComeToRest(t *testing.T) {
	// A segment that is full by the number of its records is not rewritten again and again.
	l := open(t, Options{Dir: t.TempDir()})
	for i := 0; i < 10_000; i += 1000 {
		var batch []Entry
		for j := range 1000 {
			batch = append(batch, Entry{ID: blockID(i + j), Data: []byte("tiny")})
		}
		appendAll(t, l, batch...)
	}
	if l.Stats().Segments < 2 {
		t.Fatal("one segment only")
	}
	if n, err := l.Compact(context.Background()); n != 0 || err != nil {
		t.Errorf("%d bytes rewritten, %v", n, err)
	}
}

func TestRefusedEntries(t *testing.T) {
	// Invalid blocks are refused by name, and the others of the batch are kept. Sums of the caller
	// are used.
	l := open(t, Options{Dir: t.TempDir()})
	good := entryOf(1, 70_000)
	good.Sums = []uint64{xxh3.Hash(good.Data[:hearth.PieceSize]), xxh3.Hash(good.Data[hearth.PieceSize:])}
	huge := entryOf(2, 10)
	huge.ID.Index = record.MaxIndex
	for _, bad := range []Entry{{ID: blockID(3)}, {ID: blockID(4), Data: make([]byte, hearth.BlockSize+1)}, huge, {ID: blockID(5), Data: []byte("x"), Sums: []uint64{1, 2}}} {
		if err := l.Append([]Entry{bad, good}); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%d bytes: %v", len(bad.Data), err)
		}
		mustHold(t, l, 1, 70_000)
		if l.Has(bad.ID) {
			t.Error("kept")
		}
	}
	for _, r := range [][2]int{{-1, 5}, {0, 0}, {0, 70_001}, {70_000, 1}} {
		if _, err := l.Get(context.Background(), blockID(1), 70_000, r[0], r[1]); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("range %v: %v", r, err)
		}
	}
	if _, err := l.Get(context.Background(), blockID(1), 69_999, 0, 1); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("another length: %v", err)
	}
}

func TestAReaderOfAReusedSlotIsGivenNobodyElsesBlock(t *testing.T) {
	// A reader has looked a block up and waits for memory. Meanwhile the block's segment is
	// removed. The next one takes its slot, with another block of that length at that place. The
	// reader gets a miss.
	dir := t.TempDir()
	const length = 50_000
	first := open(t, Options{Dir: dir})
	appendAll(t, first, entryOf(1, length))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	pool := newPool()
	var l *Log
	meanwhile := func() {}
	l = open(t, Options{Dir: dir, Pool: pool, Alloc: func(ctx context.Context, n int) (*hearth.View, error) {
		meanwhile()
		return pool.Alloc(ctx, n)
	}})
	was, _ := l.index.Get(blockID(1), nil)
	meanwhile = func() {
		meanwhile = func() {}
		l.Evict(blockID(1))
		appendAll(t, l, entryOf(2, length))
		if is, ok := l.index.Get(blockID(2), nil); !ok || is != was {
			t.Fatalf("the other block lies at %+v, the first one at %+v", is, was)
		}
	}
	mustMiss(t, l, 1, length)
	mustHold(t, l, 2, length)
	if s := l.Stats(); s.Corrupt != 0 {
		t.Errorf("%+v", s)
	}
}

func TestSyncWaitsForClosedSegments(t *testing.T) {
	// A closed segment is still being synced behind the writer when Sync is called. Sync does not
	// return before.
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		l := open(t, Options{Dir: t.TempDir(), tapSync: func(name string) error {
			if name == segmentName(1) {
				<-held
			}
			return nil
		}})
		appendAll(t, l, entryOf(1, 1000))
		if err := sealNow(l); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- l.Sync() }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("Sync returned %v while a segment was not durable", err)
			done <- err
		default:
		}
		close(held)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func sealNow(l *Log) error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	return l.sealLocked()
}

func TestWhatCannotBeSyncedIsToldBySync(t *testing.T) {
	// The device fails while something is synced: the open segment, a closed one, the file of
	// deaths, the names. Sync reports it, once. A segment whose footer could not be written is
	// synced all the same.
	var mu sync.Mutex // guards the two
	var fails, synced string
	from := func(what string) {
		mu.Lock()
		fails, synced = what, ""
		mu.Unlock()
	}
	met := func(what string) error {
		mu.Lock()
		defer mu.Unlock()
		if what == fails {
			return unix.EIO
		}
		synced += what + " "
		return nil
	}
	l := open(t, Options{Dir: t.TempDir(), tap: func(c change) error { return met(c.What) }, tapSync: met})
	for i, name := range []string{segmentName(1), deathsName, "."} {
		appendAll(t, l, entryOf(i, 1000))
		from(name)
		if err := l.Sync(); !errors.Is(err, unix.EIO) {
			t.Errorf("the sync of %s failed: %v", name, err)
		}
		from("")
		if err := l.Sync(); err != nil {
			t.Errorf("behind the sync of %s that failed: %v", name, err)
		}
	}
	from("write")
	if err := sealNow(l); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil || !strings.Contains(synced, segmentName(1)) {
		t.Errorf("without a footer: %v, synced are %s", err, synced)
	}
	from("")
	appendAll(t, l, entryOf(10, 1000))
	from(segmentName(2))
	if err := sealNow(l); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); !errors.Is(err, unix.EIO) {
		t.Errorf("the sync of a closed segment failed: %v", err)
	}
	from("")
}
