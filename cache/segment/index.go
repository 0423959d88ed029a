package segment

import (
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// entry is one block of the index, without pointers, so that the garbage
// collector never looks inside. word[0]: slot 24, unit 24, low index 16 bits;
// word[1]: state 32, length 21, high index 11. Length 0 is a free entry.
type entry struct {
	version [16]byte
	word    [2]uint64
}

const entrySize = 32

// place says where a record lies: the segment's slot in Log.slots, the offset in
// units, the block's length.
type place struct{ slot, unit, length uint32 }

func (p place) note(id hearth.ID) note { return note{id: id, unit: p.unit, length: p.length} }

func makeEntry(id hearth.ID, p place, state uint32) entry {
	i := uint64(id.Index)
	return entry{id.Version, [2]uint64{
		uint64(p.slot)<<40 | uint64(p.unit)<<16 | i&0xffff,
		uint64(state)<<32 | uint64(p.length)<<11 | i>>16,
	}}
}

func (e *entry) free() bool     { return e.length() == 0 }
func (e *entry) length() uint32 { return uint32(e.word[1]) >> 11 }
func (e *entry) state() uint32  { return uint32(e.word[1] >> 32) }
func (e *entry) setState(state uint32) {
	e.word[1] = uint64(state)<<32 | e.word[1]&0xffffffff
}

func (e *entry) id() hearth.ID {
	return hearth.ID{Version: e.version, Index: int64(e.word[0]&0xffff | e.word[1]&0x7ff<<16)}
}

func (e *entry) place() place {
	return place{slot: uint32(e.word[0] >> 40), unit: uint32(e.word[0]>>16) & 0xffffff, length: e.length()}
}

// index maps IDs to places: 256 tables by the hash's first byte, each with open
// addressing and linear probing.
type index struct {
	pool   *hearth.Pool
	bytes  atomic.Int64 // reserved in pool
	count  atomic.Int64
	shards [256]shard
}

type shard struct {
	mu      sync.Mutex // guards the rest; nothing else is locked under it
	slots   []entry
	count   int
	pending int      // entries with reserved room that are not put yet
	_       [16]byte // keeps each shard off the others' cache lines
}

// newIndex returns an empty index, whose memory is claimed in a Pool.
func newIndex(pool *hearth.Pool) *index { return &index{pool: pool} }

func (x *index) shard(hash uint64) *shard { return &x.shards[hash>>56] }

// home returns where probing for a hash starts. It scales the hash from [0, 2^56) to the table's
// size, so that tables need not be powers of two.
func (s *shard) home(hash uint64) int {
	hi, _ := bits.Mul64(hash<<8, uint64(len(s.slots)))
	return int(hi)
}

// lookup returns the position of id, or of the free entry where it belongs. The table is never
// full: at least a tenth is free.
func (s *shard) lookup(id hearth.ID, hash uint64) (int, bool) {
	if len(s.slots) == 0 {
		return 0, false
	}
	want := binary.LittleEndian.Uint64(id.Version[:])
	for i := s.home(hash); ; i++ {
		if i == len(s.slots) {
			i = 0
		}
		e := &s.slots[i]
		if e.free() {
			return i, false
		}
		if binary.LittleEndian.Uint64(e.version[:]) == want && e.id() == id {
			return i, true
		}
	}
}

// get returns the place of id. touch, if not nil, gives the entry its next State.
func (x *index) get(id hearth.ID, touch func(uint32) uint32) (place, bool) {
	hash := id.Hash()
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.lookup(id, hash)
	if !ok {
		return place{}, false
	}
	e := &s.slots[i]
	if touch != nil {
		e.setState(touch(e.state()))
	}
	return e.place(), true
}

// len is the number of blocks.
func (x *index) len() int64 { return x.count.Load() }

// memory is what the tables take in the Pool, in bytes.
func (x *index) memory() int64 { return x.bytes.Load() }

// cost estimates the memory in bytes that so many more blocks would take. Eviction leaves the tables'
// memory as it is, and they do not fill up evenly.
func (x *index) cost(blocks int64) int64 {
	free := (x.bytes.Load()/entrySize*9/10 - x.count.Load()) * 3 / 4
	if blocks <= free {
		return 0
	}
	// An entry takes up to 40 bytes; a growing table is there twice for a moment.
	return (blocks-free)*entrySize*10/8 + x.bytes.Load()/int64(len(x.shards))*5/4
}

// each calls f for all blocks, under the lock of a table.
func (x *index) each(f func(id hearth.ID, p place)) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for j := range s.slots {
			if e := &s.slots[j]; !e.free() {
				f(e.id(), e.place())
			}
		}
		s.mu.Unlock()
	}
}

// of returns the blocks of a version. step is called between two tables.
func (x *index) of(version [16]byte, step func()) (all []hearth.ID) {
	for i := range x.shards {
		step()
		s := &x.shards[i]
		s.mu.Lock()
		for k := range s.slots {
			if e := &s.slots[k]; !e.free() && e.version == version {
				all = append(all, e.id())
			}
		}
		s.mu.Unlock()
	}
	return all
}

func (x *index) setState(id hearth.ID, state uint32) bool {
	_, ok := x.get(id, func(uint32) uint32 { return state })
	return ok
}

// room reserves room for id, to be put later; false means that the Pool has no memory. Each success
// is followed by one put or one cancel.
func (x *index) room(id hearth.ID) bool {
	s := x.shard(id.Hash())
	for {
		s.mu.Lock()
		if (s.count+s.pending+1)*10 <= len(s.slots)*9 {
			s.pending++
			s.mu.Unlock()
			return true
		}
		had := len(s.slots)
		s.mu.Unlock()
		if !x.grow(s, had) { // without the lock: the Pool may make others give way
			return false
		}
	}
}

// rooms reserves room for all of some records, or for none.
func (x *index) rooms(notes []note) bool {
	for i := range notes {
		if !x.room(notes[i].id) {
			for _, n := range notes[:i] {
				x.cancel(n.id)
			}
			return false
		}
	}
	return true
}

// expect makes empty tables for n entries, some 85 % full, or for as many as there is memory for.
// That memory includes the counts of so many pages. false means that the tables are not for all.
func (x *index) expect(n int, pages int64) bool {
	all := n
	for ; n >= len(x.shards); n -= n/8 + 1 {
		size := n/len(x.shards)*20/17 + 8
		tables, beside := int64(len(x.shards)*size)*entrySize, pages*int64(n)/int64(all)
		if !x.pool.Claim(tables + beside) {
			continue
		}
		x.pool.Unclaim(beside)
		for i := range x.shards {
			x.shards[i].slots = make([]entry, size)
		}
		x.bytes.Add(tables)
		return n == all
	}
	return all < len(x.shards)
}

func (x *index) cancel(id hearth.ID) {
	s := x.shard(id.Hash())
	s.mu.Lock()
	s.pending--
	s.mu.Unlock()
}

// grow makes a table of had entries an eighth larger, unless somebody else did. Tables are then 80
// to 90 % full. An entry costs 36 to 40 bytes, and is copied some nine times in its life.
func (x *index) grow(s *shard, had int) bool {
	size := had + had/8 + 8
	if !x.pool.Claim(int64(size) * entrySize) {
		return false
	}
	s.mu.Lock()
	old := s.slots
	if len(old) != had {
		s.mu.Unlock()
		x.pool.Unclaim(int64(size) * entrySize)
		return true
	}
	s.slots = make([]entry, size)
	for i := range old {
		if e := &old[i]; !e.free() {
			at, _ := s.lookup(e.id(), e.id().Hash())
			s.slots[at] = *e
		}
	}
	s.mu.Unlock()
	x.pool.Unclaim(int64(had) * entrySize)
	x.bytes.Add(int64(size-had) * entrySize)
	return true
}

// put enters id where room was reserved. If id is there already, wins decides by the old place
// whether the new one counts; the place that lost is returned.
func (x *index) put(id hearth.ID, p place, state uint32, wins func(old place) bool) (lost place, lose bool) {
	hash := id.Hash()
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending--
	i, ok := s.lookup(id, hash)
	if !ok {
		s.slots[i] = makeEntry(id, p, state)
		s.count++
		x.count.Add(1)
		return place{}, false
	}
	old := s.slots[i].place()
	if !wins(old) {
		return p, true
	}
	s.slots[i] = makeEntry(id, p, state)
	return old, true
}

// move replaces place old of id by p and keeps its state. false means that id is gone, or lies
// elsewhere by now.
func (x *index) move(id hearth.ID, old, p place) bool {
	hash := id.Hash()
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.lookup(id, hash)
	if !ok || s.slots[i].place() != old {
		return false
	}
	s.slots[i] = makeEntry(id, p, s.slots[i].state())
	return true
}

// remove deletes id, if it lies at *at; a nil at means anywhere.
func (x *index) remove(id hearth.ID, at *place) (place, bool) {
	hash := id.Hash()
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.lookup(id, hash)
	if !ok || at != nil && s.slots[i].place() != *at {
		return place{}, false
	}
	p := s.slots[i].place()
	s.closeGapLocked(i)
	s.count--
	x.count.Add(-1)
	return p, true
}

// closeGapLocked frees entry i and shifts the entries behind it that probing would no longer find.
// An entry may fill the gap if its home is not between gap and entry.
func (s *shard) closeGapLocked(gap int) {
	n := len(s.slots)
	for i := gap + 1; ; i++ {
		if i == n {
			i = 0
		}
		e := &s.slots[i]
		if e.free() {
			break
		}
		home := s.home(e.id().Hash())
		if (i-home+n)%n >= (i-gap+n)%n {
			s.slots[gap] = *e
			gap = i
		}
	}
	s.slots[gap] = entry{}
}

// sample returns an entry chosen by r: the first one at or behind a random position. Entries behind
// gaps are chosen more often, which does no harm to eviction.
func (x *index) sample(r uint64) (id hearth.ID, p place, state uint32, ok bool) {
	for try := range len(x.shards) {
		s := &x.shards[(int(r>>56)+try)%len(x.shards)]
		s.mu.Lock()
		if s.count > 0 {
			i := s.home(r)
			for s.slots[i].free() {
				i = (i + 1) % len(s.slots)
			}
			e := s.slots[i]
			s.mu.Unlock()
			return e.id(), e.place(), e.state(), true
		}
		s.mu.Unlock()
	}
	return id, p, 0, false
}

// drop releases all memory.
func (x *index) drop() {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		x.pool.Unclaim(int64(len(s.slots)) * entrySize)
		x.bytes.Add(-int64(len(s.slots)) * entrySize)
		x.count.Add(-int64(s.count))
		s.slots, s.count = nil, 0
		s.mu.Unlock()
	}
}
