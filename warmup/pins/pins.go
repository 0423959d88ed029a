// Package pins keeps what must stay in the disk tier. It has the sets of pinned objects,
// what each job at work claims of the room, and what fits beside that. A set is a Bloom
// filter.
package pins

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// Pins are the objects that the disk tier must not evict: those of durable pins, and
// those of the jobs at work. A job's objects need that because the tier prefers what was
// used often to what was just loaded. Without it, it would evict the first objects to
// make room for the rest. At most one other object in a hundred is taken for a pinned
// one. It then stays a while longer. The zero value pins nothing.
type Pins struct {
	// Reserve counts memory against a budget, or returns false if there is none left.
	// Unreserve gives it back. nil means that memory is not counted.
	Reserve   func(bytes int64) bool
	Unreserve func(bytes int64)

	mu  sync.Mutex // guards changes of all
	all atomic.Pointer[[]*Set]
}

// Has reports whether an object is pinned, by its version.
func (p *Pins) Has(version [16]byte) bool {
	all := p.all.Load()
	if all == nil {
		return false
	}
	for _, x := range *all {
		if x.Has(version) {
			return true
		}
	}
	return false
}

// Open makes an empty set. Its objects are pinned until it is closed.
func (p *Pins) Open() *Set {
	x := &Set{of: p}
	if p != nil {
		p.change(func(all []*Set) []*Set { return append(all, x) })
	}
	return x
}

func (p *Pins) change(to func([]*Set) []*Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*Set
	if old := p.all.Load(); old != nil {
		all = append(all, *old...)
	}
	all = to(all)
	p.all.Store(&all)
}

const (
	// With pinBits bits and pinProbes probes for each object, one other object in a
	// hundred is taken for a pinned one.
	pinBits   = 10
	pinProbes = 6
	// firstPins is how many objects the first Bloom filter of a set holds. Each further
	// one holds twice as many.
	firstPins = 1 << 12
)

// Set is the objects of one job or one pin. It is a row of Bloom filters, here called
// sieves. Each is twice as large as the one before.
type Set struct {
	of     *Pins      // nil means that nobody asks
	mu     sync.Mutex // guards adding
	sieves atomic.Pointer[[]*sieve]
	lacks  bool // there was no memory for a further filter
}

type sieve struct {
	words []atomic.Uint64
	left  int // how many more objects it takes
}

// Add pins an object, by its version. It returns false if there is no memory for that.
func (x *Set) Add(version [16]byte) bool {
	if x.of == nil || x.Has(version) {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []*sieve
	if p := x.sieves.Load(); p != nil {
		all = *p
	}
	if n := len(all); n == 0 || all[n-1].left == 0 {
		objects := firstPins << n
		bytes := int64(objects * pinBits / 8)
		if x.lacks || x.of.Reserve != nil && !x.of.Reserve(bytes) {
			x.lacks = true
			return false
		}
		grown := append(append([]*sieve(nil), all...), &sieve{words: make([]atomic.Uint64, bytes/8), left: objects})
		all = grown
		x.sieves.Store(&grown)
	}
	last := all[len(all)-1]
	last.left--
	last.probe(version, func(word *atomic.Uint64, bit uint64) bool {
		word.Or(bit)
		return true
	})
	return true
}

// Has reports whether the set has an object, by its version.
func (x *Set) Has(version [16]byte) bool {
	all := x.sieves.Load()
	if all == nil {
		return false
	}
	for _, s := range *all {
		if s.probe(version, func(word *atomic.Uint64, bit uint64) bool { return word.Load()&bit != 0 }) {
			return true
		}
	}
	return false
}

// probe calls each for the bits of a version, until each returns false.
func (s *sieve) probe(version [16]byte, each func(word *atomic.Uint64, bit uint64) bool) bool {
	// Versions are SHA-256 output, so their two halves serve as two hashes.
	at, step := binary.LittleEndian.Uint64(version[:8]), binary.LittleEndian.Uint64(version[8:])|1
	for range pinProbes {
		bit := at % uint64(len(s.words)*64)
		if !each(&s.words[bit/64], 1<<(bit%64)) {
			return false
		}
		at += step
	}
	return true
}

// Close unpins the objects of the set. Nothing is pinned by it any more.
func (x *Set) Close() {
	if x.of == nil {
		return
	}
	x.of.change(func(all []*Set) []*Set {
		var rest []*Set
		for _, y := range all {
			if y != x {
				rest = append(rest, y)
			}
		}
		return rest
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	if all := x.sieves.Load(); all != nil && x.of.Unreserve != nil {
		for _, s := range *all {
			x.of.Unreserve(int64(len(s.words) * 8))
		}
	}
	x.sieves.Store(nil)
	x.lacks = true // a later Add gets no memory
}
