package store

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// ErrRebuilt says that the database for which an Edit was made has been dropped.
var ErrRebuilt = errors.New("the names were given up meanwhile")

// Edit is a set of changes that are committed atomically. It is for the database that was there when the
// Edit began, and no other: what was read from one database says nothing about the next.
type Edit struct {
	s   *Store
	gen int64
	ops []op
	buf []byte
}

type op struct {
	key, value int // ends in buf
	set        bool
}

// Edit begins an empty set of changes.
func (s *Store) Edit() *Edit { return &Edit{s: s, gen: s.gen.Load()} }

// Generation is that of the database that the Edit is for.
func (e *Edit) Generation() int64 { return e.gen }

// Set puts a record. Key and value are copied.
func (e *Edit) Set(key, value []byte) {
	e.buf = append(e.buf, key...)
	k := len(e.buf)
	e.buf = append(e.buf, value...)
	e.ops = append(e.ops, op{k, len(e.buf), true})
}

// Delete removes a record. The key is copied.
func (e *Edit) Delete(key []byte) {
	e.buf = append(e.buf, key...)
	e.ops = append(e.ops, op{len(e.buf), len(e.buf), false})
}

// Len is the number of changes so far.
func (e *Edit) Len() int { return len(e.ops) }

// Commit makes the changes; with sync it also makes them durable. The Edit is empty then. The error
// ErrRebuilt means that the Edit's database was dropped, and nothing was changed.
func (e *Edit) Commit(sync bool) error {
	if len(e.ops) == 0 {
		return nil
	}
	rebuilt := false
	err := e.s.try(func(db *pebble.DB) error {
		if rebuilt = e.gen != e.s.gen.Load(); rebuilt {
			return nil
		}
		return e.applyAll(db, sync)
	})
	e.ops, e.buf = e.ops[:0], e.buf[:0]
	if err == nil && rebuilt {
		return ErrRebuilt
	}
	if !sync {
		e.s.soon()
	}
	return err
}

// applyAll makes the changes in the database, and in the copy that is being made of it. A failure of the
// copy ends the move, not the commit.
func (e *Edit) applyAll(db *pebble.DB, sync bool) error {
	s := e.s
	s.turn.RLock()
	defer s.turn.RUnlock()
	if err := e.apply(db, s.disk, sync); err != nil {
		return err
	}
	if n := s.next; n != nil {
		if err := s.guarded(n.db, func(db *pebble.DB) error { return e.apply(db, n.disk, sync) }); err != nil {
			n.disk.fail(err)
		}
	}
	return nil
}

// apply makes the changes in one database, which lies on that file system.
func (e *Edit) apply(db *pebble.DB, on *steady, sync bool) error {
	b := db.NewBatchWithSize(len(e.buf) + 16*len(e.ops) + 16)
	defer func() { _ = b.Close() }() // it only takes the memory back
	start := 0
	for _, o := range e.ops {
		key := e.buf[start:o.key]
		var err error
		if o.set {
			err = b.Set(key, e.buf[o.key:o.value], nil)
		} else {
			err = b.Delete(key, nil)
		}
		if err != nil {
			return err
		}
		start = o.value
	}
	if sync {
		on.durable.Add(1)
		defer on.durable.Add(-1)
	}
	return b.Commit(&pebble.WriteOptions{Sync: sync || e.s.outlasts.Load()})
}
