package fuse

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// TookBuckets of answers are counted by the time they took: the first up to tookFirst, each next one up to four times as
// long, to 16 s, and the last what took longer than any.
const (
	TookBuckets = 12
	tookFirst   = 16 * time.Microsecond
)

// TookBound is the upper end of a bucket; of the last one: 0, for it has none.
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

// took counts answers as Took has them: an answer costs two additions, and no lock.
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
