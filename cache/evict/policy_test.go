package evict

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

// block is the only block of the i-th object.
func block(i int) hearth.ID {
	var id hearth.ID
	binary.LittleEndian.PutUint64(id.Version[:], mix(uint64(i)))
	return id
}

const testSize = 100 << 10

// epoch asks for blocks [from, from+n) once each in random order, within 600 s.
func epoch(p *Policy, random *rand.Rand, from, n int, now *uint32) {
	for i, k := range random.Perm(n) {
		p.Use(block(from+k), testSize, *now+uint32(i*600/n))
	}
	*now += 600
}

func TestDuelFollowsTheLoad(t *testing.T) {
	// Epochs over twice the cache are not worth replacing for; another set is, until the directory has turned over; then again not.
	const n = 4000
	p, random, now := NewPolicy(n/2*testSize), rand.New(rand.NewPCG(1, 2)), uint32(1)
	for range 4 {
		epoch(p, random, 0, n, &now)
		if p.Replaces() {
			t.Fatal("replaces under epochs over twice the cache")
		}
	}
	epoch(p, random, n, n, &now)
	if p.Replaces() {
		t.Fatal("replaces after a single pass over other blocks, which may be a scan")
	}
	turned := false
	for i, k := range random.Perm(n) {
		p.Use(block(n+k), testSize, now+uint32(i*600/n))
		turned = turned || p.Replaces()
	}
	if !turned {
		t.Fatal("never replaces in the second epoch of another set")
	}
	now += 600
	epoch(p, random, n, n, &now)
	if p.Replaces() {
		t.Fatal("still replaces after the third epoch of another set")
	}
}

func TestDuelFollowsRecency(t *testing.T) {
	// A reader that comes back to each block a little later is worth replacing for, for ever.
	const n, lag = 20_000, 200
	p := NewPolicy(1000 * testSize)
	for i := range n {
		p.Use(block(i), testSize, uint32(i))
		if i >= lag {
			p.Use(block(i-lag), testSize, uint32(i))
		}
	}
	if !p.Replaces() {
		t.Fatal("admits into free space only")
	}
}

func TestUseNeverWaitsNorAllocates(t *testing.T) {
	// A use allocates nothing, and passes by when another holds the ghosts.
	p := NewPolicy(100 * testSize)
	i := 0
	if n := testing.AllocsPerRun(5000, func() { i++; p.Use(block(i%500), testSize, uint32(i)) }); n != 0 {
		t.Errorf("%v allocations per use", n)
	}
	p.mu.Lock()
	for i := range 64 { // some of them in the group
		p.Use(block(i), testSize, 1)
	}
	p.mu.Unlock()
	if Bytes > 256<<10 {
		t.Errorf("a policy takes %d bytes", Bytes)
	}
}

func TestUseFromManyGoroutines(t *testing.T) {
	// Uses, limits and questions from all sides; the race detector watches.
	p := NewPolicy(100 * testSize)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 5000 {
				p.Use(block(i*(g+1)%300), testSize, uint32(i))
				if i%100 == 0 {
					p.SetLimit(int64(50+i%100) * testSize)
				}
				p.Worst([]Candidate{{Size: 1, State: Fresh(1)}}, uint32(i))
			}
		})
	}
	wg.Wait()
	p.check(t)
}

func TestGhosts(t *testing.T) {
	// Whatever is asked for, under whatever limit, ghosts stay within capacity and their entries, each entry is found, and the sums are right.
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		p := NewPolicy(rapid.Int64Range(1, 20_000*testSize).Draw(t, "limit"))
		size := rapid.SampledFrom([]int{4 << 10, hearth.BlockSize}).Draw(t, "size")
		keys := rapid.IntRange(1, 60_000).Draw(t, "keys")
		for i := range rapid.IntRange(1, 60_000).Draw(t, "uses") {
			id := block(random.IntN(keys))
			id.Index = int64(random.IntN(3))
			p.Use(id, 1+random.IntN(size), uint32(i/10))
			if random.IntN(5000) == 0 {
				p.SetLimit(random.Int64N(20_000 * testSize))
			}
		}
		p.check(t)
	})
}

// check holds the ghosts' invariants.
func (p *Policy) check(t interface {
	Helper()
	Fatalf(string, ...any)
}) {
	t.Helper()
	for i := range p.ghosts {
		g := &p.ghosts[i]
		used, filled := int64(0), 0
		for _, at := range g.slots {
			if at != 0 {
				filled++
			}
		}
		for j := range g.n {
			e := &g.entries[j]
			used += int64(e.size)
			if slot, ok := g.find(e.key); !ok || int(g.slots[slot]) != j+1 || !grouped(e.key, p.shift.Load()) {
				t.Fatalf("ghost %d: entry %d is not found, or outside the group", i, j)
			}
		}
		if used != g.used || filled != g.n || g.n > ghostEntries {
			t.Fatalf("ghost %d: %d bytes in %d entries, counted %d in %d", i, used, filled, g.used, g.n)
		}
	}
}

func TestWhatYieldsToANewcomer(t *testing.T) {
	// What was never used and is old yields to what nobody has asked for, under either rule; what is used as often as its neighbours, and late, yields where one miss
	// is as good as another, and stays where what is not used soon goes; what was used most, this moment, stays.
	const now = 100_000
	used := func(every, idle uint32) uint32 {
		state := Fresh(now - idle - 6*every)
		for i := range uint32(6) {
			state = Touch(state, now-idle-(5-i)*every)
		}
		return state
	}
	for _, c := range []struct {
		what             string
		worst            uint32
		recent, frequent bool
	}{
		{"never used, an hour old", Fresh(now - 3600), true, true},
		{"used each 10 minutes, and 20 minutes ago", used(600, 1200), true, false},
		{"used each second, and now", used(1, 0), false, false},
	} {
		candidates := []Candidate{{Size: testSize, State: used(600, 60)}, {Size: testSize, State: used(600, 300)}, {Size: testSize, State: c.worst}}
		for rule, want := range map[int32]bool{recent: c.recent, frequent: c.frequent} {
			p := NewPolicy(1 << 30)
			p.winner.Store(rule)
			if got := p.Yields(candidates, 2, now); got != want {
				t.Errorf("%s, rule %d: %v", c.what, rule, got)
			}
		}
	}
}
