package status

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// fakeMount exports one mount.
type fakeMount map[string]int64

func (fakeMount) Describe(chan<- *prometheus.Desc) {}

func (m fakeMount) Collect(out chan<- prometheus.Metric) {
	ExportMounts(map[string]map[string]int64{"/m": m}, out)
}

func TestAMountsAnswersAreAHistogram(t *testing.T) {
	// The times of answers become a cumulative histogram of each mount, with its sum, and are not counted as
	// operations.
	r := prometheus.NewRegistry()
	r.MustRegister(fakeMount{"read": 6, "read_bytes": 9, TookBucket("read", time.Millisecond): 1, TookBucket("read", time.Second): 2, TookBucket("read", 0): 3,
		TookSum("read"): int64(90 * time.Second), TookBucket("open", time.Second): 4, TookSum("open"): 5})
	families, err := r.Gather()
	if err != nil || len(families) != 5 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	for _, f := range families {
		h := f.GetMetric()[0].GetHistogram()
		switch n := len(f.GetMetric()); {
		case n != 1:
			t.Errorf("%s has %d rows", f.GetName(), n)
		case f.GetName() != "hearth_mount_read_seconds":
		case h.GetSampleCount() != 6 || h.GetSampleSum() != 90 || len(h.GetBucket()) != 2 || h.GetBucket()[0].GetCumulativeCount() != 1 || h.GetBucket()[1].GetCumulativeCount() != 3:
			t.Errorf("%v", h)
		}
	}
}
