package status

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// FindProblems returns what a person should do something about, the worst first, with the problems of the ring.
// What heals by itself and costs nothing is no problem.
func (s *Status) FindProblems() []string {
	var all []string
	for _, l := range s.Links {
		if l.Failing != "" {
			all = append(all, fmt.Sprintf("an origin cannot be read, what is cached goes on (tried %d min ago): %s", minutes(*l.FailingAt), l.Failing))
		}
	}
	if s.Names.Stale != "" {
		all = append(all, "an origin cannot be asked, the last known names are shown: "+s.Names.Stale)
	}
	all = append(all, draftProblems(s.Drafts)...)
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			if d.Ill != "" {
				all = append(all, "cache directory "+d.Path+" is out of use: "+d.Ill+"; look at its device (dmesg): it is tried again by itself")
			}
			if d.Full != "" {
				all = append(all, d.Full)
			}
		}
		for _, v := range t.Volumes {
			if says := v.problem(); says != "" {
				all = append(all, says)
			}
		}
	}
	for _, p := range s.Pins {
		if p.Lacks != "" {
			all = append(all, "the pin "+p.Path+" does not hold all that it should: "+p.Lacks)
		}
	}
	all = append(all, ringProblems(s.Ring)...)
	if s.Names.Ill != "" {
		all = append(all, "names are kept in memory only: "+s.Names.Ill+"; look at the cache directories' devices (dmesg): they move to one that is well by themselves")
	}
	return all
}

// FindWarnings returns what a person should know and mend while the node is well. The node serves all that it
// is asked for, but slowly, or with less of it from the cache.
func (s *Status) FindWarnings() (all []string) {
	for _, l := range s.Links {
		all = append(all, l.Throttles, l.Differs, l.Unheeded)
		if l.Denied != "" {
			all = append(all, fmt.Sprintf("an object cannot be read, others of its bucket can (tried %d min ago): %s", minutes(*l.FailingAt), l.Denied))
		}
	}
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			all = append(all, d.Slow, d.NoMemory)
		}
		for _, v := range t.Volumes {
			all = append(all, v.warning())
		}
	}
	all = append(all, ringWarnings(s.Ring)...)
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// minutes returns the whole minutes since a time.
func minutes(t time.Time) int { return int(time.Since(t).Minutes()) }

// settle is how long a node may be alone before that is a problem. Nodes that start at once have found each
// other by then: a round of asking for them takes at most half of it.
const settle = time.Minute

// ringProblems returns the problems of a node that should be in a ring. The ring refuses it, it has been
// alone for more than a minute, another node has its place, or none of the others answers it. A nil ring
// has none.
func ringProblems(r *RingLine) (all []string) {
	if r == nil {
		return nil
	}
	switch {
	case r.Refusal != "" && r.Alive+r.Suspect <= 1:
		all = append(all, "the ring refuses this node, which is alone: "+r.Refusal)
	case r.AloneS >= int64(settle/time.Second):
		all = append(all, fmt.Sprintf("this node is alone in its ring: none of join (%s) has been there for %s; look whether a node runs there and what its log says of %s, and whether that port and the one above are open both ways", strings.Join(r.Join, ", "), since(r.AloneS), r.Name))
	}
	if r.Rival != "" {
		all = append(all, "two nodes want to be one member of the ring, and this is one of them: "+r.Rival)
	}
	if r.Unreachable > 0 && r.Unreachable == r.Alive-1 {
		all = append(all, "none of the ring's other nodes answers what this one asks: "+barred(r))
	}
	return all
}

// barred names the members that cannot be asked, with the reason and the cure.
func barred(r *RingLine) string {
	var who []string
	for _, b := range r.Barred {
		who = append(who, fmt.Sprintf("%s at %s for %s (%s)", b.Name, b.Data, since(b.ForS), b.Cause))
	}
	return some(who, r.Unreachable) + "; look whether that port is open both ways, and what the logs of both say: reads go around, to other nodes and the bucket"
}

// ringWarnings returns what a person should know while the node is well: members that are missing, cannot
// be asked or are of another ring. It also says if the node donates nothing. A nil ring has none.
func ringWarnings(r *RingLine) (all []string) {
	if r == nil {
		return nil
	}
	if r.Donated == 0 && r.State == "active" {
		all = append(all, "this node gives less than 64 MiB to the ring, which counts as nothing: it owns no blocks; give it a larger cache")
	}
	if r.Unreachable > 0 && r.Unreachable < r.Alive-1 {
		all = append(all, fmt.Sprintf("%d of the ring's %d nodes fail what this one asks, and are alive: %s", r.Unreachable, r.Alive+r.Suspect+r.Missing, barred(r)))
	}
	if r.Refusal != "" && r.Alive+r.Suspect > 1 {
		all = append(all, "a node of join is in no ring with this one: "+r.Refusal)
	}
	if r.Missing == 0 {
		return all
	}
	var who []string
	for _, m := range r.Absent {
		who = append(who, fmt.Sprintf("%s (%s) for %s", m.Name, m.Address, since(m.ForS)))
	}
	all = append(all, fmt.Sprintf("%d of the ring's %d nodes are missing: %s; start them again, or leave it: reads go on, what they held comes from the bucket once more, and they are forgotten after a day", r.Missing, r.Alive+r.Suspect+r.Missing, some(who, r.Missing)))
	return all
}

// some names who, and says how many of all are left out.
func some(who []string, all int64) string {
	if more := all - int64(len(who)); more > 0 {
		who = append(who, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(who, ", ")
}

// since returns a number of seconds in words.
func since(seconds int64) string {
	d := time.Duration(seconds) * time.Second
	if d >= time.Hour {
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	if d >= time.Minute {
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%d s", seconds)
}
