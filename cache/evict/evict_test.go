package evict

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestStateRemembers(t *testing.T) {
	// An entry used each hundred seconds says so, within a half octave.
	s := Fresh(1000)
	if Hits(s) != 0 || idleOf(s, 1060) != 60 {
		t.Fatalf("fresh: %d hits, idle %d", Hits(s), idleOf(s, 1060))
	}
	for i := uint32(1); i <= 10; i++ {
		s = Touch(s, 1000+100*i)
	}
	if got := intervalOf(s); Hits(s) != maxHits || got < 80 || got > 125 {
		t.Fatalf("hits %d, interval %d, want %d and about 100", Hits(s), got, maxHits)
	}
	if again := Touch(s, 2000); again != s {
		t.Fatalf("a second use in the same second changed %x to %x", s, again)
	}
}

func TestStateProperties(t *testing.T) {
	// Whatever the clock does, a touched State is idle for 0 s, its interval lies near what was seen, and Density is finite and falls with idleness.
	rapid.Check(t, func(t *rapid.T) {
		now := rapid.Uint32().Draw(t, "start")
		s, lo, hi := Fresh(now), uint32(math.MaxUint32), uint32(0)
		for range rapid.IntRange(1, 12).Draw(t, "uses") {
			dt := rapid.Uint32Range(1, 1<<20).Draw(t, "wait")
			lo, hi = min(lo, dt), max(hi, dt)
			now += dt
			s = Touch(s, now)
		}
		got := float64(intervalOf(s))
		if idleOf(s, now) != 0 || got < float64(lo)/1.5-1 || got > float64(hi)*1.5+1 {
			t.Fatalf("interval %v outside [%d, %d], idle %d", got, lo, hi, idleOf(s, now))
		}
		size := rapid.Int64Range(0, 1<<40).Draw(t, "size")
		near, far := Density(size, s, now, 0), Density(size, s, now+1000, 0)
		if !(far > 0) || far >= near || math.IsInf(near, 0) {
			t.Fatalf("density %v now, %v later", near, far)
		}
	})
}

func TestAnEntryUsedInTheFutureIsNotIdle(t *testing.T) {
	// Somebody reads the clock, and others use a block before he draws it: for him it was used just now, keeps its interval,
	// and goes after one that was used before it. So it is if the clock was set back, by up to 24 days.
	rapid.Check(t, func(t *rapid.T) {
		now, back := rapid.Uint32().Draw(t, "now"), rapid.Uint32Range(0, ahead-1).Draw(t, "back")
		every := rapid.Uint32Range(1, 1000).Draw(t, "every")
		s := Fresh(now - 4*every)
		for i := range uint32(4) {
			s = Touch(s, now-(3-i)*every)
		}
		if idle, again := Idle(s, now-back), Touch(s, now-back); idle != 0 || again != s {
			t.Fatalf("idle for %d s, interval %d s, then %d s", idle, intervalOf(s), intervalOf(again))
		}
		old := Touch(Fresh(now-back-2000*every), now-back-1000*every)
		if w := Worst([]Candidate{{Size: 100_000, State: s}, {Size: 100_000, State: old}}, now-back, 1); w != 1 {
			t.Fatal("the block used last goes first")
		}
	})
}

func TestQuantiseRounds(t *testing.T) {
	// Every interval that a State can hold comes back within a fifth.
	for s := uint32(1); s < 1<<timeBits; s += 1 + s/97 {
		got := float64(intervalOf(quantise(s) << hitBits))
		if got < float64(s)/1.21-1 || got > float64(s)*1.21+1 {
			t.Fatalf("%d s became %v", s, got)
		}
	}
}

func TestWorstOrder(t *testing.T) {
	// Replaced goes before foreign, foreign before ours; among ours the never used, the idle and the large go first.
	const now = 10_000
	used := Touch(Touch(Fresh(now-200), now-100), now)
	stale := Touch(Touch(Fresh(now-5000), now-4900), now-4800)
	for _, c := range []struct {
		name string
		in   []Candidate
		want int
	}{
		{"nothing", nil, -1},
		{"replaced first", []Candidate{{Size: 1, State: Fresh(0)}, {Size: 1, State: used, Foreign: true}, {Size: 1, State: used, Replaced: true}}, 2},
		{"then foreign", []Candidate{{Size: 1 << 20, State: Fresh(0)}, {Size: 1, State: used, Foreign: true}}, 1},
		{"never a pinned one", []Candidate{{Size: 1, State: Fresh(0), Pinned: true, Replaced: true}, {Size: 1, State: used}}, 1},
		{"only pinned ones", []Candidate{{Size: 1, State: Fresh(0), Pinned: true}}, -1},
		{"two intervals passed", []Candidate{{Size: 1, State: Fresh(now)}, {Size: 1, State: stale}}, 1},
		{"scan before epoch", []Candidate{{Size: 1, State: used}, {Size: 1, State: Fresh(now)}}, 1},
		{"large before small", []Candidate{{Size: 4096, State: used}, {Size: 1 << 20, State: used}}, 1},
		{"oldest of the never used", []Candidate{{Size: 9, State: Fresh(now)}, {Size: 9, State: Fresh(now - 9)}}, 1},
	} {
		if got := Worst(c.in, now, 3); got != c.want {
			t.Errorf("%s: %d goes, want %d", c.name, got, c.want)
		}
	}
}
