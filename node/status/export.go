package status

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hearthfs/hearth/warmup"
)

// Metrics turn a status document into metrics.
type Metrics []metric

// metric is a row of the table, parsed.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	own  []string // values of the labels that stand in its name
	way  []step
	all  bool // it has no labels from the document, so that there is always one value, if only 0
}

// step goes to a key. With each it goes to every element there, and takes the element's labels.
type step struct {
	field  []int         // of a struct: the field of the key
	key    reflect.Value // of a map: the key
	each   bool
	labels [][]int // fields of an element; of a map, or a struct read as one, the key is the label
}

// exported is a status document, with some of it in the form that metrics need.
type exported struct {
	*Status
	Build []build `json:"build"`
	// Running are the jobs without dry runs.
	Running []warmup.Line `json:"running"`
	// SlowestListing is one of the names' figures, in seconds.
	SlowestListing float64 `json:"slowest_listing_s"`
	// Alone says whether a node in a ring is alone. It is nil if the node is in no ring.
	Alone *bool `json:"alone"`
}

type build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
}

// NewMetrics reads the table.
func NewMetrics() (all Metrics) {
	for _, r := range table() {
		name, own, _ := strings.Cut(strings.TrimSuffix(r.name, "}"), "{")
		m := metric{kind: prometheus.GaugeValue, all: true}
		if strings.HasSuffix(name, "_total") {
			m.kind = prometheus.CounterValue
		}
		var labels []string
		if label, value, ok := strings.Cut(own, "="); ok {
			labels, m.own = append(labels, label), append(m.own, value)
		}
		t := reflect.TypeFor[exported]()
		for key := range strings.SplitSeq(r.from, ".") {
			key, of, each := strings.Cut(strings.TrimSuffix(key, "]"), "[")
			s := step{each: each}
			if t.Kind() == reflect.Map {
				s.key, t = reflect.ValueOf(key), t.Elem()
			} else {
				f := field(t, key)
				s.field, t = f.Index, f.Type
			}
			if t.Kind() == reflect.Pointer {
				t = t.Elem()
			}
			kind := t.Kind()
			switch {
			case each && kind == reflect.Struct:
				t = t.Field(0).Type
			case each:
				t = t.Elem()
			}
			for _, label := range strings.FieldsFunc(of, func(r rune) bool { return r == ',' }) {
				label, below, ok := strings.Cut(label, "=")
				if !ok {
					below = label
				}
				labels, m.all = append(labels, label), false
				if kind == reflect.Slice {
					s.labels = append(s.labels, field(t, below).Index)
				}
			}
			m.way = append(m.way, s)
		}
		m.desc = prometheus.NewDesc(name, r.help, labels, nil)
		all = append(all, m)
	}
	return all
}

// Export sends the metrics of a document.
func (all Metrics) Export(s *Status, out chan<- prometheus.Metric) {
	x := exported{Status: s, Build: []build{{s.Version, runtime.Version()}}, SlowestListing: (time.Duration(s.Names.Figures["slowest_listing_ms"]) * time.Millisecond).Seconds()}
	x.Running = slices.DeleteFunc(slices.Clone(s.Jobs), func(l warmup.Line) bool { return l.DryRun })
	if s.Ring != nil {
		alone := s.Ring.AloneS > 0
		x.Alone = &alone
	}
	for _, m := range all {
		m.export(reflect.ValueOf(x), out)
	}
}

// field returns the field of a key in JSON.
func field(of reflect.Type, key string) reflect.StructField {
	for _, f := range reflect.VisibleFields(of) {
		if keyOf(f) == key {
			return f
		}
	}
	panic(fmt.Sprintf("%v has no key %s", of, key)) // the table is wrong; then no node starts, and no test passes
}

func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

// export sends the values of a metric. Each value has its own labels.
func (m *metric) export(document reflect.Value, out chan<- prometheus.Metric) {
	type value struct {
		labels []string
		sum    float64
	}
	values := map[string]*value{}
	add := func(labels []string, v float64) {
		key := strings.Join(labels, "\x00")
		if values[key] == nil {
			values[key] = &value{labels: labels}
		}
		values[key].sum += v
	}
	met := walk(document, m.way, m.own, func(v reflect.Value, labels []string) {
		if f, ok := v.Interface().(FirstByte); ok {
			out <- histogram(m.desc, f)
		} else {
			add(labels, number(v))
		}
	})
	if !met && m.all {
		add(m.own, 0)
	}
	for _, x := range values {
		out <- prometheus.MustNewConstMetric(m.desc, m.kind, x.sum, valid(x.labels)...)
	}
}

// walk calls each with what lies at the end of a way. It reports whether it called each or met a nil pointer.
// If it did neither, there are only empty lists on the way.
func walk(v reflect.Value, way []step, labels []string, each func(v reflect.Value, labels []string)) (met bool) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return true
		}
		v = v.Elem()
	}
	if len(way) == 0 {
		each(v, labels)
		return true
	}
	s, way := way[0], way[1:]
	switch {
	case v.Kind() == reflect.Struct:
		v = v.FieldByIndex(s.field)
	case v.MapIndex(s.key).IsValid():
		v = v.MapIndex(s.key)
	default: // a missing key of a map counts as zero
		v = reflect.Zero(v.Type().Elem())
	}
	if !s.each {
		return walk(v, way, labels, each)
	}
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			of := slices.Clone(labels)
			for _, f := range s.labels {
				of = append(of, v.Index(i).FieldByIndex(f).String())
			}
			met = walk(v.Index(i), way, of, each) || met
		}
	case reflect.Map:
		for key, x := range v.Seq2() {
			met = walk(x, way, append(slices.Clone(labels), key.String()), each) || met
		}
	default:
		for i := range v.NumField() {
			met = walk(v.Field(i), way, append(slices.Clone(labels), keyOf(v.Type().Field(i))), each) || met
		}
	}
	return met
}

func number(v reflect.Value) float64 {
	switch {
	case v.CanInt():
		return float64(v.Int())
	case v.CanUint():
		return float64(v.Uint())
	case v.CanFloat():
		return v.Float()
	case v.Kind() == reflect.String && v.Len() == 0, v.Kind() == reflect.Bool && !v.Bool():
		return 0
	}
	return 1
}

func histogram(d *prometheus.Desc, f FirstByte) prometheus.Metric {
	buckets, below := map[float64]uint64{}, uint64(0)
	for _, b := range f.Buckets {
		if below += uint64(b.Count); b.LE > 0 {
			buckets[b.LE] = below
		}
	}
	return prometheus.MustNewConstHistogram(d, uint64(f.Count), f.SumS, buckets)
}

// valid quotes values that are not UTF-8, as a path may be. Prometheus rejects such a value, and all metrics
// would be lost for it. A quoted path is never another path, since each path begins with a slash.
func valid(values []string) []string {
	values = slices.Clone(values)
	for i, v := range values {
		if !utf8.ValidString(v) {
			values[i] = strconv.Quote(v)
		}
	}
	return values
}
