package ring

import (
	"fmt"
	"testing"
)

func TestRowsAreBoundedAndNeverFall(t *testing.T) {
	// A thousand jobs have a mount each, one after the other, and one directory is mounted all the time. Each
	// of the first has its row, and the others share one. Nothing is lost, and no row falls.
	s := SumsByDir{}
	s.Add("/mnt/d", nil)
	past := SumsByDir{}
	for i := range 1000 {
		dir := fmt.Sprintf("/jobs/%d", i)
		s.Add(dir, nil) // it is mounted
		live := s.Clone()
		live.Add("/mnt/d", map[string]int64{"read": int64(i)})
		live.Add(dir, map[string]int64{"read": 2})
		for dir, counts := range past {
			if live[dir]["read"] < counts["read"] {
				t.Fatalf("after %d jobs %s fell from %d to %d", i, dir, counts["read"], live[dir]["read"])
			}
		}
		past = live
		s.Add(dir, map[string]int64{"read": 2}) // it is gone
	}
	if past["/mnt/d"]["read"] != 999 || past["/jobs/0"]["read"] != 2 || past["/jobs/62"]["read"] != 2 {
		t.Errorf("rows: %v", past)
	}
	if want := int64(2 * (1000 - (Most - 1))); past[others]["read"] != want || past["/jobs/63"] != nil || len(past) != Most+1 {
		t.Errorf("%d rows, the others' has %v, want %d", len(past), past[others], want)
	}
}
