package namespace

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// Pins are kept in the namespace's database: the paths of the tree that are to stay in the cache, and
// until when.
//
// A pin is one record: its path is in the key, the rest is JSON in the value. It is written with a sync,
// and moves with the names to another disk. All pins are in memory, too. If the database is dropped, the
// next Keep writes them into the new one. Pins are lost only when the database is found corrupt at the
// start.

// Pin says that what lies at and below a path of the tree stays in the cache.
type Pin struct {
	// Path begins with "/" and does not end in one, unless it is the root.
	Path string `json:"path"`
	// Created and Expires are when it was made and when it ends. A nil Expires means that it does not
	// end.
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires,omitempty"`
	// Job is the warm-up that loads it for the first time; "" means that the warm-up has ended and the
	// pin is in force.
	Job string `json:"job,omitempty"`
	// UID is the user who made it; 0 is root, or a pin from before users were noted.
	UID uint32 `json:"uid,omitempty"`
}

// PinView is a pin as it is shown. Its figures count the names that are known.
type PinView struct {
	Pin
	// As is the shortest path by which it may be named.
	As    string `json:"as,omitempty"`
	Files int64  `json:"files"`
	Bytes int64  `json:"bytes"`
	// Needs is how many bytes it takes on disk.
	Needs int64 `json:"disk_bytes"`
	// Lacks says why not all of it is held, and the cure; "" means that nothing is known to be missing.
	Lacks string `json:"lacks,omitempty"`
}

// MaxPins bounds the pins: each takes some KiB of the RAM budget, and evictions go through all of them.
const MaxPins = 256

// PinTable is all pins. Its methods may be called from many goroutines.
type PinTable struct {
	db *store.Store

	mu  sync.Mutex // guards the rest; held across synced writes, which are few
	all map[string]Pin
	gen int64 // generation of the database that has them
}

// OpenPins reads all pins. It skips records that cannot be read.
func OpenPins(db *store.Store) (*PinTable, error) {
	t := &PinTable{db: db, all: map[string]Pin{}, gen: db.Generation()}
	var rows store.Rows
	lower := []byte{record.KindPin}
	if err := db.Scan(&rows, lower, []byte{record.KindPin + 1}, MaxPins); err != nil {
		return nil, fmt.Errorf("read the pins: %w", err)
	}
	for i := range rows.Len() {
		var p Pin
		if json.Unmarshal(rows.Value(i), &p) == nil {
			p.Path = string(rows.Key(i)[1:])
			t.all[p.Path] = p
		}
	}
	return t, nil
}

// All are the pins, by path.
func (t *PinTable) All() []Pin {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Pin, 0, len(t.all))
	for _, p := range t.all {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Pin) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// Set makes a pin durable, in place of an earlier one of its path.
func (t *PinTable) Set(p Pin) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[p.Path] = p
	return t.writeLocked(func(e *store.Edit) error { return set(e, p) })
}

// Delete removes the pin of a path durably.
func (t *PinTable) Delete(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, path)
	return t.writeLocked(func(e *store.Edit) error {
		e.Delete(append([]byte{record.KindPin}, path...))
		return nil
	})
}

// Keep writes all pins again if their database was replaced.
func (t *PinTable) Keep() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gen == t.db.Generation() {
		return nil
	}
	return t.writeLocked(func(*store.Edit) error { return nil })
}

// writeLocked commits a change. If the database was replaced, it writes all pins with it.
func (t *PinTable) writeLocked(change func(*store.Edit) error) error {
	for {
		e := t.db.Edit()
		if e.Generation() != t.gen {
			for _, p := range t.all {
				if err := set(e, p); err != nil {
					return err
				}
			}
		}
		gen, err := e.Generation(), change(e)
		if err == nil {
			err = e.Commit(true)
		}
		switch {
		case errors.Is(err, store.ErrRebuilt):
			continue
		case err != nil:
			return fmt.Errorf("write the pins: %w", err)
		}
		t.gen = gen
		return nil
	}
}

func set(e *store.Edit, p Pin) error {
	text, err := json.Marshal(p)
	if err == nil {
		e.Set(append([]byte{record.KindPin}, p.Path...), text)
	}
	return err
}
