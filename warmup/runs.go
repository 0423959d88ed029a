package warmup

// This file cuts what is missing of an object into requests: a run of blocks, one
// behind the other, none of which is held. Who loads and who tells what loading will take
// go by the same cut.

// HeldBytes is the bytes of an object's block if it is held; 0: it is missing.
type HeldBytes func(i int64) int64

// NextRun is the first run in blocks [from, end), of at most so many blocks: the block that
// it begins with and how many it has, and the bytes that are held before it. n is 0 where
// all is held.
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

// CountRuns is the bytes that are held of an object of so many blocks, and the requests that
// the rest takes. No run goes beyond an extent.
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
