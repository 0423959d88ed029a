//go:build !race

package segment

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// One goroutine at a time works here: the race detector finds nothing in it, and makes it several
// times slower.

func TestModel(t *testing.T) {
	// Any run of appends, reads, evictions, compactions, restarts and crashes has the result of a
	// map.
	dirs := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(dirs, "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }() // what stays is removed with dirs
		pool := newPool()
		reopen := func() *Log {
			l, err := Open(Options{Dir: dir, Pool: pool, SegmentSize: 4 << 20, OpenFiles: 2})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		l := reopen()
		model := map[int]int{}
		block := rapid.IntRange(0, 40)
		length := rapid.OneOf(rapid.IntRange(1, 5000), rapid.IntRange(60_000, 70_000), rapid.IntRange(1, 250_000), rapid.Just(hearth.BlockSize))
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				var batch []Entry
				for range rapid.IntRange(1, 8).Draw(t, "n") {
					i := block.Draw(t, "block")
					if model[i] == 0 {
						model[i] = length.Draw(t, "length")
					}
					batch = append(batch, entryOf(i, model[i]))
				}
				if err := l.Append(batch); err != nil {
					t.Fatal(err)
				}
			},
			"get": func(t *rapid.T) {
				i := block.Draw(t, "block")
				n := max(1, model[i])
				off := rapid.IntRange(0, n-1).Draw(t, "off")
				want := rapid.IntRange(1, n-off).Draw(t, "n")
				v, err := l.Get(context.Background(), blockID(i), n, off, want)
				if model[i] == 0 {
					if !errors.Is(err, hearth.ErrMiss) {
						t.Fatalf("block %d: %v", i, err)
					}
					return
				}
				if err != nil {
					t.Fatalf("block %d: %v", i, err)
				}
				defer v.Release()
				if !bytes.Equal(v.Bytes(), blockData(i, n)[off:off+want]) {
					t.Fatalf("block %d is wrong", i)
				}
			},
			"evict": func(t *rapid.T) {
				i := block.Draw(t, "block")
				l.Evict(blockID(i))
				delete(model, i)
			},
			"compact": func(t *rapid.T) {
				if _, err := l.Compact(context.Background()); err != nil {
					t.Fatal(err)
				}
			},
			"restart": func(t *rapid.T) {
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				l = reopen()
			},
			"crash": func(t *rapid.T) {
				if err := l.shut(); err != nil {
					t.Fatal(err)
				}
				l = reopen()
			},
			"": func(t *rapid.T) {
				if n := l.index.Len(); n != int64(len(model)) {
					t.Fatalf("%d blocks, the model has %d", n, len(model))
				}
			},
		})
		for i := range model {
			l.Evict(blockID(i))
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.segment")); len(left) > 0 {
			t.Fatalf("all evicted, left are %v", left)
		}
		if s := pool.Stats(); s.Views != 0 || s.Used != s.Idle {
			t.Fatalf("%+v after Close", s)
		}
	})
}

func TestAnyPrefixOfTheWrites(t *testing.T) {
	// The process dies after any number of its writes, the last one torn. Earlier appends are
	// there, evicted blocks are not, and no byte is wrong.
	s := recorded(t)
	mirror := t.TempDir()
	r := rand.New(rand.NewPCG(7, 8))
	stride := max(1, len(s.changes)/40)
	for k := range s.changes {
		if k%stride == 0 || s.changes[k].What == "rename" || s.changes[k].What == "remove" {
			s.check(t, copyDir(t, mirror), k)
		}
		if c := s.changes[k]; c.What == "write" && k%stride == 0 {
			torn := copyDir(t, mirror)
			apply(t, torn, c, r.IntN(len(c.Data)+1)&^511)
			s.check(t, torn, k)
		}
		apply(t, mirror, s.changes[k], 1<<30)
	}
	s.check(t, mirror, len(s.changes))
}

func TestFlippedBits(t *testing.T) {
	// One bit flips in any kind of byte. No wrong byte is read, and at most one block is lost, or
	// all blocks of an open segment if its header page is hit.
	dir, lengths := damagedLog(t)
	r := rand.New(rand.NewPCG(9, 10))
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		offsets := []int{}
		for at := range text {
			// Seals, headers near the beginning, footer and trailer are hit often; data seldom.
			thick := at < sealSize || at >= record.PageSize && at < record.PageSize+400 || at >= len(text)-sealSize ||
				at >= len(text)-record.PageSize && at < len(text)-record.PageSize+200
			if thick && r.IntN(6) == 0 || r.IntN(8000) == 0 {
				offsets = append(offsets, at)
			}
		}
		for _, at := range offsets {
			hurt := copyDir(t, dir)
			bad := bytes.Clone(text)
			bad[at] ^= 1 << r.IntN(8)
			if err := os.WriteFile(filepath.Join(hurt, filepath.Base(name)), bad, 0o600); err != nil {
				t.Fatal(err)
			}
			lost := len(lengths) - survivors(t, hurt, lengths)
			if lost > 1 && at >= record.PageSize {
				t.Fatalf("%s: a bit of byte %d cost %d blocks", filepath.Base(name), at, lost)
			}
			_ = os.RemoveAll(hurt)
		}
	}
}

func TestTruncated(t *testing.T) {
	// A file is cut at any length. No wrong byte is read, and most of what lies before the cut is
	// there.
	dir, lengths := damagedLog(t)
	r := rand.New(rand.NewPCG(11, 12))
	for _, name := range []string{segmentName(1), segmentName(2), deathsName} {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		cuts := []int64{0, 1, 63, 64, 4095, 4096, st.Size() - 1, st.Size() - 64, st.Size() - 4096}
		for range 15 {
			cuts = append(cuts, r.Int64N(st.Size()))
		}
		for _, cut := range cuts {
			hurt := copyDir(t, dir)
			if err := os.Truncate(filepath.Join(hurt, name), max(0, cut)); err != nil {
				t.Fatal(err)
			}
			n := survivors(t, hurt, lengths)
			if (name == deathsName || cut == st.Size()-64) && n < len(lengths)-1 {
				t.Fatalf("%s cut at %d: %d of %d blocks are left", name, cut, n, len(lengths))
			}
		}
	}
}

func TestOpenReadsFootersOnly(t *testing.T) {
	// Open reads at most 64 bytes per block, and after a crash also the open segment, which is not
	// damage. A damaged footer is reported, and written anew.
	dir := t.TempDir()
	const blocks = 30_000
	l := open(t, Options{Dir: dir, SegmentSize: 16 << 20})
	data := blockData(1, 4096)
	r := rand.New(rand.NewPCG(15, 16))
	batch := make([]Entry, 0, 500)
	for i := range blocks {
		batch = append(batch, Entry{ID: blockID(i), Data: data[:1024+r.IntN(3072)]})
		if len(batch) == cap(batch) {
			appendAll(t, l, batch...)
			batch = batch[:0]
		}
	}
	kill(t, l)
	var told []string
	mended := func(file string, cause error) { told = append(told, file+" "+cause.Error()) }
	l = open(t, Options{Dir: dir, Mended: mended})
	if s := l.Stats(); len(told) > 0 || s.Blocks != blocks || s.Recovered != 1 || s.OpenRead > 64*blocks+16<<20+256<<10 {
		t.Errorf("after a crash: %+v", s)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, Options{Dir: dir})
	s := l.Stats()
	if s.Blocks != blocks || s.Recovered != 0 || s.OpenRead > 64*blocks {
		t.Errorf("after Close: %d bytes per block, %+v", s.OpenRead/blocks, s)
	}
	if s.Memory > 44*blocks {
		t.Errorf("%d bytes of memory per block", s.Memory/blocks)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(dir, "*.segment"))
	if err != nil || len(all) < 3 {
		t.Fatal(all, err)
	}
	for i, at := range []int64{record.PageSize + 10, 10} { // in the footer, in the trailer
		info, err := os.Stat(all[i])
		if err != nil {
			t.Fatal(err)
		}
		hearthtest.FlipByte(t, all[i], info.Size()-at, 1)
		told = nil
		l = open(t, Options{Dir: dir, Mended: mended})
		if s := l.Stats(); s.Blocks != blocks || len(told) != 1 || told[0] != all[i]+" "+errIndex.Error() {
			t.Errorf("%d of %d blocks are there; told: %v", s.Blocks, blocks, told)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
