package sim

import (
	"container/heap"
	"container/list"
	"fmt"
	"math"

	"github.com/dgraph-io/ristretto/v2"
)

// held is a block in a queue.
type held struct {
	key  uint32
	size int64
	uses int // of S3-FIFO, since it came into its queue, at most 3
}

// LRU gives up what was used longest ago.
func LRU(capacity int64, _ []Request) Cache {
	return &lru{limit: capacity, at: map[uint32]*list.Element{}, order: list.New()}
}

type lru struct {
	limit, used, written int64
	at                   map[uint32]*list.Element
	order                *list.List // the latest first
}

func (c *lru) Written() int64 { return c.written }

func (c *lru) Use(r Request) bool {
	if e, ok := c.at[r.Key]; ok {
		c.order.MoveToFront(e)
		return true
	}
	if r.Size > c.limit {
		return false
	}
	for c.used+r.Size > c.limit {
		old := c.order.Remove(c.order.Back()).(held)
		delete(c.at, old.key)
		c.used -= old.size
	}
	c.at[r.Key] = c.order.PushFront(held{key: r.Key, size: r.Size})
	c.used += r.Size
	c.written += r.Size
	return false
}

// S3FIFO is the cache of Yang and others (SOSP 2023) by bytes: a small queue of a
// tenth, a main one, and a ghost of what left the small one unused, as many bytes
// as the main queue.
func S3FIFO(capacity int64, _ []Request) Cache {
	return &s3fifo{limit: capacity, at: map[uint32]*held{}, ghosts: map[uint32]*list.Element{},
		small: list.New(), main: list.New(), ghost: list.New()}
}

type s3fifo struct {
	limit, written                 int64
	smallUsed, mainUsed, ghostUsed int64
	at                             map[uint32]*held
	ghosts                         map[uint32]*list.Element
	small, main, ghost             *list.List // the oldest in front
}

func (c *s3fifo) Written() int64 { return c.written }

func (c *s3fifo) Use(r Request) bool {
	if h, ok := c.at[r.Key]; ok {
		h.uses = min(h.uses+1, 3)
		return true
	}
	if r.Size > c.limit {
		return false
	}
	for c.smallUsed+c.mainUsed+r.Size > c.limit {
		if c.smallUsed > c.limit/10 || c.main.Len() == 0 {
			c.evictSmall()
		} else {
			c.evictMain()
		}
	}
	h := &held{key: r.Key, size: r.Size}
	c.at[r.Key] = h
	c.written += r.Size
	if e, ok := c.ghosts[r.Key]; ok {
		c.forget(e)
		c.toMain(h)
		return false
	}
	c.small.PushBack(h)
	c.smallUsed += h.size
	return false
}

func (c *s3fifo) toMain(h *held) {
	h.uses = 0
	c.main.PushBack(h)
	c.mainUsed += h.size
}

func (c *s3fifo) evictSmall() {
	for c.small.Len() > 0 {
		h := c.small.Remove(c.small.Front()).(*held)
		c.smallUsed -= h.size
		if h.uses > 1 {
			c.toMain(h)
			continue
		}
		delete(c.at, h.key)
		c.ghosts[h.key] = c.ghost.PushBack(held{key: h.key, size: h.size})
		c.ghostUsed += h.size
		for c.ghostUsed > c.limit*9/10 {
			c.forget(c.ghost.Front())
		}
		return
	}
}

func (c *s3fifo) evictMain() {
	for c.main.Len() > 0 {
		h := c.main.Remove(c.main.Front()).(*held)
		if h.uses > 0 {
			h.uses--
			c.main.PushBack(h)
			continue
		}
		c.mainUsed -= h.size
		delete(c.at, h.key)
		return
	}
}

func (c *s3fifo) forget(e *list.Element) {
	h := c.ghost.Remove(e).(held)
	c.ghostUsed -= h.size
	delete(c.ghosts, h.key)
}

// Ristretto is the library, waited for after each Set so that nothing is dropped.
// It samples by Go's order of maps: the only cache here that a seed does not fix.
func Ristretto(capacity int64, _ []Request) Cache {
	items, err := ristretto.NewCache(&ristretto.Config[uint64, struct{}]{
		NumCounters: 1 << 18, MaxCost: capacity, BufferItems: 64, IgnoreInternalCost: true, Metrics: true,
	})
	if err != nil {
		panic(fmt.Sprintf("sim: ristretto refuses its configuration: %v", err)) // all of it is ours
	}
	return &admitting{items: items}
}

type admitting struct {
	items *ristretto.Cache[uint64, struct{}]
}

func (c *admitting) Written() int64 { return int64(c.items.Metrics.CostAdded()) }

// Close ends the library's goroutines.
func (c *admitting) Close() { c.items.Close() }

func (c *admitting) Use(r Request) bool {
	if _, ok := c.items.Get(uint64(r.Key)); ok {
		return true
	}
	c.items.Set(uint64(r.Key), struct{}{}, r.Size)
	c.items.Wait()
	return false
}

// Belady knows the load: it keeps what is asked for again soonest.
func Belady(capacity int64, load []Request) Cache {
	c := &belady{limit: capacity, next: make([]int, len(load)), at: map[uint32]*future{}}
	last := map[uint32]int{}
	for i := len(load) - 1; i >= 0; i-- {
		c.next[i] = math.MaxInt
		if j, ok := last[load[i].Key]; ok {
			c.next[i] = j
		}
		last[load[i].Key] = i
	}
	return c
}

type future struct {
	key  uint32
	size int64
	next int // the request that asks for it again
	at   int // in the heap
}

type belady struct {
	limit, used, written int64
	next                 []int // by request
	i                    int
	at                   map[uint32]*future
	heap                 farthest
}

func (c *belady) Written() int64 { return c.written }

func (c *belady) Use(r Request) bool {
	next := c.next[c.i]
	c.i++
	if f, ok := c.at[r.Key]; ok {
		f.next = next
		heap.Fix(&c.heap, f.at)
		return true
	}
	if r.Size > c.limit || next == math.MaxInt {
		return false
	}
	for c.used+r.Size > c.limit {
		if c.heap[0].next < next {
			return false // what is held is asked for sooner
		}
		f := heap.Pop(&c.heap).(*future)
		delete(c.at, f.key)
		c.used -= f.size
	}
	f := &future{key: r.Key, size: r.Size, next: next}
	heap.Push(&c.heap, f)
	c.at[r.Key] = f
	c.used += r.Size
	c.written += r.Size
	return false
}

// farthest is a heap with the latest next use on top.
type farthest []*future

func (h farthest) Len() int           { return len(h) }
func (h farthest) Less(i, j int) bool { return h[i].next > h[j].next }
func (h farthest) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *farthest) Push(x any) {
	f := x.(*future)
	f.at = len(*h)
	*h = append(*h, f)
}
func (h *farthest) Pop() any {
	old := *h
	f := old[len(old)-1]
	*h = old[:len(old)-1]
	return f
}
