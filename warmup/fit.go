package warmup

import (
	"fmt"
	"slices"

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
	// Covered reports whether a target's bytes are in those of a pin already.
	Covered(target string, targets []string) bool
	// Within are the objects of the pins at and below some targets. What a warm-up takes
	// of them it takes from nobody: others have it taken off their rooms.
	Within(targets []string) []*Set
}

// fit sums up what a set needs. It is the whole set that must fit, what is held of it
// already included: else loading the rest would push that out.
type fit struct {
	of      Room
	targets []string
	needs   []int64
	shared  []int64       // of them, what jobs that began before need, too
	rooms   []int64       // when it began
	before  []*pins.Claim // of those jobs
	mine    *pins.Claim
	pinned  []*Set // of pins whose bytes are in needs
	target  string // that was asked about last, and
	covered bool   // the answer
}

func newFit(of Room, targets []string, mine *pins.Claim, before []*pins.Claim) *fit {
	f := &fit{of: of, targets: targets, mine: mine, before: before}
	if of != nil {
		f.rooms, f.pinned = of.Rooms(targets), of.Within(targets)
		f.needs, f.shared = make([]int64, len(f.rooms)), make([]int64, len(f.rooms))
	}
	return f
}

// add adds an object of a target, and returns the sum.
func (f *fit) add(target string, o *hearth.Object) (sum int64) {
	if f.of == nil {
		return 0
	}
	if f.target != target {
		f.target, f.covered = target, f.of.Covered(target, f.targets)
	}
	if o.Cacheable() && !f.covered {
		dir, n := f.of.Needs(o)
		f.needs[dir] += n
		switch {
		case slices.ContainsFunc(f.pinned, func(x *Set) bool { return x.Has(o.Version) }):
		case f.isShared(o):
			f.shared[dir] += n
		default:
			f.mine.Add(dir, n)
		}
	}
	for _, n := range f.needs {
		sum += n
	}
	return sum
}

func (f *fit) isShared(o *hearth.Object) bool {
	return slices.ContainsFunc(f.before, func(c *pins.Claim) bool { return c.Has(o.Version) })
}

func (f *fit) room() (sum int64) {
	for _, n := range f.rooms {
		sum += n
	}
	return sum
}

// claimed is what other jobs have taken of a directory, beside what they share with this.
func (f *fit) claimed(dir int) (sum int64) {
	for _, c := range f.before {
		sum += c.Takes(dir)
	}
	return max(0, sum-f.shared[dir])
}

// refusal says why what was added does not fit; at the end of a count the room is
// measured again, since names take some of it, and other jobs must have theirs.
func (f *fit) refusal(end bool) error {
	if f.of == nil {
		return nil
	}
	if end {
		f.rooms = f.of.Rooms(f.targets)
	}
	for i, n := range f.needs {
		others, says, beside := int64(0), "takes more than", ""
		if end {
			others, says = f.claimed(i), "takes"
		}
		if others > 0 {
			beside = fmt.Sprintf(", of which other jobs at work have claimed %d more than they share with it", others)
		}
		if n > f.rooms[i]-others {
			return &failure{kindRefused, fmt.Sprintf("it does not fit: it %s %d bytes of a cache directory in which %d bytes can be held "+
				"(its budget, less the free-space floor, the names and what is pinned)%s; raise --cache-disks PATH=SIZE, unpin something, or warm up less", says, n, f.rooms[i], beside)}
		}
	}
	return nil
}
