package cache

import (
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// Hot answers for a memory of capacity bytes before a disk that is nearly as
// fast: keep a block in memory only if it is asked for again soon. A block is hot
// when, since it was first asked for, as many of its bytes as it has were asked
// for, or sixteen times any of them - and all that before the blocks that were
// asked for in between would have filled the memory, since kept any longer it would
// have been evicted anyway.
//
// So what is read once is never kept, however small the pieces: neither a small
// object that was delivered whole (the mount's page cache has it) nor a sequential
// read. Random reads of a set much larger than the memory hardly ever are, and go
// straight through to the disk as they are; a block that half the readers want
// soon is.
//
// It remembers one word for each 16 KiB of capacity, at most 2 MiB altogether, in
// sets of four where the oldest is forgotten first. Words are written without a
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
	// hotScore is the score of a block that is hot: in sixteenths of its length that
	// were asked for, at least one for each ask.
	hotScore = 16
)

type hotSet [hotWays]atomic.Uint64

type hot struct {
	epochBytes int64        // an epoch lasts until so many bytes of blocks were seen anew
	seen       atomic.Int64 // bytes of blocks seen anew
	sets       []hotSet
}

// A word is tag (48 bits of the ID's hash), epoch of the last ask (8), score (8).
// Zero is free; epochs run from 1 to 255.
func word(tag uint64, epoch, score uint8) uint64 {
	return tag<<16 | uint64(epoch)<<8 | uint64(score)
}

func (h *hot) admit(b hearth.Block, n int) bool {
	if n == 0 {
		return false // a run says nothing of who will ask, and how often
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
				oldest = &set[i] // asked for too long ago: as if for the first time
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

// epochsBetween counts epochs on their circle of 255.
func epochsBetween(from, to uint8) uint8 {
	if to >= from {
		return to - from
	}
	return to + (255 - from)
}
