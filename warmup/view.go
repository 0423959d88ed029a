package warmup

import (
	"errors"
	"math"
)

// View is a job as it is shown.
type View struct {
	Record
	Progress
}

// Progress is how far a job had come at its last checkpoint. Totals are 0 until the count
// has ended. BytesDone falls only at the end: by what was lost, and by what was counted
// of a version that a smaller one replaced.
type Progress struct {
	Job        string `json:"job"`
	Phase      string `json:"phase"`
	FilesDone  int64  `json:"files_done"`
	FilesTotal int64  `json:"files_total"`
	BytesDone  int64  `json:"bytes_done"`
	BytesTotal int64  `json:"bytes_total"`
	// RateBPS is how many bytes were loaded per second lately. What was present already
	// does not count. For a check it is bytes checked.
	RateBPS int64 `json:"rate_bps"`
	// ETAS is how many seconds the rest takes at that rate; -1 means unknown.
	ETAS int64 `json:"eta_s"`
	// Errors counts files that are not kept or failed. An archived file is no error.
	// Found counts the files found so far.
	Errors int64 `json:"errors"`
	Found  int64 `json:"files_found"`
	// Waits says what the job waits for before it goes on, such as a volume that is being read. It is empty if it
	// waits for nothing.
	Waits string `json:"waits,omitempty"`
}

func (s *shown) view() View {
	r := s.record.clone()
	held := r.through()
	p := Progress{Job: r.ID, Phase: string(r.State), FilesDone: held.Files, BytesDone: held.Bytes - r.Lost, ETAS: -1,
		Errors: r.Counters.Never().Files - r.Counters.Archived.Files, Found: r.Plan.Total.Files}
	if r.Pass > 0 && !r.State.Over() {
		p.Phase = "verifying"
	}
	if r.Check {
		p.Errors += r.Counters.Changed.Files + r.Counters.Vanished.Files
		if r.State == Loading {
			p.Phase = "checking"
		}
	}
	if r.Plan.Counted {
		p.FilesTotal, p.BytesTotal = r.Plan.Total.Files, r.Plan.Total.Bytes
	}
	if !r.State.Over() {
		p.BytesDone = max(r.Reached, p.BytesDone)
		p.RateBPS = s.pace.Rate()
	}
	counted := r.counted()
	left, brought := r.Plan.Total.Bytes-counted.Sum().Bytes, r.Counters.Done.Bytes+r.Counters.Changed.Bytes
	if r.Check {
		left, brought = r.Plan.Total.Bytes-held.Bytes, held.Bytes
	}
	switch {
	case r.State.Over():
		p.ETAS = 0
	case r.Plan.Counted && p.RateBPS > 0 && brought >= min(p.BytesTotal/100, measured):
		p.ETAS = int64(math.Ceil(float64(max(0, left)) / float64(p.RateBPS)))
	}
	return View{r, p}
}

// measured is how many bytes a job brings before it estimates the time for the rest. If a
// hundredth of its bytes is less, that is enough. Small objects that come while the first
// large one is under way say nothing about the large one.
const measured = 64 << 20

// Line is a job in a node's status.
type Line struct {
	// What is the request, in one line.
	What string `json:"what"`
	// DryRun means that the job loads nothing.
	DryRun bool `json:"dry_run,omitempty"`
	Progress
}

// Update is one line of a watch: a job, or why the watch ends.
type Update struct {
	Job   *View  `json:"view,omitempty"`
	Error string `json:"error,omitempty"`
}

// ErrEnded ends a watch of a job that is not over, because the node ended.
var ErrEnded = errors.New("the node ended; the job goes on once it is back")
