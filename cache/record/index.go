package record

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

// Place says where a record lies: the number of its segment, which has 24 bits, its offset in units, and
// the block's length.
type Place struct{ Slot, Unit, Length uint32 }

// Note is the note of the block at a place.
func (p Place) Note(id hearth.ID) Note { return Note{ID: id, Unit: p.Unit, Length: p.Length} }

func makeEntry(id hearth.ID, p Place, state uint32) entry {
	i := uint64(id.Index)
	return entry{id.Version, [2]uint64{
		uint64(p.Slot)<<40 | uint64(p.Unit)<<16 | i&0xffff,
		uint64(state)<<32 | uint64(p.Length)<<11 | i>>16,
	}}
}

func (e *entry) free() bool { return e.length() == 0 }

func (e *entry) length() uint32 { return uint32(e.word[1]) >> 11 }

func (e *entry) state() uint32 { return uint32(e.word[1] >> 32) }

func (e *entry) setState(state uint32) {
	e.word[1] = uint64(state)<<32 | e.word[1]&0xffffffff
}

func (e *entry) id() hearth.ID {
	return hearth.ID{Version: e.version, Index: int64(e.word[0]&0xffff | e.word[1]&0x7ff<<16)}
}

func (e *entry) place() Place {
	return Place{Slot: uint32(e.word[0] >> 40), Unit: uint32(e.word[0]>>16) & 0xffffff, Length: e.length()}
}

// Index maps IDs to places: 256 tables by the hash's first byte, each with open
// addressing and linear probing.
type Index struct {
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

// NewIndex returns an empty index, whose memory is claimed in a Pool.
func NewIndex(pool *hearth.Pool) *Index { return &Index{pool: pool} }

func (x *Index) shard(hash uint64) *shard { return &x.shards[hash>>56] }

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

// Get returns the place of id. touch, if not nil, gives the entry its next State.
func (x *Index) Get(id hearth.ID, touch func(uint32) uint32) (Place, bool) {
	hash := id.Hash()
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.lookup(id, hash)
	if !ok {
		return Place{}, false
	}
	e := &s.slots[i]
	if touch != nil {
		e.setState(touch(e.state()))
	}
	return e.place(), true
}

// Len is the number of blocks.
func (x *Index) Len() int64 { return x.count.Load() }

// Memory is what the tables take in the Pool, in bytes.
func (x *Index) Memory() int64 { return x.bytes.Load() }

// Cost estimates the memory in bytes that so many more blocks would take. Eviction leaves the tables'
// memory as it is, and they do not fill up evenly.
func (x *Index) Cost(blocks int64) int64 {
	free := (x.bytes.Load()/entrySize*9/10 - x.count.Load()) * 3 / 4
	if blocks <= free {
		return 0
	}
	// An entry takes up to 40 bytes; a growing table is there twice for a moment.
	return (blocks-free)*entrySize*10/8 + x.bytes.Load()/int64(len(x.shards))*5/4
}

// Each calls f for all blocks, with their States, under the lock of a table.
func (x *Index) Each(f func(id hearth.ID, p Place, state uint32)) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		for j := range s.slots {
			if e := &s.slots[j]; !e.free() {
				f(e.id(), e.place(), e.state())
			}
		}
		s.mu.Unlock()
	}
}

// Of returns the blocks of a version. step is called between two tables.
func (x *Index) Of(version [16]byte, step func()) (all []hearth.ID) {
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

// State is the State of a block, or 0 if it is not there.
func (x *Index) State(id hearth.ID) (state uint32) {
	x.Get(id, func(s uint32) uint32 { state = s; return s })
	return state
}

// SetState sets the State of a block, and reports whether it is there.
func (x *Index) SetState(id hearth.ID, state uint32) bool {
	_, ok := x.Get(id, func(uint32) uint32 { return state })
	return ok
}

// Room reserves room for id, to be put later; false means that the Pool has no memory. Each success
// is followed by one put or one cancel.
func (x *Index) Room(id hearth.ID) bool {
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

// Rooms reserves room for all of some records, or for none.
func (x *Index) Rooms(notes []Note) bool {
	for i := range notes {
		if !x.Room(notes[i].ID) {
			for _, n := range notes[:i] {
				x.Cancel(n.ID)
			}
			return false
		}
	}
	return true
}

// Expect makes empty tables for n entries, some 85 % full, or for as many as there is memory for.
// That memory includes the counts of so many pages. false means that the tables are not for all.
func (x *Index) Expect(n int, pages int64) bool {
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

// Cancel gives back what Room reserved.
func (x *Index) Cancel(id hearth.ID) {
	s := x.shard(id.Hash())
	s.mu.Lock()
	s.pending--
	s.mu.Unlock()
}

// grow makes a table of had entries an eighth larger, unless somebody else did. Tables are then 80
// to 90 % full. An entry costs 36 to 40 bytes, and is copied some nine times in its life.
func (x *Index) grow(s *shard, had int) bool {
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

// Put enters id where room was reserved. If id is there already, wins decides by the old place
// whether the new one counts; the place that lost is returned.
func (x *Index) Put(id hearth.ID, p Place, state uint32, wins func(old Place) bool) (lost Place, lose bool) {
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
		return Place{}, false
	}
	old := s.slots[i].place()
	if !wins(old) {
		return p, true
	}
	s.slots[i] = makeEntry(id, p, state)
	return old, true
}

// Move replaces place old of id by p and keeps its state. false means that id is gone, or lies
// elsewhere by now.
func (x *Index) Move(id hearth.ID, old, p Place) bool {
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

// Remove deletes id, if it lies at *at; a nil at means anywhere.
func (x *Index) Remove(id hearth.ID, at *Place) (Place, bool) {
	hash := id.Hash()
	s := x.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.lookup(id, hash)
	if !ok || at != nil && s.slots[i].place() != *at {
		return Place{}, false
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

// Sample returns an entry chosen by r: the first one at or behind a random position. Entries behind
// gaps are chosen more often, which does no harm to eviction.
func (x *Index) Sample(r uint64) (id hearth.ID, p Place, state uint32, ok bool) {
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

// Drop releases all memory.
func (x *Index) Drop() {
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
