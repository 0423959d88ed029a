package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/hearthfs/hearth/bench/clients"
)

// side is one measured thing in one round.
type side struct {
	Seconds float64 `json:"seconds"`
	// ReaderCPU and DaemonCPU are CPU seconds, user and system.
	ReaderCPU float64 `json:"reader_cpu"`
	DaemonCPU float64 `json:"daemon_cpu,omitempty"`
	// DaemonRead and DaemonWritten are what the daemon had devices do, bytes
	// (/proc/PID/io).
	DaemonRead    int64 `json:"daemon_read_bytes,omitempty"`
	DaemonWritten int64 `json:"daemon_written_bytes,omitempty"`
	// DeviceRead is what the machine's disk delivered meanwhile, bytes.
	DeviceRead int64 `json:"device_read_bytes"`
	// DaemonPeak is the daemon's VmHWM in bytes, at the end.
	DaemonPeak int64 `json:"daemon_peak_bytes,omitempty"`
	// OriginRequests and OriginBytes passed the proxy before the origin meanwhile.
	OriginRequests int64 `json:"origin_requests"`
	OriginBytes    int64 `json:"origin_bytes"`
	// Sent passed it to the origin, bytes of bodies; AtOnce is the most requests that were under way there. Of writes alone.
	Sent   int64 `json:"sent_bytes,omitempty"`
	AtOnce int64 `json:"at_once,omitempty"`
	// Checked: every byte was compared in the same state, after the measurement;
	// Wrong of them were not right.
	Checked bool  `json:"checked,omitempty"`
	Wrong   int64 `json:"wrong_bytes"`
	Units   int64 `json:"units"` // files, reads or names
	Bytes   int64 `json:"bytes"`
	// Allocs are the reader's allocations for each unit; 0: none, or not counted.
	Allocs float64 `json:"allocs,omitempty"`
	latencies
	// Tried has the seconds that a plain program took, by its number of connections. The other fields are of
	// the best number, Connections.
	Connections int             `json:"connections,omitempty"`
	Tried       map[int]float64 `json:"tried,omitempty"`
	// TriedCPU are the CPU seconds of who served, likewise.
	TriedCPU map[int]float64 `json:"tried_daemon_cpu,omitempty"`
	// Wasted are the bytes of objects that were fetched beyond what was read. nil means that nobody looked.
	// Told is the node's own count of them. nil means that it counts none.
	Wasted *int64 `json:"wasted_bytes,omitempty"`
	Told   *int64 `json:"told_wasted_bytes,omitempty"`
}

// latencies are of one unit; 0: not taken.
type latencies struct {
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	MaxUs float64 `json:"max_us"`
}

// baseline is what Hearth is compared with.
type baseline struct {
	Name string `json:"name"`
	// Command and Version say what it is, threads aside.
	Command string `json:"command"`
	Version string `json:"version"`

	run func(r round) (side, error)
}

// figure is one row of the table.
type figure struct {
	name    string
	targets []float64 // of the baselines in order; 0, or missing: none
	threads int
	unit    string // what units counts

	remote      bool      // who serves is a process of its own on both sides, and its CPU time is compared, too
	coreTargets []float64 // as targets, of units per CPU second of who serves

	writes bool // through a mount, or as plain uploads

	ours      []side
	baselines []baseline
	sides     [][]side    // of each baseline
	ratios    [][]float64 // each baseline's seconds by Hearth's: 1 is as fast as the baseline
}

// wanted is the least ratio to a baseline that is wanted; 0: none is.
func (f *figure) wanted(baseline int) float64 { return at(f.targets, baseline) }

// wantedPerCore is the least ratio of perCore that is wanted; 0: none is.
func (f *figure) wantedPerCore(baseline int) float64 { return at(f.coreTargets, baseline) }

func at(targets []float64, i int) float64 {
	if i < len(targets) {
		return targets[i]
	}
	return 0
}

// perCore is units per CPU second of who serves, by the baseline's.
func (f *figure) perCore(baseline, round int) float64 {
	return f.sides[baseline][round].perRead() / f.ours[round].perRead()
}

// round is one turn of all that a figure compares. All do the same in it: what is drawn is drawn
// from its number.
type round struct {
	number uint64
	last   bool // every byte is compared as well, after the measurement
}

// compare alternates the baselines and Hearth, and keeps each round; or, with -against, two
// builds of Hearth without baselines.
func (b *bench) compare(f figure, ours func(h *build, r round) (side, error), baselines ...baseline) error {
	if !b.taken(f.name) {
		return nil
	}
	if b.old != nil {
		return b.alternate(f, ours)
	}
	f.baselines = baselines
	f.sides, f.ratios = make([][]side, len(baselines)), make([][]float64, len(baselines))
	for number := range b.rounds {
		r := round{uint64(number), number == b.rounds-1}
		for i, base := range baselines {
			s, err := base.run(r)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", f.name, base.Name, err)
			}
			f.sides[i] = append(f.sides[i], s)
		}
		y, err := ours(b.hearth, r)
		if err != nil {
			return fmt.Errorf("%s: hearth: %w", f.name, err)
		}
		f.ours = append(f.ours, y)
		for i, base := range baselines {
			x := f.sides[i][number]
			ratio := x.Seconds / y.Seconds
			f.ratios[i] = append(f.ratios[i], ratio)
			line := map[string]any{"figure": f.name, "round": number, "threads": f.threads, "of": base, "baseline": x, "ours": y, "ratio": ratio, "wanted": f.wanted(i)}
			served := ""
			if f.remote {
				line["per_server_core"], line["wanted_per_server_core"] = f.perCore(i, number), f.wantedPerCore(i)
				served = fmt.Sprintf(", per server core %.2f", f.perCore(i, number))
			}
			if err := b.keep(line); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%-28s round %d: %.3f s, %.3f s, %.2f of %s%s\n", f.name, number+1, x.Seconds, y.Seconds, ratio, base.Name, served)
		}
	}
	b.table = append(b.table, f)
	return nil
}

// keep writes a raw line, with the facts that all of them hold.
func (b *bench) keep(line map[string]any) error {
	maps.Copy(line, b.common)
	if err := b.raw.Encode(line); err != nil {
		return fmt.Errorf("keep a round: %w", err)
	}
	return nil
}

func median[T any](list []T, of func(T) float64) float64 {
	values := make([]float64, len(list))
	for i, x := range list {
		values[i] = of(x)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func same(x float64) float64 { return x }

// report prints the tables as Markdown, ready for docs/benchmarks.md.
func (b *bench) report(raw string) error {
	local, distant, far, written := b.kind(locally), b.kind(distantly), b.kind(remotely), b.kind(writingly)
	for _, table := range []struct {
		rows  int
		print func(*tabwriter.Writer)
	}{{len(local), b.speeds}, {len(distant), b.distances}, {len(far), b.remotes}, {len(written), b.writings}, {len(b.asked), b.requests}, {len(local) + len(distant), b.costs}, {len(b.fillings), b.filled}, {len(b.predicted), b.scalings}, {len(b.crowds), func(w *tabwriter.Writer) { clients.Crowded(w, b.crowds) }}} {
		if table.rows == 0 {
			continue
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
		table.print(w)
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Println()
	}
	for _, f := range local[:min(1, len(local))] {
		fmt.Printf("ext4: %s\n", f.baselines[0].Version)
	}
	fmt.Printf("raw rounds: %s; %v\n", filepath.Clean(raw), b.common)
	return nil
}

// Kinds of figures, each with a table of its own.
const (
	locally   = iota // compared with local ext4
	distantly        // over an origin far away
	remotely         // over a link to another process
	writingly        // what is written
)

// kind are the figures of one.
func (b *bench) kind(k int) (some []figure) {
	for _, f := range b.table {
		of := distantly
		switch {
		case f.remote:
			of = remotely
		case f.writes:
			of = writingly
		case f.baselines[0].Name == "ext4":
			of = locally
		}
		if of == k {
			some = append(some, f)
		}
	}
	return some
}

// shown is a figure's name, with a mark where it is not of the whole set.
func (b *bench) shown(name string) string {
	if b.scale < 1 {
		return fmt.Sprintf("%s (REDUCED to %g)", name, b.scale)
	}
	return name
}

func (b *bench) speeds(w *tabwriter.Writer) {
	fmt.Fprint(w, "| figure\t| threads\t| of ext4\t| spread\t| wanted\t| of the loopback\t| p50 / p99 / max us\t| reader CPU s, ext4's\t|\n")
	fmt.Fprint(w, "|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	for _, f := range b.kind(locally) {
		loopback := "-"
		if len(f.ratios) > 1 {
			loopback = fmt.Sprintf("%.2f (%.2f-%.2f)", median(f.ratios[1], same), slices.Min(f.ratios[1]), slices.Max(f.ratios[1]))
		}
		latency := "-"
		if p50 := median(f.ours, func(s side) float64 { return s.P50us }); p50 > 0 {
			latency = fmt.Sprintf("%.0f / %.0f / %.0f", p50, median(f.ours, func(s side) float64 { return s.P99us }), median(f.ours, func(s side) float64 { return s.MaxUs }))
		}
		cpu := func(s side) float64 { return s.ReaderCPU }
		fmt.Fprintf(w, "| %s\t| %d\t| %.2f\t| %.2f-%.2f\t| %.2f\t| %s\t| %s\t| %.2f, %.2f\t|\n", b.shown(f.name), f.threads,
			median(f.ratios[0], same), slices.Min(f.ratios[0]), slices.Max(f.ratios[0]), f.wanted(0), loopback, latency, median(f.ours, cpu), median(f.sides[0], cpu))
	}
}

func (b *bench) costs(w *tabwriter.Writer) {
	fmt.Fprint(w, "| figure\t| threads\t| daemon CPU s\t| per 10,000\t| per GiB\t| device bytes / byte\t| origin requests\t| origin bytes\t| bytes written\t| wrong bytes\t| VmHWM MiB\t|\n")
	fmt.Fprint(w, "|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	for _, f := range append(b.kind(locally), b.kind(distantly)...) {
		of := func(get func(side) float64) float64 { return median(f.ours, get) }
		most := func(get func(side) int64) (n int64) {
			for _, s := range f.ours {
				n = max(n, get(s))
			}
			return n
		}
		cpu, bytes := of(func(s side) float64 { return s.DaemonCPU }), of(func(s side) float64 { return float64(s.Bytes) })
		perGiB, device, wrong := "-", "-", "-"
		if bytes > 0 {
			perGiB = fmt.Sprintf("%.2f", cpu/bytes*(1<<30))
			device = fmt.Sprintf("%.2f", of(func(s side) float64 { return float64(max(s.DaemonRead, s.DeviceRead)) })/bytes)
		}
		if slices.ContainsFunc(f.ours, func(s side) bool { return s.Checked }) {
			wrong = fmt.Sprint(most(func(s side) int64 { return s.Wrong }))
		}
		threads := "-"
		if f.threads > 0 {
			threads = fmt.Sprint(f.threads)
		}
		fmt.Fprintf(w, "| %s\t| %s\t| %.2f\t| %.2f %ss\t| %s\t| %s\t| %d\t| %d\t| %d\t| %s\t| %.0f\t|\n", b.shown(f.name), threads, cpu,
			cpu/max(1, of(func(s side) float64 { return float64(s.Units) }))*1e4, f.unit, perGiB, device,
			most(func(s side) int64 { return s.OriginRequests }), most(func(s side) int64 { return s.OriginBytes }),
			most(func(s side) int64 { return s.DaemonWritten }), wrong, of(func(s side) float64 { return float64(s.DaemonPeak) / (1 << 20) }))
	}
}

func (b *bench) filled(w *tabwriter.Writer) {
	fmt.Fprint(w, "| filling\t| files\t| MiB\t| origin requests\t| origin bytes / byte\t| written bytes / byte\t| daemon CPU s per GiB\t| wrong bytes\t| VmHWM MiB\t|\n")
	fmt.Fprint(w, "|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	for _, f := range b.fillings {
		size := float64(max(1, f.Bytes))
		fmt.Fprintf(w, "| %s\t| %d\t| %d\t| %d\t| %.3f\t| %.2f\t| %.2f\t| %d\t| %d\t|\n", b.shown(f.Set), f.Files, f.Bytes>>20, f.OriginRequests,
			float64(f.OriginBytes)/size, float64(f.Written)/size, f.DaemonCPU/size*(1<<30), f.Wrong, f.DaemonPeak>>20)
	}
}
