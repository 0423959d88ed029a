package e2e

import (
	"errors"
	"slices"
	"syscall"
	"time"
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
