package disk

import (
	"encoding/binary"
	"hash/fnv"
	"math"
)

// This file is rendezvous hashing: it chooses one of several places for a version, the one with the
// least score. So adding or removing a place moves only its own share.

// rendezvousScore draws from an exponential distribution with rate weight. So each place has the
// least score in proportion to its weight.
func rendezvousScore(version *[16]byte, seed uint64, weight int64) float64 {
	h := binary.LittleEndian.Uint64(version[:8]) ^ seed
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return -math.Log(u) / float64(max(weight, 1))
}

// rendezvousSeed is the seed of a place whose own id is not known.
func rendezvousSeed(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}
