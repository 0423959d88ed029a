package cache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestRAMIsAStore(t *testing.T) {
	// What every Store does, RAM does.
	pool := hearthtest.Pool(t, 256<<20)
	hearthtest.StoreSuite(t, func() hearth.Store { return NewRAM(pool, 64<<20) })
}

func TestWhatWasPutIsThereAtOnce(t *testing.T) {
	// ristretto only queues: a block is readable the moment Put returns all the
	// same, with room for all of them.
	pool := hearthtest.Pool(t, 256<<20)
	r := NewRAM(pool, 128<<20)
	t.Cleanup(r.Close)
	for i := range 500 {
		b := hearthtest.NewObject(fmt.Sprint("objects/", i), 20_000, 1).Block(0)
		v := hearthtest.View(t, pool, b, 1)
		err := r.Put(b, v)
		v.Release()
		if err != nil {
			t.Fatal(err)
		}
		if !r.Has(b.ID()) {
			t.Fatalf("block %d is not held", i)
		}
		v, err = r.Get(t.Context(), b, 11, 100)
		check(t, v, err, b, 11)
	}
}

func TestReadyIsWhatIsHeld(t *testing.T) {
	// What is held is ready, any range of it, and counts as a hit; what is not is no miss,
	// since who asks goes on to Get.
	pool := hearthtest.Pool(t, 64<<20)
	r := NewRAM(pool, 32<<20)
	b := hearthtest.NewObject("object", 20_000, 1).Block(0)
	if v := r.Ready(b, 0, 5); v != nil {
		t.Error("ready before it was put")
	}
	v := hearthtest.View(t, pool, b, 1)
	if err := r.Put(b, v); err != nil {
		t.Fatal(err)
	}
	v.Release()
	check(t, r.Ready(b, 11, 100), nil, b, 11)
	longer := *b.Object // what a peer says of it, with the Version of another
	longer.Size = 30_000
	if v := r.Ready(longer.Block(0), 0, 25_000); v != nil {
		t.Errorf("%d bytes of 20,000", v.Len())
	}
	if s := r.Stats(); s.Hits != 1 || s.Misses != 0 {
		t.Errorf("%+v", s)
	}
	r.Close()
	if v := r.Ready(b, 0, 5); v != nil {
		t.Error("ready after Close")
	}
}

func TestWhatIsDroppedIsGone(t *testing.T) {
	// Blocks are dropped, those that were put a moment ago too, and what a run brought:
	// none is held, the others are, and each View is given back.
	pool := hearthtest.Pool(t, 64<<20)
	r := NewRAM(pool, 32<<20)
	t.Cleanup(r.Close)
	block := func(i int) hearth.Block { return hearthtest.NewObject(fmt.Sprint("objects/", i), 20_000, 1).Block(0) }
	for i := range 100 {
		v := hearthtest.View(t, pool, block(i), 1)
		if i%10 == 9 {
			r.hold(block(i), v)
		} else if err := r.Put(block(i), v); err != nil {
			t.Fatal(err)
		}
		v.Release()
	}
	for i := range 50 {
		r.Drop(block(i).ID())
	}
	r.items.Wait()
	for i := range 100 {
		if held := r.Has(block(i).ID()); held != (i >= 50) {
			t.Errorf("block %d is held: %v", i, held)
		}
	}
}

func TestRAMStaysWithinItsBudget(t *testing.T) {
	// Eight goroutines put ten times what fits, of mixed sizes: what RAM says it
	// uses stays below its budget, a queue's worth and a block for each, the pool's counter below the
	// pool's, all bytes are right, and closing leaves no View and no byte.
	pool := hearthtest.Pool(t, 64<<20)
	r := NewRAM(pool, 32<<20)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 300 {
				b := hearthtest.NewObject(fmt.Sprint("objects/", g, "/", i), 1+rng.Int64N(300_000), 1).Block(0)
				v := hearthtest.View(t, pool, b, 1)
				_ = r.Put(b, v) // may decline
				v.Release()
				if s := r.Stats(); s.Used > s.Budget+s.Budget/16+8*hearth.BlockSize {
					t.Errorf("%d of %d bytes", s.Used, s.Budget)
				}
				if s := pool.Stats(); s.Used > s.Budget {
					t.Errorf("pool: %d of %d bytes", s.Used, s.Budget)
				}
				if v, err := r.Get(t.Context(), b, 0, b.Len()); err == nil {
					check(t, v, nil, b, 0)
				}
			}
		})
	}
	all.Wait()
	if s := r.Stats(); s.Entries == 0 || s.Puts == 0 || s.Hits == 0 {
		t.Errorf("nothing was kept: %+v", s)
	}
	r.Close()
	r.Close()
	if s := pool.Stats(); s.Views != 0 || s.Used != s.Idle {
		t.Errorf("left over: %+v", s)
	}
	b := object(10).Block(0)
	v := hearth.NewView(make([]byte, 10))
	if r.Put(b, v) == nil || r.Has(b.ID()) {
		t.Error("a closed RAM took a block")
	}
	if _, err := r.Get(t.Context(), b, 0, 1); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("got %v", err)
	}
}

func TestRAMGivesWay(t *testing.T) {
	// RAM is full, and an index grows until the pool is spent: the next reader that
	// misses makes RAM let go, and gets its memory.
	pool := hearthtest.Pool(t, 64<<20)
	r := NewRAM(pool, 64<<20)
	t.Cleanup(r.Close)
	o := object(100 * hearth.BlockSize)
	for i := range o.Blocks() {
		v := hearthtest.View(t, pool, o.Block(i), 1)
		_ = r.Put(o.Block(i), v) // the last ones decline
		v.Release()
	}
	full := r.Stats().Used
	if full < 40<<20 {
		t.Fatalf("RAM holds only %d bytes", full)
	}
	index := int64(0)
	for pool.Reserve(1 << 20) {
		index += 1 << 20
	}
	t.Cleanup(func() { pool.Unreserve(index) })
	miss := hearthtest.NewObject("another", hearth.BlockSize, 1).Block(0)
	if _, err := r.Get(t.Context(), miss, 0, 1); !errors.Is(err, hearth.ErrMiss) {
		t.Fatalf("got %v", err)
	}
	v, err := pool.Alloc(t.Context(), hearth.BlockSize)
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	if used := r.Stats().Used; used >= full {
		t.Errorf("RAM still holds %d bytes", used)
	}
}

func TestMemoryGivesWayToAnIndex(t *testing.T) {
	// The tier is full and busy: readers hold some of it, others wait, blocks come all the
	// time. An index has its memory at once, what is being read stays right, and the tier
	// does not take the index's memory back.
	pool := hearthtest.Pool(t, 32<<20)
	r := NewRAM(pool, 32<<20)
	t.Cleanup(r.Close)
	o := object(4000 * hearth.BlockSize)
	for i := range int64(24) {
		hearthtest.PutHeld(t, pool, r, o.Block(i), 1)
	}
	var next atomic.Int64
	next.Store(100)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for ctx := t.Context(); ; {
				select {
				case <-stop:
					return
				default:
				}
				b := o.Block(next.Add(1) % o.Blocks())
				v, err := pool.Alloc(ctx, b.Len())
				if err != nil {
					return
				}
				_ = r.Put(b, v)
				v.Release()
				if v, err := r.Get(ctx, o.Block(5), 0, 100); err == nil {
					v.Release()
				}
			}
		})
	}
	if hearthtest.CheckGet(t, r, o.Block(3), 0, 100, 1) {
		t.Log("block 3 has gone already")
	}
	const part = 1 << 20
	for i := range 24 { // all that indexes may have
		if !pool.Claim(part) {
			t.Errorf("claim %d of %d bytes was refused: %+v, the tier %+v", i, part, pool.Stats(), r.Stats())
			break
		}
		defer pool.Unclaim(part)
	}
	close(stop)
	busy.Wait()
}

func TestAnIndexHasWhatIsQueued(t *testing.T) {
	// All that the tier holds lies in ristretto's queue, whose goroutine does not run just now. An index has that
	// memory, too, as soon as it does.
	pool := hearthtest.Pool(t, 32<<20)
	r := NewRAM(pool, 32<<20)
	t.Cleanup(r.Close)
	r.pending.mu.Lock() // ristretto's goroutine waits for it in dequeued
	goOn := sync.OnceFunc(r.pending.mu.Unlock)
	t.Cleanup(goOn)
	o := object(100 * hearth.BlockSize)
	for i := range int64(16) {
		v := hearthtest.View(t, pool, o.Block(i), 1)
		e := &entry{id: o.Block(i).ID(), view: v, cost: memory(v) + entryBytes}
		if !pool.Reserve(entryBytes) || !r.items.Set(e.id.Hash(), e, 0) {
			t.Fatalf("block %d was not queued", i)
		}
		r.held.Add(e.cost)
		r.entries.Add(1)
	}
	claimed := make(chan bool, 1)
	go func() { claimed <- pool.Claim(24 << 20) }()
	for asking := false; !asking; runtime.Gosched() {
		if asking = !r.shrinking.TryLock(); !asking {
			r.shrinking.Unlock()
		}
		if len(claimed) > 0 {
			t.Fatal("the claim did not wait for the queue")
		}
	}
	goOn()
	if !<-claimed {
		t.Errorf("refused: %+v, the tier %+v", pool.Stats(), r.Stats())
		return
	}
	pool.Unclaim(24 << 20)
}

func TestTwoIDsWithOneHash(t *testing.T) {
	// Two blocks whose 64-bit hashes are equal: one may push the other out, but none
	// is ever taken for the other.
	pool := hearthtest.Pool(t, 64<<20)
	r := NewRAM(pool, 32<<20)
	t.Cleanup(r.Close)
	a, b := hearthtest.NewObject("a", 1000, 1), hearthtest.NewObject("b", 1000, 1)
	copy(b.Version[:8], a.Version[:8]) // Hash looks at these only
	if a.Block(0).ID().Hash() != b.Block(0).ID().Hash() {
		t.Fatal("the hashes differ")
	}
	for range 3 {
		for _, o := range []*hearth.Object{a, b} {
			v := hearthtest.View(t, pool, o.Block(0), 1)
			_ = r.Put(o.Block(0), v)
			v.Release()
			r.items.Wait()
			for _, o := range []*hearth.Object{a, b} {
				if v, err := r.Get(t.Context(), o.Block(0), 0, 1000); err == nil {
					check(t, v, nil, o.Block(0), 0)
				}
			}
		}
	}
}

func TestTheWindowHoldsUntilRead(t *testing.T) {
	// Blocks that nobody keeps are held until they were read once, in pieces; when
	// it is full it declines for a while, then the oldest go; a small old one does not make the queue grow.
	pool := hearthtest.Pool(t, 64<<20)
	w := &window{most: 4 << 20}
	o := object(1000 * hearth.BlockSize)
	hold := func(i int64) {
		v := hearthtest.View(t, pool, o.Block(i), 1)
		w.hold(o.Block(i).ID(), v)
		v.Release()
	}
	small := hearthtest.NewObject("small", 10, 1).Block(0)
	v := hearthtest.View(t, pool, small, 1)
	w.hold(small.ID(), v)
	v.Release()
	for i := range int64(900) {
		hold(i)
		for range 8 {
			v := w.take(o.Block(i).ID(), hearth.BlockSize/8)
			if v == nil {
				t.Fatalf("block %d is gone", i)
			}
			v.Release()
		}
		if w.has(o.Block(i).ID()) {
			t.Fatalf("block %d was read and is still held", i)
		}
	}
	if len(w.queue) > 100 || !w.has(small.ID()) {
		t.Errorf("%d in the queue; the first is held: %v", len(w.queue), w.has(small.ID()))
	}
	for i := range int64(4) {
		hold(i)
	}
	if !w.has(o.Block(2).ID()) || w.has(o.Block(3).ID()) {
		t.Error("a full window took another block")
	}
	for range 4 {
		hold(3)
	}
	if w.has(small.ID()) || w.has(o.Block(0).ID()) || !w.has(o.Block(3).ID()) || w.used.Load() > w.most {
		t.Errorf("holds the wrong ones: %d bytes", w.used.Load())
	}
	w.shrink(0)
}

func BenchmarkRAMHit(b *testing.B) {
	pool := hearthtest.Pool(b, 64<<20)
	r := NewRAM(pool, 32<<20)
	b.Cleanup(r.Close)
	o := object(4 * hearth.BlockSize)
	hearthtest.PutHeld(b, pool, r, o.Block(0), 1)
	b.ReportAllocs()
	for b.Loop() {
		v, err := r.Get(b.Context(), o.Block(0), 0, hearth.BlockSize)
		if err != nil {
			b.Fatal(err)
		}
		v.Release()
	}
}

func TestReadersThatWaitLeaveTheTierItsBlocks(t *testing.T) {
	// All memory is the tier's and that of reads in flight, as under many readers of a slow
	// origin. Who waits for more waits for a read's end, and the tier keeps what it holds.
	pool := hearthtest.Pool(t, 32<<20)
	r := NewRAM(pool, 32<<20)
	t.Cleanup(r.Close)
	o := object(100 * hearth.BlockSize)
	for i := range int64(16) {
		hearthtest.PutHeld(t, pool, r, o.Block(i), 1)
	}
	for v := pool.TryAlloc(hearth.BlockSize); v != nil; v = pool.TryAlloc(hearth.BlockSize) {
		defer v.Release()
	}
	before := r.Stats().Used
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if v, err := pool.Alloc(gone, hearth.BlockSize); err == nil {
		v.Release()
		t.Error("memory from nowhere")
	}
	if now := r.Stats().Used; now != before || before < 16*hearth.BlockSize {
		t.Errorf("the tier holds %d bytes, before that %d", now, before)
	}
}
