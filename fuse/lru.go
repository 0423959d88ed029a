package fuse

import (
	"container/list"
	"sync"
)

const shards = 32 // enough that handlers on all cores rarely meet

// shardOf hashes a node id: ids come from a counter, so neighbors must spread.
func shardOf(id uint64) uint64 { return id * 0x9e3779b97f4a7c15 >> 59 }

// lru keeps the values of the about max node ids that were used last. It closes no value that it
// drops; values that must be closed are kept in readers.
type lru[V any] struct {
	shard [shards]struct {
		sync.Mutex // guards the rest, held for a look-up only
		values     map[uint64]*list.Element
		order      list.List // of *lruEntry[V], last used first
	}
	max int // per shard
}

type lruEntry[V any] struct {
	id    uint64
	value V
}

func newLRU[V any](max int) *lru[V] {
	l := &lru[V]{max: (max + shards - 1) / shards}
	for i := range l.shard {
		l.shard[i].values = map[uint64]*list.Element{}
	}
	return l
}

func (l *lru[V]) get(id uint64) (value V, ok bool) {
	s := &l.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	e := s.values[id]
	if e == nil {
		return value, false
	}
	s.order.MoveToFront(e)
	return e.Value.(*lruEntry[V]).value, true
}

func (l *lru[V]) put(id uint64, value V) {
	s := &l.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	if e := s.values[id]; e != nil {
		e.Value.(*lruEntry[V]).value = value
		s.order.MoveToFront(e)
		return
	}
	if s.order.Len() < l.max {
		s.values[id] = s.order.PushFront(&lruEntry[V]{id, value})
		return
	}
	e := s.order.Back() // recycled: no allocation once full
	entry := e.Value.(*lruEntry[V])
	delete(s.values, entry.id)
	*entry = lruEntry[V]{id, value}
	s.values[id] = e
	s.order.MoveToFront(e)
}

// holds counts the kernel's references to each node id: how often it was told of the id and has not
// forgotten it. It takes about 30 bytes per name that the kernel holds.
type holds struct {
	shard [shards]struct {
		sync.Mutex // guards count
		count      map[uint64]uint32
	}
}

func newHolds() *holds {
	h := &holds{}
	for i := range h.shard {
		h.shard[i].count = map[uint64]uint32{}
	}
	return h
}

func (h *holds) add(id uint64) {
	s := &h.shard[shardOf(id)]
	s.Lock()
	s.count[id]++
	s.Unlock()
}

// drop takes away n references.
func (h *holds) drop(id, n uint64) {
	s := &h.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	if count := s.count[id]; uint64(count) > n {
		s.count[id] = count - uint32(n)
		return
	}
	delete(s.count, id)
}

// has reports whether the kernel holds an id.
func (h *holds) has(id uint64) bool {
	s := &h.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	return s.count[id] > 0
}

func (h *holds) len() int {
	n := 0
	for i := range h.shard {
		s := &h.shard[i]
		s.Lock()
		n += len(s.count)
		s.Unlock()
	}
	return n
}
