package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
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

// Verify reads a block from each volume that holds it, past the page cache, and compares its checksums. held reports
// whether one has it whole. An error says what is wrong with a copy: hearth.ErrMiss if it cannot be read. What does
// not verify is dropped.
func (s *Set) Verify(ctx context.Context, b hearth.Block) (held bool, err error) {
	var room [MaxVolumes]*Attachment
	for _, a := range s.held(b.ID(), room[:0]) {
		v := a.volume.Load()
		if v == nil {
			continue
		}
		switch whole, wrong := v.verify(ctx, b); {
		case wrong != nil:
			err = errors.Join(err, fmt.Errorf("volume %s: %w", a.Address, wrong))
		default:
			held = held || whole
		}
	}
	return held, err
}

// verify reads all of a block, without counting that as a use.
func (v *Volume) verify(ctx context.Context, b hearth.Block) (held bool, err error) {
	id := b.ID()
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
			return false, fmt.Errorf("block %v in segment %d: %w", id, p.Slot, err)
		}
	}
	return false, nil
}
