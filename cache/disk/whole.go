package disk

import (
	"context"
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
	"github.com/hearthfs/hearth/cache/sparse"
	"github.com/hearthfs/hearth/internal/device"
)

// wholeArea is the area of objects that have a file of their own.
type wholeArea struct {
	files   *sparse.Files
	damaged func(file string, cause error)
	of      *directory
}

func openWhole(d *directory) (area, error) {
	o := d.opt
	files, err := sparse.Open(sparse.Options{
		Dir: objectsPath(d.path), Pool: o.Pool, Alloc: alloc(o.Pool), Now: d.clock.seconds, Fresh: evict.Fresh, Touch: evict.Touch, Shared: o.Owns != nil,
		MaxOpen: min(256, max(1, openFiles(len(o.Dirs))/2)), // two descriptors each: another quarter of the limit
		Events: sparse.Events{Damaged: func(file string, _ int64, err error) {
			ifDevice(err, d.readFailed)
			o.Events.Damaged(file, err)
		}, Mended: d.mend},
	})
	if err != nil {
		return nil, err
	}
	return wholeArea{files, o.Events.Damaged, d}, nil
}

// ifDevice calls sick for an error of the device. Damaged bytes say nothing about the device.
func ifDevice(err error, sick func(error)) {
	var no syscall.Errno
	if errors.As(err, &no) {
		sick(err)
	}
}

func (a wholeArea) get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	v, err := a.files.Get(ctx, b, off, n)
	if a.newer(err) || errors.Is(err, sparse.ErrMemory) { // the device is not to blame for either
		err = hearth.ErrMiss
	}
	return v, err
}

// newer reports a file that a newer hearth wrote. It is left as it is, and says nothing about the
// device.
func (a wholeArea) newer(err error) bool {
	var format *device.FormatError
	if !errors.As(err, &format) {
		return false
	}
	a.damaged(format.File, format)
	return true
}

func (a wholeArea) has(id hearth.ID) bool { return a.files.Has(id) }

func (a wholeArea) knows(id hearth.ID) (held, known bool) { return a.files.Knows(id) }

func (a wholeArea) put(items []queueItem) error {
	var buf [hearth.ExtentBlocks][]byte
	run := buf[:0]
	for i := range items {
		run = append(run, items[i].View.Bytes())
	}
	b := items[0].Block
	err := a.files.PutMany(b.Object, b.Index, run)
	if errors.Is(err, sparse.ErrLent) || errors.Is(err, unix.EFBIG) { // it is larger than a file may be here
		return errors.Join(errElsewhere, err)
	}
	if errors.Is(err, sparse.ErrBusy) || errors.Is(err, sparse.ErrMemory) || a.newer(err) {
		return errors.Join(errDeclined, err)
	}
	return err
}

func (a wholeArea) sample(r uint64, n int, each func(entry)) {
	a.files.Sample(r, n, func(c sparse.Candidate) {
		each(entry{id: c.ID, size: c.Size, state: c.State})
	})
}

// evict evicts the extent, or the whole object if its file is whole and the node in no ring.
func (a wholeArea) evict(id hearth.ID) bool {
	if a.of.opt.Spill == nil {
		return a.files.EvictExtent(id) > 0
	}
	return a.files.EvictTo(id, a.of.spills, a.of.spill) > 0
}

func (a wholeArea) forget(version [16]byte, _ int64) { a.files.EvictObject(version) }

func (a wholeArea) unindexed() (blocks, bytes int64) {
	s := a.files.Stats()
	return (s.UnindexedBytes + hearth.BlockSize - 1) / hearth.BlockSize, s.UnindexedBytes
}

func (a wholeArea) recall(context.Context) error { return a.files.Recall() }

func (a wholeArea) shed(pinned func(hearth.ID) bool) int64 { return a.files.Shed(pinned) }

func (a wholeArea) used() int64 { return a.files.Used() }

// sync does nothing: the file system is flushed as a whole.
func (a wholeArea) sync() error { return nil }

func (a wholeArea) close() error { return a.files.Close() }

func (a wholeArea) stats() areaStats {
	s := a.files.Stats()
	return areaStats{blocks: s.Used / hearth.BlockSize, corrupt: s.Damaged, errors: s.Errors, indexBytes: s.IndexBytes, written: s.WriteBytes}
}

// LocalFile implements lender.
func (a wholeArea) LocalFile(o *hearth.Object) (*os.File, func(), error) {
	return a.files.LocalFile(o)
}
