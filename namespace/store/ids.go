package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	// IDBlock is how many ids are reserved at a time, by one synced write.
	IDBlock = 1 << 20

	keyIDs = "mids"
)

// IDs gives out node ids, and none twice: not after restarts, crashes, or databases that were dropped.
// Its methods may be called from many goroutines.
type IDs struct {
	db   *Store
	told func(upTo uint64)
	lost atomic.Bool // the reservation was lost with its database

	mu       sync.Mutex // guards the rest; held across a synced write per block
	last     uint64
	reserved uint64 // ids up to this one are written down as used
}

// Load sets where ids begin: after those that db has reserved, and after first. They begin after lost if
// the reservation was lost with a database that was set aside. reserved, which may be nil, is told of
// each reservation.
func (g *IDs) Load(db *Store, first, lost uint64, reserved func(upTo uint64)) error {
	v, ok, err := db.Get(nil, []byte(keyIDs))
	if err != nil {
		return err
	}
	g.db, g.told, g.last = db, reserved, first
	switch {
	case ok && len(v) == 8:
		g.last = max(g.last, binary.BigEndian.Uint64(v))
	case db.Stats().Rebuilds > 0:
		g.last = max(g.last, lost)
	}
	g.reserved = g.last
	return nil
}

// Lost says that the reservation was lost with its database. It does not block.
func (g *IDs) Lost() { g.lost.Store(true) }

// Last is the highest id given out.
func (g *IDs) Last() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// Next returns an id that was never given out.
func (g *IDs) Next() (uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.last >= g.reserved || g.lost.Load() {
		g.lost.Store(false)
		upTo := g.last + IDBlock
		w := g.db.Edit()
		w.Set([]byte(keyIDs), binary.BigEndian.AppendUint64(nil, upTo))
		if err := w.Commit(true); errors.Is(err, ErrRebuilt) {
			continue
		} else if err != nil {
			return 0, fmt.Errorf("reserve node ids: %w", err)
		}
		g.reserved = upTo
		if g.told != nil {
			g.told(upTo)
		}
	}
	g.last++
	return g.last, nil
}
