package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"
)

// verdict is what a figure's rounds say of a change.
type verdict string

const (
	fell    verdict = "fell"
	rose    verdict = "rose"
	noFall  verdict = "no fall"
	unclear verdict = "unclear"
)

// doubtful tells what deserves a second look.
func (v verdict) doubtful() bool { return v == fell || v == unclear }

// judge decides from the ratio of each round, and from where their median lies (interval):
//
//	fell     all of the interval is below 1, and the median below 1 - tolerance
//	rose     all of it is above 1, and the median above 1 + tolerance
//	no fall  it does not reach below 1 - tolerance
//	unclear  it does: a fall that matters may hide in the noise
//
// A round in a slow minute is one of many, however slow: what counts is on which side most lie.
func judge(ratios []float64, tolerance float64) verdict {
	low, high, certain := interval(ratios)
	middle := median(ratios, same)
	switch {
	case certain && high < 1 && middle < 1-tolerance:
		return fell
	case certain && low > 1 && middle > 1+tolerance:
		return rose
	case low >= 1-tolerance:
		return noFall
	default:
		return unclear
	}
}

// interval is where the median of endless rounds lies, whatever their distribution: each round is
// above it or below as a coin falls. So many are left out at both ends that it misses in one of a
// hundred cases. With less than eight rounds it misses more often, and nothing is certain.
func interval(ratios []float64) (low, high float64, certain bool) {
	const miss = 0.01
	sorted := slices.Sorted(slices.Values(ratios))
	n := len(sorted)
	out, chance := 0, math.Exp2(-float64(n)) // that out rounds, and no more, lie on one side
	for tail := chance; 2*tail <= miss; tail += chance {
		chance *= float64(n-out) / float64(out+1)
		out++
	}
	certain = out > 0
	out = max(out, 1)
	return sorted[out-1], sorted[n-out], certain
}

// verdicts prints a row for each figure, and what they come to.
func (b *bench) verdicts(out io.Writer, took time.Duration) error {
	if len(b.pairs) == 0 {
		return fmt.Errorf("no figure that two builds are compared in starts with %q: "+
			"take one of W1, W2, W3, W5, W6 epoch, W10, W11, cold, readers or warm-up", b.only)
	}
	if err := b.pairTable(out); err != nil {
		return err
	}
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "\nold: %s, SHA-256 %.12s\nnew: %s, SHA-256 %.12s\n",
		b.old.Version, b.old.SHA256, b.hearth.Version, b.hearth.SHA256)
	fmt.Fprintf(w, "%d figures in %v, at scale %g. 1.00 is as fast as old, below is slower. A change counts from %.0f %%.\n",
		len(b.pairs), took.Round(time.Second), b.scale, 100*b.tolerance)
	said := map[verdict][]string{}
	for _, p := range b.pairs {
		name := fmt.Sprintf("%s, threads %d", p.name, p.threads)
		said[p.time] = append(said[p.time], name+": speed "+within(p.speeds()))
		said[p.cpu] = append(said[p.cpu], name+": per CPU second "+within(p.thrift()))
		if n := p.wrong(); n > 0 {
			said[fell] = append(said[fell], fmt.Sprintf("%s: %d wrong bytes", name, n))
		}
	}
	for _, v := range []verdict{rose, unclear, fell} {
		for _, line := range said[v] {
			fmt.Fprintf(w, "%s: %s\n", v, line)
		}
	}
	if len(said[unclear]) > 0 {
		fmt.Fprintln(w, "What is unclear may have fallen to the lower figure: take more -rounds, or a larger -scale.")
	}
	if len(said[fell]) == 0 {
		fmt.Fprintf(w, "no figure fell; %d of %d verdicts are unclear\n", len(said[unclear]), 2*len(b.pairs))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the verdicts: %w", err)
	}
	if len(said[fell]) > 0 {
		return errFell
	}
	return nil
}

// pairTable is the table of figures of two builds.
func (b *bench) pairTable(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(table, "| figure\t| threads\t| rounds\t| speed, of old\t| all rounds\t| verdict\t"+
		"| per CPU s, of old\t| all rounds\t| verdict\t| CPU s per 10,000, old's\t| wrong bytes\t|\n")
	fmt.Fprint(table, "|---\t|--:\t|--:\t|--:\t|--:\t|---\t|--:\t|--:\t|---\t|--:\t|--:\t|\n")
	for _, p := range b.pairs {
		speeds, thrift := p.speeds(), p.thrift()
		fmt.Fprintf(table, "| %s\t| %d\t| %d\t| %s\t| %.2f-%.2f\t| %s\t| %s\t| %.2f-%.2f\t| %s\t| %.3f, %.3f\t| %d\t|\n",
			b.shown(p.name), p.threads, len(speeds),
			within(speeds), slices.Min(speeds), slices.Max(speeds), p.time,
			within(thrift), slices.Min(thrift), slices.Max(thrift), p.cpu,
			median(p.new, side.cpuSeconds), median(p.old, side.cpuSeconds), p.wrong())
	}
	return table.Flush()
}

// within is a median, and where it lies.
func within(ratios []float64) string {
	low, high, _ := interval(ratios)
	return fmt.Sprintf("%.2f (%.2f-%.2f)", median(ratios, same), low, high)
}
