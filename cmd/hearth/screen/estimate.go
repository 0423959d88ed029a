package screen

import (
	"fmt"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/warmup"
)

// A job's pace counts only if it has loaded this much. The time of a smaller job is that of
// connecting and of the first answers.
const (
	measuredRequests = 64
	measuredBytes    = 64 << 20
)

// Estimate is how long loading may take.
type Estimate struct {
	Known bool
	Took  time.Duration
	Job   string // the ID of the job whose pace it is; "" means none
	Says  string
}

// EstimateOf estimates how long it takes to load what a plan lacks, at a rate in bytes per second;
// 0 means any rate. It goes by the first of the jobs that has loaded enough without a limit; the
// latest job comes first. The estimate is the longer of what its bytes and its requests say.
func EstimateOf(p *warmup.Plan, rate int64, jobs []warmup.View) (e Estimate) {
	left := float64(p.Total.Bytes - p.Held.Bytes - p.Archived.Bytes)
	seconds, limited := 0.0, 0.0
	for i := range jobs {
		m := &jobs[i].Measured
		if jobs[i].Rate > 0 || m.Seconds <= 0 || m.Requests == 0 || m.Requests < measuredRequests && m.Bytes < measuredBytes {
			continue
		}
		e.Known, e.Job = true, jobs[i].ID
		seconds = m.Seconds * max(left/float64(m.Bytes), float64(p.Requests)/float64(m.Requests))
		e.Says = fmt.Sprintf("about %v at the pace of the job %s of %s, %s/s", asTime(seconds), e.Job, cli.Stamp(jobs[i].Created), cli.Bytes(int64(float64(m.Bytes)/m.Seconds)))
		break
	}
	if rate > 0 {
		limited = left / float64(rate)
	}
	switch {
	case rate > 0 && e.Known && limited >= seconds:
		e.Job, e.Says = "", fmt.Sprintf("about %v at a rate of %s/s", asTime(limited), cli.Bytes(rate))
	case rate > 0 && !e.Known:
		e.Known, e.Says = true, fmt.Sprintf("at least %v at a rate of %s/s; no job has loaded enough yet to tell more", asTime(limited), cli.Bytes(rate))
	case !e.Known:
		e.Says = "not known: no job has loaded enough yet"
	}
	e.Took = asTime(max(seconds, limited))
	return e
}

func asTime(seconds float64) time.Duration {
	return time.Duration(min(seconds, longest) * float64(time.Second)).Round(time.Second)
}

// longest is the longest estimate in seconds. A Duration can hold it, and nobody waits that long.
const longest = 1e9
