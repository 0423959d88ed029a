package status

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// Draft is a file that was written on this node, and that its bucket does not have as it is here.
type Draft struct {
	// Name is what hearth drafts calls it by: Path, else URL, else File.
	Name string `json:"name"`
	// Path is where it stands in the tree. It is empty if no link leads there any more, or if nobody knows its key. URL is of its
	// key, and empty in the latter case.
	Path string `json:"path,omitempty"`
	URL  string `json:"url,omitempty"`
	// NameBytes is set if Name is not UTF-8, which JSON cannot carry.
	NameBytes []byte `json:"name_base64,omitempty"`
	Size      int64  `json:"size"` // in bytes
	// State is open, staged, waiting, publishing, failed or set_aside.
	State string `json:"state"`
	// Since is when it got this state. Of one that is tried again and again it is when that began.
	Since time.Time `json:"since"`
	// Why is the last error with its cure. It is empty if there was none.
	Why string `json:"why,omitempty"`
	// Users counts who has it open. UID is the user who owns it.
	Users int    `json:"users"`
	UID   uint32 `json:"uid"`
	// File has its bytes.
	File string `json:"file"`
}

// The states of drafts, as they are told.
const (
	DraftOpen       = "open"       // somebody writes it
	DraftStaged     = "staged"     // closed under a temporary name: a rename publishes it
	DraftWaiting    = "waiting"    // to be published
	DraftPublishing = "publishing" // being sent
	DraftFailed     = "failed"     // refused; nobody tries it again before somebody does what Why says
	DraftAside      = "set_aside"  // its record is damaged: it is never published
)

// KeepBytes fills in NameBytes if the name is not UTF-8.
func (d *Draft) KeepBytes() {
	if !utf8.ValidString(d.Name) {
		d.NameBytes = []byte(d.Name)
	}
}

// Restore takes a name that is not UTF-8 from NameBytes.
func (d *Draft) Restore() {
	if d.NameBytes != nil {
		d.Name = string(d.NameBytes)
	}
}

// Kept is for how long a draft has been kept from its bucket. It is 0 for one that is not: nobody has tried, or none failed.
func (d *Draft) Kept(now time.Time) time.Duration {
	if d.State == DraftOpen || d.Why == "" {
		return 0
	}
	return max(0, now.Sub(d.Since))
}

// Drafts sums up the drafts of a node.
type Drafts struct {
	States DraftStates `json:"states"`
	// OldestS is for how many seconds the oldest one has been kept from its bucket, and Why is the reason. 0 means that none is.
	OldestS int64  `json:"oldest_s"`
	Why     string `json:"why,omitempty"`
	// Published counts drafts that became objects, and Failures requests for that which failed, since the node started.
	Published int64 `json:"published"`
	Failures  int64 `json:"failures"`
	// Seeded are bytes of published drafts that were put into the cache before anybody read them, here or at other nodes, and
	// Unseeded those for which there was no room or time.
	Seeded   int64 `json:"seeded"`
	Unseeded int64 `json:"unseeded"`
	// Troubles say what is wrong with drafts, by state: failed, waiting (for more than a minute), set_aside.
	Troubles []DraftTrouble `json:"troubles,omitempty"`
}

// DraftStates are sums by state.
type DraftStates struct {
	Open       DraftSum `json:"open"`
	Staged     DraftSum `json:"staged"`
	Waiting    DraftSum `json:"waiting"`
	Publishing DraftSum `json:"publishing"`
	Failed     DraftSum `json:"failed"`
	Aside      DraftSum `json:"set_aside"`
}

// DraftSum is a number of drafts and their bytes.
type DraftSum struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// DraftTrouble is what is wrong with some drafts, and the oldest of them.
type DraftTrouble struct {
	State string `json:"state"`
	Files int64  `json:"files"`
	Name  string `json:"name"`
	ForS  int64  `json:"for_s"`
	Why   string `json:"why"`
}

// patience is how long a draft may wait before that is a problem: an origin that was away for a moment has it by then.
const patience = time.Minute

// SumDrafts sums up drafts at a time.
func SumDrafts(all []Draft, now time.Time) *Drafts {
	s := &Drafts{}
	troubles := map[string]*DraftTrouble{}
	for i := range all {
		d := &all[i]
		sum := s.States.of(d.State)
		sum.Files++
		sum.Bytes += d.Size
		kept := d.Kept(now)
		if k := int64(kept / time.Second); kept > 0 && (s.Why == "" || k > s.OldestS) {
			s.OldestS, s.Why = k, d.Name+": "+d.Why
		}
		state := d.State
		switch {
		case state == DraftFailed || state == DraftAside:
		case kept > patience: // also while it is being tried again
			state = DraftWaiting
		default:
			continue
		}
		t := troubles[state]
		if t == nil {
			t = &DraftTrouble{State: state, ForS: -1}
			troubles[state] = t
		}
		t.Files++
		if k := int64(kept / time.Second); k > t.ForS {
			t.Name, t.ForS, t.Why = d.Name, k, d.Why
		}
	}
	for _, state := range []string{DraftFailed, DraftWaiting, DraftAside} { // the worst first
		if t := troubles[state]; t != nil {
			s.Troubles = append(s.Troubles, *t)
		}
	}
	return s
}

func (s *DraftStates) of(state string) *DraftSum {
	switch state {
	case DraftStaged:
		return &s.Staged
	case DraftWaiting:
		return &s.Waiting
	case DraftPublishing:
		return &s.Publishing
	case DraftFailed:
		return &s.Failed
	case DraftAside:
		return &s.Aside
	}
	return &s.Open
}

// draftProblems are the problems of drafts. nil has none.
func draftProblems(s *Drafts) (all []string) {
	if s == nil {
		return nil
	}
	for _, t := range s.Troubles {
		begin, cure := "a file that was written", "hearth drafts lists it"
		if t.Files > 1 {
			begin, cure = fmt.Sprintf("%d files that were written", t.Files), "hearth drafts lists them"
		}
		says := map[string]string{
			DraftFailed:  "not in the bucket, and nobody tries it again",
			DraftWaiting: "not in the bucket yet, and tried again by itself",
			DraftAside:   "set aside and never published",
		}[t.State]
		if t.State == DraftFailed {
			cure += ", and once that is cured hearth drafts publish --all tries again"
		}
		verb := "is"
		if t.Files > 1 {
			verb = "are"
		}
		all = append(all, fmt.Sprintf("%s %s %s: %s, for %s: %s; %s", begin, verb, says, t.Name, since(t.ForS), t.Why, cure))
	}
	return all
}
