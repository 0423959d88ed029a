package pins

import (
	"cmp"
	"fmt"
	"slices"
)

// Fit sums up what a set needs of each cache directory. All of the set must fit, with
// what of it is held already: otherwise loading the rest would push that out.
type Fit struct {
	rooms  []int64 // by directory, as last told
	needs  []int64
	shared []int64  // the part of needs that jobs which began before need, too
	before []*Claim // the claims of those jobs
	mine   *Claim
	pinned []*Set // of durable pins whose bytes are in needs
	// Place says what the rooms belong to. The zero Place is a cache directory.
	Place
}

// Place is where a set must fit, in words.
type Place struct {
	// Of says what the rooms belong to, Less what was taken off them, and Cure what makes more room.
	Of, Less, Cure string
}

// directory is the Place of cache directories.
func directory() Place {
	return Place{Of: "a cache directory", Less: "its budget, less the free-space floor, the names and what is pinned",
		Cure: "raise --cache-disks PATH=SIZE, unpin something, or warm up less"}
}

// NewFit is the fit of a set of which nothing is known yet. With no directories
// everything fits. mine claims the objects that are in none of before and pinned.
func NewFit(rooms []int64, mine *Claim, before []*Claim, pinned []*Set) *Fit {
	return &Fit{rooms: rooms, needs: make([]int64, len(rooms)), shared: make([]int64, len(rooms)), before: before, mine: mine, pinned: pinned}
}

// Add adds n bytes of an object, by its version, in a directory.
func (f *Fit) Add(dir int, n int64, version [16]byte) {
	f.needs[dir] += n
	switch {
	case slices.ContainsFunc(f.pinned, func(x *Set) bool { return x.Has(version) }):
	case slices.ContainsFunc(f.before, func(c *Claim) bool { return c.Has(version) }):
		f.shared[dir] += n
	default:
		f.mine.Add(dir, n)
	}
}

// Again takes the sums of the same set that was added up once more, later.
func (f *Fit) Again(x *Fit) { f.needs, f.shared = x.needs, x.shared }

// Sums are in bytes: what the set needs, the room, and what other jobs have claimed
// beside what they share with the set.
func (f *Fit) Sums() (needs, room, claimed int64) {
	for i := range f.needs {
		needs, room, claimed = needs+f.needs[i], room+f.rooms[i], claimed+f.claimed(i)
	}
	return needs, room, claimed
}

func (f *Fit) claimed(dir int) (sum int64) {
	for _, c := range f.before {
		sum += c.Takes(dir)
	}
	return max(0, sum-f.shared[dir])
}

// Lacks says why what was added does not fit; "" means that it fits. At the end of a
// count, rooms has the rooms of that moment, and other jobs must have theirs, too. Until
// then rooms is nil.
func (f *Fit) Lacks(rooms []int64) string {
	end := rooms != nil
	if end {
		f.rooms = rooms
	}
	for i, n := range f.needs {
		others, says, beside := int64(0), "takes more than", ""
		if end {
			others, says = f.claimed(i), "takes"
		}
		if others > 0 {
			beside = fmt.Sprintf(", of which other jobs at work have claimed %s more than they share with it", size(others))
		}
		if over := n - f.rooms[i] + others; over > 0 {
			d := directory()
			return fmt.Sprintf("it does not fit: it %s %s of %s in which %s can be held (%s)%s: that is %s too much; %s", says, size(n), cmp.Or(f.Of, d.Of), size(f.rooms[i]),
				cmp.Or(f.Less, d.Less), beside, size(over), cmp.Or(f.Cure, d.Cure))
		}
	}
	return ""
}

// size is a number of bytes for people, in the units of the configuration.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	f, i := float64(n), 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
