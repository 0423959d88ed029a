package warmup

import (
	"cmp"
	"slices"
	"time"
)

// Cursor is how far a walk has been counted: everything before it, and of the file
// at it the first Blocks.
type Cursor struct {
	// Target is the index of the target, Offset where it stands in a list.
	Target int   `json:"target"`
	Offset int64 `json:"offset,omitempty"`
	// Root tells the file from the directory of a target that is both; Path is that
	// of the last file below a directory, "" before the first.
	Root int    `json:"root,omitempty"`
	Path string `json:"path,omitempty"`
	// Gone is the last name that vanished from the directory at Path and was counted.
	Gone string `json:"gone,omitempty"`
	// File is there while the file at the cursor is not whole.
	File *Part `json:"file,omitempty"`
}

// maxSamples of causes are kept of a job; of a check so many of each thing it says.
const maxSamples = 20

// Expires is when the pins of a job end; nil: they do not, or it makes none.
func (r *Record) Expires() *time.Time {
	if r.PinS <= 0 {
		return nil
	}
	end := r.Created.Add(time.Duration(r.PinS) * time.Second)
	return &end
}

// Record is a job. It is whole in itself: whoever has it can go on with the job.
type Record struct {
	ID string `json:"id"`
	// Number orders jobs by when they began, whatever a clock says; 0: it is from before
	// there were numbers.
	Number int64 `json:"number,omitempty"`
	Request
	State State `json:"state"`
	// Kind and Error say why a job failed: refused, not_found or failed.
	Kind  string `json:"kind,omitempty"`
	Error string `json:"error,omitempty"`
	Times
	Plan     Plan     `json:"plan"`
	Counters Counters `json:"counters"`
	// Reloaded bytes were evicted before the job's end and loaded again; Lost bytes
	// were evicted and are missing at its end. Counters have them as what they were.
	Reloaded int64 `json:"reloaded_bytes,omitempty"`
	Lost     int64 `json:"lost_bytes,omitempty"`
	// Reached is the most bytes that stood in a tier at a time: those of a version that a
	// smaller one replaced do not any more.
	Reached int64 `json:"reached_bytes,omitempty"`
	// Missing bytes were not there in the pass under way, so far.
	Missing int64 `json:"missing_bytes,omitempty"`
	// Pass is 0 for the first walk, then those that look at it again.
	Pass int `json:"pass,omitempty"`
	// Since is the clock of listings when the job began: what was listed later is new
	// enough for it.
	Since  int64  `json:"since_ms"`
	Cursor Cursor `json:"cursor"`
	// Checked is what a check has found; nil: it is none, or has not begun.
	Checked *Checked `json:"checked,omitempty"`
	// Measured is the loading alone: without looking at what is held, and rests.
	Measured Measure `json:"measured,omitzero"`
	// Samples are the first causes of what is not kept, vanished or failed.
	Samples []Sample `json:"samples,omitempty"`
}

// older orders jobs: who began first comes first.
func older(a, b Record) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
}

// counted are the counters with what was counted of a file that is not whole.
func (r *Record) counted() Counters {
	c := r.Counters
	if r.Cursor.File != nil {
		c.Add(&r.Cursor.File.Bytes)
	}
	return c
}

// through is what has been counted of what a listing gives; of a warm-up that is what
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

// sample notes why a file is not present; the first cause of it stays.
func (r *Record) sample(path, cause string) {
	known := func(s Sample) bool { return s.Path == path }
	if len(r.Samples) < maxSamples && !slices.ContainsFunc(r.Samples, known) {
		r.Samples = append(r.Samples, Sample{Path: path, Cause: cause})
	}
}

// Kinds of failures, as the admin API has them.
const (
	kindRefused  = "refused"
	kindNotFound = "not_found"
	kindFailed   = "failed"
)
