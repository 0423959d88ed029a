package segment

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

var golden = flag.Bool("golden", false, "write testdata of the present format")

func TestFormat1IsRead(t *testing.T) {
	// A directory that the first version wrote (a closed segment, one that was open at a crash, a
	// tombstone) is read by all later ones.
	const stored = "testdata/format1"
	sizes := map[int]int{1: 100, 2: 3000, 3: 66_000, 4: 5000}
	if *golden {
		dir := t.TempDir()
		l := open(t, Options{Dir: dir})
		appendAll(t, l, storedEntry(1, 100), storedEntry(2, 3000), storedEntry(5, 50))
		l.Evict(blockID(5))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open(t, Options{Dir: dir})
		appendAll(t, l, storedEntry(3, 66_000), storedEntry(4, 5000))
		kill(t, l)
		if err := os.CopyFS(stored, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	l := open(t, Options{Dir: copyDir(t, stored)})
	for i, n := range sizes {
		if got := read(t, l, blockID(i), n, [2]int{0, n}); !bytes.Equal(got, storedEntry(i, n).Data) {
			t.Errorf("block %d of %d bytes is wrong (held: %v)", i, n, got != nil)
		}
	}
	mustMiss(t, l, 5, 50)
	if s := l.Stats(); s.Blocks != 4 || s.Recovered != 1 {
		t.Errorf("%+v", s)
	}
}

// storedEntry is a block of testdata/format1.
func storedEntry(i, length int) Entry {
	b := make([]byte, length+8)
	r := rand.New(rand.NewPCG(uint64(i), uint64(length)))
	for at := 0; at < length; at += 8 {
		binary.LittleEndian.PutUint64(b[at:], r.Uint64())
	}
	return Entry{ID: blockID(i), Data: b[:length]}
}

func TestNewerFormatIsRefused(t *testing.T) {
	// A file of a newer format is refused with its name and left as it is. A flipped bit is not
	// taken for a newer format.
	dir, lengths := damagedLog(t)
	for _, c := range []struct {
		name, magic string
		at          func(size int) int
	}{
		{segmentName(1), trailerMagic, func(size int) int { return size - sealSize }},
		{segmentName(2), segmentMagic, func(int) int { return 0 }},
		{deathsName, deathsMagic, func(int) int { return 0 }},
	} {
		for _, sealed := range []bool{true, false} {
			work := copyDir(t, dir)
			name := filepath.Join(work, c.name)
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			at := c.at(len(text))
			s, ok := parseSeal(text[at:], c.magic)
			if !ok {
				t.Fatalf("%s has no seal", c.name)
			}
			if s.format = Format + 1; sealed {
				putSeal(text[at:], c.magic, s)
			} else {
				text[at+8] = Format + 1
			}
			if err := os.WriteFile(name, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if !sealed {
				survivors(t, work, lengths)
				continue
			}
			_, err = Open(Options{Dir: work, Pool: newPool()})
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "newer") {
				t.Errorf("%s: %v", c.name, err)
			}
			if now, _ := os.ReadFile(name); !bytes.Equal(now, text) {
				t.Errorf("%s was changed", c.name)
			}
		}
	}
}

func TestDeathsArePruned(t *testing.T) {
	// Tombstones of removed segments are left out once they are many, and those that count stay.
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	appendAll(t, l, entryOf(1, 100), entryOf(2, 100), entryOf(3, 100))
	l.Evict(blockID(2))
	for i := range uint32(2 * pruneFrom / deathSize) {
		if err := l.deaths.add(1000+i, i, 5); err != nil {
			t.Fatal(err)
		}
	}
	if !l.deaths.due() {
		t.Fatal("not due")
	}
	if err := l.pruneDeaths(); err != nil {
		t.Fatal(err)
	}
	if l.deaths.size != sealSize+deathSize {
		t.Errorf("%d bytes of notes are left", l.deaths.size)
	}
	l.Evict(blockID(3))
	kill(t, l)
	l = open(t, Options{Dir: dir})
	mustHold(t, l, 1, 100)
	mustMiss(t, l, 2, 100)
	mustMiss(t, l, 3, 100)
	if l.Stats().Blocks != 1 {
		t.Errorf("%+v", l.Stats())
	}
}

func FuzzFooter(f *testing.F) {
	// A footer's entries lie inside the segment and survive the way back to bytes.
	b := make([]byte, footerSize(2))
	entries := record.AppendNote(b[:0], record.Note{ID: blockID(1), Unit: 64, Length: 100})
	record.AppendNote(entries, record.Note{ID: blockID(2), Unit: 128, Length: 70_000})
	putFooter(b, seal{format: 1, number: 3, salt: 4, count: 2, offset: 1 << 20})
	f.Add(b)
	f.Add(b[:len(b)-1])          // truncated behind
	f.Add(b[len(b)-sealSize-9:]) // and before
	newer := append([]byte(nil), b...)
	putSeal(newer[len(newer)-sealSize:], trailerMagic, seal{format: Format + 1, number: 3, salt: 4, count: 2, offset: 1 << 20})
	f.Add(newer)
	f.Add([]byte("a foreign file that is longer than a trailer of sixty-four bytes is"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < sealSize {
			return
		}
		s, ok := parseSeal(b[len(b)-sealSize:], trailerMagic)
		if !ok {
			return
		}
		again := make([]byte, sealSize)
		putSeal(again, trailerMagic, s)
		if got, _ := parseSeal(again, trailerMagic); got != s {
			t.Fatalf("%+v became %+v", s, got)
		}
		parseFooter(b, s, func(n record.Note) {
			if !n.Valid(s.offset) || record.ParseNote(record.AppendNote(nil, n)) != n {
				t.Fatalf("%+v", n)
			}
		})
	})
}

func FuzzFiles(f *testing.F) {
	// Any bytes stand as a segment and as the file of deaths. A record that is found lies inside
	// the file, and verifies as the right bytes or not at all.
	lengths := map[hearth.ID]int{blockID(1): 1, blockID(2): 2, blockID(3): 3, blockID(4): 4}
	const stored = "testdata/format1"
	deaths, _ := os.ReadFile(filepath.Join(stored, deathsName))
	for _, name := range []string{segmentName(1), segmentName(2)} {
		text, err := os.ReadFile(filepath.Join(stored, name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, deaths)
		f.Add(text[:12_000], deaths[:70])
	}
	f.Fuzz(func(t *testing.T, text, deaths []byte) {
		// Without Open's goroutines, which vary the coverage of each run.
		work := t.TempDir()
		l := &Log{dir: &directory{Path: work}}
		for name, b := range map[string][]byte{segmentName(1): text, deathsName: deaths} {
			if err := os.WriteFile(filepath.Join(work, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d := deathsOf(t, l.dir)
		defer d.close()
		file, err := l.dir.Open(segmentName(1), 0, true)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		s := &segment{log: l, number: 1}
		trailer, err := l.trailer(s, file)
		if err != nil {
			return // newer
		}
		found, err := l.contents(s, file, trailer)
		if err != nil {
			return
		}
		for _, n := range found.notes {
			if !n.Valid(int64(len(text)) + record.PageSize) {
				t.Fatalf("%+v in %d bytes", n, len(text))
			}
			r := record.ReadAll(n)
			b := make([]byte, r.Len())
			if r.Fill(file.ReadAt, b) != nil || r.Verify(b, found.salt) != nil {
				continue
			}
			if i := lengths[n.ID]; i > 0 && !bytes.Equal(b[n.Offset()%record.PageSize+int64(record.HeaderSize(int(n.Length))):][:n.Length], storedEntry(i, int(n.Length)).Data) {
				t.Fatal("wrong bytes")
			}
		}
	})
}

// deathsOf opens a file of deaths and checks that a tombstone can be added to it.
func deathsOf(t *testing.T, dir *directory) *deaths {
	t.Helper()
	d := &deaths{dir: dir}
	notes, err := d.load(func(uint32) bool { return true })
	if err != nil {
		if !strings.Contains(err.Error(), "newer") {
			t.Fatal(err)
		}
		return d
	}
	before := len(notes[77])
	if err := d.add(77, 1, 2); err != nil {
		t.Fatal(err)
	}
	d.close()
	again := &deaths{dir: dir}
	notes, err = again.load(func(uint32) bool { return true })
	if err != nil || len(notes[77]) != before+1 || notes[77][before] != newDeath(77, 1, 2) {
		t.Fatalf("%d notes before, then %v, %v", before, notes[77], err)
	}
	return again
}
