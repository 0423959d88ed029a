package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// distances are the figures over the far origin, a row for each baseline.
func (b *bench) distances(w *tabwriter.Writer) {
	fmt.Fprint(w, "| figure\t| of\t| ratio\t| spread\t| wanted\t| seconds\t| its seconds\t| per second\t| connections\t| wasted bytes / byte, its\t| wasted, the node's count\t|\n")
	fmt.Fprint(w, "|---\t|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	seconds := func(s side) float64 { return s.Seconds }
	for _, f := range b.kind(distantly) {
		for i, base := range f.baselines {
			took := median(f.ours, seconds)
			fmt.Fprintf(w, "| %s\t| %s\t| %.2f\t| %.2f-%.2f\t| %s\t| %.2f\t| %.2f\t| %.0f %ss\t| %s\t| %s, %s\t| %s\t|\n", b.shown(f.name), base.Name,
				median(f.ratios[i], same), slices.Min(f.ratios[i]), slices.Max(f.ratios[i]), least(f.wanted(i)), took, median(f.sides[i], seconds),
				float64(f.ours[0].Units)/took, f.unit, connections(f.sides[i]), wasted(f.ours), wasted(f.sides[i]), told(f.ours))
		}
	}
}

// connections are those that were best, in each round.
func connections(rounds []side) string {
	var all []string
	for _, s := range rounds {
		if s.Connections == 0 {
			return "-"
		}
		all = append(all, fmt.Sprint(s.Connections))
	}
	return strings.Join(all, " ")
}

// wasted is what was fetched in vain for each byte that was read.
func wasted(rounds []side) string {
	if rounds[0].Wasted == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", median(rounds, func(s side) float64 { return float64(*s.Wasted) / float64(max(1, s.Bytes)) }))
}

// told is the most that the node has counted as wasted in a round, in bytes.
func told(rounds []side) string {
	if rounds[0].Told == nil {
		return "-"
	}
	most := slices.MaxFunc(rounds, func(x, y side) int { return cmp.Compare(*x.Told, *y.Told) })
	return fmt.Sprint(*most.Told)
}

// requests are those of epochs after a warm-up, a row for each freshness with the
// most of its rounds.
func (b *bench) requests(w *tabwriter.Writer) {
	fmt.Fprint(w, "| figure\t| freshness\t| rounds\t| epochs\t| seconds\t| GET\t| wanted\t| HEAD\t| wanted\t| LIST\t| wanted at most\t|\n")
	fmt.Fprint(w, "|---\t|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	var modes []string
	for _, a := range b.asked {
		if !slices.Contains(modes, a.Freshness) {
			modes = append(modes, a.Freshness)
		}
	}
	for _, mode := range modes {
		var of []asked
		for _, a := range b.asked {
			if a.Freshness == mode {
				of = append(of, a)
			}
		}
		worst := slices.MaxFunc(of, func(x, y asked) int {
			return cmp.Compare(x.List-x.Allowed, y.List-y.Allowed)
		})
		most := func(get func(asked) int64) (n int64) {
			for _, a := range of {
				n = max(n, get(a))
			}
			return n
		}
		fmt.Fprintf(w, "| %s\t| %s\t| %d\t| %d\t| %.1f\t| %d\t| 0\t| %d\t| 0\t| %d\t| %d\t|\n", b.shown(worst.Name), mode, len(of), worst.Epochs, worst.Seconds,
			most(func(a asked) int64 { return a.Get }), most(func(a asked) int64 { return a.Head }), worst.List, worst.Allowed)
	}
}
