package sparse

import (
	"context"
	"math/bits"

	"github.com/hearthfs/hearth"
)

// Candidate is one unit that may be evicted.
type Candidate struct {
	// ID is the first block of an extent, or of an object.
	ID hearth.ID
	// Size estimates what its eviction frees, in bytes.
	Size int64
	// State is the eviction policy's word.
	State uint32
	// Whole means that the unit is the object: its file is whole, and Options.Shared is not set.
	Whole bool
}

// Evict evicts a candidate and returns the bytes that this freed by now.
func (f *Files) Evict(c Candidate) (freed int64) {
	if c.Whole {
		return f.EvictObject(c.ID.Version)
	}
	return f.EvictExtent(c.ID)
}

// EvictExtent punches the extent of a block. Without Options.Shared it evicts an object as a whole
// if that became whole meanwhile. It does so, too, if the file system cannot tell whether the file
// is read. It does nothing, and returns 0, while the extent is being written or the file is open
// elsewhere.
func (f *Files) EvictExtent(id hearth.ID) (freed int64) {
	return f.EvictTo(id, nil, nil)
}

// EvictTo is EvictExtent that first reads what goes. It asks wants about each held block of the extent,
// or of the object if that goes as a whole. It calls give with each wanted block, whole and verified,
// and releases the View afterwards. These reads are no uses. A bad block is reported and not given, and
// one without memory in the Pool is not given. Both functions are called without locks. A nil wants
// means that nothing is read.
func (f *Files) EvictTo(id hearth.ID, wants func(hearth.ID) bool, give func(hearth.ID, *hearth.View)) (freed int64) {
	x, err := f.acquire(context.Background(), id.Version)
	if err != nil {
		return 0
	}
	if wants != nil {
		f.mu.Lock()
		r, _, _ := f.victimLocked(x, id)
		f.mu.Unlock()
		f.passOn(x, r, wants, give)
	}
	f.mu.Lock()
	r, whole, who := f.victimLocked(x, id)
	filled, claimed := x.whole, !whole && r.n > 0
	if claimed {
		e := &x.extents[id.Extent()]
		e.writers = punching
		x.remove(e, e.have)
		f.sample.update(x)
	}
	f.mu.Unlock()
	if claimed {
		freed = f.punch(x, r, who)
		f.counts.evicted.Add(freed)
		f.mu.Lock()
		x.extents[id.Extent()].writers = 0
		f.mu.Unlock()
	}
	if filled && claimed && freed == 0 { // the file system punches no holes
		whole = true
		if wants != nil {
			f.passOn(x, x.all(), wants, give)
		}
	}
	freed += f.unpin(x) // the last extent removes the files
	if whole && freed == 0 {
		return f.EvictObject(id.Version)
	}
	return freed
}

// victimLocked returns the blocks that an eviction takes for id now, and who may read the file. whole
// means that the object goes with all of them.
func (f *Files) victimLocked(x *object, id hearth.ID) (r run, whole bool, who readers) {
	who = f.readersLocked(x)
	first := id.Extent() * hearth.ExtentBlocks
	switch {
	case who == someReaders:
	case f.sample.single(x) || who == anyReaders:
		return x.all(), true, who
	case id.Index >= 0 && first < x.blocks():
		if e := &x.extents[id.Extent()]; e.writers == 0 && e.have != 0 {
			r = run{first: first, n: int(min(hearth.ExtentBlocks, x.blocks()-first))}
		}
	}
	return r, false, who
}

func (x *index) all() run { return run{n: int(x.blocks())} }

// passOn reads those blocks of a run that are held and wanted. The caller holds a ref.
func (f *Files) passOn(x *object, r run, wants func(hearth.ID) bool, give func(hearth.ID, *hearth.View)) {
	for i := r.first; i < r.first+int64(r.n); i++ {
		id := x.id(i)
		f.mu.Lock()
		held := x.holds(i)
		f.mu.Unlock()
		if !held || !wants(id) {
			continue
		}
		if v, err := f.read(context.Background(), x, span{index: i, n: x.blockLen(i), last: true}); err == nil {
			give(id, v)
			v.Release()
		}
	}
}

// EvictObject unlinks an object once no call uses it and nobody has its file open. It returns the
// bytes that this freed by now: 0 if others are still to finish. Until then its bytes count in
// Used, and a reader of a lent file is served.
func (f *Files) EvictObject(version [16]byte) (freed int64) {
	f.mu.Lock()
	x := f.objects[version]
	if x == nil && f.unindexed.objects > 0 {
		f.mu.Unlock()
		leave, ok := f.stay()
		if !ok {
			return 0
		}
		defer leave()
		return f.giveUp(version)
	}
	if x == nil || x.reaping || f.closed {
		f.mu.Unlock()
		return 0
	}
	x.doomed = true
	f.sample.update(x)
	x.refs++
	f.pins++
	f.mu.Unlock()
	return f.unpin(x)
}

// punch makes holes of blocks that the index has forgotten: the records first, so that no record
// ever stands for a hole. If the file may be read directly the bytes stay. The caller holds a ref
// and the claim on their extents. The file is not lent meanwhile, since blocks are missing.
func (f *Files) punch(x *object, r run, who readers) (freed int64) {
	var zeros [hearth.ExtentBlocks * recordSize]byte
	if err := pwrite(x.handle.sums, zeros[:r.n*recordSize], recordOffset(r.first)); err != nil {
		f.counts.errors.Add(1) // then the record outlives its data, and the next reader finds that out
	}
	if who == noReaders {
		f.punchData(x, r.first, int64(r.n))
	}
	return max(-f.settle(x), 0) // other writers of the object may outgrow it
}

// punchData gives the bytes of n blocks back to the file system, also the odd end of the last one.
func (f *Files) punchData(x *object, first, n int64) {
	if punchRange(x.handle.data, first*hearth.BlockSize, n*hearth.BlockSize) != nil {
		f.counts.errors.Add(1)
	}
}

// Sample draws up to n candidates, pseudo-random by r, one by one and each unit with the same
// chance. Units are extents, and whole files without Options.Shared. Lent files are not drawn. each
// is called without locks.
func (f *Files) Sample(r uint64, n int, each func(Candidate)) {
	drawn := make([]Candidate, 0, n)
	f.mu.Lock()
	total := f.sample.total()
	for i := 0; i < n && total > 0; i++ {
		r = mix(r)
		x := f.sample.pick(int64(r % uint64(total)))
		drawn = append(drawn, x.candidate(r, f.sample.single(x)))
	}
	f.mu.Unlock()
	for _, c := range drawn {
		each(c)
	}
}

// candidate draws one unit of the object. Without an index it can only guess that an extent holds
// something; the eviction loads the index. For an extent of a whole file the file's last use
// counts, since reads of a lent file note no extent. Once an extent is gone, the others are judged
// by their own uses. So they are likely to go before extents of files that are still whole.
func (x *object) candidate(r uint64, single bool) Candidate {
	c := Candidate{ID: x.id(0), Size: x.alloc, State: x.state, Whole: single}
	if single {
		return c
	}
	n := uint64(extentsOf(x.size))
	at := mix(r) % n
	if x.extents == nil {
		c.Size = min(c.Size, hearth.ExtentBlocks*hearth.BlockSize)
	} else {
		for x.extents[at].have == 0 {
			at = (at + 1) % n
		}
		e := &x.extents[at]
		if !x.whole {
			c.State = e.state
		}
		c.Size = int64(bits.OnesCount16(e.have)) * hearth.BlockSize
	}
	c.ID.Index = int64(at) * hearth.ExtentBlocks
	return c
}

// mix is SplitMix64.
func mix(r uint64) uint64 {
	r += 0x9e3779b97f4a7c15
	r = (r ^ r>>30) * 0xbf58476d1ce4e5b9
	r = (r ^ r>>27) * 0x94d049bb133111eb
	return r ^ r>>31
}
