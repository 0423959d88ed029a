package warmup

import (
	"cmp"
	"slices"
	"time"
)

// Cursor is how far a walk has been counted: everything before it, and the first Blocks
// of the file at it.
type Cursor struct {
	// Target is the index of the target, Offset its place in the file of a list.
	Target int   `json:"target"`
	Offset int64 `json:"offset,omitempty"`
	// Root tells the file from the directory, for a target that is both. Path is the last
	// file below a directory, "" before the first.
	Root int    `json:"root,omitempty"`
	Path string `json:"path,omitempty"`
	// Gone is the last vanished name of the directory at Path that was counted.
	Gone string `json:"gone,omitempty"`
	// File is set while the file at the cursor is not whole.
	File *Part `json:"file,omitempty"`
}

// maxSamples causes are kept of a job; of a check, that many for each verdict.
const maxSamples = 20

// Expires is when the pins of a job end. nil means that they never do, or that it makes
// none.
func (r *Record) Expires() *time.Time {
	if r.PinS <= 0 {
		return nil
	}
	end := r.Created.Add(time.Duration(r.PinS) * time.Second)
	return &end
}

// Record is a job. It is complete: whoever has it can go on with the job.
type Record struct {
	ID string `json:"id"`
	// Number orders jobs by when they began, whatever a clock says. 0 means that the job
	// is older than numbers.
	Number int64 `json:"number,omitempty"`
	Request
	State State `json:"state"`
	// Kind and Error say why a job failed. Kind is refused, not_found or failed.
	Kind  string `json:"kind,omitempty"`
	Error string `json:"error,omitempty"`
	Times
	Plan     Plan     `json:"plan"`
	Counters Counters `json:"counters"`
	// Reloaded is the bytes that were evicted before the job's end and loaded again. Lost
	// is the bytes that were evicted and are missing at its end. Counters still have both
	// in their first category.
	Reloaded int64 `json:"reloaded_bytes,omitempty"`
	Lost     int64 `json:"lost_bytes,omitempty"`
	// Reached is the most bytes that stood in a tier at one time. It may be more than
	// stand there now: a smaller version may have replaced one.
	Reached int64 `json:"reached_bytes,omitempty"`
	// Missing is the bytes found missing so far in the pass under way.
	Missing int64 `json:"missing_bytes,omitempty"`
	// Pass is 0 for the first walk; later passes look again.
	Pass int `json:"pass,omitempty"`
	// Since is the clock of listings when the job began. A later listing is new enough
	// for it.
	Since  int64  `json:"since_ms"`
	Cursor Cursor `json:"cursor"`
	// Checked is what a check has found. nil means that the job is no check, or has not
	// begun.
	Checked *Checked `json:"checked,omitempty"`
	// Measured is the loading alone, without rests and without asking what is held.
	Measured Measure `json:"measured,omitzero"`
	// Samples are the first causes why files are not kept, vanished or failed.
	Samples []Sample `json:"samples,omitempty"`
}

// older orders jobs by when they began, the first first.
func older(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// counted are the counters, with what was counted of a file that is not whole yet.
func (r *Record) counted() Counters {
	c := r.Counters
	if r.Cursor.File != nil {
		c.Add(&r.Cursor.File.Bytes)
	}
	return c
}

// through is what has been counted of what the listing has. For a warm-up it is what
// stands in a tier.
func (r *Record) through() Tally {
	c := r.counted()
	if !r.Check {
		return c.Held()
	}
	t := c.Sum()
	t.Add(Tally{Files: -r.Counters.Vanished.Files, Bytes: -r.Counters.Vanished.Bytes})
	return t
}

// clone is a copy that shares nothing that changes.
func (r *Record) clone() Record {
	c := *r
	if r.Cursor.File != nil {
		part := *r.Cursor.File
		c.Cursor.File = &part
	}
	if r.Checked != nil {
		checked := *r.Checked
		c.Checked = &checked
	}
	c.Samples = append([]Sample(nil), r.Samples...)
	return c
}

// sample notes why a file is not present. Of several causes the first stays.
func (r *Record) sample(path, cause string) {
	known := func(s Sample) bool { return s.Path == path }
	if len(r.Samples) < maxSamples && !slices.ContainsFunc(r.Samples, known) {
		r.Samples = append(r.Samples, Sample{Path: path, Cause: cause})
	}
}

// These are the kinds of failures in the admin API.
const (
	kindRefused  = "refused"
	kindNotFound = "not_found"
	kindFailed   = "failed"
)
