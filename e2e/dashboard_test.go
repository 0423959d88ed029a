package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// observed are the scenarios of what Prometheus and Grafana are given.
func observed(is func(string) func(level) string) []scenario {
	return []scenario{
		{name: "dashboard", issue: "warm-up", from: all, limit: time.Minute, origin: "versitygw", size: is("223 files, 2 jobs, 1 pin"), run: dashboard},
		{name: "metric-labels", issue: "warm-up", from: all, limit: time.Minute, origin: "versitygw", size: is("20 files, 2 mounts"), run: metricLabels},
		{name: "alert-rules", issue: "warm-up", from: full, limit: time.Minute, origin: "versitygw", size: is("13 rules"), run: alertRules},
		{name: "drafts-verb", issue: "write", from: core, limit: time.Minute, origin: "versitygw behind the fault proxy", size: is("2 files"), run: draftsVerb},
	}
}

// dashboard: every query of the dashboard, and every expression of the alert rules,
// asks for metrics, labels and values that a live node exports, which has a job at work and
// one that is done, a pin, siblings brought ahead of readers, and a volume.
func dashboard(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(1, 20))
	ahead := e.load(o, hearthtest.DataSet{Name: "ahead", Groups: []hearthtest.Group{{Dir: "ahead", Dirs: 1, Files: 200, Min: 8 << 10, Max: 8 << 10}}})
	e.load(o, hearthtest.DataSet{Name: "slow", Groups: []hearthtest.Group{{Dir: "slow", Dirs: 1, Files: 3, Min: 4 << 20, Max: 4 << 20}}})
	h := e.mount(o, settings{extra: fmt.Sprintf("volumes: [%q]", e.formatVolume("volume", 64<<20))})
	e.good("through the mount", epoch(h.dir, list, 1, 2, 0))
	e.eventually("siblings brought", func() bool {
		e.good("in random order", epoch(h.dir, ahead, 1, 4, 0))
		return h.status().Prefetch.ReadBytes > 0
	})
	if out, code := h.ask("pin", "/ahead"); code != 0 {
		e.Errorf("pin: exit %d, %s", code, out)
	}
	if out, code := h.ask("warmup", "/slow", "--rate", "64KiB/s", "--detach"); code != 0 {
		e.Errorf("warmup --detach: exit %d, %s", code, out)
	}
	e.eventually("a job at work", func() bool { return h.latest().Phase != "queued" })
	for _, name := range []string{"hearth_warmup_running_jobs", "hearth_warmup_files_total", "hearth_pins", "hearth_pinned_files", "hearth_prefetch_read_bytes_total"} {
		if m := regexp.MustCompile(`(?m)^` + name + `(\{[^}]*\})? [1-9]`); !m.MatchString(h.metrics()) {
			e.Errorf("a node with a job, a pin and prefetch exports no %s above 0", name)
		}
	}
	e.knownLabels(h)
	live := map[string][]string{"up": {""}} // Prometheus's own
	for _, m := range exported(h.metrics() + e.pair(o).metrics()) {
		live[m.name] = append(live[m.name], m.labels)
	}
	queries := append(e.queries("deploy/grafana/hearth.json"), e.rules("deploy/prometheus/alerts.yml")...)
	if len(queries) < 30 {
		e.Fatalf("only %d queries were found", len(queries))
	}
	for _, q := range queries {
		for _, s := range selectors(q) {
			if live[s.name] == nil {
				e.Errorf("%s: a live node exports no %s", q, s.name)
			}
			for _, want := range s.labels {
				if !slices.ContainsFunc(live[s.name], func(labels string) bool { return strings.Contains(labels, want) }) {
					e.Errorf("%s: a live node exports no %s with %s", q, s.name, want)
				}
			}
		}
	}
}

// pair is the second of two nodes that make a ring.
func (e *env) pair(o *server) *hearth {
	e.Helper()
	first, second := ringPorts(e)
	e.mount(o, settings{cache: "cache-one", extra: fmt.Sprintf("node: {name: one, listen: %q}", first)})
	h := e.mount(o, settings{cache: "cache-two", extra: fmt.Sprintf("node: {name: two, listen: %q}\njoin: [%q]", second, first)})
	e.eventually("two nodes of a ring", func() bool { return h.status().Ring.Alive == 2 })
	e.knownLabels(h)
	return h
}

// ringPorts are where two nodes may gossip: each takes the port above, too.
func ringPorts(e *env) (first, second string) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		e.must(err, "find a free port")
		held = append(held, l)
		port, free := l.Addr().(*net.TCPAddr).Port, true
		for above := 1; above < 4 && free; above++ {
			if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+above)); err != nil {
				free = false
			} else {
				held = append(held, l)
			}
		}
		if free {
			return l.Addr().String(), fmt.Sprintf("127.0.0.1:%d", port+2)
		}
	}
	e.Fatal("nowhere are four free ports in a row")
	return "", ""
}

// series is a metric with its labels, as the exposition format writes them.
type series struct {
	name, labels string
	value        float64
}

// exported takes a node's metrics apart.
func exported(text string) (all []series) {
	for _, m := range regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		v, _ := strconv.ParseFloat(m[3], 64)
		all = append(all, series{m[1], m[2], v})
	}
	return all
}

// knownLabels: each metric of hearth that a live node exports stands in docs/metrics.md,
// and no label has a value that is not listed there; those of dir and volume are paths, of peer nodes.
func (e *env) knownLabels(h *hearth) {
	e.Helper()
	page, err := os.ReadFile("../docs/metrics.md")
	e.must(err, "read the page of metrics")
	listed, checked := map[string]string{}, 0
	for _, m := range regexp.MustCompile("(?m)^\\| `?(\\w+)`? \\| (.*) \\|$").FindAllStringSubmatch(string(page), -1) {
		listed[m[1]] = m[2]
	}
	for _, s := range exported(h.metrics()) {
		if !strings.HasPrefix(s.name, "hearth_") {
			continue
		}
		if name := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(s.name, ""); listed[s.name]+listed[name] == "" {
			e.Errorf("docs/metrics.md has no %s", s.name)
		}
		for _, l := range regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`).FindAllStringSubmatch(s.labels, -1) {
			path := (l[1] == "dir" || l[1] == "volume") && (strings.HasPrefix(l[2], "/") || strings.HasPrefix(l[2], `\"/`))
			if checked++; l[1] != "le" && l[1] != "peer" && s.name != "hearth_build_info" && !path && !strings.Contains(listed[l[1]], "`"+l[2]+"`") {
				e.Errorf("%s{%s}: docs/metrics.md lists no such value of %s", s.name, s.labels, l[1])
			}
		}
	}
	if checked < 50 {
		e.Errorf("only %d labels were found", checked)
	}
}

// metricLabels: a mount point whose name is not UTF-8 costs no metric; and one that a
// job had for itself keeps what it counted once it is gone, and goes on from there.
func metricLabels(e *env) {
	o := e.origin()
	list := e.load(o, hearthtest.DataSet{Name: "few", Groups: []hearthtest.Group{{Dir: "few", Dirs: 1, Files: 20, Min: 8 << 10, Max: 8 << 10}}})
	h := e.configure(o, settings{mount: []string{"--open", "none"}})
	h.dir = e.path("mnt-\xff")
	e.must(os.Mkdir(h.dir, 0o755), "make the mount point")
	h.launch(o, settings{mount: []string{"--open", "none"}})
	for _, f := range list { // readers of the harness are told a directory in JSON
		e.run("cat", filepath.Join(h.dir, f.Path))
	}
	job := e.path("job")
	e.must(os.Mkdir(job, 0o755), "make the job's mount point")
	count := func(of string) (ops, bytes float64) {
		e.Helper()
		for _, s := range exported(h.metrics()) {
			switch {
			case s.name == "hearth_mount_ops_total" && s.labels == `dir="`+of+`",op="read"`:
				ops = s.value
			case s.name == "hearth_mount_read_bytes_total" && s.labels == `dir="`+of+`"`:
				bytes = s.value
			}
		}
		return ops, bytes
	}
	if ops, bytes := count(strings.ReplaceAll(`\"`+h.dir+`\"`, "\xff", `\\xff`)); ops == 0 || bytes < 20*8<<10 {
		e.Errorf("a mount whose name is not UTF-8 counts %v reads and %v bytes:\n%s", ops, bytes, h.metrics())
	}
	for round := float64(1); round <= 2; round++ {
		if out, code := e.run(e.hearth, "mount", "--daemon", "--open", "none", "--config", h.config, "s3://"+o.bucket, job); code != 0 {
			e.Fatalf("mount: exit %d, %s", code, out)
		}
		e.good("through the job's mount", epoch(job, list, 1, 1, 0))
		if ops, bytes := count(job); ops < 20*round || bytes < round*(20*8<<10) {
			e.Errorf("round %v: the job's mount counts %v reads and %v bytes", round, ops, bytes)
		}
		if out, code := h.ask("umount", job); code != 0 {
			e.Fatalf("umount: exit %d, %s", code, out)
		}
		if ops, bytes := count(job); ops < 20*round || bytes < round*(20*8<<10) {
			e.Errorf("round %v: %v reads and %v bytes are left of the job's mount", round, ops, bytes)
		}
		e.knownLabels(h)
	}
}

// queries are the expressions of a dashboard, those of its variables included.
func (e *env) queries(file string) (all []string) {
	e.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	e.must(err, "read the dashboard")
	var d struct {
		Panels []struct {
			ID      int
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	e.must(json.Unmarshal(text, &d), "read %s", file)
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			e.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for _, t := range p.Targets {
			all = append(all, t.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if inner, ok := strings.CutPrefix(v.Query, "label_values("); ok && v.Type == "query" {
			all = append(all, inner[:strings.LastIndexByte(inner, ',')])
		}
	}
	return all
}

// rules are the expressions of a file of alert rules.
func (e *env) rules(file string) (all []string) {
	e.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	e.must(err, "read the alert rules")
	var r struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	e.must(yaml.Unmarshal(text, &r), "read %s", file)
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			all = append(all, rule.Expr)
		}
	}
	return all
}

// selector is a metric that an expression asks for, and the label="value" that it
// must have, as the exposition format writes them.
type selector struct {
	name   string
	labels []string
}

// selectors takes a PromQL expression apart as far as its metrics go.
func selectors(expr string) (all []selector) {
	expr = regexp.MustCompile(`\b(by|without|on|ignoring) *\([^)]*\)|\[[^\]]*\]`).ReplaceAllString(expr, " ")
	for _, m := range regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*) *(\{[^}]*\}|\()?`).FindAllStringSubmatch(expr, -1) {
		if m[2] == "(" || slices.Contains([]string{"and", "or", "unless", "bool", "offset"}, m[1]) {
			continue
		}
		s := selector{name: m[1]}
		for _, l := range regexp.MustCompile(`(\w+)=~?"([^"$]*)"`).FindAllStringSubmatch(m[2], -1) {
			for _, value := range strings.Split(l[2], "|") {
				if l[1] != "job" && l[1] != "instance" { // which Prometheus adds
					s.labels = append(s.labels, l[1]+`="`+value+`"`)
				}
			}
		}
		all = append(all, s)
	}
	return all
}

// alertRules: Debian's promtool finds nothing wrong with the alert rules, and they
// say of made-up figures what they should.
func alertRules(e *env) {
	promtool, err := hearthtest.Tool("promtool")
	e.must(err, "find promtool, which make setup-full takes out of Debian's package prometheus")
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.CommandContext(e.ctx, promtool, args...)
		cmd.Dir = filepath.Join("..", "deploy", "prometheus")
		if out, err := cmd.CombinedOutput(); err != nil {
			e.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
