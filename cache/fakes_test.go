package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bucket is an origin whose objects are hearthtest's, with counters and ways to
// fail. It yields many blocks at once, streamed into one View after the other.
type bucket struct {
	pool     *hearth.Pool
	requests atomic.Int64
	bytes    atomic.Int64 // that were asked for and delivered
	fail     atomic.Pointer[error]
	gate     chan struct{}            // if set, each block waits for one token
	before   func(b hearth.Block)     // if set, called before each block
	whole    func(first, n int64) int // if set, how many blocks of a run come before it fails
	first    time.Duration            // from a request to its first byte
	mib      time.Duration            // from one block to the next
}

func (k *bucket) block(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	if k.before != nil {
		k.before(b)
	}
	if k.gate != nil {
		select {
		case <-k.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if k.mib > 0 {
		<-time.After(k.mib * time.Duration(n) / hearth.BlockSize)
	}
	if err := k.fail.Load(); err != nil {
		return nil, *err
	}
	v, err := k.pool.Alloc(ctx, n)
	if err != nil {
		return nil, err
	}
	hearthtest.Fill(v.Bytes(), b.Object.Key, b.Offset()+int64(off), 1)
	k.bytes.Add(int64(n))
	return v, nil
}

func (k *bucket) request() {
	if k.requests.Add(1); k.first > 0 {
		<-time.After(k.first)
	}
}

func (k *bucket) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	k.request()
	return k.block(ctx, b, off, n)
}

func (k *bucket) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	k.request()
	for i := range n {
		b := first.Object.Block(first.Index + int64(i))
		v, err := k.block(ctx, b, 0, b.Len())
		if k.whole != nil && err == nil && i >= k.whole(first.Index, int64(n)) {
			v.Release()
			v, err = nil, errBroken
		}
		if !each(b, v, err) || err != nil {
			return
		}
	}
}

func (k *bucket) Has(hearth.ID) bool { return false }

func (k *bucket) FromPeer(hearth.Block) bool { return false }

var errBroken = errors.New("broken")

// shelf is a disk's stand-in: a Store in a map, outside the pool, that lends Views
// of the pool.
type shelf struct {
	pool   *hearth.Pool
	mu     sync.Mutex
	blocks map[hearth.ID][]byte
	gets   atomic.Int64
	read   atomic.Int64 // bytes
	broken atomic.Bool
	full   atomic.Bool
	keep   func(b hearth.Block, v *hearth.View) error // if set, what Keep does
}

func newShelf(p *hearth.Pool) *shelf { return &shelf{pool: p, blocks: map[hearth.ID][]byte{}} }

func (s *shelf) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	s.gets.Add(1)
	if s.broken.Load() {
		return nil, errBroken
	}
	s.mu.Lock()
	data := s.blocks[b.ID()]
	s.mu.Unlock()
	if data == nil {
		return nil, hearth.ErrMiss
	}
	v, err := s.pool.Alloc(ctx, n)
	if err != nil {
		return nil, err
	}
	copy(v.Bytes(), data[off:])
	s.read.Add(int64(n))
	return v, nil
}

func (s *shelf) Put(b hearth.Block, v *hearth.View) error {
	if s.broken.Load() || s.full.Load() {
		return errBroken
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks[b.ID()] = bytes.Clone(v.Bytes())
	return nil
}

func (s *shelf) Has(id hearth.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocks[id] != nil
}

func (s *shelf) Takes(hearth.Block) bool { return !s.full.Load() }

// Keep is Put, or what the test has for it.
func (s *shelf) Keep(_ context.Context, b hearth.Block, v *hearth.View) error {
	if s.keep != nil {
		return s.keep(b, v)
	}
	return s.Put(b, v)
}

func (s *shelf) Flush(context.Context) error { return nil }

// node is a read side as package node wires it, and what stands behind it.
type nodeTiers struct {
	pool   *hearth.Pool
	bucket *bucket
	shelf  *shelf
	ram    *RAM
	own    *Tier
	reads  *Tier
}

func newNode(t testing.TB, memory int64) *nodeTiers {
	n := &nodeTiers{pool: hearthtest.Pool(t, memory)}
	n.bucket, n.shelf, n.ram = &bucket{pool: n.pool}, newShelf(n.pool), NewRAM(n.pool, memory)
	n.own = Through(n.shelf, n.bucket, Keep(n.shelf))
	n.reads = Memory(n.ram, n.own, Hot(n.ram.Stats().Budget))
	t.Cleanup(func() {
		n.reads.Close()
		n.own.Close()
		n.ram.Close()
	})
	return n
}

func object(size int64) *hearth.Object { return hearthtest.NewObject("objects/one", size, 1) }

func contents(o *hearth.Object) *bytes.Reader {
	data := make([]byte, o.Size)
	hearthtest.Fill(data, o.Key, 0, 1)
	return bytes.NewReader(data)
}

func check(t testing.TB, v *hearth.View, err error, b hearth.Block, off int) {
	t.Helper()
	if err != nil {
		t.Errorf("block %v: %v", b.ID(), err)
		return
	}
	if err := hearthtest.Check(v.Bytes(), b.Object.Key, b.Offset()+int64(off), 1); err != nil {
		t.Error(err)
	}
	v.Release()
}

// readAll reads an object in pieces, in order.
func readAll(t testing.TB, r *Reader, size int64, piece int) {
	t.Helper()
	buf := make([]byte, piece)
	for off := int64(0); off < size; off += int64(piece) {
		readOne(t, r, buf, off)
	}
}

func readOne(t testing.TB, r *Reader, p []byte, off int64) {
	t.Helper()
	n, err := r.ReadAt(t.Context(), p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if err := hearthtest.Check(p[:n], r.o.Key, off, 1); err != nil {
		t.Fatal(err)
	}
}
