package warmup

import (
	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/warmup/pins"
)

// Pins, and a Set of them, are as package pins has them.
type (
	Pins = pins.Pins
	Set  = pins.Set
)

// Room is what the disk tier says of its directories.
type Room interface {
	// Needs is the index of the directory that an object belongs to, and about what
	// it takes there, in bytes.
	Needs(o *hearth.Object) (dir int, bytes int64)
	// Rooms are the bytes that each directory may hold of objects: its budget, or
	// less while its file system is short, less names and what is pinned elsewhere than
	// below these targets.
	Rooms(targets []string) []int64
	// Free are the bytes that each directory takes without giving anything up.
	Free() []int64
	// Covered reports whether a target's bytes are in those of a pin already.
	Covered(target string, targets []string) bool
	// Within are the objects of the pins at and below some targets. What a warm-up takes
	// of them it takes from nobody: others have it taken off their rooms.
	Within(targets []string) []*Set
}

// fit is what the objects of a job's targets need.
type fit struct {
	*pins.Fit
	of      Room // nil: everything fits
	targets []string
	target  string // that was asked about last, and
	covered bool   // the answer
}

func newFit(of Room, targets []string, mine *pins.Claim, before []*pins.Claim) *fit {
	if of == nil {
		return &fit{Fit: pins.NewFit(nil, nil, nil, nil)}
	}
	f := &fit{Fit: pins.NewFit(of.Rooms(targets), mine, before, of.Within(targets)), of: of, targets: targets}
	if ring, ok := of.(interface{ Of() string }); ok {
		f.Of = ring.Of()
	}
	return f
}

// add adds an object of a target, and returns the sum. What is archived is left out: else a set
// beside terabytes of an archive would be refused.
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

// refusal says why what was added does not fit; at the end of a count the room is
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
