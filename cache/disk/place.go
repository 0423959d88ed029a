package disk

import (
	"math"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/cache/sparse"
)

// Needs returns the index of the directory that takes an object now, and an estimate of the bytes
// that it takes there.
func (s *Store) Needs(o *hearth.Object) (dir int, bytes int64) {
	if dir = s.place(&o.Version); !s.dirs[dir].writable() {
		dir = max(0, s.nextWritable(&o.Version))
	}
	if isWhole(o, s.dirs[dir].budget) {
		return dir, sparse.Needs(o.Size)
	}
	return dir, segment.Needs(o)
}

// Free returns the number of bytes that each directory takes now without an eviction. It leaves out
// one group commit, which is measured only after its end.
func (s *Store) Free() []int64 {
	all := make([]int64, len(s.dirs))
	for i, d := range s.dirs {
		if d.writable() {
			all[i] = max(0, d.limit.Load()-d.used.Load()-d.queue.Pending()-writeUnit)
		}
	}
	return all
}

// place returns the index of the object's directory, by weighted rendezvous hashing. So a new or
// removed directory moves only its own share.
func (s *Store) place(version *[16]byte) int { return s.best(version, false) }

// nextWritable returns the best-ranked directory that takes writes now, or -1.
func (s *Store) nextWritable(version *[16]byte) int { return s.best(version, true) }

func (s *Store) best(version *[16]byte, writable bool) int {
	if len(s.dirs) == 1 && !writable {
		return 0
	}
	best, least := -1, math.Inf(1)
	for i, d := range s.dirs {
		if writable && !d.writable() {
			continue
		}
		if score := rendezvousScore(version, d.seed, d.budget); score < least {
			best, least = i, score
		}
	}
	return best
}
