package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"
)

// What -against takes where nothing else is said.
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
	old, new  []side
	time, cpu verdict
}

// seconds are what 10,000 units took, and cpuSeconds what they took readers and daemons.
func (s side) seconds() float64 { return s.Seconds / float64(max(1, s.Units)) * 1e4 }
func (s side) cpuSeconds() float64 {
	return (s.ReaderCPU + s.DaemonCPU) / float64(max(1, s.Units)) * 1e4
}

// speeds are what a unit took the old build by what it took the new one: 1 is as fast, below 1 is slower.
func (p *paired) speeds() []float64 { return p.by(side.seconds) }

// thrift is the same of CPU time.
func (p *paired) thrift() []float64 { return p.by(side.cpuSeconds) }

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
		p.time, p.cpu = judge(p.speeds(), b.tolerance), judge(p.thrift(), b.tolerance)
		if !p.time.doubtful() && !p.cpu.doubtful() {
			break
		}
	}
	b.pairs = append(b.pairs, p)
	return b.keep(map[string]any{"figure": f.name, "threads": f.threads, "rounds": len(p.old),
		"time": p.time, "cpu": p.cpu})
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
		p.name, last+1, x.seconds(), y.seconds(), ratio, x.cpuSeconds(), y.cpuSeconds(), cpu)
	return b.keep(map[string]any{"figure": p.name, "threads": p.threads, "round": last, "first": order[0].Name,
		"old": x, "new": y, "ratio": ratio, "cpu_ratio": cpu})
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
	fmt.Fprintf(os.Stderr, "old: %s (%s)\nnew: %s (%s)\n", b.old.Path, b.old.Version, b.hearth.Path, b.hearth.Version)
	fmt.Fprintf(os.Stderr, "%s at scale %g: %d rounds, twice as many where they leave a doubt\n",
		cmp.Or(b.only, "W1, cold W1, W2 and W3"), b.scale, b.rounds)
	return nil
}

// contests are the sets of figures that two builds can be compared in. The others count requests,
// which one build tells, or measure a peer's protocol as this program was compiled with it.
func (b *bench) contests() []func() error {
	all := []func() error{b.small, b.large, b.names, b.cold}
	if b.only != "" {
		all = append(all, b.warmUps, b.readers, b.million, b.ringEpochs, b.s3, b.writes)
	}
	return all
}
