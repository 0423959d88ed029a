package origin

import (
	"math"
	"sync"
	"time"
)

// This file keeps how long answers took: a histogram of all, and for the last minute
// their quantiles. Its size is fixed; an answer costs a lock and some additions.

const (
	// latencyBuckets are each half as wide again as the one before: from a millisecond to 38 s,
	// longer than an origin may be silent. The last has no bound.
	latencyBuckets = 28
	first          = time.Millisecond
	step           = 1.5
	// The last minute is twelve slots of 5 s, the one that is being filled among them.
	slots    = 12
	slotTime = 5 * time.Second
)

// Latency counts answers by the time they took. The zero value is empty.
type Latency struct {
	mu    sync.Mutex // guards the rest
	began time.Time  // the first answer; slots are counted from it, so setting the clock back makes no new ones
	count [latencyBuckets]int64
	sum   time.Duration
	slot  [slots]latencySlot
}

type latencySlot struct {
	number int64 // of the slot, from 1 on; content under another number is old
	count  [latencyBuckets]int64
	worst  time.Duration
}

// latencyBound is the upper end of a bucket.
func latencyBound(i int) time.Duration {
	if i == latencyBuckets-1 {
		return math.MaxInt64
	}
	return time.Duration(float64(first) * math.Pow(step, float64(i))).Round(100 * time.Microsecond)
}

// Observe counts an answer that took d and came now.
func (h *Latency) Observe(d time.Duration, now time.Time) {
	i := 0
	for d > latencyBound(i) {
		i++
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	number := h.numberLocked(now)
	h.count[i]++
	h.sum += d
	s := &h.slot[number%slots]
	if s.number != number {
		*s = latencySlot{number: number}
	}
	s.count[i]++
	s.worst = max(s.worst, d)
}

func (h *Latency) numberLocked(now time.Time) int64 {
	if h.began.IsZero() {
		h.began = now
	}
	return 1 + int64(max(0, now.Sub(h.began))/slotTime)
}

// LatencyBucket counts the answers that took at most LE. The last one of a Latency is unbounded and has
// LE 0.
type LatencyBucket struct {
	LE    time.Duration
	Count int64 // not cumulative
}

// LatencyStats are a Latency's figures.
type LatencyStats struct {
	// Buckets of all answers, the shortest first, and the sum of their times.
	Buckets []LatencyBucket
	Sum     time.Duration
	// Median, P99 and Worst are of the last minute; 0: there was no answer. The first two are upper
	// bounds of their buckets, or the worst time if that is less.
	Median, P99, Worst time.Duration
}

// Stats returns the present figures.
func (h *Latency) Stats(now time.Time) LatencyStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := LatencyStats{Sum: h.sum, Buckets: make([]LatencyBucket, latencyBuckets)}
	var minute [latencyBuckets]int64
	var all int64
	oldest := max(0, h.numberLocked(now)-slots)
	for i := range h.slot {
		if x := &h.slot[i]; x.number > oldest {
			for k, n := range x.count {
				minute[k] += n
				all += n
			}
			s.Worst = max(s.Worst, x.worst)
		}
	}
	for i, n := range h.count {
		s.Buckets[i] = LatencyBucket{latencyBound(i), n}
	}
	s.Buckets[latencyBuckets-1].LE = 0
	s.Median, s.P99 = min(s.Worst, quantile(&minute, all, 0.5)), min(s.Worst, quantile(&minute, all, 0.99))
	return s
}

// quantile is the upper bound of the bucket that holds the answer of that rank.
func quantile(count *[latencyBuckets]int64, all int64, q float64) time.Duration {
	rank, seen := int64(math.Ceil(q*float64(all))), int64(0)
	for i, n := range count {
		if seen += n; seen >= rank {
			return latencyBound(i)
		}
	}
	return 0
}
