package disk

import "sync"

// maxReplaced bounds the versions that are remembered as replaced; the oldest is
// forgotten first, and then goes by density like any other.
const maxReplaced = 1 << 14

// replacedSet remembers, oldest first, versions whose name means another now.
type replacedSet struct {
	mu     sync.Mutex // guards what follows
	blocks map[[16]byte]int64
	order  [][16]byte // may hold versions that were taken back since
}

func (r *replacedSet) add(version [16]byte, blocks int64) {
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

// remove takes a version back: its bytes were wanted again.
func (r *replacedSet) remove(version [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.blocks, version)
}

func (r *replacedSet) has(version [16]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.blocks[version]
	return ok
}

func (r *replacedSet) empty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.blocks) == 0
}

// pop takes the oldest version out.
func (r *replacedSet) pop() (version [16]byte, blocks int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.order) > 0 && !ok {
		version, blocks, ok = r.popLocked()
	}
	return version, blocks, ok
}

func (r *replacedSet) popLocked() (version [16]byte, blocks int64, ok bool) {
	version = r.order[0]
	r.order = r.order[1:]
	blocks, ok = r.blocks[version]
	delete(r.blocks, version)
	return version, blocks, ok
}
