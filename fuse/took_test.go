package fuse

import (
	"testing"
	"time"
)

func TestAnswersAreCountedByTheTimeTheyTook(t *testing.T) {
	// Each answer is in the bucket whose end it did not pass, the ends themselves included, and what takes longer than all is in the last; counting allocates nothing.
	var x took
	var sum time.Duration
	for i := range TookBuckets {
		d := TookBound(i)
		if i == TookBuckets-1 {
			d = time.Hour
		}
		for _, d := range []time.Duration{d, d - 1, d/2 + 1} {
			x.observe(d)
			sum += d
		}
	}
	x.observe(-time.Second) // a clock that was set back
	s := x.load()
	for i, n := range s.Buckets {
		if want := int64(3); i == 0 && n != 4 || i > 0 && n != want {
			t.Errorf("%d answers of at most %v: %v", n, TookBound(i), s.Buckets)
		}
	}
	if s.Sum != sum-time.Second {
		t.Errorf("the sum is %v, want %v", s.Sum, sum-time.Second)
	}
	if n := testing.AllocsPerRun(100, func() { x.since(time.Now()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
