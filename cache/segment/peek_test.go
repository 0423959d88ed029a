package segment

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestPeekIsNoUse(t *testing.T) {
	// A whole block of any length is read and verified. The policy's state stays, and no hit is
	// counted.
	touched := 0
	l := open(t, Options{Dir: t.TempDir(), Touch: func(s uint32) uint32 { touched++; return s + 1 }})
	for i, length := range lengths() {
		appendAll(t, l, entryOf(i, length))
		v, err := l.Peek(blockID(i))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(v.Bytes(), blockData(i, length)) || v.Sums().Load() == nil {
			t.Errorf("block of %d bytes: wrong, or without sums", length)
		}
		hearthtest.CheckSums(t, v)
		v.Release()
	}
	if s := l.Stats(); touched != 0 || s.Hits != 0 || s.HitBytes != 0 {
		t.Errorf("%d uses, %+v", touched, s)
	}
	if v, err := l.Peek(blockID(9999)); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("what is not held: %v %v", v, err)
	}
}

func TestPeekWaitsForNoMemory(t *testing.T) {
	// The Pool is spent: the block is a miss at once, and stays.
	pool := hearth.NewPool(0)
	l := open(t, Options{Dir: t.TempDir(), Pool: pool})
	appendAll(t, l, entryOf(1, 100_000))
	var all []*hearth.View
	for v := pool.TryAlloc(64 << 10); v != nil; v = pool.TryAlloc(64 << 10) {
		all = append(all, v)
	}
	if v, err := l.Peek(blockID(1)); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("without memory: %v %v", v, err)
	}
	for _, v := range all {
		v.Release()
	}
	mustHold(t, l, 1, 100_000)
}

func TestPeekReportsABadBlock(t *testing.T) {
	// A flipped bit is a miss. It is counted and reported, and the block goes only with its eviction.
	dir := t.TempDir()
	told := ""
	l := open(t, Options{Dir: dir, Damaged: func(file string, _ error) { told = file }})
	appendAll(t, l, entryOf(1, 100_000))
	name := filepath.Join(dir, segmentName((*l.slots.Load())[0].number))
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, blockData(1, 100_000))
	hearthtest.FlipByte(t, name, int64(at+70_000), 2)
	if v, err := l.Peek(blockID(1)); !errors.Is(err, hearth.ErrMiss) || !l.Has(blockID(1)) {
		t.Errorf("a bad block: %v %v, held: %v", v, err, l.Has(blockID(1)))
	}
	if s := l.Stats(); s.Corrupt != 1 || told != name {
		t.Errorf("corrupt: %d, told of %q", s.Corrupt, told)
	}
	if l.Evict(blockID(1)); l.Has(blockID(1)) {
		t.Error("it is not evicted")
	}
}
