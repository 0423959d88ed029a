package status

import (
	"fmt"
	"slices"
	"time"
)

// FindProblems are what a person should do something about, the worst first, those of
// the ring among them. What heals by itself and costs nothing is no problem.
func (s *Status) FindProblems(ring []string) []string {
	var all []string
	for _, l := range s.Links {
		if l.Failing != "" {
			all = append(all, fmt.Sprintf("an origin cannot be read, what is cached goes on (tried %d min ago): %s", minutes(*l.FailingAt), l.Failing))
		}
	}
	if s.Names.Stale != "" {
		all = append(all, "an origin cannot be asked, the last known names are shown: "+s.Names.Stale)
	}
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			if d.Ill != "" {
				all = append(all, "cache directory "+d.Path+" is out of use: "+d.Ill+"; look at its device (dmesg): it is tried again by itself")
			}
			if d.Full != "" {
				all = append(all, d.Full)
			}
		}
	}
	for _, p := range s.Pins {
		if p.Lacks != "" {
			all = append(all, "the pin "+p.Path+" does not hold all that it should: "+p.Lacks)
		}
	}
	all = append(all, ring...)
	if s.Names.Ill != "" {
		all = append(all, "names are kept in memory only: "+s.Names.Ill+"; look at the cache directories' devices (dmesg): they move to one that is well by themselves")
	}
	return all
}

// FindWarnings are what a person should know and do something about while the node is well,
// and serves what it is asked for: slowly, or less of it from the cache.
func (s *Status) FindWarnings(ring []string) (all []string) {
	for _, l := range s.Links {
		all = append(all, l.Throttles, l.Differs)
		if l.Denied != "" {
			all = append(all, fmt.Sprintf("an object cannot be read, others of its bucket can (tried %d min ago): %s", minutes(*l.FailingAt), l.Denied))
		}
	}
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			all = append(all, d.Slow, d.NoMemory)
		}
	}
	all = append(all, ring...)
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// minutes since a time.
func minutes(t time.Time) int { return int(time.Since(t).Minutes()) }
