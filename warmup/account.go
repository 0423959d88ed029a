package warmup

import (
	"io/fs"
	"strings"
	"time"
)

// This file has what a job is asked for, what is counted of it, and the errors that
// say why it does not begin.

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
	// As is how each target was typed; none: as it is.
	As []string `json:"as,omitempty"`
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
	// UID is the user who asked; 0: root, a pin's own news, or nobody noted it.
	UID uint32 `json:"uid,omitempty"`
}

// Forever is the PinS of what stays pinned until it is unpinned.
const Forever = -1

// Loads reports whether the job is to make blocks present.
func (q *Request) Loads() bool { return !q.MetadataOnly && !q.DryRun && !q.Check }

// Shown are the targets as they were typed.
func (q *Request) Shown() []string {
	if len(q.As) == len(q.Targets) {
		return q.As
	}
	return q.Targets
}

// Typed is a path at or below a target as it begins with what was typed.
func (q *Request) Typed(path string) string {
	for i, as := range q.Shown() {
		if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(q.Targets[i], "/")); ok && (rest == "" || rest[0] == '/') {
			return strings.TrimSuffix(as, "/") + rest
		}
	}
	return path
}

// What is what was asked for, in one line.
func (q *Request) What() string {
	what := strings.Join(q.Shown(), " ")
	if q.List != "" {
		what = "list " + q.List
	}
	switch {
	case q.Check:
		what = "check " + what
	case q.DryRun:
		what = "dry run " + what
	}
	return what
}

// Tally counts files and their bytes.
type Tally struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Add adds another tally.
func (t *Tally) Add(x Tally) { t.Files += x.Files; t.Bytes += x.Bytes }

// Counters are what has become of a job's files, as the package comment says.
type Counters struct {
	Done     Tally `json:"done"`
	Present  Tally `json:"present"`
	Changed  Tally `json:"changed"`
	Vanished Tally `json:"vanished"`
	NotKept  Tally `json:"not_kept"`
	Failed   Tally `json:"failed"`
	Archived Tally `json:"archived"`
}

// Add adds other counters.
func (c *Counters) Add(x *Counters) {
	for v := range verdicts {
		c.Of(v).Add(*x.Of(v))
	}
}

// Sum is all categories together.
func (c *Counters) Sum() Tally {
	var sum Tally
	for _, t := range []Tally{c.Done, c.Present, c.Changed, c.Vanished, c.NotKept, c.Failed, c.Archived} {
		sum.Add(t)
	}
	return sum
}

// Never is what stood in no tier at any time.
func (c *Counters) Never() Tally {
	never := c.NotKept
	never.Add(c.Failed)
	never.Add(c.Archived)
	return never
}

// Held is what stands in a tier.
func (c *Counters) Held() Tally {
	held := c.Done
	held.Add(c.Present)
	held.Add(c.Changed)
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
	// Archived is the part of Total whose storage class says so, and that is not held: it is loaded as far
	// as it was restored. It takes none of Needs.
	Archived Tally `json:"archived,omitzero"`
	// Missing counts what is not there, or cannot be listed.
	Missing int64 `json:"missing,omitempty"`
	// Hidden counts keys that have no name, and so are not loaded.
	Hidden int64 `json:"hidden,omitempty"`
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

// Replace notes that a version is no more: what was counted of it is none of the next one.
func (p *Part) Replace(verdict int) {
	p.Bytes, p.Verdict, p.Replaced = Counters{}, verdict, true
}

// Checked is what a check has found. Whole, Missing, Corrupt and Changed are together
// what a listing gives; Vanished are names that were known and are not in it.
type Checked struct {
	Whole    Tally `json:"whole"`
	Missing  Tally `json:"missing"`
	Corrupt  Tally `json:"corrupt"`
	Changed  Tally `json:"changed"`
	Vanished Tally `json:"vanished"`
	// Damaged files of the disk tier belong to no object.
	Damaged int64 `json:"damaged_files"`
	// Buffered blocks were read through the page cache: the file system refuses O_DIRECT.
	Buffered int64 `json:"buffered_blocks,omitempty"`
	// Logged bytes of findings are kept, Unlogged findings only counted.
	Logged   int64 `json:"logged"`
	Unlogged int64 `json:"unlogged,omitempty"`
}

// Bad reports whether something is not as it should be.
func (c *Checked) Bad() bool {
	return c != nil && c.Missing.Files+c.Corrupt.Files+c.Changed.Files+c.Vanished.Files+c.Damaged > 0
}

// Sample is one file that is not present, and why.
type Sample struct {
	Path  string `json:"path"`
	Cause string `json:"cause"`
	// What a check says of it: missing, corrupt, changed, vanished, or damaged for a
	// file of the cache itself.
	What string `json:"what,omitempty"`
}

// Times of a job; zero: not yet.
type Times struct {
	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Worked is how long it has run, in seconds, without the time that its node was
	// away.
	Worked float64 `json:"worked_s"`
}

// The verdicts order the categories: of a file's extents the worst decides. Records keep them, so new
// ones are added at the end.
const (
	wasPresent = iota
	wasDone
	wasChanged
	wasVanished
	wasNotKept
	wasFailed
	wasArchived
	verdicts // is their number
)

// Of is the category of a verdict.
func (c *Counters) Of(verdict int) *Tally {
	return [...]*Tally{&c.Present, &c.Done, &c.Changed, &c.Vanished, &c.NotKept, &c.Failed, &c.Archived}[verdict]
}

// Refusal is what is not done, with the cure; it is fs.ErrPermission.
type Refusal string

// Error is the text.
func (r Refusal) Error() string { return string(r) }

// Unwrap makes it fs.ErrPermission.
func (Refusal) Unwrap() error { return fs.ErrPermission }

// Unknown is what there is not; it is fs.ErrNotExist.
type Unknown string

// Error is the text.
func (u Unknown) Error() string { return string(u) }

// Unwrap makes it fs.ErrNotExist.
func (Unknown) Unwrap() error { return fs.ErrNotExist }
