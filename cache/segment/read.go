package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
)

// Get returns bytes [off, off+n) of the block, which is blockLen bytes long, verified.
// hearth.ErrMiss means that the block is not held, or that its bytes were bad. Other errors come
// from ctx or from the device. A block that cannot be read (EIO) is dropped, so that it can be put
// again elsewhere. The caller releases the View and holds none when calling.
func (l *Log) Get(ctx context.Context, id hearth.ID, blockLen, off, n int) (*hearth.View, error) {
	if off < 0 || n <= 0 || off+n > blockLen {
		return nil, fmt.Errorf("read [%d, %d) of block %s of %d bytes: %w", off, off+n, id, blockLen, fs.ErrInvalid)
	}
	// A block that moves during the read is looked up again. Each lost round takes an eviction or
	// compaction of this very block.
	for range 3 {
		p, ok := l.index.Get(id, l.touch)
		if !ok || int(p.Length) != blockLen {
			return nil, hearth.ErrMiss
		}
		r := record.Read(p.Note(id), off, n)
		v, err := l.alloc(ctx, r.Len())
		if err != nil {
			return nil, err
		}
		part, err := l.read(&r, p.Slot, v)
		v.Release()
		if err == nil {
			l.counters.hits.Add(1)
			l.counters.hitBytes.Add(int64(n))
			return part, nil
		}
		if !errors.Is(err, record.ErrMismatch) && !errors.Is(err, unix.EIO) {
			return nil, err // closed, or no file descriptor: not the block's fault
		}
		// Only the one who removes the entry at this very place drops the record.
		if _, ok := l.index.Remove(id, &p); !ok {
			continue
		}
		_, dropErr := l.drop(id, p)
		l.settler.fail(dropErr)
		if errors.Is(err, record.ErrMismatch) {
			if !errors.Is(err, record.ErrEvicted) {
				l.corrupt(p.Slot, p.Note(id))
			}
			return nil, hearth.ErrMiss
		}
		return nil, err
	}
	return nil, hearth.ErrMiss
}

// Peek returns a whole block, verified, for a caller that is about to evict it. It is no use of the
// block, never waits for memory, and drops no block. hearth.ErrMiss means that the block is not held,
// that its bytes are bad, or that the Pool has no memory now. Other errors come from the device.
func (l *Log) Peek(id hearth.ID) (*hearth.View, error) {
	p, ok := l.index.Get(id, nil)
	if !ok {
		return nil, hearth.ErrMiss
	}
	r := record.ReadAll(p.Note(id))
	v := l.pool.TryAlloc(r.Len())
	if v == nil {
		return nil, hearth.ErrMiss
	}
	defer v.Release()
	all, err := l.read(&r, p.Slot, v)
	if !errors.Is(err, record.ErrMismatch) {
		return all, err
	}
	if at, ok := l.index.Get(id, nil); ok && at == p && !errors.Is(err, record.ErrEvicted) { // else it moved or went
		l.corrupt(p.Slot, p.Note(id))
	}
	return nil, hearth.ErrMiss
}

// corrupt counts a block that did not verify, and reports it.
func (l *Log) corrupt(slot uint32, n record.Note) {
	l.counters.corrupt.Add(1)
	if slots := *l.slots.Load(); l.counters.damaged != nil && int(slot) < len(slots) && slots[slot] != nil {
		l.counters.damaged(l.dir.Full(slots[slot].name()), fmt.Errorf("block %v at %d: %w", n.ID, n.Offset(), record.ErrMismatch))
	}
}

// read fills v by r from the segment at slot, verifies it, and returns a Slice of
// what was wanted.
func (l *Log) read(r *record.Plan, slot uint32, v *hearth.View) (*hearth.View, error) {
	slots := *l.slots.Load()
	if int(slot) >= len(slots) || slots[slot] == nil {
		return nil, record.ErrMismatch
	}
	s := slots[slot]
	f, err := s.acquire()
	if err == nil {
		err = r.Fill(f.ReadAt, v.Bytes())
		s.release()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, fs.ErrNotExist) {
		return nil, record.ErrMismatch // shortened or unlinked meanwhile
	}
	if err != nil {
		return nil, err
	}
	l.counters.read.Add(int64(v.Len()))
	if err := r.Verify(v.Bytes(), s.salt); err != nil {
		return nil, err
	}
	return r.Wanted(v), nil
}
