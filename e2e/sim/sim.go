// Package sim runs caches over made-up loads, to compare cache/evict with what
// others do and with what is possible.
//
// A load is a list of requests (key, size, second), made from a seed. A cache is
// asked for each and says whether it was a hit; bytes that it writes are counted.
// Results are the share of hits per phase of the load, such as an epoch. Ours is
// the real Policy and Worst of cache/evict, run as cache/disk runs them; ristretto
// is the library. Table makes what docs/eviction.md shows.
package sim

import "github.com/hearthfs/hearth"

// Request asks for all of a block.
type Request struct {
	// Key names the block.
	Key uint32
	// Size in bytes.
	Size int64
	// Now is in seconds.
	Now uint32
	// Phase counts from 0: results are given for each.
	Phase int
}

// Cache is a policy with its state.
type Cache interface {
	// Use reports whether a request is a hit, and keeps the block if it likes.
	Use(r Request) bool
	// Written is the number of bytes written so far.
	Written() int64
}

// Maker makes a Cache of capacity bytes. load is for those who know the future.
type Maker func(capacity int64, load []Request) Cache

// Outcome of a load on a cache.
type Outcome struct {
	// Hits and Requests count by phase.
	Hits, Requests []int
	// Written bytes, and Unique: the bytes of all blocks that were asked for, each once.
	Written, Unique int64
}

// Share of hits in phases [from, to), between 0 and 1.
func (o *Outcome) Share(from, to int) float64 {
	hits, all := 0, 0
	for i := from; i < min(to, len(o.Hits)); i++ {
		hits += o.Hits[i]
		all += o.Requests[i]
	}
	return float64(hits) / float64(max(all, 1))
}

// Run asks the cache for everything in turn.
func Run(c Cache, load []Request) *Outcome {
	o := &Outcome{}
	seen := map[uint32]bool{}
	for _, r := range load {
		for len(o.Hits) <= r.Phase {
			o.Hits, o.Requests = append(o.Hits, 0), append(o.Requests, 0)
		}
		o.Requests[r.Phase]++
		if c.Use(r) {
			o.Hits[r.Phase]++
		}
		if !seen[r.Key] {
			seen[r.Key] = true
			o.Unique += r.Size
		}
	}
	o.Written = c.Written()
	return o
}

// id makes of a key what the real policy sees: the only block of an object.
func id(names, key uint32) hearth.ID {
	var version [16]byte
	x := uint64(names)<<32 | uint64(key)
	for i := range version {
		if i%8 == 0 {
			x = mix(x)
		}
		version[i] = byte(x >> (8 * (i % 8)))
	}
	return hearth.ID{Version: version}
}

// mix is SplitMix64.
func mix(r uint64) uint64 {
	r += 0x9e3779b97f4a7c15
	r = (r ^ r>>30) * 0xbf58476d1ce4e5b9
	r = (r ^ r>>27) * 0x94d049bb133111eb
	return r ^ r>>31
}
