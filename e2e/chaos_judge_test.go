package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// span is the time of a fault; to is 0 while it goes on.
type span struct {
	kind     sickness
	from, to time.Duration
}

// need is what a fault makes of what somebody needs of the origin, as the table of
// sicknesses has it.
type need func(k sickness) outcome

func needsList(k sickness) outcome { return k.lists }

// needsPath of who opens by a path: a directory's name is found by a listing.
func needsPath(k sickness) outcome { return max(k.names, k.lists) }

// needsBytes of the object that is open: what is whole in the cache needs nothing.
func (c *chaos) needsBytes(k *held) need {
	version, whole := c.whole[k.x]
	return func(kind sickness) outcome {
		switch {
		case whole && !k.s.blank && k.s.version == version:
			return right
		case k.x.Size <= 1<<20 && !c.spoilt: // one block
			return kind.small
		}
		return kind.large
	}
}

// excused reports whether the origin was ill within a time, or so shortly before that
// readers may still see it, in a way that fails who needs this of it.
func (c *chaos) excused(from, to time.Duration, of need) bool {
	return slices.ContainsFunc(c.sickness, func(s span) bool {
		return of(s.kind) == fails && s.from <= to && (s.to == 0 || from <= s.to+chaosGrace)
	})
}

// allowed is how old names may be by now, and whether the last known ones may be shown
// within from and to, however old: an origin whose listings fail counts as away, though
// it would answer for a single name.
func (c *chaos) allowed(from, to time.Duration) (bound time.Duration, away bool) {
	switch c.mode.fresh {
	case "strict":
		return 0, false
	case "immutable":
		return 0, true
	}
	bound = max(c.bound(c.h), c.slow) + overload
	return bound, c.excused(from-bound, to, needsPath)
}

// failed judges an error of a system call that began then and needed this of the origin.
func (c *chaos) failed(what string, err error, began time.Duration, of need) {
	switch wrong := !errors.As(err, new(syscall.Errno)); {
	case wrong:
		c.add("wrong bytes")
		c.e.Errorf("%s: %v", what, err)
	case errors.Is(err, syscall.EIO) && c.excused(began, c.now(), of):
		c.add("errors while a fault stood")
	default:
		c.add("errors that nothing explains")
		c.e.Errorf("%s at %v of life %d (%s, %s; origin %q, disk %q): %v", what, began, c.life, c.mode.fresh, c.mode.open, c.ill, c.bad, err)
	}
}

// settled reports whether an object is shown at its last version, whole. What it shows
// until then is judged as all that is read: wrong bytes and errors that no fault
// explains fail the run, another version must be one that the bound allows.
func (c *chaos) settled(x *object) bool {
	last := x.past[len(x.past)-1].version
	seen := len(x.seen)
	version, whole := c.readWhole(x, true)
	if last == absent {
		s := x.seen[seen]
		return s.version == absent && !s.blank
	}
	return whole && version == last
}

// copied holds what a reader in a process of its own wrote - all of the object, or its
// beginning where it was killed or failed - against what it may have read, and its error
// against what may fail.
func (c *chaos) copied(r *copier, err error) {
	defer func() { _ = errors.Join(r.to.Close(), os.Remove(r.to.Name())) }()
	r.s.open = c.now()
	// When it opened the object nobody knows: at some moment until now.
	r.s.bound, r.s.away = c.allowed(r.s.opened, r.s.open)
	info, failed := r.to.Stat()
	c.e.must(failed, "stat what a reader wrote")
	const most = 64 * hearthtest.PageSize
	k := &held{x: r.x, f: r.to, s: r.s}
	for off := int64(0); off < info.Size() && c.read(k, off, int(min(most, info.Size()-off))); off += most {
	}
	k.f = nil
	if info.Size() > 0 && info.Size() < r.x.Size {
		c.add("copies cut short")
	}
	if what := "copy " + r.x.Path; err == nil && info.Size() != r.x.Size {
		c.failed(what, fmt.Errorf("%d bytes of %d", info.Size(), r.x.Size), r.s.opened, needsPath)
	} else if state := r.cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && !state.Signaled() {
		c.copyFailed(k, what, r.said.String())
	}
	k.close(c)
}

// copyFailed judges what a reader said that could not open an object or not read all of
// it, as if the call had been ours.
func (c *chaos) copyFailed(k *held, what, said string) {
	err := errors.New(said)
	for text, errno := range map[string]error{"No such file or directory": syscall.ENOENT, "Stale file handle": syscall.ESTALE, "Input/output error": syscall.EIO} {
		if strings.Contains(said, text) {
			err = errno
		}
	}
	switch {
	case errors.Is(err, syscall.ENOENT) && k.s.blank:
		k.s.version, k.s.blank = absent, false
	case errors.Is(err, syscall.ESTALE):
		k.s.stale, k.s.asked, k.s.told = true, k.s.opened, k.s.open
	default:
		c.failed(what, err, k.s.opened, func(kind sickness) outcome { return max(needsPath(kind), c.needsBytes(k)(kind)) })
	}
}
