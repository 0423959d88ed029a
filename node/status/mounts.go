package status

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The times of answers are counted among a mount's other counts, in kinds of their own, so that they are added
// up like those. TookBucket counts the answers that took at most a time (0 means any) and longer than the
// bucket before. TookSum adds up the nanoseconds of all.
const (
	tookBucket = "took_at_most "
	tookSum    = "took "
)

// TookBucket returns the kind under which the answers of a bucket are counted.
func TookBucket(op string, most time.Duration) string { return tookBucket + op + " " + most.String() }

// TookSum returns the kind under which the times of answers are added up.
func TookSum(op string) string { return tookSum + op }

// ExportMounts sends the counts of mounts, by directory and kind.
func ExportMounts(all map[string]map[string]int64, out chan<- prometheus.Metric) {
	asked := prometheus.NewDesc("hearth_mount_ops_total", "What the kernel asked of a mount, and what came of it.", []string{"dir", "op"}, nil)
	read := prometheus.NewDesc("hearth_mount_read_bytes_total", "Bytes that the kernel's reads of a mount were answered with.", []string{"dir"}, nil)
	written := prometheus.NewDesc("hearth_mount_written_bytes_total", "Bytes that the kernel wrote to a mount.", []string{"dir"}, nil)
	for dir, ops := range all {
		for op, n := range ops {
			if op != "read_bytes" && op != "written_bytes" && !strings.HasPrefix(op, tookBucket) && !strings.HasPrefix(op, tookSum) {
				out <- prometheus.MustNewConstMetric(asked, prometheus.CounterValue, float64(n), valid([]string{dir, op})...)
			}
		}
		out <- prometheus.MustNewConstMetric(read, prometheus.CounterValue, float64(ops["read_bytes"]), valid([]string{dir})...)
		out <- prometheus.MustNewConstMetric(written, prometheus.CounterValue, float64(ops["written_bytes"]), valid([]string{dir})...)
		out <- took("hearth_mount_open_seconds", "How long the kernel's opens of a mount waited for their answer; open=none answers one.", ops, "open", dir)
		out <- took("hearth_mount_read_seconds", "How long the kernel's reads of a mount waited for their answer; what lies in its page cache is not asked for.", ops, "read", dir)
	}
}

// took returns the histogram of one kind of answers of a mount.
func took(name, help string, ops map[string]int64, op, dir string) prometheus.Metric {
	buckets, all := map[float64]uint64{}, uint64(0)
	for kind, n := range ops {
		of, bound, ok := strings.Cut(strings.TrimPrefix(kind, tookBucket), " ")
		most, err := time.ParseDuration(bound)
		if !ok || err != nil || of != op || !strings.HasPrefix(kind, tookBucket) {
			continue
		}
		if all += uint64(n); most > 0 {
			buckets[most.Seconds()] = uint64(n)
		}
	}
	below := uint64(0)
	for _, most := range slices.Sorted(maps.Keys(buckets)) {
		below += buckets[most]
		buckets[most] = below
	}
	desc := prometheus.NewDesc(name, help, []string{"dir"}, nil)
	return prometheus.MustNewConstHistogram(desc, all, time.Duration(ops[tookSum+op]).Seconds(), buckets, valid([]string{dir})...)
}
