package status

import (
	"strings"
	"testing"
)

func TestWhatIsWrongWithARingIsTold(t *testing.T) {
	// A node that is alone is a problem after a minute. A missing member is a warning. Each says who it is, and
	// the cure. A node in no ring has neither.
	if ringProblems(nil) != nil || ringWarnings(nil) != nil || ringProblems(&RingLine{Alive: 1}) != nil || ringWarnings(&RingLine{Alive: 3, Suspect: 1}) != nil {
		t.Error("a well ring is not")
	}
	if got := ringProblems(&RingLine{Alive: 1, AloneS: 59}); got != nil {
		t.Errorf("a node that has just begun: %q", got)
	}
	for seconds, says := range map[int64]string{60: "for 1 min", 7200: "for 2.0 h"} {
		got := ringProblems(&RingLine{Name: "gpu-1", Alive: 1, AloneS: seconds, Join: []string{"a", "b:7946"}})
		if len(got) != 1 || !strings.HasPrefix(got[0], "this node is alone in its ring: none of join (a, b:7946) has been there "+says+"; look whether ") || !strings.Contains(got[0], "its log says of gpu-1") {
			t.Errorf("%q", got)
		}
	}
	if got := ringWarnings(&RingLine{Alive: 2, State: "active"}); len(got) != 1 || !strings.HasPrefix(got[0], "this node gives less than 64 MiB") {
		t.Errorf("%q", got)
	}
	b := &RingLine{Alive: 5, Suspect: 1, Unreachable: 2, Barred: []Barred{{Name: "gpu-3", Data: "10.0.0.7:7947", ForS: 61, Cause: "no connection"}}}
	if got := ringWarnings(b); len(got) != 1 || ringProblems(b) != nil || !strings.HasPrefix(got[0], "2 of the ring's 6 nodes fail what this one asks, and are alive: gpu-3 at 10.0.0.7:7947 for 1 min (no connection), and 1 more; look whether that port is open") {
		t.Errorf("%q", got)
	}
	b.Unreachable = 4
	if got := ringProblems(b); len(got) != 1 || ringWarnings(b) != nil || !strings.HasPrefix(got[0], "none of the ring's other nodes answers what this one asks: gpu-3 at ") {
		t.Errorf("%q", got)
	}
	r := &RingLine{Alive: 5, Suspect: 1, Missing: 1, Absent: []Absent{{Name: "gpu-3", Address: "10.0.0.7:7946", ForS: 59}}}
	if got := ringWarnings(r); len(got) != 1 || !strings.HasPrefix(got[0], "1 of the ring's 7 nodes are missing: gpu-3 (10.0.0.7:7946) for 59 s; start them again") {
		t.Errorf("%q", got)
	}
	r.Missing = 3
	if got := ringWarnings(r); len(got) != 1 || !strings.Contains(got[0], "for 59 s, and 2 more; ") {
		t.Errorf("%q", got)
	}
}

func TestWhoKeepsANodeOutIsTold(t *testing.T) {
	// A node that is refused and alone says so at once, and not that nobody is there. In company it is a
	// warning. A node whose name another one has says which one.
	r := &RingLine{Name: "gpu-1", Alive: 1, AloneS: 61, Join: []string{"a"}, Refusal: "give all nodes the same key"}
	if got := ringProblems(r); len(got) != 1 || got[0] != "the ring refuses this node, which is alone: give all nodes the same key" || ringWarnings(r) != nil {
		t.Errorf("%q, %q", got, ringWarnings(r))
	}
	r.Alive, r.AloneS = 2, 0
	if got := ringWarnings(r); len(got) != 1 || got[0] != "a node of join is in no ring with this one: give all nodes the same key" || ringProblems(r) != nil {
		t.Errorf("%q, %q", got, ringProblems(r))
	}
	r.Refusal, r.Rival = "", "a node at 10.0.0.5:7946 has the name"
	if got := ringProblems(r); len(got) != 1 || got[0] != "two nodes want to be one member of the ring, and this is one of them: a node at 10.0.0.5:7946 has the name" || ringWarnings(r) != nil {
		t.Errorf("%q, %q", got, ringWarnings(r))
	}
}
