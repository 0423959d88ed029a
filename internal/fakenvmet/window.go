package fakenvmet

// window is a submission queue as the target sees it: how far it is used, and which commands are in
// flight. A command is, until its completion was written before the read that brought the next one.
type window struct {
	size   int // entries; 0 before Connect
	noFlow bool
	head   int // SQHD

	bits     [1 << 16 / 64]uint64 // CIDs in flight
	count    int                  // of them
	answered []uint16             // completions written since the last read
}

// arrive counts a command in. It reports whether its CID is in flight already, and how many are.
func (w *window) arrive(cid uint16) (reused bool, count int) {
	if w.bits[cid/64]&(1<<(cid%64)) != 0 {
		return true, w.count
	}
	w.bits[cid/64] |= 1 << (cid % 64)
	w.count++
	return false, w.count
}

// advance moves the head past one entry, and returns SQHD.
func (w *window) advance() uint16 {
	if w.noFlow || w.size == 0 {
		return 0xFFFF // NVMe over Fabrics 1.1, section 2.4.1: the host asked flow control off
	}
	w.head = (w.head + 1) % w.size
	return uint16(w.head)
}

// complete notes that the host will know of a completion when it has read what is written.
func (w *window) complete(cid uint16) { w.answered = append(w.answered, cid) }

// retire takes what was completed out of flight.
func (w *window) retire() {
	for _, cid := range w.answered {
		if w.bits[cid/64]&(1<<(cid%64)) != 0 { // a Fault may complete twice
			w.bits[cid/64] &^= 1 << (cid % 64)
			w.count--
		}
	}
	w.answered = w.answered[:0]
}
