package hearth

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

// View is bytes in memory with a reference count, and what is known of their checksums. The holder
// of a reference may read Bytes. Nobody writes the bytes once they are shared.
type View struct {
	data []byte
	root *View // for a slice: the View whose memory it shares
	pool *Pool // for a root from a pool: where the memory goes back to
	refs atomic.Int32
	sums atomic.Pointer[[]uint64]
}

// NewView wraps bytes that no Pool counts, with one reference. It is for tests and for the few
// bytes that are not data.
func NewView(data []byte) *View {
	v := &View{data: data}
	v.refs.Store(1)
	return v
}

// Bytes returns the View's bytes, valid until the caller's reference is released.
func (v *View) Bytes() []byte { return v.data }

// Len is the number of bytes.
func (v *View) Len() int { return len(v.data) }

// Slice returns a View of bytes [off, off+n) that shares v's memory and holds
// its own reference to it. v's reference stays with the caller.
func (v *View) Slice(off, n int) *View {
	root := cmp.Or(v.root, v)
	root.Retain()
	s := &View{data: v.data[off : off+n : off+n], root: root}
	s.refs.Store(1)
	return s
}

// Sums holds the checksums of the View's pieces, once internal/piece has noted them. A slice that
// covers all of a View shares them.
func (v *View) Sums() *atomic.Pointer[[]uint64] {
	if v.root != nil && len(v.root.data) == len(v.data) {
		return &v.root.sums
	}
	return &v.sums
}

// Retain adds a reference. The caller must hold one.
func (v *View) Retain() *View {
	if v.refs.Add(1) <= 1 {
		panic("hearth: View retained after its last release")
	}
	return v
}

// TryRetain adds a reference unless the count has reached 0. It is for caches that hold a pointer
// but own no reference at the time of the look-up.
func (v *View) TryRetain() bool {
	for {
		n := v.refs.Load()
		if n <= 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release gives one reference back; the last one frees the memory. It panics when called more often
// than there are references, since somebody may then read recycled bytes.
func (v *View) Release() {
	switch n := v.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("hearth: View released twice")
	}
	data := v.data
	v.data = nil
	if v.root != nil {
		v.root.Release()
	} else if v.pool != nil {
		v.pool.free(data)
	}
}

// Pool is the one counter of the bytes of all Views and of the indexes: cached, queued, lent or in
// flight. Its memory is recycled by size class. Buffers from 4 KiB on are aligned to 4 KiB, as
// O_DIRECT wants it.
type Pool struct {
	budget  int64
	used    atomic.Int64 // live + idle + reserved, never above budget
	claimed atomic.Int64 // the indexes' part of used
	idle    atomic.Int64
	views   atomic.Int64
	waiting atomic.Int32
	classes [poolClasses]struct {
		sync.Mutex // guards free; held for a push or a pop only
		free       [][]byte
	}
	mu      sync.Mutex // guards the rest; taken before a class's lock, never after
	waiters list.List  // of *poolWaiter, first come first served; only Claim goes to the front
	givers  []*giver   // replaced as a whole
}

type poolWaiter struct {
	need  int64
	ready chan struct{}
}

// MinRAM is the smallest budget of a Pool in bytes. With less, one extent and the readers beside it
// would wait for each other.
const MinRAM = 16 << 20

// NewPool returns a Pool of budget bytes, at least MinRAM.
func NewPool(budget int64) *Pool { return &Pool{budget: max(budget, MinRAM)} }

// PoolStats are a Pool's figures in bytes.
type PoolStats struct {
	Budget, Used, Idle int64
	// Views counts Views that were allocated and not released yet.
	Views int64
	// Claimed is the indexes' part of Used.
	Claimed int64
}

// Stats returns the present figures.
func (p *Pool) Stats() PoolStats {
	return PoolStats{Budget: p.budget, Used: p.used.Load(), Idle: p.idle.Load(), Views: p.views.Load(), Claimed: p.claimed.Load()}
}

// Alloc returns a View of n bytes, 0 < n <= BlockSize + 64 KiB. It waits while the budget is spent.
// The content is undefined. A caller must not hold a View: two such callers could wait for each
// other for ever.
func (p *Pool) Alloc(ctx context.Context, n int) (*View, error) {
	if v := p.TryAlloc(n); v != nil {
		return v, nil
	}
	w := &poolWaiter{need: int64(classSize(classOf(n))), ready: make(chan struct{})}
	p.mu.Lock()
	e := p.waiters.PushBack(w)
	p.waiting.Add(1)
	p.mu.Unlock()
	p.wake()     // what was freed before we stood in the queue
	p.ask(false) // an index may have taken the Views' share, and nobody Puts while all wait
	select {
	case <-w.ready:
		return p.view(n), nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	select {
	case <-w.ready: // granted meanwhile: hand it on
		p.used.Add(-w.need)
	default:
		p.waiters.Remove(e)
		p.waiting.Add(-1)
	}
	p.mu.Unlock()
	p.wake()
	return nil, fmt.Errorf("wait for %d bytes of memory: %w", n, context.Cause(ctx))
}

// TryAlloc is Alloc that returns nil instead of waiting.
func (p *Pool) TryAlloc(n int) *View {
	c := classOf(n)
	if p.waiting.Load() > 0 {
		return nil
	}
	if data := p.pop(c); data != nil {
		return p.wrap(data, n)
	}
	if !p.reserve(int64(classSize(c))) {
		return nil
	}
	return p.wrap(newAligned(classSize(c)), n)
}

// Reserve counts n bytes that are not a View against the budget, or returns false. Unreserve gives
// them back. An index uses Claim.
func (p *Pool) Reserve(n int64) bool { return p.reserve(n) }

// Unreserve gives back what Reserve counted.
func (p *Pool) Unreserve(n int64) {
	p.used.Add(-n)
	p.wake()
}

// view makes a View from budget that is granted already.
func (p *Pool) view(n int) *View {
	c := classOf(n)
	if data := p.pop(c); data != nil {
		p.used.Add(-int64(classSize(c))) // the idle buffer was counted as well
		p.wake()
		return p.wrap(data, n)
	}
	return p.wrap(newAligned(classSize(c)), n)
}

func (p *Pool) wrap(data []byte, n int) *View {
	p.views.Add(1)
	v := &View{data: data[:n], pool: p}
	v.refs.Store(1)
	return v
}

func (p *Pool) pop(c int) []byte {
	k := &p.classes[c]
	k.Lock()
	defer k.Unlock()
	if len(k.free) == 0 {
		return nil
	}
	data := k.free[len(k.free)-1]
	k.free[len(k.free)-1] = nil
	k.free = k.free[:len(k.free)-1]
	p.idle.Add(-int64(classSize(c)))
	return data
}

func (p *Pool) free(data []byte) {
	p.views.Add(-1)
	c := classOf(cap(data))
	size := int64(classSize(c))
	k := &p.classes[c]
	k.Lock()
	k.free = append(k.free, data[:cap(data)])
	p.idle.Add(size)
	k.Unlock()
	p.wake()
}

// reserve counts n bytes. It frees idle buffers of other classes if it needs their bytes.
func (p *Pool) reserve(n int64) bool {
	for {
		used := p.used.Load()
		if used+n > p.budget {
			if !p.trim(used + n - p.budget) {
				return false
			}
			continue
		}
		if p.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// trim gives idle buffers of about n bytes to the garbage collector, the largest classes first. It
// reports whether there were any.
func (p *Pool) trim(n int64) bool {
	var freed int64
	for c := poolClasses - 1; c >= 0 && freed < n; c-- {
		for freed < n && p.pop(c) != nil {
			freed += int64(classSize(c))
		}
	}
	p.used.Add(-freed)
	return freed > 0
}

// wake grants memory to the waiters, in their order.
func (p *Pool) wake() {
	if p.waiting.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for e := p.waiters.Front(); e != nil; e = p.waiters.Front() {
		w := e.Value.(*poolWaiter)
		if !p.reserve(w.need) {
			return
		}
		p.waiters.Remove(e)
		p.waiting.Add(-1)
		close(w.ready)
	}
}

// Size classes: 512, 1024 and 2048 bytes; steps of 4 KiB up to 64 KiB, of 16 KiB up to 256 KiB, and
// of 64 KiB up to BlockSize + 64 KiB (a block and its header). From 32 KiB on at most an eighth is
// lost.
const poolClasses = 3 + 16 + 12 + 13

func classOf(n int) int {
	switch {
	case n <= 512:
		return 0
	case n <= 1024:
		return 1
	case n <= 2048:
		return 2
	case n <= 64<<10:
		return 2 + (n+4095)/4096
	case n <= 256<<10:
		return 18 + (n-64<<10+16383)/16384
	case n <= BlockSize+64<<10:
		return 30 + (n-256<<10+65535)/65536
	}
	panic(fmt.Sprintf("hearth: View of %d bytes", n))
}

func classSize(c int) int {
	switch {
	case c < 3:
		return 512 << c
	case c <= 18:
		return (c - 2) * 4096
	case c <= 30:
		return 64<<10 + (c-18)*16384
	}
	return 256<<10 + (c-30)*65536
}

// newAligned allocates n bytes, aligned to 4 KiB if n is a multiple of 4 KiB. The runtime aligns
// such sizes already; this is checked, not assumed.
func newAligned(n int) []byte {
	data := make([]byte, n)
	if n%4096 != 0 || uintptr(unsafe.Pointer(&data[0]))%4096 == 0 {
		return data
	}
	data = make([]byte, n+4096)
	skip := 4096 - int(uintptr(unsafe.Pointer(&data[0]))%4096)
	return data[skip : skip+n : skip+n]
}
