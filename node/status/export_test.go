package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/warmup"
)

// fakeNode exports one document.
type fakeNode Status

func (*fakeNode) Describe(chan<- *prometheus.Desc) {}

func (n *fakeNode) Collect(out chan<- prometheus.Metric) { NewMetrics().Export((*Status)(n), out) }

// exports returns the values of metrics, by name and labels.
func exports(t *testing.T, s *Status) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister((*fakeNode)(s))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			all[strings.Join(name, " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

func TestWhatANodeHasNoneOfIsZero(t *testing.T) {
	// A node without pins, jobs and problems exports 0 of them. Without a ring or an endpoint it exports
	// nothing about one.
	all := exports(t, &Status{})
	for _, name := range []string{"hearth_pins", "hearth_pins_lacking", "hearth_problems", "hearth_warmup_running_jobs", "hearth_listings_running", "hearth_names_stale", "hearth_warmup_files_total done"} {
		if v, ok := all[name]; !ok || v != 0 {
			t.Errorf("%s is %v, %v", name, v, ok)
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "hearth_ring_") || strings.HasPrefix(name, "hearth_s3_") {
			t.Errorf("%s is exported", name)
		}
	}
}

func TestWhatHasTheSameLabelsIsAddedUp(t *testing.T) {
	// Times of S3 requests are added up by operation. Bytes of pins and of jobs are added up over all of them,
	// without dry runs. Texts count as one each.
	s := &Status{Ring: &RingLine{Alive: 1, AloneS: 61, Peers: []Peer{{Name: "a", Failures: map[string]int64{"silence": 2}}}},
		S3:       &S3Line{Requests: []S3Requests{{Operation: "GetObject", Code: "200", Seconds: 1.5}, {Operation: "GetObject", Code: "404", Seconds: 2}}},
		Pins:     []namespace.PinView{{Needs: 3}, {Needs: 4, Lacks: "something"}},
		Jobs:     []warmup.Line{{Progress: warmup.Progress{BytesDone: 5}}, {DryRun: true, Progress: warmup.Progress{BytesDone: 70}}, {Progress: warmup.Progress{BytesDone: 6}}},
		Problems: []string{"a", "b"}, Tiers: []Tier{{Name: "ram"}, {Name: "disk", Dirs: []Dir{{Path: "/a"}, {Path: "/b", Ill: "it failed"}}}},
		Names: Names{Stale: "no answer", Figures: map[string]int64{"slowest_listing_ms": 1500, "heads": 8}}, Warmup: warmup.Counters{NotKept: warmup.Tally{Files: 9}}}
	all := exports(t, s)
	for name, want := range map[string]float64{"hearth_s3_seconds_total GetObject": 3.5, "hearth_pins": 2, "hearth_pins_lacking": 1, "hearth_pinned_disk_bytes": 7,
		"hearth_warmup_running_jobs": 2, "hearth_warmup_running_done_bytes": 11, "hearth_warmup_files_total not_kept": 9, "hearth_problems": 2, "hearth_dir_ill /a": 0, "hearth_dir_ill /b": 1,
		"hearth_names_stale": 1, "hearth_names_slowest_listing_seconds": 1.5, "hearth_names_questions_total head": 8, "hearth_ring_alone": 1, "hearth_ring_members alive": 1,
		"hearth_ring_peer_failures_total silence a": 2} {
		if v, ok := all[name]; !ok || v != want {
			t.Errorf("%s is %v, %v, want %v", name, v, ok, want)
		}
	}
	if len(s.Jobs) != 3 || !slices.ContainsFunc(s.Jobs, func(l warmup.Line) bool { return l.DryRun }) {
		t.Errorf("the document has %d jobs left", len(s.Jobs))
	}
}
