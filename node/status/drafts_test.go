package status

import (
	"strings"
	"testing"
	"time"
)

func TestDraftsAreSummedUp(t *testing.T) {
	// Drafts are counted by state. One that failed or was set aside is a problem at once, one that cannot be published after a
	// minute, also while it is being tried again. One that is open or under way for the first time is none.
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	s := SumDrafts([]Draft{
		{Name: "/open", State: DraftOpen, Size: 1, Since: ago(time.Hour), Why: "of an earlier try"},
		{Name: "/s.tmp", State: DraftStaged, Size: 8, Since: ago(time.Hour)},
		{Name: "/sent", State: DraftPublishing, Size: 2, Since: ago(time.Hour)},
		{Name: "/new", State: DraftWaiting, Size: 4, Since: ago(time.Minute), Why: "away"},
	}, now)
	if s.States != (DraftStates{Open: DraftSum{1, 1}, Staged: DraftSum{1, 8}, Publishing: DraftSum{1, 2}, Waiting: DraftSum{1, 4}}) || s.OldestS != 60 || s.Why != "/new: away" || draftProblems(s) != nil || draftProblems(nil) != nil {
		t.Errorf("%+v, %q", s, draftProblems(s))
	}
	s = SumDrafts([]Draft{
		{Name: "/f1", State: DraftFailed, Size: 1, Since: ago(2 * time.Minute), Why: "denied; cure"},
		{Name: "/f2", State: DraftFailed, Size: 1, Since: ago(3 * time.Minute), Why: "denied"},
		{Name: "/w", State: DraftPublishing, Size: 1, Since: ago(61 * time.Second), Why: "away"},
		{Name: "/c/x.data.aside", State: DraftAside, Size: 1, Since: ago(time.Second), Why: "damaged"},
	}, now)
	got := draftProblems(s)
	if len(got) != 3 || s.OldestS != 180 || s.Why != "/f2: denied" ||
		got[0] != "2 files that were written are not in the bucket, and nobody tries it again: /f2, for 3 min: denied; hearth drafts lists them, and once that is cured hearth drafts publish --all tries again" ||
		got[1] != "a file that was written is not in the bucket yet, and tried again by itself: /w, for 1 min: away; hearth drafts lists it" ||
		!strings.HasPrefix(got[2], "a file that was written is set aside and never published: /c/x.data.aside, for 1 s: damaged") {
		t.Errorf("%q, %+v", got, s)
	}
	if all := (&Status{Drafts: s}).FindProblems(); len(all) != 3 || all[0] != got[0] {
		t.Errorf("%q", all)
	}
}

func TestAMountSaysWhetherItIsWritable(t *testing.T) {
	// A mount is read-only unless it was asked for otherwise.
	if (&Mount{}).Access() != "read-only" || (&Mount{Write: "through"}).Access() != "writable" {
		t.Error("it says something else")
	}
}
