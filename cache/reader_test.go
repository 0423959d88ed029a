package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// wirings are read sides that must all give the same bytes.
func wirings(t testing.TB) map[string]*Tier {
	pool := hearthtest.Pool(t, 32<<20)
	k := &bucket{pool: pool}
	ram := func() *RAM {
		r := NewRAM(pool, 4<<20)
		t.Cleanup(r.Close)
		return r
	}
	closed := func(x *Tier) *Tier {
		t.Cleanup(x.Close)
		return x
	}
	tier := func(store hearth.Store, next hearth.Source, admit Admit) *Tier {
		return closed(Through(store, next, admit))
	}
	memory := func(next hearth.Source, admit Admit) *Tier { return closed(Memory(ram(), next, admit)) }
	single := hearthtest.Source
	full := newShelf(pool)
	full.full.Store(true)
	never := func(hearth.Block, int) bool { return false }
	return map[string]*Tier{
		"bucket":                  tier(nil, k, Always),
		"bucket, block by block":  tier(nil, single(k), Always),
		"nothing kept":            tier(nil, tier(nil, k, Always), Always),
		"memory":                  memory(k, Always),
		"memory, hot":             memory(k, Hot(4<<20)),
		"shelf":                   tier(newShelf(pool), k, Always),
		"shelf, block by block":   tier(newShelf(pool), single(k), Always),
		"shelf, nothing admitted": tier(newShelf(pool), k, never),
		"all":                     memory(tier(newShelf(pool), tier(nil, k, Always), Always), Hot(4<<20)),
		"all, shelf full":         memory(tier(full, k, Keep(full)), Hot(4<<20)),
		"all, shelf declines":     memory(tier(full, single(k), Always), Always),
		"all behind a veil":       tier(nil, single(memory(tier(newShelf(pool), k, Always), Always)), Always),
	}
}

func TestReaderReadsLikeAFile(t *testing.T) {
	// The same random reads, by several goroutines, give the same bytes and the same
	// errors as bytes.Reader, through every wiring.
	sources := wirings(t)
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.OneOf(rapid.Int64Range(0, 10), rapid.Int64Range(1<<20-3, 1<<20+3), rapid.Int64Range(1, 3<<20)).Draw(rt, "size")
		o := hearthtest.NewObject(fmt.Sprint("objects/", rapid.IntRange(0, 3).Draw(rt, "object")), size, 1)
		want := contents(o)
		type read struct {
			off int64
			n   int
		}
		start := rapid.Int64Range(0, size+10)
		reads := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) read {
			return read{start.Draw(rt, "off"), rapid.OneOf(rapid.IntRange(0, 5000), rapid.IntRange(100_000, 2<<20)).Draw(rt, "n")}
		}), 1, 12).Draw(rt, "reads")
		for name, src := range sources {
			r := NewReader(src, o, ReaderOptions{})
			var all sync.WaitGroup
			for g := range 2 {
				all.Go(func() {
					for i := g; i < len(reads); i += 2 {
						p, q := make([]byte, reads[i].n), make([]byte, reads[i].n)
						n, err := r.ReadAt(t.Context(), p, reads[i].off)
						m, werr := want.ReadAt(q, reads[i].off)
						if len(p) == 0 {
							werr = nil // bytes.Reader says EOF to nothing at the end
						}
						if n != m || string(p[:n]) != string(q[:m]) || !errors.Is(err, werr) {
							t.Errorf("%s: %d bytes at %d: %d, %v; a file gives %d, %v", name, len(p), reads[i].off, n, err, m, werr)
						}
					}
				})
			}
			all.Wait()
			r.Close()
		}
	})
}

func TestReaderEndsWhereItsUserDoes(t *testing.T) {
	// Ranges of an object, each read in order by a Reader that knows where it ends: each byte
	// comes from the bucket once, though all of them read ahead.
	n := newNode(t, 64<<20)
	o := object(40*hearth.BlockSize + 5)
	const part = 8 * hearth.BlockSize
	for off := int64(0); off < o.Size; off += part {
		end := min(o.Size, off+part)
		r := NewReader(n.reads, o, ReaderOptions{Until: end})
		p := make([]byte, 256<<10)
		for at := off; at < end; at += int64(len(p)) {
			if got, err := r.ReadAt(t.Context(), p[:min(int64(len(p)), end-at)], at); err != nil {
				t.Fatalf("at %d: %d bytes, %v", at, got, err)
			}
		}
		r.Close()
		if got := n.bucket.bytes.Load(); got != end {
			t.Errorf("after the range up to %d the bucket sent %d bytes", end, got)
		}
	}
}

func TestReaderSaysWhatFailed(t *testing.T) {
	// A read that fails halfway returns what it has and the error of its source;
	// a negative offset is an error; a closed Reader still reads.
	n := newNode(t, 64<<20)
	o := object(5 * hearth.BlockSize)
	r := NewReader(n.reads, o, ReaderOptions{})
	if _, err := r.ReadAt(t.Context(), make([]byte, 1), -1); err == nil {
		t.Error("read before the start")
	}
	readOne(t, r, make([]byte, 100), 0)
	n.bucket.fail.Store(&hearth.ErrStale)
	got, err := r.ReadAt(t.Context(), make([]byte, 2*hearth.BlockSize), 0)
	if !errors.Is(err, hearth.ErrStale) || got != hearth.BlockSize {
		t.Errorf("%d bytes, %v", got, err)
	}
	n.bucket.fail.Store(nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.ReadAt(ctx, make([]byte, 10), 2*hearth.BlockSize); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	r.Close()
	readAll(t, r, o.Size, 300_000)
	if _, err := r.ReadAt(t.Context(), make([]byte, 10), o.Size); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestManyReadersInTheSmallestMemory(t *testing.T) {
	// Twenty sequential readers, two of each object, with read-ahead, in 16 MiB: all
	// get right bytes, none waits for ever, and each block is fetched about once.
	n := newNode(t, hearth.MinRAM)
	var all sync.WaitGroup
	var size int64
	for i := range 10 {
		o := hearthtest.NewObject(fmt.Sprint("objects/", i), 6*hearth.BlockSize+int64(i), 1)
		size += o.Size
		r := NewReader(n.reads, o, ReaderOptions{})
		var both sync.WaitGroup
		for _, piece := range []int{128 << 10, 1 << 20} {
			both.Go(func() { readAll(t, r, o.Size, piece) })
		}
		all.Go(func() { both.Wait(); r.Close() })
	}
	all.Wait()
	if got := n.bucket.bytes.Load(); got > size+size/10 {
		t.Errorf("%d bytes of %d", got, size)
	}
}
