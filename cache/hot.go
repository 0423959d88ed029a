package cache

import (
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// Hot is the admission policy for a memory of capacity bytes before a disk that is nearly as fast:
// keep a block in memory only if it is asked for again soon. Each ask counts the bytes that were
// asked for, at least a sixteenth of the block. A block is hot once its asks add up to its whole
// length. All that must happen before the blocks that were asked for in between would have filled
// the memory. Kept any longer, the block would have been evicted anyway.
//
// So what is read once is never kept, however small the pieces: neither a small object that was
// delivered whole (the mount's page cache has it) nor a sequential read. Random reads of a set much
// larger than the memory hardly ever make a block hot; they go straight through to the disk. A
// block that half the readers want soon is hot.
//
// It remembers one word for each 16 KiB of capacity, at most 2 MiB altogether. Words lie in sets of
// four (4-way set associative), where the oldest is forgotten first. They are written without a
// lock: when two readers meet, one ask may not be counted.
func Hot(capacity int64) Admit {
	h := &hot{epochBytes: max(capacity/2, hearth.BlockSize)}
	sets := 256
	for int64(sets)*hotWays*(16<<10) < capacity && sets*hotWays < 1<<18 {
		sets *= 2
	}
	h.sets = make([]hotSet, sets)
	return h.admit
}

const (
	hotWays = 4
	// hotScore is the score of a hot block. The score counts sixteenths of the block's length that
	// were asked for, at least one for each ask.
	hotScore = 16
)

type hotSet [hotWays]atomic.Uint64

type hot struct {
	epochBytes int64        // an epoch lasts until so many bytes of new blocks were seen
	seen       atomic.Int64 // bytes of new blocks
	sets       []hotSet
}

// A word holds a tag (48 bits of the ID's hash), the epoch of the last ask (8) and the score (8).
// Zero is a free word; epochs run from 1 to 255.
func word(tag uint64, epoch, score uint8) uint64 {
	return tag<<16 | uint64(epoch)<<8 | uint64(score)
}

func (h *hot) admit(b hearth.Block, n int) bool {
	if n == 0 {
		return false // a run does not tell who will ask, and how often
	}
	hash := b.ID().Hash()
	set, tag := &h.sets[hash&uint64(len(h.sets)-1)], hash>>16
	epoch := uint8(1 + uint64(h.seen.Load()/h.epochBytes)%255)
	ask := uint8(min(hotScore, max(1, n*hotScore/max(1, b.Len()))))
	oldest, age := &set[0], -1
	for i := range set {
		w := set[i].Load()
		a := 255 // a free word is as old as can be
		if w != 0 {
			a = int(epochsBetween(uint8(w>>8), epoch))
		}
		if w != 0 && w>>16 == tag {
			if a > 1 {
				oldest = &set[i] // the last ask is too old: this one counts as the first
				break
			}
			score := uint8(w)
			set[i].Store(word(tag, epoch, min(255-hotScore, score)+ask))
			return score >= hotScore
		}
		if a > age {
			oldest, age = &set[i], a
		}
	}
	oldest.Store(word(tag, epoch, ask))
	h.seen.Add(int64(b.Len()))
	return false
}

// epochsBetween counts epochs on their cycle of 255.
func epochsBetween(from, to uint8) uint8 {
	if to >= from {
		return to - from
	}
	return to + (255 - from)
}
