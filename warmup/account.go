package warmup

import (
	"io/fs"
	"slices"
	"strings"
	"time"
)

// This file has what a job is asked for, what is counted of it, and the errors that say
// why it does not begin.

// State says how far a job is in its life.
type State string

// The states. A job in one of the first three is not over.
const (
	Queued    State = "queued"
	Listing   State = "listing" // and loading; the totals are not known yet
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
	// Targets are paths of the tree and URLs. They are empty if the job has a list.
	Targets []string `json:"targets,omitempty"`
	// As is how each target was typed. It is empty if all were typed as in Targets.
	As []string `json:"as,omitempty"`
	// List says where the list came from, for people. It is empty if there is no list.
	List string `json:"list,omitempty"`
	// MetadataOnly lists, and loads nothing.
	MetadataOnly bool `json:"metadata_only,omitempty"`
	// DryRun counts what would be loaded, and loads nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Check reads what is held from the device, compares it and its names with a fresh
	// listing, and loads nothing.
	Check bool `json:"check,omitempty"`
	// ToVolume keeps blocks on volumes, or checks what volumes hold, in the place of disks.
	ToVolume bool `json:"to_volume,omitempty"`
	// Rate limits what the job asks of origins, or what a check reads, in bytes per
	// second. 0 means no limit.
	Rate int64 `json:"rate,omitempty"`
	// PinS pins the targets for so many seconds from the job's creation on. Forever pins
	// them until they are unpinned; 0 pins nothing.
	PinS int64 `json:"pin_s,omitempty"`
	// UID is the user who asked. 0 is root, a pin that loads what changed below it, or a
	// user that nobody noted.
	UID uint32 `json:"uid,omitempty"`
}

// Forever is the PinS of targets that stay pinned until they are unpinned.
const Forever = -1

// Loads reports whether the job makes blocks present.
func (q *Request) Loads() bool { return !q.MetadataOnly && !q.DryRun && !q.Check }

// Shown are the targets as they were typed.
func (q *Request) Shown() []string {
	if len(q.As) == len(q.Targets) {
		return q.As
	}
	return q.Targets
}

// Typed is a path at or below a target, written the way the target was typed.
func (q *Request) Typed(path string) string {
	for i, as := range q.Shown() {
		if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(q.Targets[i], "/")); ok && (rest == "" || rest[0] == '/') {
			return strings.TrimSuffix(as, "/") + rest
		}
	}
	return path
}

// OnVolumes ends the line of a request that is about volumes.
const OnVolumes = " on volumes"

// What is the request in one line.
func (q *Request) What() string {
	what := strings.Join(q.Shown(), " ")
	if q.List != "" {
		what = "list " + q.List
	}
	if q.ToVolume {
		what += OnVolumes
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

// Counters are what became of a job's files, in the categories of the package comment.
type Counters struct {
	Done     Tally `json:"done"`
	Present  Tally `json:"present"`
	Changed  Tally `json:"changed"`
	Vanished Tally `json:"vanished"`
	NotKept  Tally `json:"not_kept"`
	Failed   Tally `json:"failed"`
	Archived Tally `json:"archived"`
	// Unread is of checks alone: it could not be looked at.
	Unread Tally `json:"unread,omitzero"`
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
	for _, t := range []Tally{c.Done, c.Present, c.Changed, c.Vanished, c.NotKept, c.Failed, c.Archived, c.Unread} {
		sum.Add(t)
	}
	return sum
}

// Never is what never stood in a tier.
func (c *Counters) Never() Tally {
	never := c.NotKept
	never.Add(c.Failed)
	never.Add(c.Archived)
	never.Add(c.Unread)
	return never
}

// Held is what stands in a tier.
func (c *Counters) Held() Tally {
	held := c.Done
	held.Add(c.Present)
	held.Add(c.Changed)
	return held
}

// Plan is what the count found. Its fields are complete once Counted is set.
type Plan struct {
	Counted bool `json:"counted"`
	// Total is all that was found. Held is the part of it that was held when it was
	// counted, and the files that were held whole. Held is 0 except in a dry run.
	Total Tally `json:"total"`
	Held  Tally `json:"held"`
	// Requests is how many requests loading takes, in a dry run. Lists is how many it
	// takes to list again the directories whose names will be too old by then.
	Requests int64 `json:"requests,omitempty"`
	Lists    int64 `json:"lists,omitempty"`
	// Needs is the bytes that all of it takes on disk, Room the bytes that it may take
	// there.
	Needs int64 `json:"needs,omitempty"`
	Room  int64 `json:"room,omitempty"`
	// Claimed is the bytes of the room that other jobs at work take, without what they
	// share with this one. Lacks is why the set does not fit, in a dry run.
	Claimed int64  `json:"claimed,omitempty"`
	Lacks   string `json:"lacks,omitempty"`
	// Archived is the part of Total that is not held and whose storage class is an
	// archive. It is loaded as far as it was restored. It takes none of Needs.
	Archived Tally `json:"archived,omitzero"`
	// Missing counts paths that do not exist or cannot be listed.
	Missing int64 `json:"missing,omitempty"`
	// Hidden counts keys that cannot be names in the tree, and so are not loaded.
	Hidden int64 `json:"hidden,omitempty"`
}

// Part is what was counted of a file so far.
type Part struct {
	Version string `json:"version"`
	Blocks  int64  `json:"blocks"`
	Verdict int    `json:"verdict"`
	// Bytes are those of the first Blocks. They enter the record once the file is whole:
	// a version that is replaced before that no longer exists.
	Bytes Counters `json:"counted"`
	// Replaced means that the version changed, and that all of the new one has been
	// counted.
	Replaced bool `json:"replaced,omitempty"`
}

// Replace notes that a version is gone. What was counted of it does not count for the
// next.
func (p *Part) Replace(verdict int) {
	p.Bytes, p.Verdict, p.Replaced = Counters{}, verdict, true
}

// Checked is what a check has found. Whole, Missing, Corrupt, Changed and Unread together are
// all that the listing has. Vanished are names that were known and are not in the listing.
type Checked struct {
	Whole    Tally `json:"whole"`
	Missing  Tally `json:"missing"`
	Corrupt  Tally `json:"corrupt"`
	Changed  Tally `json:"changed"`
	Vanished Tally `json:"vanished"`
	// Unread could not be looked at, so that nobody knows what of it is there.
	Unread Tally `json:"unread,omitzero"`
	// Damaged counts damaged files of the disk tier that belong to no object.
	Damaged int64 `json:"damaged_files"`
	// Buffered counts blocks read through the page cache, since the file system refuses
	// O_DIRECT.
	Buffered int64 `json:"buffered_blocks,omitempty"`
	// Logged is the bytes of findings that are kept, Unlogged how many findings were only
	// counted.
	Logged   int64 `json:"logged"`
	Unlogged int64 `json:"unlogged,omitempty"`
}

// Bad reports whether the check found anything wrong.
func (c *Checked) Bad() bool {
	return c != nil && c.Missing.Files+c.Corrupt.Files+c.Changed.Files+c.Vanished.Files+c.Unread.Files+c.Damaged > 0
}

// Sample is one file that is not present, and why.
type Sample struct {
	Path  string `json:"path"`
	Cause string `json:"cause"`
	// What is the verdict of a check: missing, corrupt, changed, vanished or unread. It is
	// damaged for a file of the cache itself.
	What string `json:"what,omitempty"`
}

// Times are the times of a job. A time that has not come yet is nil or zero.
type Times struct {
	Created time.Time  `json:"created"`
	Started *time.Time `json:"started,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
	// Worked is how long the job has run, in seconds, without the time in which its node
	// did not run.
	Worked float64 `json:"worked_s"`
}

// The verdicts are the categories. Those of a load are in order: the worst of a file's extents decides; for a
// check, worse says so. Records keep these numbers, so new ones are added at the end.
const (
	wasPresent = iota
	wasDone
	wasChanged
	wasVanished
	wasNotKept
	wasFailed
	wasArchived
	wasUnread
	verdicts // how many there are
)

// Of is the category of a verdict.
func (c *Counters) Of(verdict int) *Tally {
	return [...]*Tally{&c.Present, &c.Done, &c.Changed, &c.Vanished, &c.NotKept, &c.Failed, &c.Archived, &c.Unread}[verdict]
}

// worse reports whether a verdict of a check is worse than another one. What is known of a file says more than that
// a part of it could not be looked at.
func worse(a, b int) bool {
	ranking := []int{wasPresent, wasUnread, wasChanged, wasVanished, wasNotKept, wasFailed}
	return slices.Index(ranking, a) > slices.Index(ranking, b)
}

// Refusal says why something is not done, with the cure. It is fs.ErrPermission.
type Refusal string

// Error is the text.
func (r Refusal) Error() string { return string(r) }

// Unwrap makes it fs.ErrPermission.
func (Refusal) Unwrap() error { return fs.ErrPermission }

// Unknown says what does not exist. It is fs.ErrNotExist.
type Unknown string

// Error is the text.
func (u Unknown) Error() string { return string(u) }

// Unwrap makes it fs.ErrNotExist.
func (Unknown) Unwrap() error { return fs.ErrNotExist }
