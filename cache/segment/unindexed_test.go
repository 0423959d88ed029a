package segment

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// scarce returns a Pool with so many bytes for indexes; more releases all of it.
func scarce(t testing.TB, left int64) (pool *hearth.Pool, more func()) {
	t.Helper()
	pool = newPool()
	taken := int64(0)
	for n := int64(64 << 20); n > 0; n /= 2 {
		for pool.Claim(n) {
			taken += n
		}
	}
	pool.Unclaim(left)
	taken -= left
	return pool, func() { pool.Unclaim(taken); taken = 0 }
}

// openScarce opens a log with so few bytes for its index; more ends that, and so does the end of
// the test.
func openScarce(t testing.TB, dir string, left int64) (l *Log, more func()) {
	t.Helper()
	pool, more := scarce(t, left)
	l = open(t, Options{Dir: dir, Pool: pool})
	t.Cleanup(more)
	return l, more
}

// several makes a closed directory of some segments with blocks of 3000 bytes.
func several(t testing.TB, blocks int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := Open(Options{Dir: dir, Pool: newPool(), SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < blocks; i += 100 {
		var batch []Entry
		for j := range 100 {
			batch = append(batch, entryOf(i+j, 3000))
		}
		appendAll(t, l, batch...)
	}
	closeLog(t, l)
	return dir
}

func closeLog(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// tell returns for each of the blocks whether it is held.
func tell(t testing.TB, l *Log, blocks int) (held []bool) {
	t.Helper()
	for i := range blocks {
		got := read(t, l, blockID(i), 3000, [2]int{0, 3000})
		if got != nil && !bytes.Equal(got, blockData(i, 3000)) {
			t.Fatalf("block %d is wrong", i)
		}
		held = append(held, got != nil)
	}
	return held
}

func count(held []bool) (n int) {
	for _, h := range held {
		if h {
			n++
		}
	}
	return n
}

const someBlocks = 6000 // five segments of 4 MiB

func TestWhoSeesNoneUnindexedFindsAll(t *testing.T) {
	// Memory comes back while somebody keeps looking. Each block is found or counts as unindexed,
	// and once none counts as unindexed, all are found.
	dir := several(t, someBlocks)
	l, more := openScarce(t, dir, 0)
	more()
	done := make(chan error)
	go func() { done <- l.Recall(t.Context()) }()
	for s := l.Stats(); s.Unindexed > 0; s = l.Stats() {
		if s.Blocks+s.Unindexed < someBlocks {
			t.Errorf("%d blocks are indexed and %d are not, of %d", s.Blocks, s.Unindexed, someBlocks)
			break
		}
	}
	if s := l.Stats(); s.Unindexed == 0 && s.Blocks != someBlocks {
		t.Errorf("none is unindexed, and %d of %d are found", s.Blocks, someBlocks)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestUnindexedGoFirstButForThePinned(t *testing.T) {
	// Room is needed. The oldest unindexed segments are evicted, whole ones by unlink. From one
	// with pinned blocks only the others go, and their pages. Pinned blocks stay, through restarts.
	// They go only if they must and nothing else is left.
	dir := several(t, someBlocks)
	l, more := openScarce(t, dir, 0)
	per := int(l.unindexed()[0].records)
	pins := map[hearth.ID]bool{}
	for i := per; i < per+10; i++ { // of the second segment
		pins[blockID(i)] = true
	}
	pinned := func(id hearth.ID) bool { return pins[id] }
	segments, used := l.Stats().Segments, l.Used()
	if n := l.Shed(pinned); n != int64(per) || l.Stats().Segments != segments-1 || l.Used() > used-int64(per)*3000 {
		t.Fatalf("%d blocks went of the oldest segment of %d, %+v", n, per, l.Stats())
	}
	used = l.Used()
	if n := l.Shed(pinned); n < int64(per)-100 || n > int64(per)-10 || l.Stats().Segments != segments-1 || l.Used() > used-n*2900 {
		t.Fatalf("%d blocks went of the one with pins, %d bytes; %+v", n, used-l.Used(), l.Stats())
	}
	for range 10 {
		l.Shed(pinned)
	}
	if s := l.Stats(); s.Unindexed != 10 || s.Segments != 1 || l.Used() != allocated(t, dir) {
		t.Fatalf("left: %+v, allocated %d", s, allocated(t, dir))
	}
	if n := l.Shed(pinned); n != 0 {
		t.Fatalf("%d pinned blocks went", n)
	}
	more()
	closeLog(t, l)
	l = open(t, Options{Dir: dir})
	for i, h := range tell(t, l, someBlocks) {
		if h != pins[blockID(i)] {
			t.Fatalf("block %d is held: %v", i, h)
		}
	}
	closeLog(t, l)
	l, _ = openScarce(t, dir, 0)
	if n := l.Shed(nil); n != 10 || l.Stats().Unindexed != 0 || l.Stats().Segments != 0 {
		t.Errorf("%d blocks went, %+v", n, l.Stats())
	}
}

// putAgain appends unindexed blocks once more, for a recall to find.
func putAgain(t testing.TB, l *Log, ids ...int) {
	t.Helper()
	for ; len(ids) > 0; ids = ids[min(len(ids), 100):] {
		var batch []Entry
		for _, i := range ids[:min(len(ids), 100)] {
			batch = append(batch, entryOf(i, 3000))
		}
		appendAll(t, l, batch...)
	}
}

func TestARecordThatWentMeanwhileIsNotKept(t *testing.T) {
	// A recall looks up where a block is kept. Before it looks there, a reader drops the last
	// record of that segment. Then the remaining record counts.
	l := open(t, Options{Dir: t.TempDir()})
	appendAll(t, l, entryOf(1, 3000))
	p, _ := l.index.Get(blockID(1), nil)
	l.clearSlot(l.writer.segment)
	if l.stays(blockID(1), p) || l.whole(blockID(1), p) || l.stays(blockID(1), record.Place{Slot: 7, Unit: 64, Length: 3000}) {
		t.Error("it is kept")
	}
	l.takeSlot(l.writer.segment)
}

func TestAllOfAnUnindexedSegmentIsBad(t *testing.T) {
	// The check of a stopped node finds each record of an unindexed segment bad. With the last one
	// its file is removed, and its bytes.
	dir := several(t, someBlocks)
	l, _ := openScarce(t, dir, 0)
	s := l.unindexed()[0]
	segments, used := l.Stats().Segments, l.Used()
	f, err := s.acquire()
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.living(s, f, nil)
	s.release()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.notes {
		if ok, err := l.buryUnindexed(s, n); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if x := l.Stats(); x.Segments != segments-1 || x.Unindexed != someBlocks-int64(len(c.notes)) || l.Used() > used-3<<20 || l.Used() != allocated(t, dir) {
		t.Errorf("used %d of %d before, allocated %d, %+v", l.Used(), used, allocated(t, dir), x)
	}
}

func TestCompactLeavesUnindexedAlone(t *testing.T) {
	// All but a few blocks of each segment are evicted, and the log comes back without memory.
	// Compaction, which moves what the index knows, must not take these segments for dead. With
	// memory it may rewrite them.
	dir := several(t, someBlocks)
	l := open(t, Options{Dir: dir})
	for i := range someBlocks {
		if i%20 > 0 {
			l.Evict(blockID(i))
		}
	}
	closeLog(t, l)
	l, more := openScarce(t, dir, 0)
	before := l.Stats()
	for range 10 {
		if n, err := l.Compact(t.Context()); n != 0 || err != nil {
			t.Fatalf("compacted %d bytes, %v", n, err)
		}
	}
	if s := l.Stats(); s.Unindexed != someBlocks/20 || s.Segments != before.Segments {
		t.Fatalf("%+v", s)
	}
	more()
	if err := l.Recall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Compact(t.Context()); n == 0 || err != nil {
		t.Errorf("compacted %d bytes, %v", n, err)
	}
	for i, h := range tell(t, l, someBlocks) {
		if h != (i%20 == 0) {
			t.Fatalf("block %d is held: %v", i, h)
		}
	}
}

func TestUnindexedSegmentsThatSomebodyRemoved(t *testing.T) {
	// Unindexed segments are removed by hand, and one of them is truncated to nothing. That is not
	// the device's fault, and the rest is counted and indexed.
	dir := several(t, someBlocks)
	l, more := openScarce(t, dir, 0)
	due := l.unindexed()
	for _, s := range due { // otherwise their files could still be read
		s.mu.Lock()
		s.closeLocked()
		s.mu.Unlock()
	}
	left := l.Stats().Unindexed
	for i, s := range due[:3] {
		left -= int64(s.records)
		name := filepath.Join(dir, s.name())
		err := os.Remove(name)
		if i == 2 {
			err = os.WriteFile(name, nil, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := l.Shed(func(hearth.ID) bool { return true }); n == 0 {
		t.Error("a removed segment takes room yet")
	}
	more()
	if err := l.Recall(t.Context()); err != nil {
		t.Error(err)
	}
	if s := l.Stats(); s.Unindexed != 0 || s.Blocks != left || count(tell(t, l, someBlocks)) != int(left) {
		t.Errorf("%d blocks are left, %+v", left, s)
	}
}

func TestEvictionMakesRoomInTheIndex(t *testing.T) {
	// No memory comes back, but indexed blocks are evicted. Their entries then serve unindexed
	// blocks.
	dir := several(t, someBlocks)
	l, _ := openScarce(t, dir, 250<<10)
	unindexed := l.Stats().Unindexed
	if unindexed == 0 || l.Stats().Blocks < 2*unindexed {
		t.Fatalf("%+v", l.Stats())
	}
	for i := range someBlocks {
		l.Evict(blockID(i))
	}
	if err := l.Recall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); s.Blocks == 0 || s.Blocks+s.Unindexed != unindexed {
		t.Errorf("of %d that had no index %d have one; %+v", unindexed, s.Blocks, s)
	}
}

func TestChecksOfWhatIsUnindexed(t *testing.T) {
	// A check without memory counts the blocks that it does not see. It repairs a footer from what
	// its segment holds, not from the index. The check of a stopped node sees all, and what it
	// drops stays dropped. No good block is lost.
	dir := several(t, someBlocks)
	l, more := openScarce(t, dir, 70<<10)
	first := l.unindexed()[0]
	name := filepath.Join(dir, first.name())
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, name, info.Size()-footerSize(first.records)+100, 1) // among the entries of the footer
	r := &check.Run{Repair: true}
	if err := l.Check(t.Context(), r, 0, nil); err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); r.Unindexed.Load() != s.Unindexed || r.Blocks.Load() != s.Blocks || r.Bad.Load() != 1 || r.Repaired.Load() != 1 {
		t.Errorf("%d blocks checked, %d unindexed, %d bad, %d repaired; %+v", r.Blocks.Load(), r.Unindexed.Load(), r.Bad.Load(), r.Repaired.Load(), s)
	}
	more()
	closeLog(t, l)
	hearthtest.FlipByte(t, name, 2*record.PageSize+500, 1) // in a block
	pool, more := scarce(t, 0)
	r = &check.Run{Repair: true}
	if err := CheckClosed(t.Context(), Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20}, r); err != nil {
		t.Fatal(err)
	}
	more()
	if r.Blocks.Load() != someBlocks || r.Bad.Load() != 1 || r.Repaired.Load() != 1 {
		t.Errorf("stopped: %d blocks checked, %d bad, %d repaired", r.Blocks.Load(), r.Bad.Load(), r.Repaired.Load())
	}
	l = open(t, Options{Dir: dir})
	if n := count(tell(t, l, someBlocks)); n != someBlocks-1 || l.Stats().Corrupt > 0 {
		t.Errorf("%d blocks of %d are left, %+v", n, someBlocks, l.Stats())
	}
}

func TestAFailingDeviceWhileUnindexed(t *testing.T) {
	// Neither a tombstone can be written nor a file removed. The blocks to be evicted are there,
	// counted, and go later, once.
	dir := several(t, someBlocks)
	pool, more := scarce(t, 0)
	forbid := true
	l := open(t, Options{Dir: dir, Pool: pool, tap: func(c change) error {
		if forbid && (c.What == "write" || c.What == "punch") {
			return fs.ErrPermission
		}
		return nil
	}})
	t.Cleanup(more)
	pin := blockID(5)
	pinned := func(id hearth.ID) bool { return id == pin }
	if n := l.Shed(pinned); n == 0 { // the second segment went instead
		t.Fatal("nothing went")
	}
	if err := l.settler.failure(); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("nobody hears of it: %v", err)
	}
	forbid = false
	for range 2 { // a failed segment is spared for a round
		for l.Shed(pinned) > 0 {
		}
	}
	if s := l.Stats(); s.Unindexed != 1 || l.Used() != allocated(t, dir) {
		t.Fatalf("%+v, allocated %d", s, allocated(t, dir))
	}
	more()
	if err := l.Recall(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustHold(t, l, 5, 3000)
}
