package machine

import (
	"fmt"

	"github.com/hearthfs/hearth"
)

// This file says in words what a cache directory may hold: its budget, or less while its file system lacks the
// room, even nothing. The free-space floor wins over the budget.

// Room is a cache directory that is in use. Sizes are in bytes.
type Room struct {
	Path string
	// Limit is what it may hold now, Budget what it may hold at most, and Floor what must stay free on its file
	// system.
	Limit, Budget, Floor int64
}

// String says where a directory is and how much it may hold at present.
func (d Room) String() string {
	if d.Limit >= d.Budget {
		return fmt.Sprintf("%s up to %s", d.Path, SizeText(d.Budget))
	}
	return fmt.Sprintf("%s up to %s now (of %s: its file system is to keep %s free)", d.Path, SizeText(d.Limit), SizeText(d.Budget), SizeText(d.Floor))
}

// Lack says that a directory may hold almost nothing, and the cure. It is empty if the directory may hold a
// block, or all of its budget.
func (d Room) Lack() string {
	if d.Limit >= min(d.Budget, hearth.BlockSize) {
		return ""
	}
	most := "nothing"
	if d.Limit > 0 {
		most = "only " + SizeText(d.Limit)
	}
	return fmt.Sprintf("%s can be cached in %s: %s of its file system are to stay free; make room there, lower --cache-free-floor, or choose another directory with --cache-disks PATH=SIZE",
		most, d.Path, SizeText(d.Floor))
}

// SizeText returns a number of bytes for people, in the units that the configuration reads.
func SizeText(n int64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}} {
		if float64(n) >= u.size {
			return fmt.Sprintf("%.1f %s", float64(n)/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d KiB", n>>10)
}
