package warmup

import (
	"fmt"

	"github.com/hearthfs/hearth"
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
	// Claim says what targets, which fit, need in each directory: what is pinned of them
	// counts for others from now on.
	Claim(targets []string, needs []int64)
}

// fit sums up what a set needs. It is the whole set that must fit, what is held of it
// already included: else loading the rest would push that out.
type fit struct {
	of      Room
	targets []string
	needs   []int64
	rooms   []int64 // when it began
	target  string  // that was asked about last, and
	covered bool    // the answer
}

func newFit(of Room, targets []string) *fit {
	f := &fit{of: of, targets: targets}
	if of != nil {
		f.rooms = of.Rooms(targets)
		f.needs = make([]int64, len(f.rooms))
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
	}
	for _, n := range f.needs {
		sum += n
	}
	return sum
}

func (f *fit) room() (sum int64) {
	for _, n := range f.rooms {
		sum += n
	}
	return sum
}

// refusal says why what was added does not fit; at the end of a count the room is
// measured again, since names take some of it.
func (f *fit) refusal(end bool) error {
	if f.of == nil {
		return nil
	}
	if end {
		f.rooms = f.of.Rooms(f.targets)
	}
	for i, n := range f.needs {
		if n > f.rooms[i] {
			says := "takes"
			if !end {
				says = "takes more than"
			}
			return &failure{kindRefused, fmt.Sprintf("it does not fit: it %s %d bytes of a cache directory in which %d bytes can be held "+
				"(its budget, less the free-space floor, the names and what is pinned); raise --cache-disks PATH=SIZE, unpin something, or warm up less", says, n, f.rooms[i])}
		}
	}
	if end {
		f.of.Claim(f.targets, f.needs)
	}
	return nil
}
