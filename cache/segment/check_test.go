package segment

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func checkID(i int) hearth.ID {
	return hearth.ID{Version: [16]byte{byte(i), byte(i >> 8), 7}, Index: 0}
}

func checkEntry(i int) Entry {
	return Entry{ID: checkID(i), Data: blockData(i, 100+i*977%200_000)}
}

// told collects findings.
func told(run *check.Run) *[]check.Finding {
	var all []check.Finding
	run.Found = func(f check.Finding) { all = append(all, f) }
	return &all
}

func TestCheckFindsEveryChangedBlock(t *testing.T) {
	// A byte is changed in some blocks of a log in use. A check names each of them and no other.
	// One with repair drops them, and the next is clean, also after the log is closed.
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	l, err := Open(Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	const blocks = 120
	for i := range blocks {
		if err := l.Append([]Entry{checkEntry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	bad := map[hearth.ID]bool{}
	for i := 3; i < blocks; i += 10 {
		p, _ := l.index.Get(checkID(i), nil)
		s := (*l.slots.Load())[p.Slot]
		hearthtest.FlipByte(t, filepath.Join(dir, s.name()), p.Note(checkID(i)).Offset()+int64(record.HeaderSize(int(p.Length)))+int64(i), 4)
		bad[checkID(i)] = true
	}
	for _, repair := range []bool{false, true} {
		r := &check.Run{Repair: repair}
		found := told(r)
		if err := l.Check(t.Context(), r, 0, nil); err != nil || len(*found) != len(bad) || r.Blocks.Load() != blocks {
			t.Fatalf("repair %v: %d findings of %d, %d blocks, %v", repair, len(*found), len(bad), r.Blocks.Load(), err)
		}
	}
	r := &check.Run{}
	if err := l.Check(t.Context(), r, 0, nil); err != nil || r.Bad.Load() != 0 || r.Blocks.Load() != int64(blocks-len(bad)) {
		t.Fatalf("again: %d bad of %d, %v", r.Bad.Load(), r.Blocks.Load(), err)
	}
	for i := range blocks {
		if l.Has(checkID(i)) == bad[checkID(i)] {
			t.Errorf("block %d: held %v", i, !bad[checkID(i)])
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	closed := &check.Run{}
	if err := CheckClosed(t.Context(), Options{Dir: dir, Pool: pool}, closed); err != nil || closed.Bad.Load() != 0 || closed.Blocks.Load() != int64(blocks-len(bad)) {
		t.Fatalf("closed: %d bad of %d, %v", closed.Bad.Load(), closed.Blocks.Load(), err)
	}
}

func TestCheckOfWhatChangesIsClean(t *testing.T) {
	// Blocks are appended, evicted and moved while a log is checked: nothing is damaged.
	const blocks, stay = 300, 40
	pool := hearthtest.Pool(t, 64<<20)
	l, err := Open(Options{Dir: t.TempDir(), Pool: pool, SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, l)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range blocks {
			if err := l.Append([]Entry{checkEntry(i)}); err != nil {
				t.Error(err)
			}
			if i > stay {
				l.Evict(checkID(i - stay - i%7))
			}
			if i%20 == 0 {
				if _, err := l.Compact(t.Context()); err != nil {
					t.Error(err)
				}
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
		r := &check.Run{Repair: true}
		found := told(r)
		err := l.Check(t.Context(), r, 0, nil)
		for i := 0; i < blocks && err == nil; i += 7 { // one by one, too
			_, err = l.CheckBlock(t.Context(), r, checkID(i))
		}
		if err == nil {
			err = l.CheckSeals(t.Context(), r)
		}
		if err != nil || len(*found) > 0 {
			<-done
			t.Fatalf("%v, %v", *found, err)
		}
	}
}

func TestABlockThatGoesBetweenTwoStepsOfACheckIsNoDamage(t *testing.T) {
	// A block is evicted when a check is about to read it, or is damaged and evicted before its
	// second read. Nothing is reported.
	for last := 1; last <= 2; last++ {
		l := open(t, Options{Dir: t.TempDir()})
		appendAll(t, l, entryOf(1, 70_000))
		if last == 2 {
			p, _ := l.index.Get(blockID(1), nil)
			hearthtest.FlipByte(t, l.dir.Full((*l.slots.Load())[p.Slot].name()), p.Note(blockID(1)).Offset()+5000, 4)
		}
		steps := 0
		r := &check.Run{Repair: true, Step: func(op func()) bool {
			if steps++; steps == last {
				l.Evict(blockID(1))
				l.settler.wait()
			}
			op()
			return true
		}}
		found := told(r)
		if err := l.Check(t.Context(), r, 0, nil); err != nil || len(*found) > 0 || steps < last {
			t.Errorf("evicted before step %d of %d: %v, %v", last, steps, *found, err)
		}
	}
}

func TestCheckClosedRepairs(t *testing.T) {
	// Blocks, a header page, a footer and the file of deaths of a closed log are changed. A check
	// without repair names them and changes nothing. A repair mends all and drops only those
	// blocks, and the next check is clean.
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	o := Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	const blocks = 120
	for i := range blocks {
		if err := l.Append([]Entry{checkEntry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := l.index.Get(checkID(50), nil)
	at := filepath.Join(dir, (*l.slots.Load())[p.Slot].name())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, at, p.Note(checkID(50)).Offset()+int64(record.HeaderSize(int(p.Length)))+9, 4)
	hearthtest.FlipByte(t, filepath.Join(dir, segmentName(1)), 17, 4)
	second, err := os.Stat(filepath.Join(dir, segmentName(2)))
	if err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, filepath.Join(dir, segmentName(2)), second.Size()-50, 4)
	hearthtest.FlipByte(t, filepath.Join(dir, deathsName), 10, 4)
	for _, repair := range []bool{false, true} {
		r := &check.Run{Repair: repair}
		found := told(r)
		if err := CheckClosed(t.Context(), o, r); err != nil || len(*found) != 4 || r.Repaired.Load() == 0 == repair {
			t.Fatalf("repair %v: %v, %v", repair, *found, err)
		}
	}
	r := &check.Run{}
	found := told(r)
	if err := CheckClosed(t.Context(), o, r); err != nil || len(*found) > 0 || r.Blocks.Load() != blocks-1 {
		t.Fatalf("after the repair: %d blocks, %v, %v", r.Blocks.Load(), *found, err)
	}
}

func TestCheckGoesOnBehindWhatCannotBeRead(t *testing.T) {
	// A directory stands in place of a segment. It is reported, nothing of it is dropped, and the
	// other segments are checked.
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	l, err := Open(Options{Dir: dir, Pool: pool, SegmentSize: 3 << 20, OpenFiles: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, l)
	for i := range 120 {
		if err := l.Append([]Entry{checkEntry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	r := &check.Run{}
	if err := l.Check(t.Context(), r, 0, nil); err != nil || r.Bad.Load() != 0 || r.Blocks.Load() != 120 {
		t.Fatalf("%d bad of %d, %v", r.Bad.Load(), r.Blocks.Load(), err)
	}
	s := (*l.slots.Load())[1]
	s.mu.Lock()
	if s.users == 0 {
		s.closeLocked()
	}
	lost := int64(s.records)
	s.mu.Unlock()
	name := filepath.Join(dir, s.name())
	if err := os.Rename(name, name+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	last := uint32(0)
	r = &check.Run{Repair: true}
	found := told(r)
	err = l.Check(t.Context(), r, 0, func(number uint32) { last = number })
	if err != nil || len(*found) != 1 || (*found)[0].File != name || (*found)[0].Repaired || last <= s.number || lost == 0 {
		t.Fatalf("%v up to segment %d, %v", *found, last, err)
	}
	for i := range 120 {
		if !l.Has(checkID(i)) {
			t.Errorf("block %d was dropped", i)
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".away", name); err != nil {
		t.Fatal(err)
	}
}

func TestARepairThatDidNotHoldIsNotTold(t *testing.T) {
	// A footer is damaged, and the file system cannot write another. The log opens all the same,
	// and the finding is not called repaired. Once the footer can be written it is.
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	o := Options{Dir: dir, Pool: pool, SegmentSize: 3 << 20}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		if err := l.Append([]Entry{checkEntry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, segmentName(1))
	size, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, name, size.Size()-50, 4)
	empty := filepath.Join(dir, segmentName(99))
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, full := range []bool{true, false} {
		o.tap = func(c change) error {
			if full && c.What == "write" && c.Name == segmentName(1) {
				return unix.ENOSPC
			}
			return nil
		}
		r := &check.Run{Repair: true}
		found := told(r)
		if err := CheckClosed(t.Context(), o, r); err != nil || len(*found) == 0 || (*found)[0].Repaired == full {
			t.Errorf("full %v: %v, %v", full, *found, err)
		}
		if last := (*found)[len(*found)-1]; full && (last.File != empty || last.Kind != check.Leftover || !last.Repaired) {
			t.Errorf("a segment that was only just made: %v", *found)
		}
	}
}

func TestACheckOfAnEjectedDirectoryLeavesNoMemory(t *testing.T) {
	// The directory is ejected between two steps of a check: it ends, and the memory for what was not read is free.
	l := open(t, Options{Dir: t.TempDir()})
	appendAll(t, l, entryOf(1, 70_000))
	for allowed := range 2 { // the second time the block is damaged, and read by itself
		steps := 0
		r := &check.Run{Step: func(op func()) bool {
			if steps++; steps > allowed {
				return false
			}
			op()
			return true
		}}
		if err := l.Check(t.Context(), r, 0, nil); !errors.Is(err, check.ErrLeft) || l.pool.Stats().Views != 0 {
			t.Errorf("ejected after %d steps: %d Views are kept, %v", allowed, l.pool.Stats().Views, err)
		}
		p, _ := l.index.Get(blockID(1), nil)
		hearthtest.FlipByte(t, l.dir.Full((*l.slots.Load())[p.Slot].name()), p.Note(blockID(1)).Offset()+5000, 4)
	}
}

// sealedLog opens a log with closed segments, the first of which have a damaged header page or
// footer. tap sees its changes.
func sealedLog(t *testing.T, tap func(change) error) *Log {
	l := open(t, Options{Dir: t.TempDir(), tap: tap})
	for i := range 60 {
		appendAll(t, l, entryOf(i, 100_000))
	}
	name := l.dir.Full(segmentName(1))
	st, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, name, 17, 4)
	hearthtest.FlipByte(t, name, st.Size()-50, 4)
	return l
}

func TestAListenerHoldsNoWriterUp(t *testing.T) {
	// The receiver of a finding about seals may take its time: the log is written meanwhile.
	for _, repair := range []bool{false, true} {
		l := sealedLog(t, nil)
		heard := 0
		r := &check.Run{Repair: repair, Found: func(f check.Finding) {
			if heard++; f.Repaired != repair {
				t.Errorf("repair %v: %v", repair, f)
			}
			select {
			case l.turn <- struct{}{}:
				<-l.turn
			default:
				t.Errorf("repair %v: the writer waits for who hears of %v", repair, f)
			}
		}}
		if err := l.Check(t.Context(), r, 0, nil); err != nil || heard != 2 {
			t.Errorf("repair %v: %d findings, %v", repair, heard, err)
		}
	}
}

func TestARepairThatHangsIsLeft(t *testing.T) {
	// The device hangs while a header page is rewritten. The check abandons that, and the log can
	// be written again once the device has answered.
	write, hang := make(chan struct{}, 1), make(chan struct{})
	broken := false
	l := sealedLog(t, func(c change) error {
		if broken && c.What == "write" && c.Off == 0 {
			write <- struct{}{}
			<-hang
		}
		return nil
	})
	broken = true
	r := &check.Run{Repair: true, Step: func(op func()) bool {
		ended := make(chan struct{})
		go func() { defer close(ended); op() }()
		select {
		case <-ended:
			return true
		case <-write:
			return false
		}
	}}
	over := make(chan error, 1)
	go func() { over <- l.Check(t.Context(), r, 0, nil) }()
	select {
	case err := <-over:
		if !errors.Is(err, check.ErrLeft) {
			t.Error(err)
		}
		close(hang)
	case <-time.After(10 * time.Second):
		t.Error("the check waits for the device")
		close(hang)
		t.Logf("it ended at last: %v", <-over)
	}
	appendAll(t, l, entryOf(99, 100))
	mustHold(t, l, 99, 100)
	if found := (&check.Run{}); l.Check(t.Context(), found, 0, nil) != nil || found.Bad.Load() > 0 {
		t.Errorf("%d seals are bad after the repair", found.Bad.Load())
	}
}

func TestARepairedFooterIsInOrder(t *testing.T) {
	// A footer is rewritten from the index. Its records are in order of offset: otherwise the next
	// start would punch none of the unneeded pages.
	l := sealedLog(t, nil)
	r := &check.Run{Repair: true}
	if err := l.Check(t.Context(), r, 0, nil); err != nil || r.Repaired.Load() != 2 {
		t.Fatalf("%d repaired, %v", r.Repaired.Load(), err)
	}
	s := l.numbered(1)
	if err := l.repairSeal(s, func(s *segment, f *file) error {
		tr, err := l.trailer(s, f)
		if err != nil {
			return err
		}
		c, err := l.contents(s, f, tr)
		if len(c.notes) < 20 || !c.whole || !slices.IsSortedFunc(c.notes, func(a, b record.Note) int { return cmp.Compare(a.Unit, b.Unit) }) {
			t.Errorf("whole %v: %v", c.whole, c.notes)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestNoFooterOnAFullDiskIsNoDamage(t *testing.T) {
	// The disk is full when a segment is closed, and at the next start. There is no footer, and a
	// check finds nothing.
	dir := t.TempDir()
	refuse := false
	tap := func(c change) error {
		if refuse && c.What == "write" {
			return unix.ENOSPC
		}
		return nil
	}
	l, err := Open(Options{Dir: dir, Pool: hearth.NewPool(64 << 20), SegmentSize: 4 << 20, tap: tap})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, entryOf(1, 100_000))
	refuse = true
	l.turn <- struct{}{}
	err = l.sealLocked()
	<-l.turn
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} {
		r := &check.Run{}
		found := told(r)
		if err := l.Check(t.Context(), r, 0, nil); err != nil || len(*found) > 0 || r.Blocks.Load() != 1 {
			t.Errorf("again %v: %v, %d blocks, %v", again, *found, r.Blocks.Load(), err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if !again {
			l = open(t, Options{Dir: dir, tap: tap})
		}
	}
}

func TestTheLastPageOfAnEvictedBlockIsNoDamage(t *testing.T) {
	// A node is killed before a segment has its footer. Two blocks side by side were evicted from it, so the second one's
	// header is gone, and its last page is there still, since the next block begins in it: that is no damage. A byte of that
	// block's own header is.
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	l, err := Open(Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, l)
	var entries []Entry
	for i := range 5 {
		entries = append(entries, Entry{ID: checkID(i), Data: blockData(i, 9000)})
	}
	if err := l.Append(entries); err != nil { // as one group, which shares pages
		t.Fatal(err)
	}
	p, _ := l.index.Get(checkID(3), nil)
	for i := 1; i < 3; i++ {
		l.Evict(checkID(i))
	}
	for _, flipped := range []bool{false, true} {
		killed := copyDir(t, dir)
		if flipped {
			hearthtest.FlipByte(t, filepath.Join(killed, (*l.slots.Load())[p.Slot].name()), p.Note(checkID(3)).Offset()+4, 4)
		}
		r := &check.Run{}
		found := told(r)
		if err := CheckClosed(t.Context(), Options{Dir: killed, Pool: pool}, r); err != nil || slices.ContainsFunc(*found, func(f check.Finding) bool { return f.Kind == check.Damaged }) != flipped {
			t.Errorf("a header changed: %v; found %+v, %v", flipped, *found, err)
		}
	}
}

func TestACutSegmentEndsNoCheck(t *testing.T) {
	// A segment is cut within its header page. Each block and the page are reported, with repair
	// all are dropped, and the check comes to its end.
	l := sealedLog(t, nil)
	held := l.Stats().Blocks
	if err := os.Truncate(l.dir.Full(segmentName(1)), 1000); err != nil {
		t.Fatal(err)
	}
	for _, repair := range []bool{false, true} {
		r := &check.Run{Repair: repair}
		found := told(r)
		if err := l.Check(t.Context(), r, 0, nil); err != nil || len(*found) < 20 || r.Blocks.Load() != held {
			t.Errorf("repair %v: %d findings, %d blocks of %d, %v", repair, len(*found), r.Blocks.Load(), held, err)
		}
	}
	if l.numbered(1) != nil {
		t.Error("a segment without blocks is there")
	}
}

func TestCheckBlockAndSeals(t *testing.T) {
	// Single blocks of a log in use are whole, changed, evicted, and in a segment that was removed;
	// and a byte of a footer is changed. Each is reported for what it is, once, and dropped or
	// repaired.
	dir, pool := t.TempDir(), hearthtest.Pool(t, 64<<20)
	l, err := Open(Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, l)
	const blocks = 120
	for i := range blocks {
		if err := l.Append([]Entry{checkEntry(i)}); err != nil {
			t.Fatal(err)
		}
	}
	run := func(do func(r *check.Run) error) []check.Finding {
		t.Helper()
		r := &check.Run{Repair: true}
		found := told(r)
		if err := do(r); err != nil {
			t.Fatal(err)
		}
		return *found
	}
	block := func(i int, held bool) []check.Finding {
		t.Helper()
		return run(func(r *check.Run) error {
			is, err := l.CheckBlock(t.Context(), r, checkID(i))
			if is != held || is && r.Bytes.Load() < int64(len(checkEntry(i).Data)) {
				t.Errorf("block %d: held %v, %d bytes", i, is, r.Bytes.Load())
			}
			return err
		})
	}
	seals := func() []check.Finding {
		t.Helper()
		return run(func(r *check.Run) error { return l.CheckSeals(t.Context(), r) })
	}
	for i := range blocks {
		if all := block(i, true); len(all) > 0 {
			t.Fatalf("block %d of a clean log: %v", i, all)
		}
	}
	if all := seals(); len(all) > 0 {
		t.Fatalf("a clean log: %v", all)
	}
	p, _ := l.index.Get(checkID(5), nil)
	first := filepath.Join(dir, (*l.slots.Load())[p.Slot].name())
	hearthtest.FlipByte(t, first, p.Note(checkID(5)).Offset()+int64(record.HeaderSize(int(p.Length)))+7, 4)
	if all := block(5, true); len(all) != 1 || all[0].File != first || !all[0].Repaired {
		t.Errorf("a changed byte: %v", all)
	}
	l.Evict(checkID(6))
	for _, gone := range []int{5, 6, blocks} {
		if all := block(gone, false); len(all) > 0 {
			t.Errorf("block %d is not held: %v", gone, all)
		}
	}
	size, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	hearthtest.FlipByte(t, first, size.Size()-40, 4)
	if all := seals(); len(all) != 1 || all[0].File != first || !all[0].Repaired {
		t.Errorf("a changed footer: %v", all)
	}
	if all := seals(); len(all) > 0 {
		t.Errorf("after its repair: %v", all)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if all := block(4, true); len(all) != 1 || !strings.Contains(all[0].Cause, "removed") || !all[0].Repaired {
		t.Errorf("in a segment that was removed: %v", all)
	}
	block(4, false)
	if all := block(blocks-1, true); len(all) > 0 {
		t.Errorf("in another segment: %v", all)
	}
}
