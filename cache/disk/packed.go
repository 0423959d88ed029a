package disk

import (
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/internal/piece"
)

// packedArea is the area of small objects, and of those that are too large for a file of their own.
type packedArea struct {
	log     *segment.Log
	entries []segment.Entry // reused by put; only the writer uses it
	clock   clock
	of      *directory
}

func openPacked(d *directory) (area, error) {
	o := d.opt
	log, err := segment.Open(segment.Options{
		Dir: segmentsPath(d.path), Pool: o.Pool, Alloc: alloc(o.Pool), Budget: d.budget, OpenFiles: openFiles(len(o.Dirs)),
		Touch: func(state uint32) uint32 { return evict.Touch(state, d.clock.seconds()) },
		Fresh: evict.Fresh(d.clock.seconds()), Step: d.guard.Writer.Work, Damaged: o.Events.Damaged, Mended: d.mend,
	})
	if err != nil {
		return nil, err
	}
	return &packedArea{log: log, clock: d.clock, of: d}, nil
}

// openFiles returns how many segments stay open: all of them, if that leaves three quarters of the
// limit on descriptors to others.
func openFiles(dirs int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0 // segment's default
	}
	return int(min(limit.Cur/4, 8192)) / dirs
}

func (a *packedArea) get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return a.log.Get(ctx, b.ID(), b.Len(), off, n)
}

func (a *packedArea) has(id hearth.ID) bool { return a.log.Has(id) }

func (a *packedArea) put(items []queueItem) error {
	a.entries = a.entries[:0]
	fresh := evict.Fresh(a.clock.seconds())
	for i := range items {
		a.entries = append(a.entries, segment.Entry{ID: items[i].Block.ID(), Data: items[i].View.Bytes(), Sums: piece.Known(items[i].View.Sums()), State: fresh})
	}
	err := a.log.Append(a.entries)
	clear(a.entries)
	if errors.Is(err, segment.ErrDeclined) || errors.Is(err, fs.ErrInvalid) {
		return errors.Join(errDeclined, err)
	}
	return err
}

func (a *packedArea) sample(r uint64, n int, each func(entry)) {
	a.log.Sample(r, n, func(c segment.Candidate) {
		each(entry{id: c.ID, size: c.Size, state: c.State})
	})
}

// evict may free nothing at once: small blocks share pages.
func (a *packedArea) evict(id hearth.ID) bool {
	held := a.log.Has(id)
	if held && a.of.spills(id) {
		a.spill(id)
	}
	a.log.Evict(id)
	return held
}

func (a *packedArea) spill(id hearth.ID) {
	v, err := a.log.Peek(id)
	switch {
	case err == nil:
		a.of.spill(id, v)
		v.Release()
	case !errors.Is(err, hearth.ErrMiss):
		a.of.readFailed(err)
	}
}

func (a *packedArea) forget(version [16]byte, blocks int64) {
	a.log.EvictObject(version, blocks)
}

// compact rewrites segments with few live bytes. It returns false when none is due.
func (a *packedArea) compact(ctx context.Context) (bool, error) {
	n, err := a.log.Compact(ctx)
	return n > 0, err
}

func (a *packedArea) unindexed() (blocks, bytes int64) {
	s := a.log.Stats()
	return s.Unindexed, s.UnindexedBytes
}

func (a *packedArea) recall(ctx context.Context) error { return a.log.Recall(ctx) }

func (a *packedArea) shed(pinned func(hearth.ID) bool) int64 { return a.log.Shed(pinned) }

func (a *packedArea) used() int64  { return a.log.Used() }
func (a *packedArea) sync() error  { return a.log.Sync() }
func (a *packedArea) close() error { return a.log.Close() }

func (a *packedArea) stats() areaStats {
	s := a.log.Stats()
	return areaStats{blocks: s.Blocks, corrupt: s.Corrupt, indexBytes: s.Memory, written: s.Written}
}
