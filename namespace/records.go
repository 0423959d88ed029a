package namespace

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// Kinds of records, the first byte of their keys:
//
//	e directory, sort name     an record.Entry
//	h directory, mount name    the sort name of a shortened name
//	d directory                its node id and the state of its listing
//	i node id                  what the id stands for
//	s node id                  when the id's version was superseded
//	m ...                      one of the few below
//
// Directories are 16 bytes, node ids 8 with the highest first.
const (
	kindEntry      = 'e'
	kindHashed     = 'h'
	kindDirectory  = 'd'
	kindReverse    = 'i'
	kindSuperseded = 's'

	keyFormat  = "mformat"
	keyIDs     = "mids"
	keyRefused = "mrefused"
	keyClock   = "mclock"

	// format of all records; one that is newer is refused.
	format = 1
)

func nameKey(buf []byte, kind byte, dir [16]byte, name string) []byte {
	buf = append(buf, kind)
	buf = append(buf, dir[:]...)
	return append(buf, name...)
}

func idKey(buf []byte, kind byte, id uint64) []byte {
	return binary.BigEndian.AppendUint64(append(buf, kind), id)
}

func (t *Tree) checkFormat() error {
	v, ok, err := t.db.Get(nil, []byte(keyFormat))
	switch {
	case err != nil:
		return err
	case ok && (len(v) != 1 || v[0] > format):
		return fmt.Errorf("the names in %s were written by a newer version", t.o.Dir)
	case ok:
		return nil
	}
	e := t.db.Edit()
	e.Set([]byte(keyFormat), []byte{format})
	return e.Commit(false)
}

// loadClock compares the clock with what was written down.
func (t *Tree) loadClock() error {
	v, ok, err := t.db.Get(nil, []byte(keyClock))
	if err == nil && ok && len(v) == 8 {
		t.clock.Distrust(int64(binary.BigEndian.Uint64(v)))
	}
	return err
}

// noteClock writes the present time down with w.
func (t *Tree) noteClock(w *store.Edit) {
	w.Set([]byte(keyClock), binary.BigEndian.AppendUint64(nil, uint64(t.clock.Now())))
}

// entry is what the database says of a sort name of the directory.
func (d *directory) entry(t *Tree, sort string) (record.Entry, bool, error) {
	var keyBuf, valueBuf [128]byte
	v, ok, err := t.db.Get(valueBuf[:0], nameKey(keyBuf[:0], kindEntry, d.hash, sort))
	if err != nil || !ok {
		return record.Entry{}, false, err
	}
	e, err := record.ParseEntry(v)
	if err != nil {
		return record.Entry{}, false, nil // a record that cannot be read is looked up anew
	}
	return e, true, nil
}

func (t *Tree) reverse(id uint64) (record.Reverse, error) {
	if id == rootID {
		return record.Reverse{Dir: true}, nil
	}
	var keyBuf [16]byte
	var valueBuf [128]byte
	v, ok, err := t.db.Get(valueBuf[:0], idKey(keyBuf[:0], kindReverse, id))
	if err != nil {
		return record.Reverse{}, err
	}
	r, err := record.ParseReverse(v)
	if !ok || err != nil {
		return record.Reverse{}, staleID(id)
	}
	return r, nil
}

// directoryRecord is the node id and the state of a directory; false: it has none.
func (t *Tree) directoryRecord(hash [16]byte) (uint64, dirState, bool, error) {
	var keyBuf, valueBuf [64]byte
	v, ok, err := t.db.Get(valueBuf[:0], nameKey(keyBuf[:0], kindDirectory, hash, ""))
	if err != nil || !ok {
		return 0, dirState{}, false, err
	}
	r, err := record.ParseDirectory(v)
	if err != nil {
		return 0, dirState{}, false, nil // as if there were none
	}
	return r.ID, dirState{listed: r.Listed, took: r.Took, seen: r.Seen, refused: r.Refused}, true, nil
}

// setDirectory writes a directory's records.
func setDirectory(w *store.Edit, id uint64, p place, s *dirState) {
	var buf [256]byte
	v := record.Directory{ID: id, Listed: s.listed, Took: s.took, Seen: s.seen, Refused: s.refused}
	var keyBuf [32]byte
	w.Set(nameKey(keyBuf[:0], kindDirectory, p.hash(), ""), v.Append(buf[:0]))
	if id == rootID {
		return // what stands there, the links say
	}
	r := record.Reverse{Dir: true, Path: p.path}
	if p.link != nil {
		r.Link = "=" + p.link.Name
	}
	w.Set(idKey(keyBuf[:0], kindReverse, id), r.Append(buf[:0]))
}

// idOf is the node id of a directory; false: it has none yet.
func (t *Tree) idOf(p place) (uint64, bool, error) {
	if p == t.links.Load().root {
		return rootID, true, nil
	}
	id, _, ok, err := t.directoryRecord(p.hash())
	return id, ok && id != rootID, err // it may have been the root with other links
}

// placeID is the node id of a directory; it gets one now if it has none.
func (t *Tree) placeID(p place) (uint64, error) {
	if id, ok, err := t.idOf(p); ok || err != nil {
		return id, err
	}
	// Two who find the same directory must not give it two ids.
	t.ids.place.Lock()
	defer t.ids.place.Unlock()
	id, ok, err := t.idOf(p)
	if ok || err != nil {
		return id, err
	}
	if id, err = t.ids.next(t); err != nil {
		return 0, err
	}
	w := t.db.Edit()
	setDirectory(w, id, p, &dirState{seen: t.clock.Now() * int64(time.Millisecond)})
	return id, w.Commit(false)
}

// idBlock is how many node ids are reserved at a time: a synced write each.
const idBlock = 1 << 20

// ids gives out node ids, each once.
type ids struct {
	place sync.Mutex // held while a directory gets its id; taken before mu

	mu       sync.Mutex // guards the rest; held across a synced write per block
	last     uint64
	reserved uint64      // ids up to this one are written down as used
	lost     atomic.Bool // the reservation went with its database
}

func (i *ids) load(t *Tree) error {
	v, ok, err := t.db.Get(nil, []byte(keyIDs))
	if err != nil {
		return err
	}
	i.last = max(rootID, t.o.FirstID)
	switch {
	case ok && len(v) == 8:
		i.last = max(i.last, binary.BigEndian.Uint64(v))
	case t.db.Stats().Rebuilds > 0:
		// What was set aside had given out ids, fewer than 2^20 each second since 2020.
		i.last = max(i.last, uint64(t.clock.Now()/1000-record.Epoch)*idBlock)
	}
	i.reserved = i.last
	return nil
}

func (i *ids) next(t *Tree) (uint64, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.last >= i.reserved || i.lost.Load() {
		i.lost.Store(false)
		upTo := i.last + idBlock
		w := t.db.Edit()
		w.Set([]byte(keyIDs), binary.BigEndian.AppendUint64(nil, upTo))
		if err := w.Commit(true); err != nil {
			return 0, fmt.Errorf("reserve node ids: %w", err)
		}
		i.reserved = upTo
		if told := t.o.Events.Reserved; told != nil {
			told(upTo)
		}
	}
	i.last++
	return i.last, nil
}

// refusals counts keys that cannot be shown, over all listings kept.
type refusals struct{ total atomic.Int64 }

func (r *refusals) load(db *store.Store) error {
	v, ok, err := db.Get(nil, []byte(keyRefused))
	if err == nil && ok {
		n, _ := binary.Uvarint(v)
		r.total.Store(int64(n))
	}
	return err
}

// add counts n more, or fewer, and writes that down with w.
func (r *refusals) add(w *store.Edit, n int64) {
	if n != 0 {
		w.Set([]byte(keyRefused), binary.AppendUvarint(nil, uint64(max(0, r.total.Add(n)))))
	}
}
