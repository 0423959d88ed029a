package main

import "testing"

func TestAFigureIsTakenByItsFirstWords(t *testing.T) {
	// D1 is not D1s; a group is prepared if any of its figures is asked for.
	for _, c := range []struct {
		only, group string
		want        bool
	}{
		{"", "warm-up D1", true}, {"warm-up", "warm-up D1", true}, {"warm-up D1", "warm-up D1", true}, {"warm-up D1", "warm-up D1s", false},
		{"W1 D1 disk", "W1 D1", true}, {"W1", "cold W1 D1", false}, {"readers of W1 D1 disk while D2 is warmed up", "readers of W1 D1 disk", true},
	} {
		if got := (&bench{only: c.only}).wanted(c.group); got != c.want {
			t.Errorf("-only %q and %q: %v", c.only, c.group, got)
		}
	}
}
