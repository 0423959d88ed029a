package sparse

import (
	"container/list"
	"encoding/hex"
	"math/bits"
	"sync"

	"github.com/hearthfs/hearth"
)

// objectBytes is an object's size in the Pool without its index: the struct, its place in the map
// and the sampler, two list elements.
const objectBytes = 512

// extentBytes is the size of an extent in memory.
const extentBytes = 12

// object is one sparse file with its sidecar. All fields but version and accounting are guarded by
// Files.mu. The holder of a ref may use handle without it.
type object struct {
	version [16]byte
	index
	// alloc is this object's part of Files.used.
	alloc int64
	// state is the policy's state of the object, for when it is whole.
	state uint32

	// refs counts calls in flight, opens the lent files, writing the writes under way. Descriptors
	// and index stay while refs is not 0, the names while refs or opens is not 0.
	refs, opens, writing int
	// lent means that the data file may be open beside what opens counts.
	lent bool
	// doomed means to be unlinked once refs and opens are 0 and nobody has the file open. A doomed
	// object that is not lent gives no new refs, so that this time comes.
	doomed bool
	// reaping means that the unlink is under way. unmade means that the files are not made yet.
	// refused means of a newer format, never touched.
	reaping, unmade, refused bool
	// queued means in the queue of the verification pass, or being verified.
	queued bool

	handle *handle
	// opening is closed when the attempt to open descriptors and index ends.
	opening chan struct{}
	// holes counts removals from the index: a mismatch that is seen across a change is a miss, not
	// damage.
	holes uint64

	slot  int // in the sampler
	elems [2]*list.Element

	// accounting is held from fstat until its result is in Files.used, so that an older size never
	// overwrites a newer one. It is taken before Files.mu.
	accounting sync.Mutex
}

// index is the record of which blocks an object's file holds.
type index struct {
	// size is the object's; the file's, until the sidecar was read.
	size int64
	// extents is nil when the index is not in memory.
	extents []extent
	// held and good count the blocks held and verified, filled the extents with blocks; valid with
	// extents.
	held, good, filled int64
	// whole is by the extents, or, without them, a guess from the file's allocation.
	whole bool
}

// extent is the index of sixteen blocks; block i of it is bit i.
type extent struct {
	state      uint32
	have, good uint16
	// writers counts writes in flight; -1 means that it is being punched.
	writers int16
}

const punching = -1

func (x *index) blocks() int64 { return blocksOf(x.size) }

func blocksOf(size int64) int64 { return (size + hearth.BlockSize - 1) / hearth.BlockSize }

func extentsOf(size int64) int64 {
	return (blocksOf(size) + hearth.ExtentBlocks - 1) / hearth.ExtentBlocks
}

func (x *index) blockLen(index int64) int {
	return int(min(hearth.BlockSize, x.size-index*hearth.BlockSize))
}

func (x *object) id(index int64) hearth.ID { return hearth.ID{Version: x.version, Index: index} }

func (x *object) dataName() string { return hex.EncodeToString(x.version[:]) + dataSuffix }
func (x *object) sumsName() string { return hex.EncodeToString(x.version[:]) + sumsSuffix }

func (x *index) holds(index int64) bool {
	return index >= 0 && index < x.blocks() && x.extents[index/hearth.ExtentBlocks].have&bit(index) != 0
}

func bit(index int64) uint16 { return 1 << (index % hearth.ExtentBlocks) }

// add notes that a block is held; good means that it is verified, too.
func (x *index) add(index int64, good bool) {
	e := &x.extents[index/hearth.ExtentBlocks]
	if e.have == 0 {
		x.filled++
	}
	if e.have&bit(index) == 0 {
		e.have |= bit(index)
		x.held++
	}
	if good && e.good&bit(index) == 0 {
		e.good |= bit(index)
		x.good++
	}
	x.whole = x.held == x.blocks()
}

// remove forgets the blocks of one extent that are in mask.
func (x *object) remove(e *extent, mask uint16) {
	x.holes++
	mask &= e.have
	x.held -= int64(bits.OnesCount16(mask))
	x.good -= int64(bits.OnesCount16(e.good & mask))
	e.have &^= mask
	e.good &^= mask
	if mask != 0 && e.have == 0 {
		x.filled--
	}
	x.whole = x.held == x.blocks()
}

// recency is an LRU list of objects, the last used first.
type recency struct {
	list  list.List
	which int // of object.elems
}

const (
	ofHandles = iota
	ofIndexes
)

func (r *recency) touch(x *object) {
	if e := x.elems[r.which]; e != nil {
		r.list.MoveToFront(e)
	} else {
		x.elems[r.which] = r.list.PushFront(x)
	}
}

func (r *recency) remove(x *object) {
	if e := x.elems[r.which]; e != nil {
		r.list.Remove(e)
		x.elems[r.which] = nil
	}
}

// oldest returns the least recently used object that nobody uses now, or nil.
func (r *recency) oldest() *object {
	for e := r.list.Back(); e != nil; e = e.Prev() {
		if x := e.Value.(*object); x.refs == 0 {
			return x
		}
	}
	return nil
}

// sampler draws objects at random in proportion to their units, by a Fenwick tree over the units.
// So an object of a thousand extents is drawn a thousand times as often as one of a single extent.
type sampler struct {
	shared  bool // Options.Shared
	objects []*object
	weights []int64
	tree    []int64 // tree[i] is the sum of weights i&(i+1) to i
	free    []int
}

func (s *sampler) add(x *object) {
	if n := len(s.free); n > 0 {
		x.slot = s.free[n-1]
		s.free = s.free[:n-1]
		s.objects[x.slot] = x
	} else {
		x.slot = len(s.objects)
		s.objects = append(s.objects, x)
		s.weights = append(s.weights, 0)
		s.tree = append(s.tree, s.sum(x.slot)-s.sum(x.slot&(x.slot+1)))
	}
	s.update(x)
}

func (s *sampler) remove(x *object) {
	s.set(x.slot, 0)
	s.objects[x.slot] = nil
	s.free = append(s.free, x.slot)
}

// single reports whether the object is evicted as a whole.
func (s *sampler) single(x *object) bool { return x.whole && !s.shared }

// update sets the object's weight to its present number of units.
func (s *sampler) update(x *object) { s.set(x.slot, s.units(x)) }

// units returns how many units eviction can choose from here: extents, or the whole object.
func (s *sampler) units(x *object) int64 {
	switch {
	case x.doomed || x.refused || x.opens > 0:
		return 0
	case s.single(x):
		return 1
	case x.extents != nil:
		return x.filled
	}
	return min(extentsOf(x.size), 1+x.alloc/(hearth.ExtentBlocks*hearth.BlockSize))
}

func (s *sampler) set(slot int, weight int64) {
	delta := weight - s.weights[slot]
	if delta == 0 {
		return
	}
	s.weights[slot] = weight
	for i := slot; i < len(s.tree); i |= i + 1 {
		s.tree[i] += delta
	}
}

// sum returns the sum of the weights of the slots below n.
func (s *sampler) sum(n int) (total int64) {
	for i := n - 1; i >= 0; i = i&(i+1) - 1 {
		total += s.tree[i]
	}
	return total
}

func (s *sampler) total() int64 { return s.sum(len(s.tree)) }

// pick returns the object that unit r belongs to, 0 <= r < total.
func (s *sampler) pick(r int64) *object {
	step := 1
	for step <= len(s.tree) {
		step <<= 1
	}
	at := 0 // slots below at hold at most r units
	for ; step > 0; step >>= 1 {
		if next := at + step; next <= len(s.tree) && s.tree[next-1] <= r {
			r -= s.tree[next-1]
			at = next
		}
	}
	return s.objects[at]
}
