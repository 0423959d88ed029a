package fuse

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// TookBuckets is the number of buckets that count answers by the time they took. The first bucket
// ends at tookFirst, each next one at four times the end before, up to 16 s. The last one has no
// end.
const (
	TookBuckets = 12
	tookFirst   = 16 * time.Microsecond
)

// TookBound returns the upper end of a bucket, or 0 for the last one, which has none.
func TookBound(bucket int) time.Duration {
	if bucket == TookBuckets-1 {
		return 0
	}
	return tookFirst << (2 * bucket)
}

// Took is how long the answers of one kind took until they were ready to be written.
type Took struct {
	Buckets [TookBuckets]int64
	Sum     time.Duration
}

// took counts answers for Took. An answer costs two additions and no lock.
type took struct {
	buckets [TookBuckets]atomic.Int64
	sum     atomic.Int64
}

// since counts an answer that began then.
func (t *took) since(began time.Time) { t.observe(time.Since(began)) }

func (t *took) observe(d time.Duration) {
	over := uint64(max(0, d-1)) / uint64(tookFirst) // 0: the first bucket
	t.buckets[min(TookBuckets-1, (bits.Len64(over)+1)/2)].Add(1)
	t.sum.Add(int64(d))
}

func (t *took) load() (s Took) {
	for i := range t.buckets {
		s.Buckets[i] = t.buckets[i].Load()
	}
	s.Sum = time.Duration(t.sum.Load())
	return s
}
