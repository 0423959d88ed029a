package disk

import (
	"encoding/binary"
	"hash/fnv"
	"math"
)

// This file chooses a place for a version among several, so that a place more
// or less moves only its own share: the one whose score is the least.

// rendezvousScore draws from an exponential distribution of rate weight: the least of
// several draws falls to each in proportion to its weight.
func rendezvousScore(version *[16]byte, seed uint64, weight int64) float64 {
	h := binary.LittleEndian.Uint64(version[:8]) ^ seed
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return -math.Log(u) / float64(max(weight, 1))
}

// rendezvousSeed stands for a place whose own is not known.
func rendezvousSeed(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}
