package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// Keep is Put that waits for room in the queue and evicts the entries that are worth least. It
// returns when the block is written, or says why it is not kept. A full directory is asked twice, with
// Options.Check between.
func (s *Store) Keep(ctx context.Context, b hearth.Block, v *hearth.View) error {
	for full := false; ; {
		d, err := s.target(b, v)
		if err != nil {
			return err
		}
		if s.Has(b.ID()) && !d.queue.Has(b.ID()) {
			return nil
		}
		done := make(chan error, 1)
		err = d.queue.Push(queueItem{Block: b, View: v, Keep: true, Done: done})
		switch {
		case errors.Is(err, errQueued): // a Put queued it, and may still be declined
			if err := s.drain(ctx); err != nil {
				return err
			}
			continue
		case errors.Is(err, errFull):
			if err := d.queue.Wait(ctx, queueCost(v)); err != nil {
				return fmt.Errorf("keep block %v: %w", b.ID(), err)
			}
			continue
		case err != nil:
			return fmt.Errorf("keep block %v: %w", b.ID(), err)
		}
		select {
		case err = <-done:
		case <-ctx.Done():
			return fmt.Errorf("keep block %v: %w", b.ID(), context.Cause(ctx))
		}
		if full || !errors.Is(err, ErrFull) {
			return err
		}
		// What was evicted may still count: a file whose last reader has just gone, pages that small blocks share.
		full = true
		select {
		case <-time.After(d.opt.Check):
		case <-ctx.Done():
			return fmt.Errorf("keep block %v: %w", b.ID(), context.Cause(ctx))
		}
	}
}

// Flush returns when everything that was given before is on the devices. If some directories fail,
// the error is a hearth.Unflushed.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.drain(ctx); err != nil {
		return err
	}
	var failed unflushed
	for _, d := range s.dirs {
		if err := d.sync(); err != nil {
			failed.dirs = append(failed.dirs, d)
			failed.error = errors.Join(failed.error, fmt.Errorf("flush %s: %w", d.path, err))
		} else {
			failed.well = append(failed.well, d)
		}
	}
	if failed.error != nil {
		return failed
	}
	return nil
}

// unflushed is the error of some directories. A block that other directories hold as well is on
// their devices.
type unflushed struct {
	error
	dirs, well []*directory
}

// Unwrap gives the errors of the directories.
func (u unflushed) Unwrap() error { return u.error }

// Concerns implements hearth.Unflushed.
func (u unflushed) Concerns(id hearth.ID) bool {
	has := func(d *directory) bool { return d.has(id) }
	return slices.ContainsFunc(u.dirs, has) && !slices.ContainsFunc(u.well, has)
}

// sync brings everything written so far to the device. It flushes the file system as a whole, since
// sidecars lie in the page cache of as many files as there are objects. The last writes to a
// directory that is out of use since then may never get there.
func (d *directory) sync() error {
	at := d.written.Load()
	if e := d.ejection.Load(); e != nil {
		if at == d.flushed.Load() {
			return nil
		}
		return fmt.Errorf("%w: %w", ErrEjected, e.cause)
	}
	err := d.syncNow()
	if err != nil {
		d.writeFailed(err)
		return err
	}
	d.flushed.Store(at)
	return nil
}

func (d *directory) syncNow() error {
	vol := d.use()
	if vol == nil {
		return ErrEjected // it was ejected just now
	}
	defer vol.release()
	if err := vol.sync(); err != nil {
		return err
	}
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // the result is Syncfs's
	return unix.Syncfs(int(dir.Fd()))
}

// drain waits until everything that is queued now was written or declined.
func (s *Store) drain(ctx context.Context) error {
	marks := make([]<-chan error, 0, len(s.dirs))
	for _, d := range s.dirs {
		done, err := d.queue.Mark()
		if err != nil {
			return fmt.Errorf("flush %s: %w", d.path, err)
		}
		marks = append(marks, done)
	}
	for _, done := range marks {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("flush disk cache: %w", err)
			}
		case <-ctx.Done():
			return fmt.Errorf("flush disk cache: %w", context.Cause(ctx))
		}
	}
	return nil
}

// Has reports whether the block is queued or on disk. It reads no blocks.
func (s *Store) Has(id hearth.ID) bool {
	for _, d := range s.dirs {
		if d.has(id) {
			return true
		}
	}
	return false
}

// Drop evicts every written block of an object, pinned or not.
func (s *Store) Drop(o *hearth.Object) {
	for _, d := range s.dirs {
		if vol := d.use(); vol != nil {
			vol.forget(o.Version, o.Blocks())
			vol.release()
		}
	}
}

// Replaced says that the namespace knows a newer version of o's name. Its blocks are still served,
// and go first when room is needed. A later Put of the version revokes that.
func (s *Store) Replaced(o *hearth.Object) {
	for _, d := range s.dirs {
		d.replaced.Add(o.Version, o.Blocks())
	}
}
