package status

import (
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
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

// Took is Gauge, without a label, of a time in seconds.
func (s Sink) Took(name, help string, d time.Duration) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, d.Seconds())
}

// Ratio is Gauge, without a label, of a part of a whole, 0 to 1.
func (s Sink) Ratio(name, help string, v float64) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
}

// Counts is Count with several labels.
func (s Sink) Counts(name, help string, v int64, labels []string, values ...string) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue, float64(v), valid(values)...)
}

// Seconds is Count of a time.
func (s Sink) Seconds(name, help string, v float64, label, value string) {
	s <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, []string{label}, nil), prometheus.CounterValue, v, value)
}

// Times sends a histogram of times.
func (s Sink) Times(name, help string, f FirstByte) {
	buckets, below := map[float64]uint64{}, uint64(0)
	for _, b := range f.Buckets {
		if below += uint64(b.Count); b.LE > 0 {
			buckets[b.LE] = below
		}
	}
	s <- prometheus.MustNewConstHistogram(prometheus.NewDesc(name, help, nil, nil), uint64(f.Count), f.SumS, buckets)
}

func (s Sink) send(d *prometheus.Desc, kind prometheus.ValueType, v int64, label []string) {
	s <- prometheus.MustNewConstMetric(d, kind, float64(v), valid(label[len(names(label)):])...)
}

// valid quotes what is not UTF-8, as a path may be: Prometheus takes no such value, and
// all metrics were lost for it. A quoted path is no other's, since each begins with a slash.
func valid(values []string) []string {
	values = slices.Clone(values)
	for i, v := range values {
		if !utf8.ValidString(v) {
			values[i] = strconv.Quote(v)
		}
	}
	return values
}

func names(label []string) []string { return label[:len(label)/2] }
