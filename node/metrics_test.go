package node

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hearthfs/hearth/node/metric"
)

// everything exports a status document that has all there can be, so that no metric
// is missing because a node happens to have no mount, tier or directory.
type everything struct{ status Status }

func (everything) Describe(chan<- *prometheus.Desc) {}

func (e everything) Collect(out chan<- prometheus.Metric) { export(&e.status, metric.Sink(out)) }

// populate gives every figure, text, list and map of a value something.
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

// labels that metrics may have, and what bounds their values.
func labels() map[string]string {
	return map[string]string{
		"by":    "`ram`, `disk` (the tier answered), `joined` (another's fetch was under way)",
		"cause": "`origin` (bytes of objects), `throttled` (pauses that an origin asked for), `disk` (bytes that a cache directory or memory holds), `list` (names: look-ups, attributes, listings)",
		"dir":   "paths of cache directories and mount points, as many as are configured",
		"figure": "`disk_bytes`, `memory_bytes` (what the names take); `lookups`, `nodes`, `names_read` (answers by name, by id, in listings); " +
			"`heads`, `probes`, `listings`, `origin_errors` (questions to origins: HEAD, \"is there a directory?\", whole listings, failures); `names_listed`; " +
			"`slowest_listing_ms` (names that listings brought are believed for at most 20 times that, if it is more than the bound); " +
			"`stale_answers` (given while the origin was away); `forgets` (versions that readers found gone); `refused` (keys that cannot be shown); " +
			"`rebuilds` (databases begun anew). All but `refused` and the two sizes count from the start of the process",
		"op": "what the kernel asked: `lookup`, `getattr`, `open`, `read`, `readdir`, `forget`; what came of it: `read_bytes`; `read_misses` (not held here); " +
			"`lent` (opens by passthrough); `lent_files`, `taken_back` (files of such opens: their difference is lent now); `stale` (ESTALE); `interrupted`; " +
			"`errors` (EIO and such); `complaints` (the FUSE library's); `news_told`, `news_merged`, `news_lost` (notifications)",
		"outcome": "`done`, `present` (held before), `changed` (another version was loaded), `vanished`, `not_kept` (no tier would), `failed`",
		"purpose": "`readers` (read-ahead included), `warm_up`, `names`",
		"tier":    "`ram`, `disk`",
		"verb":    "`get`, `head`, `list`",
	}
}

// unit is read off a metric's name, as its suffix before _total says; what has none
// is a number of things, or says whether something is so.
func unit(name, help string) string {
	if strings.HasPrefix(help, "1 while") {
		return "0 or 1"
	}
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_rate_bytes"):
		return "bytes/s"
	case strings.HasSuffix(name, "_bytes"):
		return "bytes"
	case strings.HasSuffix(name, "_seconds"):
		return "seconds"
	}
	return "count"
}

// exporter exports all metrics that a node can export.
func exporter() *prometheus.Registry {
	var e everything
	populate(reflect.ValueOf(&e.status).Elem())
	r := prometheus.NewRegistry()
	r.MustRegister(e)
	return r
}

func TestMetricNamesAreStable(t *testing.T) {
	// testdata/metrics.txt has every name that people's dashboards and alerts may ask for. No
	// flag writes it: a line is added by hand with a new metric, and none is changed or taken away.
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
	// docs/metrics.md has every metric that a node can export, with its kind, unit, labels and meaning; labels are bounded and counters are called so.
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
