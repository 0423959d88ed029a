package jobs

import (
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/warmup"
)

func TestJobsThatDidNotGetAllAreToldOf(t *testing.T) {
	// A job that failed or did not load all is shown for an hour, unless a job for the same has begun or ended
	// since. Nothing else clears it, and a screen has room for three.
	now := time.Now()
	job := func(id string, state warmup.State, ago time.Duration, change func(*warmup.View)) warmup.View {
		ended := now.Add(-ago)
		v := warmup.View{Record: warmup.Record{ID: id, Request: warmup.Request{Targets: []string{"/a"}}, State: state, Error: "it broke", Times: warmup.Times{Created: now.Add(-2 * time.Hour), Ended: &ended}}}
		if !state.Over() {
			v.Ended = nil
		}
		if change != nil {
			change(&v)
		}
		return v
	}
	of := func(target string) func(*warmup.View) {
		return func(v *warmup.View) { v.Targets = []string{target} }
	}
	check := func(v *warmup.View) { v.Check = true }
	listed := func(name string) func(*warmup.View) {
		return func(v *warmup.View) { v.Targets, v.List = nil, name }
	}
	const minutes = 5 * time.Minute
	partly := job("p", warmup.Partly, minutes, nil)
	for name, c := range map[string]struct {
		jobs []warmup.View
		want []string // what each line begins with
	}{
		"done":       {[]warmup.View{job("d", warmup.Done, minutes, nil)}, nil},
		"partly":     {[]warmup.View{partly}, []string{"the warm-up p of /a ended 5 min ago without all of it; hearth jobs p says what is missing, hearth jobs retry p loads it"}},
		"failed":     {[]warmup.View{job("f", warmup.Failed, time.Second, nil)}, []string{"the warm-up f of /a failed 0 min ago: it broke; hearth jobs retry f"}},
		"a check":    {[]warmup.View{job("c", warmup.Partly, minutes, check)}, []string{"the check c of /a found 5 min ago"}},
		"long ago":   {[]warmup.View{job("p", warmup.Partly, time.Hour+time.Second, nil)}, nil},
		"retried":    {[]warmup.View{job("p", warmup.Loading, 0, nil)}, nil},
		"again":      {[]warmup.View{partly, job("q", warmup.Queued, 0, nil)}, nil},
		"made good":  {[]warmup.View{partly, job("q", warmup.Done, time.Minute, nil)}, nil},
		"worse":      {[]warmup.View{partly, job("f", warmup.Failed, time.Minute, nil)}, []string{"the warm-up f"}},
		"before":     {[]warmup.View{partly, job("q", warmup.Done, time.Hour, nil)}, []string{"the warm-up p"}},
		"elsewhere":  {[]warmup.View{partly, job("q", warmup.Done, time.Minute, of("/b"))}, []string{"the warm-up p"}},
		"checked":    {[]warmup.View{partly, job("c", warmup.Done, time.Minute, check)}, nil},
		"names only": {[]warmup.View{partly, job("m", warmup.Done, time.Minute, func(v *warmup.View) { v.MetadataOnly = true })}, []string{"the warm-up p"}},
		"dry run":    {[]warmup.View{partly, job("y", warmup.Failed, time.Minute, func(v *warmup.View) { v.DryRun = true })}, []string{"the warm-up p"}},
		"cancelled":  {[]warmup.View{partly, job("x", warmup.Cancelled, time.Minute, nil)}, []string{"the warm-up p"}},
		"lists":      {[]warmup.View{job("l", warmup.Partly, minutes, listed("-")), job("m", warmup.Done, time.Minute, listed("-"))}, []string{"the warm-up l of list -"}},
		"globs":      {[]warmup.View{job("l", warmup.Partly, minutes, listed("arguments")), job("m", warmup.Done, time.Minute, listed("arguments"))}, []string{"the warm-up l of list arguments"}},
		"files":      {[]warmup.View{job("l", warmup.Partly, minutes, listed("/x/l")), job("m", warmup.Done, time.Minute, listed("/y/l"))}, []string{"the warm-up l of list /x/l"}},
		"a file":     {[]warmup.View{job("l", warmup.Partly, minutes, listed("/x/l")), job("m", warmup.Done, time.Minute, listed("/x/l"))}, nil},
		"two paths":  {[]warmup.View{job("p", warmup.Partly, minutes, func(v *warmup.View) { v.Targets = []string{"/a", "/b", "/c"} })}, []string{"the warm-up p of /a and 2 more ended"}},
		"many": {[]warmup.View{partly, job("q", warmup.Partly, 1, of("/b")), job("r", warmup.Failed, 2, of("/c")), job("s", warmup.Partly, 3, of("/d")), job("t", warmup.Partly, minutes, of("/e"))},
			[]string{"the warm-up q", "the warm-up r", "the warm-up s"}},
	} {
		got := unfinished(c.jobs, now)
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", name, got)
			continue
		}
		for i := range got {
			if !strings.HasPrefix(got[i], c.want[i]) {
				t.Errorf("%s: %q, want %q", name, got[i], c.want[i])
			}
		}
		if more := len(got) == mostTold; more != strings.HasSuffix(strings.Join(got, ""), "; and 2 more: hearth jobs") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
