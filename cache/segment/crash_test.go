package segment

import (
	"bytes"
	"context"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/cache/record"
)

// kill leaves the log as kill -9 would: no footer, nothing synced.
func kill(t testing.TB, l *Log) {
	t.Helper()
	if err := l.shut(); err != nil {
		t.Fatal(err)
	}
}

// script is a recorded run of a log: what it changed on disk, and after how many changes each step
// began and ended.
type script struct {
	changes []change
	steps   []step
	lengths map[int]int
}

type step struct {
	begin, end int
	live       map[int]bool // after the step
	evicted    []int        // by the step
}

// recorded runs appends, evictions and compactions over two segments and more.
func recorded(t *testing.T) *script {
	s := &script{lengths: map[int]int{}}
	l := open(t, Options{Dir: t.TempDir(), tap: func(c change) error {
		c.Data = bytes.Clone(c.Data)
		s.changes = append(s.changes, c)
		return nil
	}})
	r := rand.New(rand.NewPCG(5, 6))
	live := map[int]bool{}
	next := 0
	all := lengths()
	for range 60 {
		st := step{begin: len(s.changes)}
		switch k := r.IntN(10); {
		case k < 5:
			var batch []Entry
			for range 1 + r.IntN(12) {
				s.lengths[next] = min(all[r.IntN(len(all))], 500_000)
				batch = append(batch, entryOf(next, s.lengths[next]))
				live[next] = true
				next++
			}
			appendAll(t, l, batch...)
		case k < 9:
			ids := slices.Sorted(maps.Keys(live))
			for range len(ids) / 3 {
				i := ids[r.IntN(len(ids))]
				l.Evict(blockID(i))
				delete(live, i)
				st.evicted = append(st.evicted, i)
			}
		default:
			if _, err := l.Compact(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		l.settler.wait()
		st.end, st.live = len(s.changes), maps.Clone(live)
		s.steps = append(s.steps, st)
	}
	if l.Stats().Segments < 2 {
		t.Fatal("the script is too short for two segments")
	}
	return s
}

// apply makes one change in dir; of a write only the first most bytes.
func apply(t *testing.T, dir string, c change, most int) {
	t.Helper()
	name := filepath.Join(dir, c.Name)
	var err error
	switch c.What {
	case "create":
		err = os.WriteFile(name, nil, 0o600)
	case "remove":
		err = os.Remove(name)
	case "rename":
		err = os.Rename(name, filepath.Join(dir, c.To))
	case "write", "punch":
		data := c.Data[:min(most, len(c.Data))]
		if c.What == "punch" {
			data = make([]byte, c.N)
		}
		var f *os.File
		if f, err = os.OpenFile(name, os.O_WRONLY, 0); err == nil {
			_, err = f.WriteAt(data, c.Off)
			_ = f.Close()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// check opens a directory that has the first k changes, and perhaps a part of the next one.
func (s *script) check(t *testing.T, dir string, k int) {
	t.Helper()
	must, mustNot, open := map[int]bool{}, map[int]bool{}, map[int]bool{}
	for _, st := range s.steps {
		for _, i := range st.evicted {
			if st.end <= k {
				mustNot[i] = true
			} else {
				open[i] = true
			}
		}
		if st.end <= k {
			must = st.live
		}
	}
	l, err := Open(Options{Dir: dir, Pool: newPool(), SegmentSize: 4 << 20})
	if err != nil {
		t.Fatalf("after %d changes: %v", k, err)
	}
	for i, length := range s.lengths {
		got := read(t, l, blockID(i), length, [2]int{0, length})
		switch {
		case got != nil && !bytes.Equal(got, blockData(i, length)):
			t.Fatalf("after %d changes: block %d is wrong", k, i)
		case got == nil && must[i] && !open[i]:
			t.Fatalf("after %d changes: block %d of %d bytes is lost", k, i, length)
		case got != nil && mustNot[i]:
			t.Fatalf("after %d changes: block %d came back", k, i)
		}
	}
	// The copy is dirty in the page cache: the file system may still change its size by a page per
	// file.
	if used := l.Used(); max(used-allocated(t, dir), allocated(t, dir)-used) > int64(l.Stats().Segments)*record.PageSize {
		t.Fatalf("after %d changes: used %d, allocated %d", k, used, allocated(t, dir))
	}
	appendAll(t, l, entryOf(1_000_000, 10_000))
	mustHold(t, l, 1_000_000, 10_000)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWhatNoRecordNeedsIsFree(t *testing.T) {
	// The process dies between tombstones and punches, in the open segment and in a closed one, and
	// while it rewrites the file of deaths. After the next start nothing of that takes room, and
	// the live blocks are there.
	dir := t.TempDir()
	forbid := false
	l := open(t, Options{Dir: dir, tap: func(c change) error {
		if forbid && c.What == "punch" {
			return fs.ErrPermission
		}
		return nil
	}})
	const blocks, length = 40, 200_000
	for i := range blocks {
		appendAll(t, l, entryOf(i, length), entryOf(1000+i, 3000))
	}
	forbid = true
	for i := range blocks {
		if i%4 > 0 {
			l.Evict(blockID(i))
		}
	}
	_ = l.settler.failure() // the error of the punches
	kill(t, l)
	if err := os.WriteFile(filepath.Join(dir, deathsTemp), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, Options{Dir: dir})
	live := blocks/4*record.Size(length) + blocks*record.RoundUp(record.Size(3000), record.PageSize)
	slack := int64(l.Stats().Segments) * (tidySlack + 3*record.PageSize) // header, footer, metadata of the file system
	if got := allocated(t, dir); got > live+slack || l.Stats().Segments < 2 {
		t.Errorf("%d bytes are allocated for %d of living records, in %d segments", got, live, l.Stats().Segments)
	}
	if used := l.Used(); max(used-allocated(t, dir), allocated(t, dir)-used) > int64(l.Stats().Segments)*record.PageSize {
		t.Errorf("used %d, allocated %d", used, allocated(t, dir))
	}
	for i := range blocks {
		mustHold(t, l, 1000+i, 3000)
		if i%4 == 0 {
			mustHold(t, l, i, length)
		}
	}
}

// damagedLog makes a directory with a closed segment, an open one, and tombstones.
func damagedLog(t testing.TB) (dir string, lengths map[int]int) {
	dir = t.TempDir()
	lengths = map[int]int{}
	for round, sizes := range [][]int{{100, 3000, 4000, 70_000, 900, 200_000}, {5000, 66_000, 1, 64}} {
		l := open(t, Options{Dir: dir})
		var batch []Entry
		for j, n := range sizes {
			i := round*10 + j
			lengths[i] = n
			batch = append(batch, entryOf(i, n))
		}
		batch = append(batch, entryOf(500+round, 2000))
		appendAll(t, l, batch...)
		l.Evict(blockID(500 + round))
		if round == 0 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			kill(t, l)
		}
	}
	return dir, lengths
}

// survivors opens a damaged directory and counts the blocks that are there;
// wrong bytes and errors fail the test.
func survivors(t testing.TB, dir string, lengths map[int]int) int {
	t.Helper()
	l, err := Open(Options{Dir: dir, Pool: newPool(), SegmentSize: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	n := 0
	for i, length := range lengths {
		got := read(t, l, blockID(i), length, [2]int{0, length})
		if got == nil {
			continue
		}
		if !bytes.Equal(got, blockData(i, length)) {
			t.Fatalf("block %d is wrong", i)
		}
		n++
	}
	return n
}

func TestFlippedWhileOpen(t *testing.T) {
	// A block is damaged under a running log. It is a miss, counted, and can be put again.
	dir := t.TempDir()
	var told []string
	l := open(t, Options{Dir: dir, Damaged: func(file string, cause error) { told = append(told, file+": "+cause.Error()) }})
	appendAll(t, l, entryOf(1, 70_000), entryOf(2, 70_000), entryOf(3, 300))
	name := filepath.Join(dir, segmentName(1))
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, blockData(1, 70_000)[66_000:66_100])
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{text[at] ^ 1}, int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if got := read(t, l, blockID(1), 70_000, [2]int{100, 500}); !bytes.Equal(got, blockData(1, 70_000)[100:600]) {
		t.Error("the first piece is not hurt, but was not read")
	}
	mustMiss(t, l, 1, 70_000)
	mustHold(t, l, 2, 70_000)
	mustHold(t, l, 3, 300)
	if l.Stats().Corrupt != 1 || l.Has(blockID(1)) {
		t.Errorf("%+v", l.Stats())
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], name) || !strings.Contains(told[0], blockID(1).String()) {
		t.Errorf("told: %q", told)
	}
	appendAll(t, l, entryOf(1, 70_000))
	mustHold(t, l, 1, 70_000)
}

func TestForeignFiles(t *testing.T) {
	// Files with other names than ours stay. A file with such a name and garbage in it is removed.
	// Neither does harm.
	dir, lengths := damagedLog(t)
	garbage := bytes.Repeat([]byte("not a segment "), 1000)
	for _, name := range []string{"notes.txt", "1.segment", "0000000g.segment", "00000009.segment", "0000000a.segment.bak"} {
		if err := os.WriteFile(filepath.Join(dir, name), garbage, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := survivors(t, dir, lengths); n != len(lengths) {
		t.Errorf("%d of %d blocks", n, len(lengths))
	}
	for name, stays := range map[string]bool{"notes.txt": true, "1.segment": true, "0000000g.segment": true, "00000009.segment": false, "0000000a.segment.bak": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != stays {
			t.Errorf("%s: stays %v", name, err == nil)
		}
	}
	// A segment under the name of another one is not taken for that one.
	if err := os.Rename(filepath.Join(dir, segmentName(1)), filepath.Join(dir, segmentName(77))); err != nil {
		t.Fatal(err)
	}
	survivors(t, dir, lengths)
}

func TestEmbeddedSegment(t *testing.T) {
	// A cached object contains a whole segment, and the footer is lost. No block inside of it comes
	// to life.
	inner, _ := damagedLog(t)
	text, err := os.ReadFile(filepath.Join(inner, segmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	id := blockID(900)
	for i := range 20 {
		id.Index = int64(i) // at each offset within a page
		appendAll(t, l, Entry{ID: id, Data: text[:60_000-i*64]})
	}
	kill(t, l)
	l = open(t, Options{Dir: dir})
	if l.Stats().Blocks != 20 || l.Stats().Recovered != 1 {
		t.Errorf("%+v", l.Stats())
	}
}

func TestFull(t *testing.T) {
	// The disk is full at the restart after a crash. The blocks that are there are served, though
	// no footer can be written.
	dir, lengths := damagedLog(t)
	refuse := true
	l := open(t, Options{Dir: dir, tap: func(c change) error {
		if refuse && c.What == "write" {
			return fs.ErrPermission
		}
		return nil
	}})
	for i, n := range lengths {
		mustHold(t, l, i, n)
	}
	refuse = false
}
