package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/check"
	"github.com/hearthfs/hearth/cache/disk/label"
	"github.com/hearthfs/hearth/cache/disk/layout"
	"github.com/hearthfs/hearth/cache/scrub"
)

// Check reads and verifies all that the directory at path holds. Nobody is kept
// waiting for it.
func (s *Store) Check(ctx context.Context, r *check.Run, path string) error {
	i := slices.IndexFunc(s.dirs, func(d *directory) bool { return d.path == path })
	if i < 0 {
		return fmt.Errorf("check %s: it is no cache directory of this node", path)
	}
	if err := CheckHome(path, false, r); err != nil {
		return err
	}
	return s.dirs[i].verify(ctx, r, scrub.Place{}, func(scrub.Place) {})
}

// verify checks from a place on, for as long as the directory is in use and its
// device answers.
func (d *directory) verify(ctx context.Context, r *check.Run, from scrub.Place, at func(scrub.Place)) error {
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
			if vol.tryRetain() { // one that is left stays in front of Close
				defer vol.release()
				op()
			}
		}, func() {})
	}
	packed, isLog := vol.packed.(*packedArea)
	whole, isFiles := vol.whole.(wholeArea)
	if isLog && !from.Objects {
		err := packed.log.Check(ctx, r, from.Segment, func(number uint32) { at(scrub.Place{Segment: number + 1}) })
		if err != nil {
			return fmt.Errorf("check %s: %w", d.path, err)
		}
	}
	if isFiles {
		err := whole.files.Check(ctx, r, from.Object, func(version [16]byte) { at(scrub.Place{Objects: true, Object: version}) })
		if err != nil {
			return fmt.Errorf("check %s: %w", d.path, err)
		}
	}
	return nil
}

// scrubbing is a directory's scrub and its goroutine.
type scrubbing struct {
	*scrub.Scrub
	ctx   context.Context
	end   context.CancelFunc
	ended chan struct{} // closed when the goroutine has
}

// scrubs scrubs the directory until end is called.
func (d *directory) scrubs() {
	defer close(d.scrub.ended)
	d.scrub.Run(d.scrub.ctx)
}

func (d *directory) newScrub() scrubbing {
	name := filepath.Join(d.path, scrub.FileName)
	noted, _ := os.ReadFile(name) // without it a pass begins anew
	note := func(text []byte) {
		if !d.writable() {
			return // it may be another file system's by now
		}
		d.aside(func() {
			if os.WriteFile(name+".new", text, 0o600) == nil {
				_ = os.Rename(name+".new", name)
			}
		}, func() {})
	}
	s := scrubbing{ended: make(chan struct{})}
	t := scrub.Target{Check: d.verify, Busy: d.guard.busy, Found: d.events.Found, Failed: d.events.ScrubFailed, Note: note}
	s.Scrub = scrub.New(t, noted, d.opt.Scrub, d.opt.ScrubEvery)
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// busy reports whether a reader waits for the device now.
func (g *guard) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls.after != &g.calls
}

// Own takes a cache directory that no process uses, without changing anything in it
// but the lock file. ErrRefused, with the cure: it is another's, of a newer format,
// in a FUSE mount, or in use (ErrInUse). os.ErrNotExist: there is none.
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
	text, err := label.Read(path)
	if err == nil && text.Format > label.Format {
		return nil, newerHome(path, text)
	}
	if _, none := os.Stat(segmentsPath(path)); err != nil && none != nil {
		return nil, refuse("%s holds no cache of hearth", path)
	}
	f, err := lock(path)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// CheckHome reads hearth.json of a directory that Own has taken. With repair one that
// is damaged or missing is made anew: its ids are new then, and what it holds stays.
func CheckHome(path string, repair bool, r *check.Run) error {
	r.Files.Add(1)
	name := filepath.Join(path, layout.Home)
	_, err := label.Read(path)
	switch {
	case err == nil:
	case check.Unreadable(err):
		r.Tell(check.Unread(name, err))
	case errors.Is(err, label.ErrDamaged), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.EIO):
		f := check.InFile(check.Damaged, name, -1, err.Error())
		if repair {
			_, err := label.Write(path, "")
			f.Repaired = err == nil
		}
		r.Tell(f)
	default:
		return fmt.Errorf("check %s: %w", path, err)
	}
	return nil
}
