// Package metric makes metrics for Prometheus out of plain figures.
package metric

import "github.com/prometheus/client_golang/prometheus"

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

func (s Sink) send(d *prometheus.Desc, kind prometheus.ValueType, v int64, label []string) {
	s <- prometheus.MustNewConstMetric(d, kind, float64(v), label[len(names(label)):]...)
}

func names(label []string) []string { return label[:len(label)/2] }
