package origin

import (
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/waits"
)

func TestHealthIsTold(t *testing.T) {
	// An origin that is slow to answer and once asks for patience: what its first bytes
	// took, what it said last, and how long a reader waited because it throttles.
	f := newFaulty(t, Config{})
	ledger := waits.New()
	before := f.Stats()
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Delay: faultproxy.Duration(60 * time.Millisecond), Skip: 1})
	f.proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Status: 503, Code: "SlowDown", Times: 1, Header: map[string]string{"Retry-After": "1"}})
	var w waits.Wait
	w.Begin(ledger, 1, waits.Origin, "k")
	if err := readCheck(ledger.About(t.Context(), "k"), f, &f.object, 0, f.size, 1); err != nil {
		t.Fatal(err)
	}
	w.End()
	s := f.Stats()
	var answers int64
	for _, b := range s.FirstByte.Buckets {
		answers += b.Count
	}
	for _, b := range before.FirstByte.Buckets {
		answers -= b.Count
	}
	if answers != 2 || s.FirstByte.Worst < 60*time.Millisecond || s.FirstByte.P99 < 60*time.Millisecond {
		t.Errorf("%d answers, the slowest after %v, 99 of 100 within %v", answers, s.FirstByte.Worst, s.FirstByte.P99)
	}
	if s.Last == nil || !strings.Contains(s.Last.Says, "s3://faulty/k") || !strings.Contains(s.Last.Says, "SlowDown") || time.Since(s.Last.At) > time.Minute {
		t.Errorf("what failed last: %+v", s.Last)
	}
	if got := ledger.Seconds(); got["throttled"] < 1 || got["origin"] < 0.06 {
		t.Errorf("a reader waited %v", got)
	}
}
