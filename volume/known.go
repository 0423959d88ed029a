package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/device"
)

// This file is what a warm-up asks beside a Store: whether it is known what the volumes hold, whether they take a
// block, and whether what they hold is as it was written.

// news wakes those who wait until a Set's state has changed.
type news struct {
	mu      sync.Mutex // guards changed
	changed chan struct{}
}

// next is closed at the next change.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}

// Known waits until it is known what the volumes hold: until each was tried, and the indexes of those in use have
// been read. Volumes that cannot be attached or are out of use are not waited for. If none is in use, the error says
// why.
func (s *Set) Known(ctx context.Context) error {
	for {
		changed := s.news.next()
		what, err := s.unknown()
		if what == "" {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Waits says what Known would wait for now; "" means for nothing.
func (s *Set) Waits() string {
	what, _ := s.unknown()
	return what
}

// unknown says which volume is not known yet, or else why none is in use.
func (s *Set) unknown() (what string, err error) {
	err = errNone
	used := false
	for _, a := range *s.all.Load() {
		v, why := a.volume.Load(), a.why.Load()
		switch {
		case v == nil && why == nil:
			return fmt.Sprintf("volume %s is being attached", a.Address), nil
		case v == nil:
			err = *why
		case !v.usable():
			err = fmt.Errorf("volume %s: %w", a.Address, *v.away.Load())
		case v.reading.Load() > 0:
			return fmt.Sprintf("volume %s is being read: %d of %d segments", a.Address, v.learned.Load(), v.g.count), nil
		default:
			used = true
		}
	}
	if used {
		return "", nil
	}
	return "", err
}

// Refuses says why no volume would keep a block now. nil means that one takes it.
func (s *Set) Refuses(id hearth.ID) error {
	var room [MaxVolumes]*Volume
	if len(s.targets(id, room[:0])) > 0 {
		return nil
	}
	return s.refuses(id)
}

// errOver is no fault of the volume in a ring: blocks have other owners than before.
var errOver = errors.New("another node wrote over it")

// ErrUnread means that it is not known whether a volume has a block: it is out of use, or did not give what it has.
var ErrUnread = errors.New("it could not be read")

// Verify reads a block from each volume that holds it, past the page cache, and compares its checksums. held reports
// whether one has it whole. An error says what is wrong with a copy, or why nobody knows whether there is one
// (ErrUnread). What does not verify is dropped. What another node wrote over is not held.
func (s *Set) Verify(ctx context.Context, b hearth.Block) (held bool, err error) {
	var room [MaxVolumes]*Attachment
	var over error
	for _, a := range s.held(b.ID(), room[:0]) {
		v := a.volume.Load()
		if v == nil {
			continue
		}
		switch whole, wrong := v.verify(ctx, b); {
		case errors.Is(wrong, errOver):
			over = fmt.Errorf("volume %s: %w", a.Address, wrong)
		case wrong != nil:
			err = errors.Join(err, fmt.Errorf("volume %s: %w", a.Address, wrong))
		default:
			held = held || whole
		}
	}
	if held || err != nil {
		return held, err
	}
	all := *s.all.Load() // asked after the blocks: one that left meanwhile is among them
	if len(all) == 0 {
		return false, errNone
	}
	for _, a := range all {
		v, why := a.volume.Load(), a.why.Load()
		switch {
		case v == nil && why != nil:
			err = errors.Join(err, fmt.Errorf("%w: %w", ErrUnread, *why))
		case v == nil || v.reading.Load() > 0:
			err = errors.Join(err, fmt.Errorf("volume %s: %w: its indexes are not read yet", a.Address, ErrUnread))
		case !v.usable():
			err = errors.Join(err, fmt.Errorf("volume %s: %w: it is out of use: %w", a.Address, ErrUnread, v.why()))
		case v.unread() > 0:
			err = errors.Join(err, fmt.Errorf("volume %s: %w: %d of its segments cannot be read", a.Address, ErrUnread, v.unread()))
		}
	}
	if err == nil {
		err = over
	}
	return false, err
}

// A check asks for much at once, and what waits too long at a slow device looks as if the device hung. So the reads of
// Verify share this many parts. Each takes as many as the mean time of those before has of patience/128: 16 reads are
// in flight where one takes 16 ms, and one where it takes an eighth of the patience.
const verifiers, verifyUnit = 16, 128

// verify reads all of a block, without counting that as a use.
func (v *Volume) verify(ctx context.Context, b hearth.Block) (held bool, err error) {
	parts := max(1, min(verifiers, v.verifyPace.Load()*verifyUnit/int64(v.o.Patience)))
	if err := v.verifies.Acquire(ctx, parts); err != nil {
		return false, context.Cause(ctx)
	}
	defer v.verifies.Release(parts)
	id, began := b.ID(), time.Now()
	defer func() {
		was := v.verifyPace.Load()
		v.verifyPace.Store(was + (int64(time.Since(began))-was)/weigh) // of two at once one may be lost
	}()
	for range 2 { // a block that moved meanwhile is looked up again
		p, ok := v.find(id, 0)
		if !ok || int(p.Length) != b.Len() {
			return false, nil
		}
		view, err := v.read(ctx, id, p, 0, b.Len())
		if err == nil {
			view.Release()
			return true, nil
		}
		if !errors.Is(err, record.ErrMismatch) {
			return false, err
		}
		if _, ok := v.index.Remove(id, &p); ok {
			v.stats.lost.Add(1)
			if other := v.overwritten(p.Slot); other != nil {
				return false, other
			}
			return false, fmt.Errorf("block %v in segment %d: %w", id, p.Slot, err)
		}
	}
	return false, nil
}

// unread is how many segments nobody can read, until they are written anew.
func (v *Volume) unread() (n int) {
	for i := range v.segments {
		if v.segments[i].unread.Load() {
			n++
		}
	}
	return n
}

// overwritten is errOver if another node has begun a segment anew since this one read it.
func (v *Volume) overwritten(n uint32) error {
	page := device.Aligned(pageSize) // the operation's, if it is abandoned
	err := v.aside(v.ctx, func() error {
		_, err := v.dev.ReadAt(page, v.g.offset(n))
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnread, err)
	}
	h, ok := parseHeader(page)
	if !ok || h.volume != v.g.volume || h.segment != n || h.salt == v.segments[n].salt.Load() {
		return nil
	}
	if h.node != v.o.Node {
		v.stats.strangers.Add(1)
	}
	return errOver
}
