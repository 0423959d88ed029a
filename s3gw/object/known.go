package object

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
)

// awayFresh is how long old headers are used after the origin could not be asked: each attempt may
// wait for seconds.
const awayFresh = 10 * time.Second

// headers returns an object's headers: remembered ones, or those of a HEAD.
func (s *Server) headers(ctx context.Context, o *hearth.Object) (*set, error) {
	fresh := s.o.Fresh(o.Link)
	if fresh == 0 { // an attempt in flight may have been answered before this request came
		return s.head(ctx, o)
	}
	k := s.keyOf(o)
	old := s.known.get(k)
	if old != nil && old.believed(s.o.Now(), fresh) {
		s.hits.Add(1)
		return old, nil
	}
	t, _, err := s.asking.Do(ctx, k, func(ctx context.Context) (*set, error) {
		if t := s.known.get(k); t != nil && t.believed(s.o.Now(), fresh) {
			return t, nil // another attempt has ended since this caller looked
		}
		t, err := s.head(ctx, o)
		switch {
		case err == nil:
		case errors.Is(err, hearth.ErrStale):
			s.known.forget(k)
			return nil, err
		case old != nil && s.o.Away(err):
			copied := *old
			copied.until = s.o.Now().Add(awayFresh)
			t = &copied
		default:
			return nil, err
		}
		s.known.put(k, t)
		return t, nil
	})
	return t, err
}

// head asks the origin, by a HEAD.
func (s *Server) head(ctx context.Context, o *hearth.Object) (*set, error) {
	s.asks.Add(1)
	begun := s.o.Now()
	h, err := s.o.Head(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("headers of %s: %w", o.Key, err)
	}
	t, err := packSet(h, o, begun)
	if err != nil {
		return nil, fmt.Errorf("headers of %s: %w", o.Key, err)
	}
	return t, nil
}

// key identifies the object whose headers they are. An object that is written again with the same
// bytes has the same version, but may have other headers.
type key struct {
	version  [16]byte
	modified int64 // Unix ns
	changes  uint64
}

func (s *Server) keyOf(o *hearth.Object) key {
	return key{o.Version, o.ModTime.UnixNano(), s.changes.of(o.Key)}
}

// changes counts the changes beside the bytes of objects. The count is part of a key, so headers
// that were asked for before a change are no longer found, and age on the shelf. That holds for
// those in flight at the change, too. Keys share counters by their hashes; a change of another key
// costs one more HEAD.
type changes struct {
	all  atomic.Uint32
	some [4096]atomic.Uint32
}

func (c *changes) of(key string) uint64 {
	return uint64(c.all.Load())<<32 | uint64(c.some[xxh3.HashString(key)%uint64(len(c.some))].Load())
}

const (
	shelves = 16
	// entryCost is what an entry takes in bytes beside its texts. The set and its places in the
	// list and in the map were measured as 260. The rest is for the rounding up of the texts.
	entryCost = 300
)

// shelf is an LRU cache of sets, with a budget that the Pool counts.
type shelf struct {
	pool  *hearth.Pool
	most  int64 // bytes, in each shard
	parts [shelves]shelfPart
}

type shelfPart struct {
	mu    sync.Mutex // guards the rest
	sets  map[key]*list.Element
	order list.List // of entry; the last used is in front
	bytes int64
}

type entry struct {
	key key
	set *set
}

func (e *entry) cost() int64 { return entryCost + int64(len(e.set.packed)) }

func newShelf(pool *hearth.Pool, most int64) *shelf {
	s := &shelf{pool: pool, most: most / shelves}
	for i := range s.parts {
		s.parts[i].sets = map[key]*list.Element{}
	}
	return s
}

// part returns the shard of a key; versions are hashes.
func (s *shelf) part(k key) *shelfPart { return &s.parts[k.version[0]%shelves] }

// get returns the remembered set, however old, or nil.
func (s *shelf) get(k key) *set {
	p := s.part(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.sets[k]
	if e == nil {
		return nil
	}
	p.order.MoveToFront(e)
	return e.Value.(*entry).set
}

// put remembers a set, in place of an older one of its key and of the least recently used. It does
// nothing if there is no memory.
func (s *shelf) put(k key, t *set) {
	p := s.part(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.sets[k]; e != nil {
		s.dropLocked(p, e)
	}
	made := &entry{k, t}
	cost := made.cost()
	if cost > s.most {
		return
	}
	for p.bytes+cost > s.most || !s.pool.Reserve(cost) {
		last := p.order.Back()
		if last == nil {
			return
		}
		s.dropLocked(p, last)
	}
	p.bytes += cost
	p.sets[k] = p.order.PushFront(made)
}

func (s *shelf) forget(k key) {
	p := s.part(k)
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.sets[k]; e != nil {
		s.dropLocked(p, e)
	}
}

func (s *shelf) dropLocked(p *shelfPart, e *list.Element) {
	old := p.order.Remove(e).(*entry)
	delete(p.sets, old.key)
	p.bytes -= old.cost()
	s.pool.Unreserve(old.cost())
}

// size returns the entries and bytes of all shards.
func (s *shelf) size() (entries, bytes int64) {
	for i := range s.parts {
		p := &s.parts[i]
		p.mu.Lock()
		entries, bytes = entries+int64(len(p.sets)), bytes+p.bytes
		p.mu.Unlock()
	}
	return entries, bytes
}

func (s *shelf) close() {
	for i := range s.parts {
		p := &s.parts[i]
		p.mu.Lock()
		for e := p.order.Front(); e != nil; e = p.order.Front() {
			s.dropLocked(p, e)
		}
		p.mu.Unlock()
	}
}
