package jobs

import (
	"context"
	"errors"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/pins"
)

// Volumes are what jobs that keep blocks on volumes work with.
type Volumes struct {
	Set *volume.Set
	// Source has the Set keep this node's own blocks. Owners are the other nodes of the ring, or nil.
	Source warmup.Loader
	Owners Owners
	// Known is as in warmup.Volumes.
	Known func(ctx context.Context) error
	// Pins tell jobs what they share. No volume asks them what it must not evict.
	Pins *warmup.Pins
}

// of is what the engine sees of the volumes.
func (v *Volumes) of(c checker) *warmup.Volumes {
	w := &warmup.Volumes{Source: v.Source, Keeper: v.Set, Pins: v.Pins, Checker: volumeChecker{c, v}, Room: volumeRoom{v.Set}, Known: v.Known, Waits: v.Set.Waits}
	if v.Owners != nil {
		w.Owners = v.Owners
		w.Checker, w.Room = v.Owners.Join(w.Checker, w.Room)
	}
	return w
}

// refuses says why nothing can be kept on volumes. nil means that at least one is attached.
func (v *Volumes) refuses() error {
	if v == nil || len(v.Set.All()) == 0 {
		return warmup.Refusal("this node has no volume: attach one by hearth volume attach, or name it in volumes: of the configuration")
	}
	return nil
}

// volumeChecker is the checker of what volumes hold. Names are checked as for the disk tier.
type volumeChecker struct {
	checker
	of *Volumes
}

// Verify implements warmup.Checker.
func (c volumeChecker) Verify(ctx context.Context, o *hearth.Object, first, n int64, pace warmup.Pace) (v warmup.Verdict) {
	why, lost, bad := "on no volume", 0, ""
	_ = c.of.Known(ctx) // of what cannot be used Verify says so
	if !o.Cacheable() {
		why = "it has no strong ETag, so that no tier keeps it"
	}
	for i := first; i < first+n && ctx.Err() == nil; i++ {
		b := o.Block(i)
		bytes := int64(b.Len())
		if c.of.Set.Has(b.ID()) {
			if pace(ctx, bytes) != nil {
				break
			}
			v.Read += bytes
		}
		held, err := c.of.Set.Verify(ctx, b)
		switch {
		case errors.Is(err, record.ErrMismatch):
			v.Corrupt += bytes
			if bad == "" {
				bad = err.Error()
			}
		case held:
			v.Whole += bytes
		case errors.Is(err, volume.ErrUnread) && o.Cacheable():
			v.Unread += bytes
			if v.Unable == "" {
				v.Unable = err.Error()
			}
		default:
			v.Missing += bytes
			lost++
			if err != nil {
				why = err.Error()
			}
		}
	}
	v.Cause = causeOf(o, first, n, bad, lost, why)
	return v
}

// Files implements warmup.Checker. hearth volume check looks at what belongs to no object.
func (c volumeChecker) Files(context.Context, warmup.Pace, func(file, cause string)) error {
	return nil
}

// volumeRoom is warmup.Room for volumes. It has one directory, since nobody chooses where a block lies.
type volumeRoom struct{ set *volume.Set }

// Needs implements warmup.Room.
func (r volumeRoom) Needs(o *hearth.Object) (dir int, bytes int64) { return 0, r.set.Needs(o) }

// Rooms implements warmup.Room.
func (r volumeRoom) Rooms([]string) []int64 {
	room, _ := r.set.Room()
	return []int64{room}
}

// Free implements warmup.Room.
func (r volumeRoom) Free() []int64 {
	_, free := r.set.Room()
	return []int64{free}
}

// Covered implements warmup.Room. Pins hold what disks have.
func (volumeRoom) Covered(string, []string) bool { return false }

// Within implements warmup.Room.
func (volumeRoom) Within([]string) []*warmup.Set { return nil }

// Of says what the room belongs to.
func (volumeRoom) Of() pins.Place {
	return pins.Place{Of: "the volumes", Less: "their size, less what the format takes, by the copies of each block",
		Cure: "attach another volume (hearth volume attach), or warm up less"}
}
