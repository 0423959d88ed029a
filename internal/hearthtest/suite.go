package hearthtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// NewObject makes an object of a size. Its bytes are those of Fill(key, version).
func NewObject(key string, size int64, version int) *hearth.Object {
	o := &hearth.Object{Link: "/", Key: key, ETag: fmt.Sprintf("etag-%d", version), Size: size, ModTime: time.Unix(int64(version), 0)}
	o.Version = hearth.VersionOf("hearthtest", o.Key, o.ETag, o.Size)
	return o
}

// Pool returns a pool of budget bytes, and fails the test if a View is not released by its end.
// Make it before the stores that hold its Views, since cleanups run in the opposite order.
func Pool(t testing.TB, budget int64) *hearth.Pool {
	t.Helper()
	p := hearth.NewPool(budget)
	t.Cleanup(func() { CheckViews(t, p) })
	return p
}

// Close closes c and fails the test if that fails, since queued data may be lost then. Any
// goroutine may call it.
func Close(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("close %T: %v", c, err)
	}
}

// CheckViews waits a while until background work has released the last View of a pool, and fails
// the test if one is left.
func CheckViews(t testing.TB, p *hearth.Pool) {
	t.Helper()
	if !Eventually(t.Context(), 5*time.Second, func() bool { return p.Stats().Views == 0 }) {
		t.Errorf("%d Views were never released", p.Stats().Views)
	}
}

// Eventually checks a fact until it holds, and returns false if it does not within d. The end of
// ctx does not end it, since cleanups run after a test's context has ended.
func Eventually(_ context.Context, d time.Duration, fact func() bool) bool {
	deadline := time.Now().Add(d)
	for !fact() {
		if time.Now().After(deadline) {
			return false
		}
		<-time.After(2 * time.Millisecond)
	}
	return true
}

// View returns a whole block's bytes as a View of the pool.
func View(t testing.TB, p *hearth.Pool, b hearth.Block, version int) *hearth.View {
	t.Helper()
	v, err := p.Alloc(t.Context(), b.Len())
	if err != nil {
		t.Fatal(err)
	}
	Fill(v.Bytes(), b.Object.Key, b.Offset(), version)
	return v
}

// PutHeld puts a block of a NewObject until the store holds it. A store may decline a block, and
// may hold it only a moment later.
func PutHeld(t testing.TB, p *hearth.Pool, s hearth.Store, b hearth.Block, version int) {
	t.Helper()
	var last error
	held := Eventually(t.Context(), 10*time.Second, func() bool {
		if v, err := s.Get(t.Context(), b, 0, 1); err == nil {
			v.Release()
			return true
		}
		v := View(t, p, b, version)
		last = s.Put(b, v)
		v.Release()
		v, err := s.Get(t.Context(), b, 0, 1)
		if err == nil {
			v.Release()
		}
		return err == nil
	})
	if !held {
		t.Fatalf("block %v is not held after ten seconds; the last Put said: %v", b.ID(), last)
	}
}

// CheckGet gets a range of a block and compares it with the bytes of NewObject. It returns whether
// it was a miss. Any other error and any wrong byte fail the test.
func CheckGet(t testing.TB, s hearth.Getter, b hearth.Block, off, n, version int) (missed bool) {
	t.Helper()
	v, err := s.Get(t.Context(), b, off, n)
	if errors.Is(err, hearth.ErrMiss) {
		return true
	}
	if err != nil {
		t.Errorf("get block %v [%d, %d): %v", b.ID(), off, off+n, err)
		return false
	}
	defer v.Release()
	if v.Len() != n {
		t.Errorf("get block %v [%d, %d): %d bytes", b.ID(), off, off+n, v.Len())
	} else if err := Check(v.Bytes(), b.Object.Key, b.Offset()+int64(off), version); err != nil {
		t.Errorf("get block %v: %v", b.ID(), err)
	}
	CheckSums(t, v)
	return false
}

// Source makes a Source of g, which gets block by block. It holds no block, and asks no other node.
func Source(g hearth.Getter) hearth.Source { return source{g} }

type source struct{ hearth.Getter }

func (s source) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	for i := range n {
		b := first.Object.Block(first.Index + int64(i))
		v, err := s.Get(ctx, b, 0, b.Len())
		if !each(b, v, err) || err != nil {
			return
		}
	}
}

func (source) Has(hearth.ID) bool { return false }

func (source) FromPeer(hearth.Block) bool { return false }

// StoreSuite states what every Store does. open returns a new, empty store with room for at least
// 16 MiB. A store that is an io.Closer is closed at the end.
func StoreSuite(t *testing.T, open func() hearth.Store) {
	pool := Pool(t, 256<<20)
	start := func(t *testing.T) hearth.Store {
		s := open()
		t.Cleanup(func() {
			switch c := s.(type) {
			case io.Closer:
				if err := c.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			case interface{ Close() }:
				c.Close()
			}
		})
		return s
	}
	t.Run("miss", func(t *testing.T) { suiteMiss(t, start(t)) })
	t.Run("ranges", func(t *testing.T) { suiteRanges(t, pool, start(t)) })
	t.Run("versions", func(t *testing.T) { suiteVersions(t, pool, start(t)) })
	t.Run("references", func(t *testing.T) { suiteReferences(t, pool, start(t)) })
	t.Run("many", func(t *testing.T) { suiteMany(t, pool, start(t)) })
	t.Run("crowd", func(t *testing.T) { suiteCrowd(t, pool, start(t)) })
	t.Run("keeper", func(t *testing.T) { suiteKeeper(t, pool, start(t)) })
}

func suiteMiss(t *testing.T, s hearth.Store) {
	// An empty store answers every request with ErrMiss.
	for _, size := range []int64{1, 4096, hearth.BlockSize, 40 * hearth.BlockSize} {
		o := NewObject("miss", size, 1)
		b := o.Block(o.Blocks() - 1)
		v, err := s.Get(t.Context(), b, 0, b.Len())
		if err == nil {
			v.Release()
		}
		if !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("get of a block that was never put: %v, not ErrMiss", err)
		}
	}
}

func suiteRanges(t *testing.T, pool *hearth.Pool, s hearth.Store) {
	// Any range of a held block comes back with the bytes that were put, for
	// blocks of every length.
	for _, size := range []int64{1, 511, 4095, 4096, 4097, 65535, 65536, 65537, 100_000, hearth.BlockSize - 1, hearth.BlockSize, 3*hearth.BlockSize + 4711} {
		o := NewObject(fmt.Sprintf("ranges/%d", size), size, 3)
		for i := range o.Blocks() {
			b := o.Block(i)
			PutHeld(t, pool, s, b, 3)
			n := b.Len()
			for _, r := range [][2]int{{0, n}, {0, 1}, {n - 1, 1}, {n / 2, n - n/2}, {n / 3, max(1, n/3)}, {min(n-1, 65535), min(2, n-min(n-1, 65535))}} {
				if CheckGet(t, s, b, r[0], r[1], 3) {
					t.Errorf("%s block %d: a block that was held is missed", o.Key, i)
				}
			}
		}
	}
}

func suiteVersions(t *testing.T, pool *hearth.Pool, s hearth.Store) {
	// Two versions of one key and two blocks of one version are four blocks.
	one, two := NewObject("versions", 2*hearth.BlockSize, 1), NewObject("versions", 2*hearth.BlockSize, 2)
	PutHeld(t, pool, s, one.Block(0), 1)
	for _, b := range []hearth.Block{one.Block(1), two.Block(0), two.Block(1)} {
		if !CheckGet(t, s, b, 0, b.Len(), 0) {
			t.Errorf("block %v was never put", b.ID())
		}
	}
	PutHeld(t, pool, s, two.Block(0), 2)
	CheckGet(t, s, one.Block(0), 0, hearth.BlockSize, 1)
	CheckGet(t, s, two.Block(0), 0, hearth.BlockSize, 2)
}

func suiteReferences(t *testing.T, pool *hearth.Pool, s hearth.Store) {
	// Put takes its own reference and leaves the caller's; a View that was lent
	// stays readable whatever the store does meanwhile.
	o := NewObject("references", 4*hearth.BlockSize, 5)
	v := View(t, pool, o.Block(0), 5)
	_ = s.Put(o.Block(0), v) // it may decline; our reference stays ours either way
	_ = s.Put(o.Block(0), v) // twice is no harm
	if err := Check(v.Bytes(), o.Key, 0, 5); err != nil {
		t.Error(err)
	}
	v.Release()
	PutHeld(t, pool, s, o.Block(0), 5)
	lent, err := s.Get(t.Context(), o.Block(0), 0, hearth.BlockSize)
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(lent.Bytes())
	for i := range o.Blocks() {
		v := View(t, pool, o.Block(i), 5)
		_ = s.Put(o.Block(i), v) // see above
		v.Release()
	}
	if !bytes.Equal(before, lent.Bytes()) {
		t.Error("bytes that were lent have changed")
	}
	lent.Release()
}

func suiteMany(t *testing.T, pool *hearth.Pool, s hearth.Store) {
	// Two hundred small objects: a block that is held is right; others may be missed.
	objects := make([]*hearth.Object, 200)
	for i := range objects {
		objects[i] = NewObject(fmt.Sprintf("many/%d", i), int64(i*331+1), i)
		v := View(t, pool, objects[i].Block(0), i)
		_ = s.Put(objects[i].Block(0), v) // a decline is a miss below
		v.Release()
	}
	for i, o := range objects {
		CheckGet(t, s, o.Block(0), 0, int(o.Size), i)
	}
}

func suiteCrowd(t *testing.T, pool *hearth.Pool, s hearth.Store) {
	// Eight goroutines put and get the same blocks at once; no byte is wrong.
	const size = 300_000
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			for i := range 60 {
				n := (i*7 + g) % 20
				b := NewObject(fmt.Sprintf("crowd/%d", n), size, n).Block(0)
				if CheckGet(t, s, b, (i*4099)%(size/2), size/2, n) {
					v, err := pool.Alloc(t.Context(), b.Len())
					if err != nil {
						t.Error(err)
						return
					}
					Fill(v.Bytes(), b.Object.Key, 0, n)
					_ = s.Put(b, v) // a decline is a miss next time
					v.Release()
				}
			}
		})
	}
	wait.Wait()
}

func suiteKeeper(t *testing.T, pool *hearth.Pool, s hearth.Store) {
	// What Keep took is held at once and after Flush.
	o := NewObject("keeper", 5*hearth.BlockSize+17, 9)
	for i := range o.Blocks() {
		if s.Has(o.Block(i).ID()) {
			t.Errorf("block %d is held before it was given", i)
		}
		v := View(t, pool, o.Block(i), 9)
		err := s.Keep(t.Context(), o.Block(i), v)
		v.Release()
		if err != nil {
			t.Fatalf("keep block %d: %v", i, err)
		}
		if CheckGet(t, s, o.Block(i), 0, o.Block(i).Len(), 9) {
			t.Errorf("block %d is missed right after Keep", i)
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range o.Blocks() {
		if !s.Has(o.Block(i).ID()) || CheckGet(t, s, o.Block(i), 0, o.Block(i).Len(), 9) {
			t.Errorf("block %d is missed after Flush", i)
		}
	}
}
