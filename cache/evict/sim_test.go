package evict

import (
	"container/list"
	"math/rand/v2"
	"testing"
)

// cacheSim is a cache of some bytes, run by this package's rules.
type cacheSim struct {
	limit, used int64
	always      bool // admit always, evicting; else into free space
	rng         *rand.Rand
	at          map[int]int // key -> index in entries
	entries     []simEntry
}

type simEntry struct {
	key   int
	size  int64
	state uint32
}

func newSim(limit int64, always bool) *cacheSim {
	return &cacheSim{limit: limit, always: always, at: map[int]int{}, rng: rand.New(rand.NewPCG(1, 2))}
}

// use reads a key at a second and reports whether it was a hit.
func (s *cacheSim) use(key int, size int64, now uint32) bool {
	if i, ok := s.at[key]; ok {
		s.entries[i].state = Touch(s.entries[i].state, now)
		return true
	}
	for s.always && !Admit(s.used, size, s.limit) && len(s.entries) > 0 {
		s.evict(now)
	}
	if Admit(s.used, size, s.limit) {
		s.at[key] = len(s.entries)
		s.entries = append(s.entries, simEntry{key, size, Fresh(now)})
		s.used += size
	}
	return false
}

func (s *cacheSim) evict(now uint32) {
	var picks [Samples]int
	var candidates [Samples]Candidate
	for i := range picks {
		picks[i] = s.rng.IntN(len(s.entries))
		e := s.entries[picks[i]]
		candidates[i] = Candidate{Size: e.size, State: e.state}
	}
	i := picks[Worst(candidates[:], now)]
	last := len(s.entries) - 1
	s.used -= s.entries[i].size
	delete(s.at, s.entries[i].key)
	if i != last {
		s.entries[i] = s.entries[last]
		s.at[s.entries[i].key] = i
	}
	s.entries = s.entries[:last]
}

// epochs reads keys [from, from+n) in random order, once per epoch of some
// seconds, and returns the share of hits in the last epoch.
func epochs(s *cacheSim, from, n, count int, start *uint32) float64 {
	const seconds = 600
	hits := 0
	for range count {
		hits = 0
		for i, k := range s.rng.Perm(n) {
			if s.use(from+k, simSize, *start+uint32(i*seconds/n)) {
				hits++
			}
		}
		*start += seconds
	}
	return float64(hits) / float64(n)
}

const simSize, simKeys = 100 << 10, 4000

func TestEpochsAtHalfCapacity(t *testing.T) {
	// Random-permutation epochs over twice the cache hit about half of the time when misses are admitted into free space only.
	now := uint32(1)
	s := newSim(simKeys/2*simSize, false)
	if got := epochs(s, 0, simKeys, 4, &now); got < 0.48 || got > 0.52 {
		t.Fatalf("%.3f hits, want about 0.50", got)
	}
}

func TestScanDoesNoHarm(t *testing.T) {
	// A one-off scan of twice the cache takes nothing from the epochs, and a fifth if something insists that all of it is admitted.
	for always, want := range map[bool]int{false: simKeys, true: simKeys * 3 / 4} {
		now := uint32(1)
		s := newSim(simKeys*simSize, false)
		epochs(s, 0, simKeys, 3, &now)
		s.always = always
		for i := range 2 * simKeys {
			s.use(1_000_000+i, simSize, now+uint32(i*60/(2*simKeys)))
		}
		s.always = false
		now += 60
		kept := 0
		for k := range simKeys {
			if _, ok := s.at[k]; ok {
				kept++
			}
		}
		if kept < want {
			t.Errorf("always=%v: %d of %d kept after the scan, want %d", always, kept, simKeys, want)
		}
	}
}

func TestOldSetGoesFirst(t *testing.T) {
	// When everything new is kept, a set that nobody reads any more makes room for the one that is read.
	now := uint32(1)
	s := newSim(simKeys*simSize, true)
	epochs(s, 0, simKeys, 3, &now)
	if got := epochs(s, simKeys, simKeys, 4, &now); got < 0.9 {
		t.Fatalf("%.3f hits on the new set in its fourth epoch, want 0.9", got)
	}
}

func TestZipf(t *testing.T) {
	// On a Zipf load eviction by density, admitting always, is not behind LRU.
	const keys, reads, limit = 20_000, 200_000, 2000
	s := newSim(limit*simSize, true)
	lru, order := map[int]*list.Element{}, list.New()
	zipf := rand.NewZipf(s.rng, 1.1, 1, keys-1)
	ours, theirs := 0, 0
	for i := range reads {
		k := int(zipf.Uint64())
		if s.use(k, simSize, uint32(i/50)) {
			ours++
		}
		if e, ok := lru[k]; ok {
			theirs++
			order.MoveToFront(e)
			continue
		}
		lru[k] = order.PushFront(k)
		if order.Len() > limit {
			delete(lru, order.Remove(order.Back()).(int))
		}
	}
	if float64(ours) < float64(theirs)-0.01*reads {
		t.Fatalf("%d hits of %d, LRU has %d", ours, reads, theirs)
	}
	t.Logf("hits: density %.3f, LRU %.3f", float64(ours)/reads, float64(theirs)/reads)
}
