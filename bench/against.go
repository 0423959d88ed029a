package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// What -against takes where nothing else is said. W1 to W3 took seven to ten minutes with it on two
// cores.
const (
	againstScale  = 0.1
	againstRounds = 6
	againstPass   = 300 * time.Millisecond // of what is read from the kernel's caches
	// fewestRounds, looked at twice, are the fewest of which interval can be certain.
	fewestRounds = 4
)

// errFell means that a figure fell.
var errFell = errors.New("figures fell")

// paired is a figure of two builds, with both sides of each round.
type paired struct {
	figure
	old, new []side
}

// per10000 is what 10,000 units took, in seconds, and cpu in CPU seconds of readers and daemons.
func (s side) per10000() float64 { return s.Seconds / float64(max(1, s.Units)) * 1e4 }
func (s side) cpu() float64      { return (s.ReaderCPU + s.DaemonCPU) / float64(max(1, s.Units)) * 1e4 }

// speeds are what a unit took the old build by what it took the new one: 1 is as fast, below 1 is slower.
func (p *paired) speeds() []float64 { return p.by(side.per10000) }

// thrift is the same of CPU time.
func (p *paired) thrift() []float64 { return p.by(side.cpu) }

func (p *paired) by(of func(side) float64) []float64 {
	all := make([]float64, len(p.old))
	for i := range p.old {
		all[i] = 1 // nothing of either, as far as the clock tells
		if x, y := of(p.old[i]), of(p.new[i]); x > 0 && y > 0 {
			all[i] = x / y
		}
	}
	return all
}

// wrong is how many bytes of either build were wrong.
func (p *paired) wrong() (n int64) {
	for _, s := range slices.Concat(p.old, p.new) {
		n += s.Wrong
	}
	return n
}

// verdict is what a figure's rounds say of a change.
type verdict string

const (
	fell    verdict = "fell"
	rose    verdict = "rose"
	noFall  verdict = "no fall"
	unclear verdict = "unclear"
)

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

// interval is where the median of endless rounds lies, whatever their distribution: each is above
// it or below as a coin falls. So many are left out at both ends that it misses in one of a hundred
// cases. With less than eight rounds it misses more often, and nothing is certain.
func interval(ratios []float64) (low, high float64, certain bool) {
	const miss = 0.01
	sorted := slices.Sorted(slices.Values(ratios))
	n := len(sorted)
	out, tail, term := 0, 0.0, 1.0 // term: n choose out
	for all := float64(uint64(1) << n); ; out++ {
		if tail += term / all; 2*tail > miss || out >= n/2 {
			break
		}
		term *= float64(n-out) / float64(out+1)
	}
	out = max(out, 1)
	return sorted[out-1], sorted[n-out], n >= 2*fewestRounds
}

// alternate runs both builds in turns, and keeps each round. Who is first changes from round to
// round, so that what gets slower all the time is slow for both. What seems to have fallen, and what
// is unclear, is looked at for as many rounds again, which count with the others.
func (b *bench) alternate(f figure, ours func(h *build, r round) (side, error)) error {
	p := &paired{figure: f}
	for look := range 2 {
		for i := range b.rounds {
			number := look*b.rounds + i
			if err := b.turn(p, round{uint64(number), number == b.rounds-1}, ours); err != nil {
				return err
			}
		}
		if !slices.Contains([]verdict{judge(p.speeds(), b.tolerance), judge(p.thrift(), b.tolerance)}, unclear) {
			break
		}
	}
	b.pairs = append(b.pairs, p)
	return b.keep(map[string]any{"figure": f.name, "threads": f.threads, "rounds": len(p.old), "time": judge(p.speeds(), b.tolerance), "cpu": judge(p.thrift(), b.tolerance)})
}

// turn is one round of both builds.
func (b *bench) turn(p *paired, r round, ours func(h *build, r round) (side, error)) error {
	order := b.builds()
	if r.number%2 == 1 {
		slices.Reverse(order)
	}
	took := map[*build]side{}
	for _, h := range order {
		s, err := ours(h, r)
		if err != nil {
			return fmt.Errorf("%s: the %s build (%s): %w", p.name, h.Name, h.Version, err)
		}
		took[h] = s
	}
	p.old, p.new = append(p.old, took[b.old]), append(p.new, took[b.hearth])
	last := len(p.old) - 1
	x, y, ratio, cpu := p.old[last], p.new[last], p.speeds()[last], p.thrift()[last]
	fmt.Fprintf(os.Stderr, "%-28s round %d: %.3f s for 10,000, new %.3f s: %.2f; CPU %.3f s, new %.3f s: %.2f\n",
		p.name, last+1, x.per10000(), y.per10000(), ratio, x.cpu(), y.cpu(), cpu)
	return b.keep(map[string]any{"figure": p.name, "threads": p.threads, "round": last, "first": order[0].Name,
		"old": x, "new": y, "ratio": ratio, "cpu_ratio": cpu})
}

// verdicts prints a row for each figure, and what they come to.
func (b *bench) verdicts(w io.Writer, took time.Duration) error {
	if len(b.pairs) == 0 {
		return fmt.Errorf("no figure that two builds are compared in starts with %q: those of W1, W2, W3, W5, W6 epoch, cold, readers and warm-up are", b.only)
	}
	table := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprint(table, "| figure\t| threads\t| rounds\t| speed, of old\t| median within\t| all rounds\t| verdict\t| per CPU s, of old\t| median within\t| verdict\t| CPU s per 10,000, old's\t| wrong bytes\t|\n")
	fmt.Fprint(table, "|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|---\t|--:\t|--:\t|---\t|--:\t|--:\t|\n")
	said := map[verdict][]string{}
	for _, p := range b.pairs {
		speeds, thrift := p.speeds(), p.thrift()
		low, high, _ := interval(speeds)
		lowCPU, highCPU, _ := interval(thrift)
		time, cpu := judge(speeds, b.tolerance), judge(thrift, b.tolerance)
		fmt.Fprintf(table, "| %s\t| %d\t| %d\t| %.2f\t| %.2f-%.2f\t| %.2f-%.2f\t| %s\t| %.2f\t| %.2f-%.2f\t| %s\t| %.3f, %.3f\t| %d\t|\n", b.shown(p.name), p.threads, len(speeds),
			median(speeds, same), low, high, slices.Min(speeds), slices.Max(speeds), time,
			median(thrift, same), lowCPU, highCPU, cpu, median(p.new, side.cpu), median(p.old, side.cpu), p.wrong())
		name := fmt.Sprintf("%s, threads %d", p.name, p.threads)
		said[time] = append(said[time], fmt.Sprintf("%s: %.2f of old (%.2f-%.2f)", name, median(speeds, same), low, high))
		said[cpu] = append(said[cpu], fmt.Sprintf("%s: %.2f per CPU second (%.2f-%.2f)", name, median(thrift, same), lowCPU, highCPU))
		if n := p.wrong(); n > 0 {
			said[fell] = append(said[fell], fmt.Sprintf("%s: %d wrong bytes", name, n))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nold: %s, SHA-256 %.12s\nnew: %s, SHA-256 %.12s\n", b.old.Version, b.old.SHA256, b.hearth.Version, b.hearth.SHA256)
	fmt.Fprintf(w, "%d figures in %v, at scale %g. 1.00 is as fast as old, below is slower. A change counts from %.0f %%.\n",
		len(b.pairs), took.Round(time.Second), b.scale, 100*b.tolerance)
	for _, v := range []verdict{rose, unclear, fell} {
		for _, line := range said[v] {
			fmt.Fprintf(w, "%s: %s\n", v, line)
		}
	}
	if len(said[unclear]) > 0 {
		fmt.Fprintln(w, "What is unclear may have fallen to the lower figure: take more -rounds, or a larger -scale.")
	}
	if len(said[fell]) > 0 {
		return errFell
	}
	fmt.Fprintln(w, "no figure fell")
	return nil
}

// opponent finds the build to compare with, and sets what was not asked for.
func (b *bench) opponent(path string) (err error) {
	if b.old, err = b.identify("old", path); err != nil {
		return err
	}
	b.hearth.Name = "new"
	if b.old.SHA256 == b.hearth.SHA256 {
		fmt.Fprintln(os.Stderr, "both binaries are the same: what differs is noise")
	}
	asked := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { asked[f.Name] = true })
	if !asked["scale"] {
		b.scale = againstScale
	}
	if !asked["rounds"] {
		b.rounds = againstRounds
	}
	if b.rounds < fewestRounds {
		return fmt.Errorf("-rounds %d are too few for a verdict: take at least %d", b.rounds, fewestRounds)
	}
	fmt.Fprintf(os.Stderr, "old: %s (%s), new: %s (%s); %s at scale %g, %d rounds, twice as many where they leave a doubt\n",
		b.old.Path, b.old.Version, b.hearth.Path, b.hearth.Version, cmp.Or(b.only, strings.Join(againstGroups(), ", ")), b.scale, b.rounds)
	return nil
}

// againstGroups are compared where no figure is named.
func againstGroups() []string { return []string{"W1", "cold W1", "W2", "W3"} }

// contests are the sets of figures that two builds can be compared in. The others count requests,
// which one build tells, or measure a peer's protocol as this program was compiled with it.
func (b *bench) contests() []func() error {
	all := []func() error{b.small, b.large, b.names, b.cold}
	if b.only != "" {
		all = append(all, b.warmUps, b.readers, b.million, b.ringEpochs, b.s3)
	}
	return all
}
