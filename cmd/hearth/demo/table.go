package demo

import (
	"fmt"
	"text/tabwriter"
	"time"
)

// row has the figures of one epoch.
type row struct {
	name  string
	files int
	bytes int64
	took  time.Duration
	asked counts
	wrong int
}

// table prints this run's figures.
func (d *demo) table() {
	_, _ = fmt.Fprintf(d.Out, "\n")
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head, peers := "epoch\tfiles/s\tthroughput\torigin requests\torigin bytes\twrong\t", ""
	if d.Nodes > 1 {
		head += "from peers\t"
	}
	fmt.Fprintln(w, head)
	for _, r := range d.rows {
		s := r.took.Seconds()
		if d.Nodes > 1 {
			peers = size(r.asked.peers) + "\t"
		}
		fmt.Fprintf(w, "%s\t%.0f\t%s/s\t%d\t%s\t%d\t%s\n", r.name, float64(r.files)/s,
			size(int64(float64(r.bytes)/s)), r.asked.requests, size(r.asked.bytes), r.wrong, peers)
	}
	_ = w.Flush()
}

// size prints bytes with a binary unit.
func size(n int64) string {
	f, unit := float64(n), 0
	for f >= 1024 && unit < 4 {
		f, unit = f/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", f, "KMGT"[unit-1])
}
