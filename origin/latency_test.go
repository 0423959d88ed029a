package origin

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestLastMinuteAndAll(t *testing.T) {
	// 98 quick answers and two slow ones: the median, the 99th of 100 and the worst are
	// told for a minute; then they are forgotten, but not by the sums of all.
	synctest.Test(t, func(t *testing.T) {
		var h Latency
		for range 98 {
			h.Observe(20*time.Millisecond, time.Now())
		}
		h.Observe(300*time.Millisecond, time.Now())
		h.Observe(50*time.Second, time.Now())
		s := h.Stats(time.Now())
		if s.Median < 20*time.Millisecond || s.Median > 30*time.Millisecond || s.P99 < 300*time.Millisecond || s.P99 > 450*time.Millisecond || s.Worst != 50*time.Second {
			t.Errorf("of the last minute %v, %v, %v", s.Median, s.P99, s.Worst)
		}
		time.Sleep(50 * time.Second)
		h.Observe(40*time.Millisecond, time.Now())
		if s = h.Stats(time.Now()); s.Worst != 50*time.Second {
			t.Errorf("after 50 s the worst is %v", s.Worst)
		}
		time.Sleep(11 * time.Second)
		if s = h.Stats(time.Now()); s.Worst != 40*time.Millisecond || s.Median != s.Worst || s.P99 != s.Worst {
			t.Errorf("after 61 s: %v, %v, %v", s.Median, s.P99, s.Worst)
		}
		time.Sleep(time.Hour)
		s = h.Stats(time.Now())
		all := int64(0)
		for i, b := range s.Buckets {
			if all += b.Count; i > 0 && i < len(s.Buckets)-1 && b.LE <= s.Buckets[i-1].LE {
				t.Errorf("bucket %d ends at %v", i, b.LE)
			}
		}
		if all != 101 || s.Buckets[len(s.Buckets)-1] != (LatencyBucket{0, 1}) || s.Worst != 0 || s.Median != 0 || s.Sum != 98*20*time.Millisecond+50*time.Second+340*time.Millisecond {
			t.Errorf("an hour later: %+v", s)
		}
	})
}

// BenchmarkObserve is what an answer of an origin costs more.
func BenchmarkObserve(b *testing.B) {
	var h Latency
	for b.Loop() {
		h.Observe(20*time.Millisecond, time.Now())
	}
}
