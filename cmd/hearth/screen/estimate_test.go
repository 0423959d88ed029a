package screen

import (
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/warmup"
)

func TestHowLongALoadMayTake(t *testing.T) {
	// The estimate goes by the latest job that loaded enough without a limit, whatever else that job
	// did. It is no shorter than the requested rate allows.
	job := func(id string, m warmup.Measure, change func(*warmup.View)) warmup.View {
		v := warmup.View{Record: warmup.Record{ID: id, Measured: m, Times: warmup.Times{Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Worked: 100_000}}}
		if change != nil {
			change(&v)
		}
		return v
	}
	large := job("large", warmup.Measure{Bytes: 10 << 30, Requests: 2560, Seconds: 10}, nil)
	small := job("small", warmup.Measure{Bytes: 1 << 20, Requests: 64, Seconds: 1}, nil)
	one := job("one", warmup.Measure{Bytes: 16 << 10, Requests: 1, Seconds: 0.03}, nil)
	limited := job("limited", large.Measured, func(v *warmup.View) { v.Rate = 1 << 20 })
	none := job("none", warmup.Measure{}, func(v *warmup.View) { v.DryRun = true })
	plan := func(bytes, requests int64) *warmup.Plan {
		return &warmup.Plan{Total: warmup.Tally{Bytes: bytes + 5}, Held: warmup.Tally{Bytes: 5}, Requests: requests}
	}
	for name, c := range map[string]struct {
		plan *warmup.Plan
		rate int64
		jobs []warmup.View
		took time.Duration
		job  string
		says string // the beginning; "" means that it is not known
	}{
		"no job":              {plan(1<<30, 256), 0, nil, 0, "", ""},
		"no job, a rate":      {plan(1<<30, 256), 16 << 20, nil, 64 * time.Second, "", "at least 1m4s at a rate of 16 MiB/s; no job"},
		"one file only":       {plan(1<<30, 256), 0, []warmup.View{one, none, limited}, 0, "", ""},
		"before one file":     {plan(100<<30, 25600), 0, []warmup.View{one, none, limited, large}, 100 * time.Second, "large", "about 1m40s at the pace of the job large of 2026-01-02T03:04:05Z, 1.0 GiB/s"},
		"the latest":          {plan(1<<20, 640), 0, []warmup.View{small, large}, 10 * time.Second, "small", "about 10s at the pace of the job small of 2026"},
		"by bytes":            {plan(10<<20, 64), 0, []warmup.View{small, large}, 10 * time.Second, "small", "about 10s"},
		"a rate that is less": {plan(100<<30, 25600), 100 << 20, []warmup.View{large}, 1024 * time.Second, "", "about 17m4s at a rate of 100 MiB/s"},
		"a rate that is more": {plan(100<<30, 25600), 100 << 30, []warmup.View{large}, 100 * time.Second, "large", "about 1m40s at the pace of the job large"},
		"nothing":             {plan(0, 0), 1, []warmup.View{large}, 0, "", "about 0s"},
		"all there is":        {plan(1<<62, 1<<40), 1, []warmup.View{one}, longest * time.Second, "", "at least 277777h46m40s"},
	} {
		e := EstimateOf(c.plan, c.rate, c.jobs)
		if e.Took != c.took || e.Job != c.job || e.Known != (c.says != "") || !strings.HasPrefix(e.Says, c.says) || c.says == "" && e.Says != "not known: no job has loaded enough yet" {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
