package sim

import (
	"math/rand/v2"

	"github.com/hearthfs/hearth/cache/evict"
)

// Ours is cache/evict as cache/disk runs it.
func Ours(capacity int64, load []Request) Cache { return OursNamed(0)(capacity, load) }

// OursNamed is Ours with other names for the blocks, of which the policy watches a
// group by their hash: of few blocks, chance moves what the group shows.
func OursNamed(names uint32) Maker {
	return func(capacity int64, _ []Request) Cache {
		return &ours{limit: capacity, names: names, policy: evict.NewPolicy(capacity), at: map[uint32]int{}, random: rand.New(rand.NewPCG(1, 2))}
	}
}

// NoReplacement admits into free space only, and never replaces.
func NoReplacement(capacity int64, _ []Request) Cache {
	return &ours{limit: capacity, at: map[uint32]int{}}
}

// ours without a policy replaces nothing.
type ours struct {
	limit, used, written int64
	names                uint32
	policy               *evict.Policy
	random               *rand.Rand
	at                   map[uint32]int // key -> index in entries
	entries              []entry
}

type entry struct {
	key   uint32
	size  int64
	state uint32
}

func (c *ours) Written() int64 { return c.written }

// Use does as directory.get, admit and writer.write of cache/disk do.
func (c *ours) Use(r Request) bool {
	if c.policy != nil {
		c.policy.Use(id(c.names, r.Key), int(r.Size), r.Now)
	}
	if i, ok := c.at[r.Key]; ok {
		c.entries[i].state = evict.Touch(c.entries[i].state, r.Now)
		return true
	}
	for !evict.Fits(c.used, r.Size, c.limit) && r.Size <= c.limit {
		if c.policy == nil || !c.policy.Replaces() {
			return false
		}
		c.evict(r.Now)
	}
	if r.Size > c.limit {
		return false
	}
	c.at[r.Key] = len(c.entries)
	c.entries = append(c.entries, entry{r.Key, r.Size, evict.Fresh(r.Now)})
	c.used += r.Size
	c.written += r.Size
	return false
}

func (c *ours) evict(now uint32) {
	var picks [evict.Samples]int
	var candidates [evict.Samples]evict.Candidate
	for i := range picks {
		picks[i] = c.random.IntN(len(c.entries))
		e := &c.entries[picks[i]]
		candidates[i] = evict.Candidate{Size: e.size, State: e.state}
	}
	i := picks[c.policy.Worst(candidates[:], now)]
	last := len(c.entries) - 1
	c.used -= c.entries[i].size
	delete(c.at, c.entries[i].key)
	if i != last {
		c.entries[i] = c.entries[last]
		c.at[c.entries[i].key] = i
	}
	c.entries = c.entries[:last]
}
