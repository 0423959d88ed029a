package namespace

import (
	"testing"
	"time"
)

func TestACopyHasAQuarterOfItsTimeLeft(t *testing.T) {
	// A copy is no older than three quarters of a listing's life. A node without a listing need not know
	// how long one takes. A node with a listing gets none that is older.
	minute := Freshness{Mode: Bounded, Bound: time.Minute}
	for _, c := range []struct {
		f              Freshness
		old, age, took time.Duration
		copies         bool
	}{
		{minute, 45 * time.Second, 45 * time.Second, 0, true},
		{minute, 45 * time.Second, 46 * time.Second, 0, false},
		{minute, 45 * time.Second, 7 * time.Minute, 30 * time.Second, true}, // believed for ten
		{minute, 45 * time.Second, 8 * time.Minute, 30 * time.Second, false},
		{minute, 10 * time.Second, 11 * time.Second, 30 * time.Second, false},
		{Freshness{Mode: Immutable}, Freshness{Mode: Immutable}.CopyAge(0), 9000 * time.Hour, 0, true},
	} {
		if got := c.f.Copies(c.old, c.age, c.took); got != c.copies {
			t.Errorf("%v, at most %v old: one of %v that took %v: %v", c.f, c.old, c.age, c.took, got)
		}
	}
	if left := minute.ListingLife(time.Minute) - minute.CopyAge(time.Minute); left != 5*time.Minute {
		t.Errorf("%v left", left)
	}
}
