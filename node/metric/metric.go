// Package metric makes metrics for Prometheus out of plain figures.
package metric

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hearthfs/hearth/node/figures"
)

// Sink takes metrics.
type Sink chan<- prometheus.Metric

// Gauge sends a figure with at most one label, given as name and value.
func (s Sink) Gauge(name, help string, v int64, label ...string) {
	s.send(prometheus.NewDesc(name, help, names(label), nil), prometheus.GaugeValue, v, label)
}

// Count sends a figure that only grows, as Gauge does.
func (s Sink) Count(name, help string, v int64, label ...string) {
	s.send(prometheus.NewDesc(name, help, names(label), nil), prometheus.CounterValue, v, label)
}

// Counts is Count with several labels.
func (s Sink) Counts(name, help string, v int64, labels []string, values ...string) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue, float64(v), values...)
}

// Seconds is Count of a time.
func (s Sink) Seconds(name, help string, v float64, label, value string) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, []string{label}, nil), prometheus.CounterValue, v, value)
}

// Times sends a histogram of times.
func (s Sink) Times(name, help string, f figures.FirstByte) {
	buckets, below := map[float64]uint64{}, uint64(0)
	for _, b := range f.Buckets {
		if below += uint64(b.Count); b.LE > 0 {
			buckets[b.LE] = below
		}
	}
	s <- prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, nil, nil), uint64(f.Count), f.SumS, buckets)
}

func (s Sink) send(d *prometheus.Desc, kind prometheus.ValueType, v int64, label []string) {
	s <- prometheus.MustNewConstMetric(d, kind, float64(v), label[len(names(label)):]...)
}

func names(label []string) []string { return label[:len(label)/2] }
