package record

import (
	"math/rand/v2"
	"testing"

	"github.com/hearthfs/hearth"
)

func FuzzHeader(f *testing.F) {
	// An accepted header says what its bytes say, and it is accepted at no other place and with no
	// other salt.
	id := hearth.ID{Version: [16]byte{1}, Index: 7}
	for _, n := range []int{1, 100, 70_000, hearth.BlockSize} {
		b := make([]byte, HeaderSize(n))
		PutHeader(b, Note{ID: id, Unit: 64, Length: uint32(n)}, 7, make([]byte, n), nil)
		f.Add(b, uint64(7), uint32(64))
		f.Add(b[:len(b)-1], uint64(7), uint32(64)) // truncated
		newer := append([]byte(nil), b...)
		newer[4]++
		f.Add(newer, uint64(7), uint32(64))
	}
	f.Add(make([]byte, 4096), uint64(0), uint32(0)) // evicted, or never written
	f.Fuzz(func(t *testing.T, b []byte, salt uint64, unit uint32) {
		n, ok := ParseHeader(b, salt, int64(unit)*UnitSize)
		if !ok {
			return
		}
		if n.Length == 0 || n.Length > hearth.BlockSize || n.Unit != unit {
			t.Fatalf("%+v", n)
		}
		if _, ok := ParseHeader(b, salt+1, int64(unit)*UnitSize); ok {
			t.Fatal("accepted with another salt")
		}
		if _, ok := ParseHeader(b, salt, int64(unit+1)*UnitSize); ok {
			t.Fatal("accepted at another place")
		}
	})
}

func TestIndexIsAMap(t *testing.T) {
	// Random puts, moves and removals keep the tables equal to a map, at 32 to 41 bytes an entry.
	pool := hearth.NewPool(64 << 20)
	x := NewIndex(pool)
	model := map[hearth.ID]Place{}
	r := rand.New(rand.NewPCG(13, 14))
	never := func(Place) bool { return false }
	id := func() hearth.ID {
		v := hearth.VersionOf("", string(rune(r.IntN(12_000))), "", 0)
		return hearth.ID{Version: v, Index: int64(r.IntN(4)) * (MaxIndex/4 - 1)}
	}
	for range 120_000 {
		k, p := id(), Place{Slot: r.Uint32N(1 << 24), Unit: r.Uint32N(1 << 24), Length: 1 + r.Uint32N(hearth.BlockSize)}
		switch r.IntN(4) {
		case 0, 1:
			if !x.Room(k) {
				t.Fatal("no room")
			}
			if _, lose := x.Put(k, p, 9, never); !lose {
				model[k] = p
			}
		case 2:
			if x.Move(k, model[k], p) {
				model[k] = p
			}
		default:
			at, ok := x.Remove(k, nil)
			if was, held := model[k]; ok != held || at != was {
				t.Fatal("removed something else")
			}
			delete(model, k)
		}
		if at, ok := x.Get(k, nil); ok != (model[k].Length > 0) || at != model[k] {
			t.Fatalf("%v: got %v, want %v", k, at, model[k])
		}
	}
	if int(x.Len()) != len(model) {
		t.Fatalf("%d entries, want %d", x.Len(), len(model))
	}
	x.Drop()
	if pool.Stats().Used != 0 {
		t.Error("memory not given back")
	}
}
