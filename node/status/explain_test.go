package status

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// explained is an object of three blocks and a bit. It has a strong ETag unless etag is empty.
func explained(etag string) *hearth.Object {
	const size = 3<<20 + 10
	return &hearth.Object{Link: "l", Key: "k", ETag: etag, Size: size, Version: hearth.VersionOf("s3 b", "k", etag, size)}
}

// empty is a node with a disk tier that holds nothing in any tier.
func empty() ExplainedBy {
	no := func(hearth.ID) bool { return false }
	return ExplainedBy{RAM: no, Fetching: no,
		Find:      func(hearth.ID) (string, string, bool) { return "", "", false },
		Whole:     func(*hearth.Object) (bool, bool) { return false, false },
		WouldTake: func(hearth.Block) (string, error) { return "/c", nil }}
}

func TestWhatAReadDoes(t *testing.T) {
	// The tiers answer in their order. What no tier has is one GET: of the block if it is kept, else of what
	// was asked for.
	at := func(dir, kind string, unread bool) func(hearth.ID) (string, string, bool) {
		return func(id hearth.ID) (string, string, bool) {
			if id.Index == 1 {
				return dir, kind, unread
			}
			return "", "", false
		}
	}
	second := func(id hearth.ID) bool { return id.Index == 1 }
	for name, c := range map[string]struct {
		change func(*ExplainedBy)
		etag   string
		offset int64
		want   NextRead
	}{
		"ram first":  {func(n *ExplainedBy) { n.RAM, n.Find = second, at("/c", "sparse", false) }, "e", 1<<20 + 5, NextRead{By: "ram", Says: "from memory"}},
		"disk":       {func(n *ExplainedBy) { n.Find, n.Fetching = at("/c", "sparse", false), second }, "e", 1 << 20, NextRead{By: "disk", Says: "from /c (sparse)"}},
		"queued":     {func(n *ExplainedBy) { n.Find = at("/c", "queued", false) }, "e", 1 << 20, NextRead{By: "disk", Says: "waits to be written to /c"}},
		"on its way": {func(n *ExplainedBy) { n.Fetching = second }, "e", 1 << 20, NextRead{By: "coalesced", Says: "under way"}},
		"nothing":    {func(*ExplainedBy) {}, "e", 1<<20 + 5, NextRead{By: "origin", GetOff: 1 << 20, GetN: 1 << 20, Kept: "/c", Says: "one ranged GET of 1048576 bytes, 1048576 to 2097151: the whole block, which is then kept in /c"}},
		"its end":    {func(*ExplainedBy) {}, "e", 3<<20 + 9, NextRead{By: "origin", GetOff: 3 << 20, GetN: 10, Kept: "/c", Says: "GET of 10 bytes"}},
		"full": {func(n *ExplainedBy) {
			n.WouldTake = func(hearth.Block) (string, error) { return "/c", errors.New("it is full") }
		}, "e", 1<<20 + 5, NextRead{By: "origin", GetOff: 1<<20 + 5, GetN: 1<<20 - 5, Says: "not be kept: it is full"}},
		"no disk":     {func(n *ExplainedBy) { n.Find, n.WouldTake = nil, nil }, "e", 0, NextRead{By: "origin", GetN: 1 << 20, Kept: "ram", Says: "kept in memory"}},
		"unread":      {func(n *ExplainedBy) { n.Find = at("/c", "sparse", true) }, "e", 1 << 20, NextRead{By: "origin", GetOff: 1 << 20, GetN: 1 << 20, Kept: "/c", Says: "reads the index of its file in /c first; where that has not got the block, it sends one ranged GET"}},
		"a weak ETag": {func(n *ExplainedBy) { n.RAM = second }, "W/e", 1 << 20, NextRead{By: "origin", GetOff: 1 << 20, GetN: 1 << 20, Says: "no strong ETag"}},
		"the end":     {func(*ExplainedBy) {}, "e", 3<<20 + 10, NextRead{By: "end", Says: "ends at 3145738"}},
	} {
		n := empty()
		c.change(&n)
		got := *Explain(ExplainedName{}, explained(c.etag), c.offset, n).Read
		if got.By != c.want.By || got.GetOff != c.want.GetOff || got.GetN != c.want.GetN || got.Kept != c.want.Kept || !strings.Contains(got.Says, c.want.Says) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestWhatIsHeld(t *testing.T) {
	// Neighbouring blocks in the same places are one range. The ranges cover the object.
	n := empty()
	n.RAM = func(id hearth.ID) bool { return id.Index == 3 }
	n.Find = func(id hearth.ID) (string, string, bool) {
		if id.Index < 2 {
			return "/c", "sparse", false
		}
		return "", "", false
	}
	got := Explain(ExplainedName{}, explained("e"), 0, n).Held
	want := []HeldRange{{To: 2 << 20, Disk: "/c", Kind: "sparse"}, {From: 2 << 20, To: 3 << 20}, {From: 3 << 20, To: 3<<20 + 10, RAM: true}}
	if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%+v", got)
	}
	if e := Explain(ExplainedName{Dir: true}, &hearth.Object{}, 0, n); len(e.Held) > 0 || e.Read != nil || e.Held == nil {
		t.Errorf("a directory: %+v", e)
	}
}

func TestWhoIsLent(t *testing.T) {
	// The explanation says whether a kernel is lent the file, and why not.
	small := &hearth.Object{ETag: "e", Size: 5}
	whole := func(whole, verified bool) func(*ExplainedBy) {
		return func(n *ExplainedBy) { n.Whole = func(*hearth.Object) (bool, bool) { return whole, verified } }
	}
	for name, c := range map[string]struct {
		mode   string
		o      *hearth.Object
		change func(*ExplainedBy)
		lent   bool
		why    string
	}{
		"another mode": {"none", explained("e"), whole(true, true), false, "otherwise: because"},
		"small":        {"passthrough", small, whole(false, false), false, "packed with others"},
		"a part": {"passthrough", explained("e"), func(n *ExplainedBy) {
			n.Find = func(id hearth.ID) (string, string, bool) { return "/c", "sparse", id.Index != 0 }
		}, false, "1048576 of 3145738 bytes are on disk"},
		"unverified": {"passthrough", explained("e"), whole(true, false), false, "verified before it is lent"},
		"no disk":    {"passthrough", explained("e"), func(n *ExplainedBy) { n.Whole = nil }, false, "no disk tier"},
		"lent":       {"passthrough", explained("e"), whole(true, true), true, "do not reach the node"},
	} {
		n := empty()
		c.change(&n)
		n.Mounts = []LendingMount{{"/mnt", c.mode, "because"}}
		if got := Explain(ExplainedName{}, c.o, 0, n).Mounts[0]; got.Lent != c.lent || !strings.Contains(got.Why, c.why) || got.Dir != "/mnt" {
			t.Errorf("%s: %+v, want %v, %s", name, got, c.lent, c.why)
		}
	}
}

func TestHowFreshANameIs(t *testing.T) {
	// The explanation says how long the name is still believed, and what a look-up asks after that.
	bounded := namespace.Freshness{Mode: namespace.Bounded, Bound: time.Minute}
	for _, c := range []struct {
		name ExplainedName
		want string
	}{
		{ExplainedName{Freshness: bounded, Left: 20 * time.Second}, "believed for 20s more"},
		{ExplainedName{Freshness: bounded}, "asks, one HEAD"},
		{ExplainedName{Freshness: bounded, Dir: true}, "asks, one LIST of one key"},
		{ExplainedName{Freshness: namespace.Freshness{Mode: namespace.Immutable}, Left: namespace.Forever}, "for ever"},
		{ExplainedName{Freshness: namespace.Freshness{Mode: namespace.Strict}}, "never believed: each look-up and open asks, one HEAD"},
		{ExplainedName{Freshness: bounded, Left: time.Minute, Asked: true}, "asked for just now"},
		{ExplainedName{Freshness: bounded, Away: "nobody listens"}, "cannot be asked now: nobody listens"},
	} {
		if got := c.name.fresh(); !strings.Contains(got.Says, c.want) || got.BelievedMS != c.name.Left.Milliseconds() || got.Known == c.name.Asked {
			t.Errorf("%+v: %+v", c.name, got)
		}
	}
}
