package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
)

const (
	// writeUnit is the most bytes that one group commit writes, before headers and padding, and so
	// the most by which a budget can be missed. It is large enough to keep a device busy, and small
	// enough to matter little.
	writeUnit = 4 << 20
	// namesEvery is the time between two measurements of the namespace's files while something is
	// written. While a directory is listed they grow by more than a write unit in a second or two.
	namesEvery = 250 * time.Millisecond
	// maxEvictions is the most evictions in one go, so that a directory that must shrink by much
	// goes on writing meanwhile.
	maxEvictions = 1 << 15
	roomTries    = 4  // attempts to make room for a block: meanwhile names grow, or others fill the file system
	pinTries     = 64 // most samples that may all be pinned: enough if one block of a hundred is not
	foreignTries = 16 // most samples that may all be ours: one foreign block of a hundred is missed 1 time in 13
)

// writer is the state that only the writer goroutine uses (and newDirectory before it runs).
type writer struct {
	node    string // the node's id, for a new home
	home    *home
	last    identity // of the home, to recognize it
	retired *volume  // replaced, but readers may still use it

	retryAt time.Time // of an ejected directory
	backoff time.Duration

	lacking       lacking
	evictions     int       // from the packed area since its last compaction
	shrinking     bool      // pinned blocks may go
	namesAt       time.Time // when beside was measured
	lookedAt      time.Time
	random        uint64
	batch         []queueItem
	packed, whole []queueItem
	candidate     []evict.Candidate
	entries       []pick

	stopped  chan struct{} // closed when the writer ended
	closeErr error         // valid then
}

// pick is a candidate and where it lies.
type pick struct {
	area area
	id   hearth.ID
}

// allocated estimates how many bytes n bytes occupy with header and padding. The real use is
// measured before the next group.
func allocated(n int) int64 { return (int64(n) + 512 + 4095) &^ 4095 }

// run is the writer. It ends when the queue is closed and empty.
func (d *directory) run() {
	defer close(d.stopped)
	tick := time.NewTicker(d.opt.Check)
	defer tick.Stop()
	d.guard.Writer.Work()
	d.check(time.Now())
	for ending := false; ; {
		d.guard.Writer.Work()
		if !ending && d.queue.Closed() {
			if ending = true; d.home != nil {
				d.home.ends()
			}
		}
		d.batch = d.queue.Take(d.batch, writeUnit)
		if len(d.batch) > 0 {
			d.write(d.batch)
			clear(d.batch)
			if now := time.Now(); now.Sub(d.lookedAt) > d.opt.Check {
				d.check(now)
			}
			select {
			case done := <-d.crowded:
				d.check(time.Now())
				close(done)
			default:
			}
			continue
		}
		if d.queue.Closed() {
			d.shut()
			return
		}
		d.guard.Writer.Rest()
		select {
		case <-d.queue.Ready():
		case done := <-d.crowded:
			d.guard.Writer.Work()
			d.check(time.Now())
			close(done)
		case <-tick.C:
			d.guard.Writer.Work()
			d.check(time.Now())
		}
	}
}

func (d *directory) shut() {
	defer d.opt.Pool.Unreserve(evict.Bytes)
	<-d.scrub.ended
	if vol := d.volume.Swap(nil); vol != nil {
		err := vol.sync()
		vol.release()
		<-vol.closed                  // readers in flight end soon
		if d.ejection.Load() == nil { // else its failure was reported already
			d.closeErr = errors.Join(err, vol.closeErr)
		}
	}
	if d.home != nil {
		if d.marked.Load() && d.writable() {
			_ = relabel(d.path, formatOf(d.path)) // else the next process does it
		}
		d.home.close()
	}
}

// check looks after the directory: whether it is still there, healthy, and within its limits.
func (d *directory) check(now time.Time) {
	d.lookedAt = now
	if d.home != nil && d.readable() { // a disk that turned read-only may be unmounted, too
		if err := d.home.intact(); err != nil {
			d.errors.Add(1)
			d.eject(err, true) // its content is gone, and the space must become free
			d.retryAt = now
		}
	}
	if !d.readable() {
		d.letGo()
	}
	if !d.writable() {
		d.tryReturn(now)
	}
	if d.volume.Load() == nil {
		return
	}
	d.recall(now)
	used, limit := d.look()
	if d.writable() {
		if used > limit {
			none := d.makeRoom(used-limit, anything)
			if used, limit := d.look(); none && d.mustShrink(used, limit) {
				d.shrinking = true // the floor wins over pins, and pinned blocks go last
				d.makeRoom(used-limit, anything)
				d.shrinking = false
			}
		}
		d.compact()
		d.look()
		d.lookVictims()
	}
}

// mustShrink reports whether pinned blocks have to go: for the floor, or because the budget is
// missed by more than a write unit.
func (d *directory) mustShrink(used, limit int64) bool {
	if limit == d.budget {
		limit += writeUnit
	}
	return used > limit
}

// lookVictims finds out whether blocks of other nodes may give way to ours, and what an eviction
// would give up.
func (d *directory) lookVictims() {
	vol := d.volume.Load()
	if d.opt.Owns != nil {
		d.foreign.Store(d.drawForeign(vol))
	}
	now, worst := d.clock.seconds(), -1
	if d.policy.Replaces() && (d.opt.Unknown == nil || !d.opt.Unknown()) {
		d.drawVictims(vol)
		worst = d.policy.Worst(d.candidate, now)
	}
	d.noteYielding(worst, now)
}

// noteYielding stores in yields the last use of the worst candidate.
func (d *directory) noteYielding(worst int, now uint32) {
	at := int64(never)
	if worst >= 0 && d.policy.Yields(d.candidate, worst, now) {
		at = int64(now) - evict.Idle(d.candidate[worst].State, now)
	}
	d.yields.Store(at)
}

// compact rewrites segments that eviction has left nearly empty. The copies exist before the
// originals go: up to 15 % of a segment's size. That is less than a write unit, by which the budget
// may be missed, except in directories of over 100 GiB.
func (d *directory) compact() {
	if d.evictions == 0 {
		return
	}
	room := max(0, d.budget/25_000-writeUnit)
	used, limit := d.look()
	if used+room > limit {
		d.makeRoom(used+room-limit, anything)
	}
	if used, limit := d.look(); used+room > limit {
		return // not yet: others fill the disk
	}
	// It reads into Views, and the holders of the memory may wait for this writer.
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	done, err := d.volume.Load().compact(ctx)
	if err != nil && ctx.Err() == nil {
		d.writeFailed(err)
	}
	if done {
		d.evictions = 0
	}
}

// look measures what is used, and what may be used now. That is the budget, or less when others
// have filled the file system up to the floor, down to 0.
func (d *directory) look() (used, limit int64) {
	if vol := d.volume.Load(); vol != nil {
		used = vol.used()
	}
	if now := time.Now(); now.Sub(d.namesAt) > namesEvery {
		d.measure(0)
		d.namesAt = now
	}
	d.blocks.Store(used)
	used += d.besides()
	limit = d.budget
	defer func() { d.policy.SetLimit(limit - d.besides()) }()
	var st unix.Statfs_t
	if err := d.opt.statfs(d.path, &st); err == nil {
		limit = max(0, min(limit, used+int64(st.Bavail)*st.Bsize-d.floor))
	}
	d.used.Store(used)
	d.limit.Store(limit)
	d.tellShort(limit)
	return used, limit
}

// tellShort calls Events.Short when the file system gives less than the budget.
func (d *directory) tellShort(limit int64) {
	switch {
	case limit >= d.budget:
		d.said = 0
	case d.said == 0 || limit < d.said/2:
		if d.said = max(limit, 1); d.events.Short != nil {
			d.events.Short(d.path, limit, d.budget)
		}
	}
}

// write commits a batch as a group, or answers a mark.
func (d *directory) write(batch []queueItem) {
	if batch[0].View == nil {
		batch[0].Done <- nil
		return
	}
	vol := d.volume.Load()
	if vol == nil || !d.writable() {
		for i := range batch {
			d.finish(&batch[i], ErrEjected)
		}
		return
	}
	d.packed, d.whole = d.packed[:0], d.whole[:0]
	used, limit := d.look()
	for i := range batch {
		it := &batch[i]
		if vol.has(it.Block.ID()) {
			d.finish(it, nil)
			continue
		}
		if !d.holds(it.Block) {
			d.declined.Add(1)
			d.finish(it, ErrTooFar)
			continue
		}
		need := allocated(it.View.Len())
		for tries := 0; used+need > limit && need <= limit && tries < roomTries; tries++ {
			may := anything
			if !it.Keep {
				may = d.mayEvict(it.Block.ID())
			}
			evicted, planned := d.evicted.Load(), used-d.used.Load() // what this batch has planned so far
			d.makeRoom(used+need-limit, may)
			used, limit = d.look()
			if used += planned; d.evicted.Load() == evicted {
				break
			}
		}
		if !evict.Fits(used, need, limit) {
			d.declined.Add(1)
			d.finish(it, ErrFull)
			continue
		}
		used += need
		if isWhole(it.Block.Object, d.budget) {
			d.whole = append(d.whole, *it)
		} else {
			d.packed = append(d.packed, *it)
		}
	}
	if len(d.packed) > 0 {
		d.commit(vol.packed, d.packed)
	}
	d.commitWhole(vol.whole)
	clear(d.packed)
	clear(d.whole)
	d.look()
}

// commitWhole writes the blocks that go to sparse files, one run of consecutive blocks after the
// other.
func (d *directory) commitWhole(a area) {
	slices.SortFunc(d.whole, func(x, y queueItem) int {
		i, j := x.Block.ID(), y.Block.ID()
		return cmp.Or(bytes.Compare(i.Version[:], j.Version[:]), cmp.Compare(i.Index, j.Index))
	})
	for rest := d.whole; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Block.Object.Version == rest[0].Block.Object.Version && rest[n].Block.Index == rest[n-1].Block.Index+1 {
			n++
		}
		d.commit(a, rest[:n])
		rest = rest[n:]
	}
}

func (d *directory) commit(a area, items []queueItem) {
	d.guard.Writer.Work()
	d.written.Add(1)
	err := a.put(items)
	switch {
	case errors.Is(err, errElsewhere): // the object is lent, or larger than a file may be
		d.commit(d.volume.Load().packed, items)
		return
	case err == nil:
		d.writes.ok()
	case errors.Is(err, errDeclined):
	default:
		d.writeFailed(err)
	}
	for i := range items {
		if err == nil || a.has(items[i].Block.ID()) { // after an error some blocks are written
			d.putBytes.Add(int64(items[i].View.Len()))
			if d.opt.Owns != nil && !d.opt.Owns(items[i].Block.ID()) {
				d.foreign.Store(true)
			}
			d.finish(&items[i], nil)
			continue
		}
		d.declined.Add(1)
		d.finish(&items[i], err)
	}
}

// finish removes an item from the queue and reports its outcome: it is readable from its area, or
// not held.
func (d *directory) finish(it *queueItem, err error) {
	d.queue.Drop(it)
	if it.Done == nil {
		return
	}
	if err != nil {
		err = fmt.Errorf("write block %v to %s: %w", it.Block.ID(), d.path, err)
	}
	it.Done <- err
}

// makeRoom evicts until this many bytes are free: first unindexed blocks, then blocks of replaced
// versions, then what package evict judges least. none means that nothing is left that may go;
// otherwise a later call may find more.
func (d *directory) makeRoom(bytes int64, may victims) (none bool) {
	if d.opt.Unknown != nil && d.opt.Unknown() {
		return false
	}
	vol := d.volume.Load()
	target := vol.used() - bytes
	for n := 0; vol.used() > target && n < maxEvictions; n++ {
		d.guard.Writer.Work()
		if d.shed(vol) {
			continue
		}
		if version, blocks, ok := d.replaced.Pop(); ok {
			if d.opt.Pinned == nil || d.shrinking || !d.opt.Pinned(hearth.ID{Version: version}) { // else it is current again
				vol.forget(version, blocks)
				d.evicted.Add(1)
			}
			continue
		}
		for tries := pinTries; may == nothing || !d.evictOne(vol, may); tries-- {
			if may != anything || d.opt.Pinned == nil || tries == 0 {
				return true
			}
		}
	}
	return false
}

// evictOne evicts the worst of some entries. False means that none of them can go.
func (d *directory) evictOne(vol *volume, may victims) bool {
	d.drawVictims(vol)
	for tries := foreignTries; len(d.entries) > 0; {
		now := d.clock.seconds()
		i := d.policy.Worst(d.candidate, now)
		d.noteYielding(i, now)
		if i < 0 {
			return false
		}
		if may == foreign && !d.candidate[i].Replaced && !d.candidate[i].Foreign {
			return false
		}
		if a := d.entries[i].area; a.evict(d.entries[i].id) {
			d.evicted.Add(1)
			if a == vol.packed {
				d.evictions++
			}
			return true
		}
		if tries--; tries > 0 && d.candidate[i].Foreign { // the sample was a guess: the file's index was not in memory
			d.drawVictims(vol)
			continue
		}
		d.candidate = slices.Delete(d.candidate, i, i+1)
		d.entries = slices.Delete(d.entries, i, i+1)
	}
	return false
}

// drawVictims draws entries. While there may be blocks of other nodes, it draws again until one is
// among them. Otherwise a block of ours would go, which only the bucket has, or the new one would
// be declined.
func (d *directory) drawVictims(vol *volume) {
	if d.foreign.Load() {
		d.foreign.Store(d.drawForeign(vol))
	} else {
		d.drawBoth(vol)
	}
}

// drawForeign draws until one entry belongs to another node. False means that there are none, or
// next to none.
func (d *directory) drawForeign(vol *volume) bool {
	for range foreignTries {
		d.drawBoth(vol)
		if slices.ContainsFunc(d.candidate, func(c evict.Candidate) bool { return c.Foreign && !c.Pinned }) {
			return true
		}
	}
	return false
}

// drawBoth draws entries from both areas, in proportion to their bytes.
func (d *directory) drawBoth(vol *volume) {
	whole := 0
	if used := vol.used(); used > 0 {
		whole = min(int((vol.whole.used()*evict.Samples+used-1)/used), evict.Samples-1) // some of each area that has entries
	}
	d.candidate, d.entries = d.candidate[:0], d.entries[:0]
	d.draw(vol.whole, whole)
	d.draw(vol.packed, evict.Samples-len(d.entries))
	if len(d.entries) == 0 {
		d.draw(vol.whole, evict.Samples)
	}
}

func (d *directory) draw(a area, n int) {
	if n <= 0 {
		return
	}
	d.random = d.random*6364136223846793005 + 1442695040888963407
	a.sample(d.random^d.random>>29, n, func(e entry) {
		d.entries = append(d.entries, pick{a, e.id})
		d.candidate = append(d.candidate, evict.Candidate{
			Size: e.size, State: e.state,
			Replaced: d.replaced.Has(e.id.Version),
			Foreign:  d.opt.Owns != nil && !d.opt.Owns(e.id),
			Pinned:   d.opt.Pinned != nil && !d.shrinking && d.opt.Pinned(e.id),
		})
	})
}
