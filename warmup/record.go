package warmup

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/warmup/pace"
)

// State of a job.
type State string

// The states: the first three are those of a job that is not over.
const (
	Queued    State = "queued"
	Listing   State = "listing" // and loading; its totals are not known yet
	Loading   State = "loading"
	Done      State = "done"
	Partly    State = "partly" // ended, and not all of it is present
	Failed    State = "failed" // ended early
	Cancelled State = "cancelled"
)

// Over reports whether a job in the state has ended.
func (s State) Over() bool { return s == Done || s == Partly || s == Failed || s == Cancelled }

// Request is what a job was asked for.
type Request struct {
	// Targets are paths of the tree and URLs; none: the job has a list of them.
	Targets []string `json:"targets,omitempty"`
	// List is where a list came from, for people; "": it is none.
	List string `json:"list,omitempty"`
	// MetadataOnly lists, and loads nothing.
	MetadataOnly bool `json:"metadata_only,omitempty"`
	// DryRun counts what would be loaded, and loads nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Check reads what is held from the device, compares it and its names with a fresh
	// listing, and loads nothing.
	Check bool `json:"check,omitempty"`
	// Rate limits what is asked of origins, or read by a check, in bytes a second; 0:
	// nothing does.
	Rate int64 `json:"rate,omitempty"`
	// PinS pins the targets for so many seconds, from the job's creation on; Forever:
	// until they are unpinned; 0: it does not.
	PinS int64 `json:"pin_s,omitempty"`
}

// Forever is the PinS of what stays pinned until it is unpinned.
const Forever = -1

// Expires is when the pins of a job end; nil: they do not, or it makes none.
func (r *Record) Expires() *time.Time {
	if r.PinS <= 0 {
		return nil
	}
	end := r.Created.Add(time.Duration(r.PinS) * time.Second)
	return &end
}

// loads reports whether the job is to make blocks present.
func (q *Request) loads() bool { return !q.MetadataOnly && !q.DryRun && !q.Check }

// What is what was asked for, in one line.
func (q *Request) What() string {
	what := strings.Join(q.Targets, " ")
	if q.List != "" {
		what = "list " + q.List
	}
	if q.Check {
		what = "check " + what
	}
	return what
}

// Tally counts files and their bytes.
type Tally struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (t *Tally) add(x Tally) { t.Files += x.Files; t.Bytes += x.Bytes }

// Counters are what has become of a job's files, as the package comment says.
type Counters struct {
	Done     Tally `json:"done"`
	Present  Tally `json:"present"`
	Changed  Tally `json:"changed"`
	Vanished Tally `json:"vanished"`
	NotKept  Tally `json:"not_kept"`
	Failed   Tally `json:"failed"`
}

func (c *Counters) add(x *Counters) {
	for v := range wasFailed + 1 {
		c.of(v).add(*x.of(v))
	}
}

// Sum is all categories together.
func (c *Counters) Sum() Tally {
	var sum Tally
	for _, t := range []Tally{c.Done, c.Present, c.Changed, c.Vanished, c.NotKept, c.Failed} {
		sum.add(t)
	}
	return sum
}

// never is what stood in no tier at any time.
func (c *Counters) never() Tally {
	never := c.NotKept
	never.add(c.Failed)
	return never
}

// Held is what stands in a tier.
func (c *Counters) Held() Tally {
	held := c.Done
	held.add(c.Present)
	held.add(c.Changed)
	return held
}

// Plan is what the count found; its fields are whole once Counted is set.
type Plan struct {
	Counted bool `json:"counted"`
	// Total is all that was found, Held the part of it that was held at that moment
	// (of a dry run; else 0), with the files that were held as a whole.
	Total Tally `json:"total"`
	Held  Tally `json:"held"`
	// Requests are those that loading takes (of a dry run), Lists those that it takes to
	// list the directories anew, where names are older than they may be by then.
	Requests int64 `json:"requests,omitempty"`
	Lists    int64 `json:"lists,omitempty"`
	// Needs are the bytes that all of it takes on disk, Room what it may take there.
	Needs int64 `json:"needs,omitempty"`
	Room  int64 `json:"room,omitempty"`
	// Claimed bytes of the room are taken by other jobs at work, beside what they share
	// with this one. Lacks is why it does not fit (of a dry run).
	Claimed int64  `json:"claimed,omitempty"`
	Lacks   string `json:"lacks,omitempty"`
	// Missing counts what is not there, or cannot be listed.
	Missing int64 `json:"missing,omitempty"`
	// Hidden counts keys that have no name, and so are not loaded.
	Hidden int64 `json:"hidden,omitempty"`
}

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

// Part is what was counted of a file.
type Part struct {
	Version string `json:"version"`
	Blocks  int64  `json:"blocks"`
	Verdict int    `json:"verdict"`
	// Bytes are those of Blocks. They are the record's once the file is whole: a version
	// that is replaced before is none of what there is.
	Bytes Counters `json:"counted"`
	// Replaced: its version changed, and all of the new one has been counted.
	Replaced bool `json:"replaced,omitempty"`
}

// Sample is one file that is not present, and why.
type Sample struct {
	Path  string `json:"path"`
	Cause string `json:"cause"`
	// What a check says of it: missing, corrupt, changed, vanished, or damaged for a
	// file of the cache itself.
	What string `json:"what,omitempty"`
}

// maxSamples of causes are kept of a job; of a check so many of each thing it says.
const maxSamples = 20

// Times of a job; zero: not yet.
type Times struct {
	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Worked is how long it has run, in seconds, without the time that its node was
	// away.
	Worked float64 `json:"worked_s"`
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
	Measured pace.Measure `json:"measured,omitzero"`
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
		c.add(&r.Cursor.File.Bytes)
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
	t.add(Tally{-r.Counters.Vanished.Files, -r.Counters.Vanished.Bytes})
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

// verdict orders categories: of a file's extents the worst decides.
const (
	wasPresent = iota
	wasDone
	wasChanged
	wasVanished
	wasNotKept
	wasFailed
)

func (c *Counters) of(verdict int) *Tally {
	return [...]*Tally{&c.Present, &c.Done, &c.Changed, &c.Vanished, &c.NotKept, &c.Failed}[verdict]
}
