package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/segment"
	"github.com/hearthfs/hearth/cache/sparse"
)

// Check reads and verifies all blocks of the directory at path. Readers and the writer do not wait
// for it.
func (s *Store) Check(ctx context.Context, r *check.Run, path string) error {
	i := slices.IndexFunc(s.dirs, func(d *directory) bool { return d.path == path })
	if i < 0 {
		return fmt.Errorf("check %s: it is no cache directory of this node", path)
	}
	if err := CheckLabel(path, false, r); err != nil {
		return err
	}
	return s.dirs[i].verify(ctx, r, scrubPlace{}, func(scrubPlace) {})
}

// Inside runs a check on the content of each directory. If block b waits to be written, it is
// written before. check.ErrLeft means that nothing can be said about some directory.
func (s *Store) Inside(ctx context.Context, r *check.Run, b *hearth.Block, do func(*segment.Log, *sparse.Files) error) error {
	var errs []error
	for _, d := range s.dirs {
		if b != nil && d.queue.Has(b.ID()) {
			errs = append(errs, s.drain(ctx))
		}
		errs = append(errs, d.within(r, do))
	}
	return errors.Join(errs...)
}

// verify checks from a place on, and calls at for each place that it reaches.
func (d *directory) verify(ctx context.Context, r *check.Run, from scrubPlace, at func(scrubPlace)) error {
	return d.within(r, func(log *segment.Log, files *sparse.Files) error {
		if !from.Objects {
			if err := log.Check(ctx, r, from.Segment, func(number uint32) { at(scrubPlace{Segment: number + 1}) }); err != nil {
				return err
			}
		}
		return files.Check(ctx, r, from.Object, func(version [16]byte) { at(scrubPlace{Objects: true, Object: version}) })
	})
}

// within runs a check on the content of the directory, as long as that is in use and its device
// answers.
func (d *directory) within(r *check.Run, do func(*segment.Log, *sparse.Files) error) error {
	vol := d.use()
	if vol == nil || !d.readable() {
		if vol != nil {
			vol.release()
		}
		return fmt.Errorf("check %s: %w", d.path, check.ErrLeft)
	}
	defer vol.release()
	r.Step = func(op func()) bool {
		return d.readable() && d.volume.Load() == vol && d.aside(func() {
			if vol.tryRetain() { // an abandoned operation keeps Close waiting
				defer vol.release()
				op()
			}
		}, func() {})
	}
	packed, isLog := vol.packed.(*packedArea)
	whole, isFiles := vol.whole.(wholeArea)
	if !isLog || !isFiles { // only in tests
		return nil
	}
	if err := do(packed.log, whole.files); err != nil {
		return fmt.Errorf("check %s: %w", d.path, err)
	}
	return nil
}

// scrubbing is a directory's scrub and its goroutine.
type scrubbing struct {
	*scrub
	ctx   context.Context
	end   context.CancelFunc
	ended chan struct{} // closed when the goroutine has ended
}

// scrubs runs the scrub of the directory until end is called.
func (d *directory) scrubs() {
	defer close(d.scrub.ended)
	d.scrub.Run(d.scrub.ctx)
}

func (d *directory) newScrub() scrubbing {
	name := filepath.Join(d.path, ScrubFile)
	noted, _ := os.ReadFile(name) // if it cannot be read, a pass begins anew
	note := func(text []byte) {
		if !d.writable() {
			return // another file system may lie there now
		}
		d.aside(func() {
			if os.WriteFile(name+".new", text, 0o600) == nil {
				_ = os.Rename(name+".new", name)
			}
		}, func() {})
	}
	s := scrubbing{ended: make(chan struct{})}
	t := scrubTarget{Check: d.verify, Busy: d.guard.Busy, Found: d.events.Found, Failed: d.events.ScrubFailed, Note: note}
	s.scrub = newScrub(t, noted, d.opt.Scrub, d.opt.ScrubEvery)
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// Own locks a cache directory that no process uses, and changes nothing else in it. It fails with
// ErrRefused for a directory that is foreign, of a newer format, in a FUSE mount, or in use
// (ErrInUse). The text of that error has the cure. It fails with os.ErrNotExist if there is none.
func Own(path string) (release func(), err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open cache directory: %w", err)
	}
	if err := refuseFUSE(path, unix.Statfs); err != nil {
		return nil, err
	}
	if err := refuseForeign(path); err != nil {
		return nil, err
	}
	text, err := ReadLabel(path)
	if err == nil && text.Format > LabelFormat {
		return nil, newerHome(path, text)
	}
	if _, none := os.Stat(segmentsPath(path)); err != nil && none != nil {
		return nil, refuse("%s holds no cache of hearth", path)
	}
	f, err := lock(path, nil)
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil // the lock goes with the descriptor
}
