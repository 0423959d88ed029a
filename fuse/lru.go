package fuse

import (
	"container/list"
	"sync"
	"time"
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

func (l *lru[V]) drop(id uint64) {
	s := &l.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	if e := s.values[id]; e != nil {
		s.order.Remove(e)
		delete(s.values, id)
	}
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
// forgotten it. It takes about 30 bytes per name that the kernel holds. What an earlier process told is not known:
// each id of its time counts as held until it is forgotten, a bit for each.
type holds struct {
	shard [shards]struct {
		sync.Mutex // guards count
		count      map[uint64]uint32
	}

	before uint64       // ids up to this one may be known from another process; 0 means none
	sure   time.Time    // from then on a FORGET of such an id is of all that the other process told
	mu     sync.RWMutex // guards gone
	gone   map[uint64]*[goneWords]uint64
}

// goneWords are the words of 64 bits in a piece of the ids that were forgotten: 8 KiB.
const goneWords = 1024

func newHolds() *holds {
	h := &holds{}
	for i := range h.shard {
		h.shard[i].count = map[uint64]uint32{}
	}
	return h
}

// inherit says that the kernel may hold the ids up to last by what another process told it. A FORGET of one reference
// before sure may be of one of several, as the kernel asked for it of the other process.
func (h *holds) inherit(last uint64, sure time.Time) {
	h.before, h.sure, h.gone = last, sure, map[uint64]*[goneWords]uint64{}
}

func (h *holds) add(id uint64) {
	s := &h.shard[shardOf(id)]
	s.Lock()
	s.count[id]++
	s.Unlock()
}

// drop takes away n references. The kernel gives up all that it has of an inode at once, so an id of another process's
// time is held no more, unless this one has told of it meanwhile: those may belong to a new inode. Whether they do is not to
// be known, so such an id counts as held until the mount ends. So does one of which the kernel gives up one reference as this
// process begins: when a name turns out to be another file's, it gives the answer's reference up, and looks the name up again
// (fuse_dentry_revalidate in linux/fs/fuse/dir.c). The file may be open by then.
func (h *holds) drop(id, n uint64) {
	s := &h.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	told := uint64(s.count[id])
	switch {
	case told == 0 && n == 1 && h.inherited(id) && time.Now().Before(h.sure):
	case h.inherited(id) && (told == 0 || n > told):
		h.forget(id)
	case told > n:
		s.count[id] = uint32(told - n)
	default:
		delete(s.count, id)
	}
}

// inherited reports whether the kernel may hold an id by what another process told it.
func (h *holds) inherited(id uint64) bool {
	if id > h.before {
		return false
	}
	h.mu.RLock()
	defer h.mu.RUnlock()
	piece := h.gone[id/(64*goneWords)]
	return piece == nil || piece[id/64%goneWords]>>(id%64)&1 == 0
}

func (h *holds) forget(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	piece := h.gone[id/(64*goneWords)]
	if piece == nil {
		piece = new([goneWords]uint64)
		h.gone[id/(64*goneWords)] = piece
	}
	piece[id/64%goneWords] |= 1 << (id % 64)
}

// has reports whether the kernel holds an id.
func (h *holds) has(id uint64) bool {
	s := &h.shard[shardOf(id)]
	s.Lock()
	defer s.Unlock()
	return s.count[id] > 0 || h.inherited(id)
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
