package evict

import "sync"

// maxReplaced bounds the remembered versions. The oldest is forgotten first; from then on its
// blocks are evicted by density like all others.
const maxReplaced = 1 << 14

// Replaced remembers, oldest first, the versions whose name means another version now.
type Replaced struct {
	mu     sync.Mutex // guards what follows
	blocks map[[16]byte]int64
	order  [][16]byte // may hold versions that were removed since
}

// Add remembers a version that has this many blocks.
func (r *Replaced) Add(version [16]byte, blocks int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocks == nil {
		r.blocks = map[[16]byte]int64{}
	}
	if _, ok := r.blocks[version]; ok {
		return
	}
	for len(r.order) >= maxReplaced {
		r.popLocked()
	}
	r.blocks[version] = blocks
	r.order = append(r.order, version)
}

// Remove forgets a version, since its bytes were wanted again.
func (r *Replaced) Remove(version [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.blocks, version)
}

// Has reports whether a version is remembered.
func (r *Replaced) Has(version [16]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.blocks[version]
	return ok
}

// Empty reports whether no version is remembered.
func (r *Replaced) Empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.blocks) == 0
}

// Pop removes and returns the oldest version.
func (r *Replaced) Pop() (version [16]byte, blocks int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && !ok {
		version, blocks, ok = r.popLocked()
	}
	return version, blocks, ok
}

func (r *Replaced) popLocked() (version [16]byte, blocks int64, ok bool) {
	version = r.order[0]
	r.order = r.order[1:]
	blocks, ok = r.blocks[version]
	delete(r.blocks, version)
	return version, blocks, ok
}
