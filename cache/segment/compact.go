package segment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hearthfs/hearth/cache/record"
)

// compactBelow is the share of live bytes, in percent of a segment's size, below which its records
// are copied. Each copied byte then frees at least five others.
const compactBelow = 15

// Compact copies the live records of the emptiest closed segment to the open one, if under 15 % of
// it live. It unlinks the segment once the copies are on the device. It returns the bytes copied,
// or 0 when no segment is due or no memory is free, and keeps Append waiting meanwhile. ctx ends it
// early; what was copied by then counts.
func (l *Log) Compact(ctx context.Context) (int64, error) {
	if l.closed.Load() {
		return 0, l.errClosed("compact")
	}
	s := l.emptiest()
	if s == nil && !l.deaths.due() {
		return 0, nil
	}
	if err := l.wait(ctx); err != nil {
		return 0, err
	}
	defer func() { <-l.turn }()
	if l.closed.Load() {
		return 0, l.errClosed("compact")
	}
	if s == nil {
		return 0, l.pruneDeaths()
	}
	before := l.counters.rewritten.Load()
	err := l.moveLocked(ctx, s)
	if flushErr := l.flushLocked(); err == nil {
		err = flushErr
	}
	if err == nil {
		s.mu.Lock()
		s.stuck = !s.gone // bad in header page and footer: it waits for eviction
		s.mu.Unlock()
		l.counters.compacted.Add(1)
	}
	if errors.Is(err, ErrDeclined) {
		err = nil // a later call tries again
	}
	return l.counters.rewritten.Load() - before, err
}

func (l *Log) emptiest() *segment {
	var least *segment
	limit := l.writer.limit * compactBelow / 100
	// Tiny blocks fill a segment by their number: few live bytes alone do not make it due.
	most := l.writer.most * compactBelow / 100
	for _, s := range *l.slots.Load() {
		if s == nil {
			continue
		}
		s.mu.Lock()
		if s.sealed && !s.gone && !s.stuck && !s.unindexed && s.live < limit && s.records < most {
			least, limit = s, s.live
		}
		s.mu.Unlock()
	}
	return least
}

// moveLocked copies the records that the index still has in s. A record that does not verify is
// dropped.
func (l *Log) moveLocked(ctx context.Context, s *segment) error {
	f, err := s.acquire()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its last record was evicted meanwhile
	}
	if err != nil {
		return err
	}
	defer s.release()
	t, err := l.trailer(s, f)
	if err != nil {
		return err
	}
	c, err := l.contents(s, f, t)
	if err != nil {
		return err
	}
	for _, n := range c.notes {
		if ctx.Err() != nil {
			return fmt.Errorf("compact %s: %w", s.name(), context.Cause(ctx))
		}
		p := record.Place{Slot: s.slot, Unit: n.Unit, Length: n.Length}
		if at, ok := l.index.Get(n.ID, nil); !ok || at != p {
			continue
		}
		if err := l.moveRecordLocked(n, p); err != nil {
			return err
		}
	}
	return nil
}

// moveRecordLocked copies one record. It does not wait for memory, since the holders of all of it
// may wait for the turn.
func (l *Log) moveRecordLocked(n record.Note, p record.Place) error {
	r := record.ReadAll(n)
	v := l.pool.TryAlloc(r.Len())
	if v == nil {
		return fmt.Errorf("compact: %w", ErrDeclined)
	}
	defer v.Release()
	block, err := l.read(&r, p.Slot, v)
	if err == nil {
		defer block.Release()
		return l.placeLocked(&Entry{ID: n.ID, Data: block.Bytes()}, &p)
	}
	if _, ok := l.index.Remove(n.ID, &p); !ok {
		return nil // evicted meanwhile
	}
	_, dropErr := l.drop(n.ID, p)
	if !errors.Is(err, record.ErrMismatch) {
		return errors.Join(err, dropErr)
	}
	l.corrupt(p.Slot, n)
	return dropErr
}

// pruneDeaths is called with the turn, so that no Sync runs between the old file and the new one.
func (l *Log) pruneDeaths() error {
	if !l.deaths.due() {
		return nil
	}
	return l.deaths.prune(l.knownSegments())
}

// knownSegments returns a function that reports whether a segment of a number exists now.
func (l *Log) knownSegments() func(uint32) bool {
	known := map[uint32]bool{}
	for _, s := range *l.slots.Load() {
		if s != nil {
			known[s.number] = true
		}
	}
	return func(number uint32) bool { return known[number] }
}
