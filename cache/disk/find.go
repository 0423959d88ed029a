package disk

import (
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
)

// Find returns the directory that holds a block, and the kind of place: "queued" (for the writer),
// "segment" or "sparse". "" means that no directory holds it. unread means that only the index of
// the object's file can tell, and that it has not been read since the start. Find reads nothing,
// and does not count as a request for the policy.
func (s *Store) Find(id hearth.ID) (dir, kind string, unread bool) {
	for _, d := range s.dirs {
		if d.queue.Has(id) {
			return d.path, "queued", false
		}
		vol := d.use()
		if vol == nil {
			continue
		}
		packed := vol.packed.has(id)
		held, known := vol.knows(id)
		vol.release()
		switch {
		case !d.readable():
		case packed:
			return d.path, "segment", false
		case held:
			return d.path, "sparse", false
		case !known:
			dir, kind, unread = d.path, "sparse", true
		}
	}
	return dir, kind, unread
}

// Whole reports whether an object is whole in a file of its own, and whether LocalFile would lend
// it at once.
func (s *Store) Whole(o *hearth.Object) (whole, verified bool) {
	for _, d := range s.dirs {
		vol := d.use()
		if vol == nil {
			continue
		}
		if a, ok := vol.whole.(wholeArea); ok && d.readable() && !whole {
			whole, verified = a.files.Whole(o)
		}
		vol.release()
	}
	return whole, verified
}

// Spare is WouldTake for a block that nobody has asked for. room reports whether the block would go
// into free space. The space of an entry that is worth less and was not used since then counts,
// too. queue reports whether half of the write queue is free.
func (s *Store) Spare(b hearth.Block, since time.Time) (room, queue bool) {
	d := s.taker(b.Object.Version)
	if d == nil || d.admit(b) != nil {
		return false, false
	}
	pending := d.queue.Pending()
	free := evict.Fits(d.used.Load()+pending, allocated(b.Len()), d.limit.Load())
	room = free || !d.replaced.Empty() || d.sheds.Load()
	if !room {
		at := d.yields.Load()
		may := d.mayEvict(b.ID())
		room = may == foreign || may == anything && at < d.clock.at(since)
	}
	return room, pending <= d.queue.Max()/2
}

// WouldTake is Takes without side effects, for explaining. It names the directory, or says why the
// block would be declined. It does not count as a request for the policy, and never waits.
func (s *Store) WouldTake(b hearth.Block) (dir string, err error) {
	d := s.taker(b.Object.Version)
	if d == nil {
		return "", ErrEjected
	}
	return d.path, d.admit(b)
}
