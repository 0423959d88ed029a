package segment

import (
	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// Candidate is a block that may be evicted.
type Candidate struct {
	ID hearth.ID
	// Size is the block's bytes on disk, header and padding included. Short blocks share pages: to
	// evict one may free less now, and more with its neighbours.
	Size int64
	// State is the eviction policy's word.
	State uint32
}

// Evict forgets a block and returns the allocated bytes that it freed at once: the block's pages,
// or the whole segment after its last block. An error of the device is returned by the next Append,
// Sync or Close.
func (l *Log) Evict(id hearth.ID) (freed int64) {
	if l.closed.Load() {
		return 0
	}
	p, ok := l.index.Remove(id, nil)
	if !ok {
		return 0
	}
	l.counters.evicted.Add(1)
	freed, err := l.drop(id, p)
	l.settler.fail(err)
	return freed
}

// Holds reports whether a Log can hold a block: only those in the first 128 TiB of an object.
func Holds(id hearth.ID) bool { return id.Index >= 0 && uint64(id.Index) < record.MaxIndex }

// EvictObject evicts all blocks of a version; the object has that many.
func (l *Log) EvictObject(version [16]byte, blocks int64) {
	if blocks > max(l.index.Len(), stepAt) { // most of a huge object is not here
		for _, id := range l.index.Of(version, l.step) {
			l.Evict(id)
		}
		return
	}
	for i := range blocks {
		if i%stepAt == 0 {
			l.step()
		}
		l.Evict(hearth.ID{Version: version, Index: i})
	}
}

// stepAt is how many places of an index are visited between two steps: well below a millisecond.
const stepAt = 4096

// Sample calls each with n blocks chosen by the seed r; a block may come twice. No lock is held
// meanwhile.
func (l *Log) Sample(r uint64, n int, each func(Candidate)) {
	for range n {
		r += 0x9e3779b97f4a7c15 // SplitMix64
		x := (r ^ r>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		id, p, state, ok := l.index.Sample(x ^ x>>31)
		if !ok {
			return
		}
		each(Candidate{ID: id, Size: record.Size(int(p.Length)), State: state})
	}
}
