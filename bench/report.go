package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// side is one measured thing in one round.
type side struct {
	Seconds float64 `json:"seconds"`
	// ReaderCPU and DaemonCPU are CPU seconds, user and system.
	ReaderCPU float64 `json:"reader_cpu"`
	DaemonCPU float64 `json:"daemon_cpu,omitempty"`
	// DaemonRead is what the daemon read from devices, bytes (/proc/PID/io).
	DaemonRead int64 `json:"daemon_read_bytes,omitempty"`
	// DeviceRead is what the machine's disk delivered meanwhile, bytes.
	DeviceRead int64 `json:"device_read_bytes"`
	// DaemonPeak is the daemon's VmHWM in bytes, at the end.
	DaemonPeak int64   `json:"daemon_peak_bytes,omitempty"`
	Units      int64   `json:"units"` // files, reads or names
	Bytes      int64   `json:"bytes"`
	P50us      float64 `json:"p50_us"`
	P99us      float64 `json:"p99_us"`
	MaxUs      float64 `json:"max_us"`
}

// figure is one row of the table.
type figure struct {
	name    string
	target  float64
	ratios  []float64 // baseline's seconds by Hearth's: 1 is as fast as the baseline
	a, b    []side
	threads int
}

// compare alternates baseline and Hearth, and keeps each round.
func (b *bench) compare(f figure, base, ours func() (side, error)) error {
	if b.only != "" && !strings.HasPrefix(f.name, b.only) {
		return nil
	}
	for round := range b.rounds {
		x, err := base()
		if err != nil {
			return fmt.Errorf("%s: baseline: %w", f.name, err)
		}
		y, err := ours()
		if err != nil {
			return fmt.Errorf("%s: hearth: %w", f.name, err)
		}
		ratio := x.Seconds / y.Seconds
		f.a, f.b, f.ratios = append(f.a, x), append(f.b, y), append(f.ratios, ratio)
		line := maps.Clone(b.common)
		line["figure"], line["round"], line["threads"], line["baseline"], line["ours"], line["ratio"] = f.name, round, f.threads, x, y, ratio
		if err := b.raw.Encode(line); err != nil {
			return fmt.Errorf("keep a round: %w", err)
		}
		fmt.Fprintf(os.Stderr, "%-28s round %d: %.3f s, %.3f s, %.2f\n", f.name, round+1, x.Seconds, y.Seconds, ratio)
	}
	b.table = append(b.table, f)
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

// report prints the table as Markdown, ready for docs/benchmarks.md.
func (b *bench) report(raw string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "| figure\t| threads\t| of ext4\t| spread\t| wanted\t| p50 / p99 / max us\t| daemon CPU s\t| reader CPU s, ext4's\t| daemon read / bytes\t| VmHWM MiB\t|\n")
	fmt.Fprintf(w, "|---\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|--:\t|\n")
	for _, f := range b.table {
		seconds := func(get func(side) float64, s []side) float64 { return median(s, get) }
		fmt.Fprintf(w, "| %s\t| %d\t| %.2f\t| %.2f-%.2f\t| %.2f\t| %.0f / %.0f / %.0f\t| %.2f\t| %.2f, %.2f\t| %.2f\t| %.0f\t|\n", f.name, f.threads,
			median(f.ratios, same), slices.Min(f.ratios), slices.Max(f.ratios), f.target,
			seconds(func(s side) float64 { return s.P50us }, f.b), seconds(func(s side) float64 { return s.P99us }, f.b), seconds(func(s side) float64 { return s.MaxUs }, f.b),
			seconds(func(s side) float64 { return s.DaemonCPU }, f.b),
			seconds(func(s side) float64 { return s.ReaderCPU }, f.b), seconds(func(s side) float64 { return s.ReaderCPU }, f.a),
			seconds(func(s side) float64 { return float64(max(s.DaemonRead, s.DeviceRead)) / float64(max(1, s.Bytes)) }, f.b),
			seconds(func(s side) float64 { return float64(s.DaemonPeak) / (1 << 20) }, f.b))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("\nraw rounds: %s; %v\n", raw, b.common)
	return nil
}
