package warmup

import (
	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/warmup/pins"
)

// Pins and Set are those of package pins.
type (
	Pins = pins.Pins
	Set  = pins.Set
)

// Room is what the disk tier says of its directories.
type Room interface {
	// Needs is the index of the directory that an object belongs to, and about how many
	// bytes it takes there.
	Needs(o *hearth.Object) (dir int, bytes int64)
	// Rooms are the bytes of objects that each directory may hold. That is its budget, or
	// less while its file system is short. Names, and what is pinned outside of these
	// targets, are taken off.
	Rooms(targets []string) []int64
	// Free are the bytes that each directory takes without an eviction.
	Free() []int64
	// Covered reports whether a pin already counts the bytes of a target.
	Covered(target string, targets []string) bool
	// Within are the objects of the pins at and below some targets. A warm-up that loads
	// them takes them from nobody: they are taken off the rooms of others.
	Within(targets []string) []*Set
}

// fit is what the objects of a job's targets need.
type fit struct {
	*pins.Fit
	of      Room // nil means that everything fits
	targets []string
	target  string // the target that was last asked about
	covered bool   // the answer for it
}

func newFit(of Room, targets []string, mine *pins.Claim, before []*pins.Claim) *fit {
	if of == nil {
		return &fit{Fit: pins.NewFit(nil, nil, nil, nil)}
	}
	f := &fit{Fit: pins.NewFit(of.Rooms(targets), mine, before, of.Within(targets)), of: of, targets: targets}
	if named, ok := of.(interface{ Of() pins.Place }); ok {
		f.Place = named.Of()
	}
	return f
}

// add adds an object of a target, and returns the sum. It leaves out archived objects.
// Otherwise a set beside terabytes of an archive would be refused.
func (f *fit) add(target string, o *hearth.Object) (sum int64) {
	if f.of == nil {
		return 0
	}
	if f.target != target {
		f.target, f.covered = target, f.of.Covered(target, f.targets)
	}
	if o.Cacheable() && !o.Archived() && !f.covered {
		dir, n := f.of.Needs(o)
		f.Add(dir, n, o.Version)
	}
	sum, _, _ = f.Sums()
	return sum
}

// refusal says why what was added does not fit. At the end of a count the room is
// measured again, since names take some of it, and other jobs must have theirs.
func (f *fit) refusal(end bool) error {
	var rooms []int64
	if end && f.of != nil {
		rooms = f.of.Rooms(f.targets)
	}
	if lacks := f.Lacks(rooms); lacks != "" {
		return &failure{kindRefused, lacks}
	}
	return nil
}
