package place

import (
	"math"

	"github.com/zeebo/xxh3"
)

// draw is what a node needs to draw for slots.
type draw struct {
	seed   uint64
	weight float64
	// reach is the weight and a little more, so that rounding never makes a comparison reject a
	// draw that is better.
	reach float64
	zone  uint16 // index of the zone in the Map
}

func newDraw(n Node, zone uint16) draw {
	w := float64(n.Weight)
	return draw{seed: xxh3.HashString(n.ID), weight: w, reach: w * (1 + 1e-9), zone: zone}
}

// uniform is the node's number for a slot's seed, strictly between 0 and 1.
func (d *draw) uniform(seed uint64) float64 {
	h := mix(d.seed ^ seed)
	return (float64(int64(h>>12)) + 0.5) / (1 << 52)
}

// score is the node's draw for a slot's seed. It is never less than uniform/weight, which is cheap
// and mostly tells that a node has none of the first ranks.
func (d *draw) score(seed uint64) float64 { return exponential(d.uniform(seed)) / d.weight }

// exponential is -log(1-v) for v = (k + 1/2) / 2^52, 0 <= k < 2^52, with a relative error below
// 1e-12. math.Log is assembly on one processor and has fused steps on another, so its last bit
// differs. Here each product is rounded by itself, so that all nodes of a ring agree. The logarithm
// of m*2^e is e*log(2) + 2*atanh((m-1)/(m+1)).
func exponential(v float64) float64 {
	bits := math.Float64bits(1 - v) // exact, and not below 2^-53
	e := int(bits>>52) - 1023
	m := math.Float64frombits(bits&(1<<52-1) | 1023<<52)
	if m > math.Sqrt2 {
		m /= 2
		e++
	}
	t := (m - 1) / (m + 1) // within 0.172, so that t^16/17 is below 1e-13
	tt := float64(t * t)
	sum := 1.0 / 15
	sum = float64(sum*tt) + 1.0/13
	sum = float64(sum*tt) + 1.0/11
	sum = float64(sum*tt) + 1.0/9
	sum = float64(sum*tt) + 1.0/7
	sum = float64(sum*tt) + 1.0/5
	sum = float64(sum*tt) + 1.0/3
	sum = float64(sum*tt) + 1
	return -(float64(float64(e)*math.Ln2) + float64(2*t*sum))
}

// scored is an owner's index with its score.
type scored struct {
	score float64
	index uint16
}

// before reports whether x is better. Owners are sorted by id, so the lower id wins if scores are
// equal.
func (x scored) before(y scored) bool {
	return x.score < y.score || x.score == y.score && x.index < y.index
}

// best keeps the best of those that were added, the best one first.
type best struct {
	n  int
	at [kept]scored
}

func (b *best) add(x scored) {
	i := b.n
	if i == kept {
		if i--; !x.before(b.at[i]) {
			return
		}
	} else {
		b.n++
	}
	for ; i > 0 && x.before(b.at[i-1]); i-- {
		b.at[i] = b.at[i-1]
	}
	b.at[i] = x
}

// outside is the index of the first one outside of the zone of the first. 0 means that there is
// none.
func (m *Map) outside(b *best) int {
	for i := 1; m.zoned && i < b.n; i++ {
		if m.draws[b.at[i].index].zone != m.draws[b.at[0].index].zone {
			return i
		}
	}
	return 0
}

// rank draws a slot's ranks from all owners, of which there is at least one.
func (m *Map) rank(s Slot) ranking {
	seed := s.seed()
	var b best
	worst := math.Inf(1) // the worst score that is still good enough
	for i := range m.draws {
		d := &m.draws[i]
		v := d.uniform(seed)
		if v > worst*d.reach {
			continue
		}
		b.add(scored{exponential(v) / d.weight, uint16(i)})
		if b.n == kept {
			worst = b.at[kept-1].score
		}
	}
	other := scored{score: math.Inf(1)}
	if m.zoned && m.outside(&b) == 0 {
		zone := m.draws[b.at[0].index].zone
		for i := range m.draws {
			d := &m.draws[i]
			if v := d.uniform(seed); d.zone != zone && v <= other.score*d.reach {
				if x := (scored{exponential(v) / d.weight, uint16(i)}); x.before(other) {
					other = x
				}
			}
		}
	}
	return m.arrange(&b, other)
}

// ranking is what is known of a slot: its first ranks without a gap, at least min(Ranks, owners) of
// them, as owners' indexes.
type ranking struct {
	n  int
	at [kept]uint16
	// reach is a bound: an owner that is added with a higher score changes nothing. It is infinite
	// if all owners are known.
	reach float32
}

// arrange makes ranks from the best scores of a slot. other is the best one outside of the first
// one's zone. It counts if there is more than one zone and no node of another zone is among the
// best.
func (m *Map) arrange(b *best, other scored) ranking {
	if m.zoned {
		second, i := other, m.outside(b)
		if i > 0 {
			second = b.at[i]
		} else {
			b.n = min(b.n+1, kept)
			i = b.n - 1
		}
		copy(b.at[2:i+1], b.at[1:i])
		b.at[1] = second
	}
	r := ranking{n: b.n, reach: float32(math.Inf(1))}
	for i := range b.n {
		r.at[i] = b.at[i].index
	}
	if b.n < len(m.draws) {
		// A little more than the worse of rank 2 and the last, whatever the rounding.
		r.reach = float32(max(b.at[1].score, b.at[b.n-1].score) * (1 + 1e-6))
	}
	return r
}

func (r ranking) cell() cell {
	var c cell
	for i := range r.n {
		c[i/Ranks] |= (uint64(r.at[i]) + 1) << (16 * (i % Ranks))
	}
	c[1] |= uint64(math.Float32bits(r.reach)) << 32
	return c
}

func (c cell) reach() float64 { return float64(math.Float32frombits(uint32(c[1] >> 32))) }

func (c cell) ranking() ranking {
	r := ranking{reach: float32(c.reach())}
	for r.n < kept {
		i := uint16(c[r.n/Ranks] >> (16 * (r.n % Ranks)))
		if i == 0 {
			break
		}
		r.at[r.n] = i - 1
		r.n++
	}
	return r
}
