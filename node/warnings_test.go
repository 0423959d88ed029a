package node

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestAWarningIsNoProblem(t *testing.T) {
	// An origin throttles, and a warm-up did not load all. The first line of status says so, with the cure.
	// The node is healthy for a probe all the same. Once the job was retried, nothing more is said of it.
	s, p, c := outage(t, "immutable")
	if _, err := s.PutBytes(t.Context(), "data", "dir/other", []byte("other bytes")); err != nil {
		t.Fatal(err)
	}
	n := start(t, "", c.with)
	well := func(when string) (warnings string) {
		t.Helper()
		is := n.Status(t.Context())
		resp, err := http.Get("http://" + n.doors.Metrics.Addr().String() + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK || len(is.Problems) > 0 {
			t.Errorf("%s: /healthz says %d, status %q", when, resp.StatusCode, is.Problems)
		}
		if warnings = strings.Join(is.Warnings, "\n"); !strings.HasPrefix(warnings+"\nok", is.Says+"\n") && is.Says != "ok" {
			t.Errorf("%s: the first line is %q, the warnings are %q", when, is.Says, warnings)
		}
		return warnings
	}
	cat := func(path string) {
		t.Helper()
		if err := client(t, n).Cat(t.Context(), path, 0, -1, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	if warns := well("at first"); warns != "" {
		t.Errorf("at first: %s", warns)
	}
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Status: 503, Code: "SlowDown", Times: 4})
	cat("/dir/known")
	if warns := well("throttled"); !strings.HasPrefix(warns, "the origin s3://data asks to slow down: 4 of ") || !strings.HasSuffix(warns, "origin.connections, or warmup --rate") {
		t.Errorf("throttled: %s", warns)
	}
	p.ClearRules()
	p.AddRule(faultproxy.Denied(faultproxy.Get))
	id, err := n.jobs.Load([]string{"/dir"})
	if err != nil {
		t.Fatal(err)
	}
	over := func() bool { r, err := n.jobs.Job(id); return err == nil && r.State.Over() }
	if !hearthtest.Eventually(t.Context(), 20*time.Second, over) {
		t.Fatal("the job does not end")
	}
	p.ClearRules()
	cat("/dir/other") // it can be read again
	if warns := well("a job failed"); !strings.Contains(warns, "the warm-up "+id+" of /dir ended 0 min ago without all of it; hearth jobs "+id) {
		t.Errorf("a job failed: %s", warns)
	}
	if err := client(t, n).Jobs().Retry(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if warns := well("retried"); strings.Contains(warns, id) {
		t.Errorf("retried: %s", warns)
	}
	http.DefaultClient.CloseIdleConnections()
}
