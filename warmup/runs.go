package warmup

// This file cuts what is missing of an object into requests. Each is for a run: adjacent
// blocks, none of which is held. Loading uses this cut, and so does the estimate of what
// loading takes.

// HeldBytes is the size in bytes of an object's block i if it is held, and 0 if it is
// missing.
type HeldBytes func(i int64) int64

// NextRun finds the first run of missing blocks in [from, end), of most blocks at most.
// It returns the run's first block and length, and the bytes that are held before it. n
// is 0 if all blocks are held.
func NextRun(in HeldBytes, from, end int64, most int) (at, n, held int64) {
	for at = from; at < end; at++ {
		bytes := in(at)
		if bytes == 0 {
			break
		}
		held += bytes
	}
	for at+n < end && n < int64(most) && (n == 0 || in(at+n) == 0) {
		n++
	}
	return at, n, held
}

// CountRuns returns the bytes that are held of an object with so many blocks, and the
// number of requests for the rest. No run goes beyond an extent.
func CountRuns(in HeldBytes, blocks, extent int64, most int) (held, requests int64) {
	for from := int64(0); from < blocks; {
		at, n, bytes := NextRun(in, from, min(from-from%extent+extent, blocks), most)
		if held += bytes; n > 0 {
			requests++
		}
		from = at + n
	}
	return held, requests
}
