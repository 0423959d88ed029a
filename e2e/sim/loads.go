package sim

import (
	"math"
	"math/rand/v2"
	"sort"
)

// epochSeconds is how long an epoch takes in the loads.
const epochSeconds = 600

// Sizes gives each key its size in bytes.
type Sizes func(key uint32) int64

// Fixed is one size for all.
func Fixed(bytes int64) Sizes { return func(uint32) int64 { return bytes } }

// Between spreads sizes evenly over [least, most], by key.
func Between(least, most int64) Sizes {
	return func(key uint32) int64 { return least + int64(mix(uint64(key)|1<<40)%uint64(most-least+1)) }
}

// Load is made step by step; the zero value with Sizes and Random is empty.
type Load struct {
	Requests []Request
	sizes    Sizes
	random   *rand.Rand
	now      float64
	phase    int
}

// NewLoad is an empty load of a seed.
func NewLoad(seed uint64, sizes Sizes) *Load {
	return &Load{sizes: sizes, random: rand.New(rand.NewPCG(seed, 77)), now: 1}
}

func (l *Load) ask(key uint32, wait float64) {
	l.now += wait
	l.Requests = append(l.Requests, Request{Key: key, Size: l.sizes(key), Now: uint32(l.now), Phase: l.phase})
}

// Epochs reads keys [from, from+n) in random order, once an epoch; each epoch is
// a phase.
func (l *Load) Epochs(from uint32, n, count int) *Load {
	for range count {
		for _, k := range l.random.Perm(n) {
			l.ask(from+uint32(k), epochSeconds/float64(n))
		}
		l.phase++
	}
	return l
}

// TwoJobs are two readers of one set in the same order per epoch, the second
// behind the first by a tenth of the set; each epoch is a phase.
func (l *Load) TwoJobs(n, count int) *Load {
	lag := n / 10
	for range count {
		order := l.random.Perm(n)
		for i := range n + lag {
			wait := epochSeconds / float64(n+lag)
			if i < n {
				l.ask(uint32(order[i]), wait)
				wait = 0
			}
			if i >= lag {
				l.ask(uint32(order[i-lag]), wait)
			}
		}
		l.phase++
	}
	return l
}

// Scan reads n keys from first on once, as a phase.
func (l *Load) Scan(first uint32, n int) *Load {
	for i := range n {
		l.ask(first+uint32(i), 60/float64(n))
	}
	l.phase++
	return l
}

// Zipf asks count times for keys [from, from+n), the i-th popular with weight
// i^-s, as a phase. A tenth of what is asked for between is asked for only once.
func (l *Load) Zipf(n, count int, s float64) *Load {
	sums := make([]float64, n)
	sum := 0.0
	for i := range sums {
		sum += math.Pow(float64(i+1), -s)
		sums[i] = sum
	}
	names := l.random.Perm(n) // so that size does not follow from rank
	for i := range count {
		key := uint32(1<<24 + i)
		if l.random.IntN(10) > 0 {
			key = uint32(names[sort.SearchFloat64s(sums, l.random.Float64()*sum)])
		}
		l.ask(key, 0.02)
	}
	l.phase++
	return l
}

// Models are the sizes of a Zipf load of models: one key in four is a shard of
// 16 MiB, the others are small files of 4 to 64 KiB between them.
func Models(key uint32) int64 {
	if key < 1<<24 && key%4 == 0 {
		return 16 << 20
	}
	return Between(4<<10, 64<<10)(key)
}
