package node

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/ring"
	"github.com/hearthfs/hearth/node/status"
)

// everything exports a status document that has everything. So no metric is missing because a node happens
// to have no mount, tier or directory.
type everything struct {
	status status.Status
	ops    ring.SumsByDir
}

func (everything) Describe(chan<- *prometheus.Desc) {}

func (e everything) Collect(out chan<- prometheus.Metric) {
	status.NewMetrics().Export(&e.status, out)
	status.ExportMounts(e.ops, out)
}

// populate sets every number, text, list and map of a value.
func populate(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		populate(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				populate(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		populate(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		populate(key)
		populate(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64, reflect.Uint32:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	}
}

// labels are the labels that metrics may have, with what bounds their values.
func labels() map[string]string {
	return map[string]string{
		"answer":  "`data`, `miss` (not held), `refused` (the node has too much to do), `stale` (the version is gone), `error`, `cancelled` (who asked went away)",
		"failure": "`refused` (it had too much to do), `error`, `mismatch` (a wrong checksum), `silence` (no byte for 500 ms), `broken` (a connection was lost)",
		"fault":   "S3's code of what was wrong, such as `SignatureDoesNotMatch`, `AccessDenied`, `SlowDown`; some tens",
		"health":  "`alive` (this node among them), `suspect` (it did not answer lately), `missing` (it died, and was seen within a day)",
		"peer":    "names of nodes: the " + strconv.Itoa(ring.Most) + " with most traffic, and `other` for all further ones",
		"by":      "`ram`, `disk`, `volume` (the tier answered), `joined` (another's fetch was under way), `peers` (another node of the ring answered); of S3 clients `cache` and `bucket`",
		"cause":   "`origin` (bytes of objects), `throttled` (pauses that an origin asked for), `volume` (bytes that a volume holds), `disk` (bytes that a cache directory or memory holds), `list` (names: look-ups, attributes, listings)",
		"dir": "paths of cache directories, as many as are configured; mount points: the first " + strconv.Itoa(ring.Most) + " that were mounted since the start, and `other` for all further ones. " +
			"What is mounted no more keeps its figures. A path that is not UTF-8 stands in quotes, with `\\x` for what is not",
		"kind": "of answers: `lookup` (by name), `node` (by id), `listed` (a name in a listing); of questions: `head`, `probe` (is there a directory?), `listing` (a whole one)",
		"op": "what the kernel asked: `lookup`, `getattr`, `open`, `read`, `readdir`, `forget`, `write`; what came of it: `read_misses` (not held here); " +
			"`lent` (opens by passthrough); `lent_files`, `taken_back` (files of such opens: their difference is lent now); `stale` (ESTALE); `interrupted`; " +
			"`errors` (EIO and such); `complaints` (the FUSE library's); `news_told`, `news_merged`, `news_lost` (notifications)",
		"news":      "`told` (each node counts), `heard` (from a node), `asked` (of the owner or the bucket, for what was heard), `lost` (a node did not answer, or too many waited: it learns when its names' time is over)",
		"outcome":   "`done`, `present` (held before), `changed` (another version was loaded), `vanished`, `not_kept` (no tier would), `failed`, `archived` (to be restored first), `unread` (a check could not look at it)",
		"purpose":   "`readers` (read-ahead included), `warm_up`, `names`, `peers` (readers of other nodes of the ring)",
		"state":     "`open`, `waiting` (tried again by the node), `publishing`, `failed` (refused), `set_aside` (its record is damaged)",
		"tier":      "`ram`, `disk`, `volume`",
		"volume":    "addresses of volumes, 16 at most",
		"io":        "`read`, `write`, `flush`, `discard`",
		"told":      "`asked` (of their owner), `bucket` (it was asked instead), `told` (another node), `refused` (to another node: the directory is not this one's, or memory is short), `failed` (to another node: this one's bucket did not answer)",
		"version":   "the version of the node",
		"go":        "a release of Go",
		"code":      "the status of an answer to an S3 client, such as `200`; `0`: it broke off before",
		"how":       "`cached`, `passed` (to the origin), `written` (passed, and then forgotten), `refused`",
		"operation": "Amazon's name of what an S3 client asked for, such as `GetObject`; fewer than 200",
		"why":       "`silent` (no byte for 500 ms), `down` (no connection, or it was lost), `refused` (it had too much to do), `memory` (there was none here for the answer), `failed` (it could not answer, or its bytes were damaged)",
		"verb":      "`get`, `head`, `list`, `pass` (what S3 clients asked for and went on to the bucket, with the HEADs for headers of objects)",
	}
}

// counts are the metrics that are numbers of things, whose names need no unit. A size or a time is not one,
// and neither is a metric whose labels have different units.
const counts = `
hearth_dir_declined_total hearth_dir_hanging hearth_dir_mended_total hearth_dir_stalls_total hearth_dir_unindexed
hearth_drafts hearth_drafts_failures_total hearth_drafts_published_total
hearth_egress_avoided_requests_total hearth_egress_requests_total
hearth_keeper_starts_total
hearth_listings_running
hearth_memory_views
hearth_mount_ops_total
hearth_names_answers_total hearth_names_forgets_total hearth_names_listed_total hearth_names_moves_total hearth_names_question_errors_total
hearth_names_questions_total hearth_names_rebuilds_total hearth_names_refused hearth_names_stale_answers_total
hearth_origin_errors_total hearth_origin_requests_total hearth_origin_retries_total hearth_origin_throttled_total
hearth_pinned_files hearth_pins hearth_pins_lacking
hearth_prefetch_areas hearth_prefetch_files_total
hearth_problems
hearth_ring_alone_reads_total hearth_ring_asked_total hearth_ring_connections hearth_ring_cut_total hearth_ring_detours_total hearth_ring_elsewhere_total hearth_ring_joins_failed_total hearth_ring_loaded_total
hearth_ring_members hearth_ring_names_total hearth_ring_news_total hearth_ring_passed_total hearth_ring_peeks_found_total hearth_ring_peeks_gone_total hearth_ring_peeks_late_total hearth_ring_peeks_total
hearth_ring_peer_failures_total hearth_ring_peer_requests_total hearth_ring_refused_total hearth_ring_served_total
hearth_s3_at_work hearth_s3_at_work_limit hearth_s3_connections hearth_s3_connections_closed_total hearth_s3_connections_limit hearth_s3_faults_total hearth_s3_waiting
hearth_s3_header_asks_total hearth_s3_header_hits_total hearth_s3_headers hearth_s3_requests_total hearth_s3_under_way
hearth_scrub_bad_total hearth_scrub_failed_total
hearth_tier_errors_total hearth_tier_hits_total hearth_tier_misses_total
hearth_uncached_reads_total
hearth_volume_blocks hearth_volume_connections_total hearth_volume_dropped_total hearth_volume_errors_total hearth_volume_hits_total hearth_volume_in_flight hearth_volume_kept_total hearth_volume_lost_total
hearth_volume_moved_total hearth_volume_operation_errors_total hearth_volume_operations_total hearth_volume_outages_total hearth_volume_reclaimed_total hearth_volume_repeated_total hearth_volume_unindexed
hearth_warmup_files_total hearth_warmup_running_jobs
hearth_warnings`

// suffixes of names, before _total, with the units that they mean. The first that fits counts.
var suffixes = [][2]string{{"_bytes_per_second", "bytes/s"}, {"_bytes", "bytes"}, {"_timestamp_seconds", "Unix time, in seconds"}, {"_seconds", "seconds"}, {"_ratio", "0 to 1"}}

// unit returns the unit in a metric's name: its suffix before _total. A name without a suffix is among
// counts, or says whether something is so. The result is empty if it is neither.
func unit(name, help string) string {
	for _, s := range suffixes {
		if strings.HasSuffix(strings.TrimSuffix(name, "_total"), s[0]) {
			return s[1]
		}
	}
	switch {
	case strings.HasPrefix(help, "1 while"):
		return "0 or 1"
	case strings.HasPrefix(help, "1, with"):
		return "1"
	case slices.Contains(strings.Fields(counts), name):
		return "count"
	}
	return ""
}

func TestNamesSayTheirUnits(t *testing.T) {
	// A metric's name says its unit. A metric without a unit is a known number of things.
	for name, want := range map[string]string{"hearth_x_bytes": "bytes", "hearth_x_bytes_total": "bytes", "hearth_x_rate_bytes_per_second": "bytes/s",
		"hearth_x_seconds_total": "seconds", "hearth_x_timestamp_seconds": "Unix time, in seconds", "hearth_pins": "count", "hearth_x": "", "hearth_x_total": "", "hearth_x_ms": "", "hearth_x_ratio": "0 to 1"} {
		if got := unit(name, "Some."); got != want {
			t.Errorf("%s is in %q, want %q", name, got, want)
		}
	}
	families, err := exporter().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		u := unit(f.GetName(), f.GetHelp())
		rate := strings.Contains(f.GetName(), "_rate") || strings.Contains(strings.ToLower(f.GetHelp()), "per second")
		stamp := strings.Contains(strings.ToLower(f.GetHelp()), "unix time") || strings.HasPrefix(f.GetHelp(), "When ")
		if u == "" || rate != (u == "bytes/s") || stamp != strings.HasPrefix(u, "Unix") || f.GetType().String() == "COUNTER" && (rate || stamp) {
			t.Errorf("%s (%s) is in %q", f.GetName(), f.GetHelp(), u)
		}
	}
	for label, values := range labels() {
		for _, v := range regexp.MustCompile("`[^`]+`").FindAllString(values, -1) {
			if v = strings.Trim(v, "`"); unit(v, "") != "" {
				t.Errorf("the label %s has %s: one metric, two units", label, v)
			}
		}
	}
}

func TestEachFigureOfTheNamesIsExported(t *testing.T) {
	// Each figure that the namespace counts has a metric with its value.
	var s namespace.Stats
	v := reflect.ValueOf(&s).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(1000 * (i + 1)))
		}
	}
	r := prometheus.NewRegistry()
	r.MustRegister(everything{status: status.Status{Names: status.Names{Figures: s.Figures()}}})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[float64]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if strings.HasPrefix(f.GetName(), "hearth_names_") && f.GetName() != "hearth_names_stale" {
				exported[m.GetGauge().GetValue()+m.GetCounter().GetValue()]++
			}
		}
	}
	for name, n := range s.Figures() {
		want := float64(n)
		if name == "slowest_listing_ms" {
			want /= 1000
		}
		if exported[want] != 1 {
			t.Errorf("%s is exported %d times", name, exported[want])
		}
	}
	if len(exported) != len(s.Figures()) || len(exported) < 15 {
		t.Errorf("%d figures, and %d are exported", len(s.Figures()), len(exported))
	}
}

func TestPathsThatAreNotUTF8AreExported(t *testing.T) {
	// Two mount points, and two cache directories, have names that are not UTF-8. They are kept apart, and
	// nothing else is lost for them.
	s := &status.Status{Tiers: []status.Tier{{Name: "disk", Dirs: []status.Dir{{Path: "/c/\xfe"}, {Path: "/c/\xff"}, {Path: "/c/\uFFFD"}}}}}
	ops := ring.SumsByDir{}
	for _, dir := range []string{"/job/\xfe", "/job/\xff", "/job/\uFFFD"} {
		ops.Add(dir, map[string]int64{"read": 1})
	}
	r := prometheus.NewRegistry()
	r.MustRegister(everything{status: *s, ops: ops})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "dir" && (f.GetName() == "hearth_mount_ops_total" || f.GetName() == "hearth_dir_ill") {
					got = append(got, l.GetValue())
				}
			}
		}
	}
	slices.Sort(got)
	if want := []string{`"/c/\xfe"`, `"/c/\xff"`, `"/job/\xfe"`, `"/job/\xff"`, "/c/\uFFFD", "/job/\uFFFD"}; !slices.Equal(got, want) {
		t.Errorf("directories %q, want %q", got, want)
	}
}

// exporter exports all metrics that a node can export.
func exporter() *prometheus.Registry {
	var e everything
	populate(reflect.ValueOf(&e.status).Elem())
	e.ops = ring.SumsByDir{"/m": {"read": 1, "read_bytes": 1, status.TookBucket("read", time.Second): 1, status.TookBucket("open", 0): 1}}
	r := prometheus.NewRegistry()
	r.MustRegister(e)
	return r
}

func TestMetricNamesAreStable(t *testing.T) {
	// testdata/metrics.txt has every name that people's dashboards and alerts may ask for. No flag writes
	// it. A line is added by hand with a new metric, and none is changed or removed.
	text, err := os.ReadFile(filepath.Join("testdata", "metrics.txt"))
	if err != nil {
		t.Fatal(err)
	}
	promised := strings.Fields(string(text))
	if len(promised) < 25 || !slices.IsSorted(promised) {
		t.Fatalf("testdata/metrics.txt has %d names, sorted %v", len(promised), slices.IsSorted(promised))
	}
	families, err := exporter().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	for _, name := range promised {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not exported any more: names are stable, give it back", name)
		}
	}
	for _, name := range names {
		if !slices.Contains(promised, name) {
			t.Errorf("%s is new: is that what it shall be called for ever? Then add it to testdata/metrics.txt", name)
		}
	}
}

func TestMetricsPageIsCurrent(t *testing.T) {
	// docs/metrics.md has every metric that a node can export, with its kind, unit, labels and meaning.
	// Labels are bounded, and counters have a counter's name.
	families, err := exporter().Gather()
	if err != nil || len(families) < 25 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	var b strings.Builder
	b.WriteString(`# Metrics

This page is made from what a node exports (go test ./node -run MetricsPage -update). [operations.md](operations.md) says where and
what to do; deploy/grafana has a dashboard and deploy/prometheus alert rules. Names are stable: metrics are added, none is renamed.
The usual ` + "`go_*` and `process_*`" + ` are exported as well.

| metric | kind | unit | labels | meaning |
|---|---|---|---|---|
`)
	used := map[string]bool{}
	for _, f := range families {
		kind := strings.ToLower(f.GetType().String())
		if (kind == "counter") != strings.HasSuffix(f.GetName(), "_total") || !strings.HasPrefix(f.GetName(), "hearth_") || f.GetHelp() == "" {
			t.Errorf("%s is a %s: %q", f.GetName(), kind, f.GetHelp())
		}
		var names []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			names = append(names, l.GetName())
			used[l.GetName()] = true
			if labels()[l.GetName()] == "" {
				t.Errorf("%s: nothing bounds the label %s", f.GetName(), l.GetName())
			}
		}
		if unit(f.GetName(), f.GetHelp()) == "" {
			t.Errorf("%s has no unit: its name says none, and it is no number of things", f.GetName())
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.GetName(), kind, unit(f.GetName(), f.GetHelp()), strings.Join(names, ", "), f.GetHelp())
	}
	b.WriteString("\n| label | values |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(labels())) {
		if !used[name] {
			t.Errorf("no metric has the label %s", name)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", name, labels()[name])
	}
	page := filepath.Join("..", "docs", "metrics.md")
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(page); err != nil || string(have) != b.String() {
		t.Errorf("%s is stale (%v): go test ./node -run MetricsPage -update", page, err)
	}
}
