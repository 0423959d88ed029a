package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// sound fails the scenario for what a process said that none of ours may say, also
// one that was killed later: a race, a panic, and what a closed node has not given
// back (environ asks for it).
func (e *env) sound(name, out string) {
	e.Helper()
	for _, said := range unsound(out) {
		e.Errorf("%s said:\n%s", name, said)
	}
}

// unsound are the places of an output that tell of a race, a panic or a leak.
// Somebody who still uses a detached mount keeps what serves it.
func unsound(out string) (said []string) {
	signs := []string{"WARNING: DATA RACE", "hearth: left behind:", "panic: ", "fatal error: "}
	if strings.Contains(out, "mount in use: detached") {
		signs[1] = "hearth: left behind: an open file"
	}
	for _, sign := range signs {
		if _, after, ok := strings.Cut("\n"+out, "\n"+sign); ok {
			said = append(said, sign+after[:min(len(after), 4000)])
		}
	}
	return said
}

// goroutines are the stacks of a running node's goroutines, equal ones counted.
func (h *hearth) goroutines() string {
	h.e.Helper()
	var d net.Dialer
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", h.socket())
	}}
	r, err := (&http.Client{Transport: transport}).Get("http://node/v1/goroutines")
	h.e.must(err, "ask for the goroutines")
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	h.e.must(err, "read the goroutines")
	return string(text)
}

// elastic are goroutines whose number is bounded by the code that makes them, and goes
// back later than a test waits: idle connections to the origin (a minute), readers of
// the FUSE device, workers of the disk's guard and of who answers peers, Pebble's per processor, and those of the few
// connections to each peer, which stay.
func elastic(stack string) bool {
	return slices.ContainsFunc([]string{"net/http.(*persistConn)", "fuse.(*fuseFD).readRequest", "go-fuse/v2/fuse.(*Server).loop", "internal/device.(*Guard).worker", "cockroachdb/pebble", "peer/wire.(*conn)", "peer/wire.(*session)", "peer/wire.(*workers)"},
		func(part string) bool { return strings.Contains(stack, part) })
}

// idleLimit is how many goroutines with one stack an idle node has at most for each
// mount and link, and for itself, beside those of the queues of volumes; idleWait is how long a node may
// take to be idle: the longest that a read may wait for a silent origin.
const (
	idleLimit = 3
	idleWait  = 35 * time.Second
)

// idle waits until the node has no more goroutines of any kind than an idle node has;
// those that are too many are named.
func (h *hearth) idle() {
	h.e.Helper()
	if _, err := os.Stat(h.socket()); err != nil {
		return // a node without a socket, such as that of e2e/wired
	}
	s := h.status()
	most := idleLimit * (1 + len(s.Mounts) + len(s.Links))
	for _, t := range s.Tiers {
		for _, v := range t.Volumes {
			if v.Remote != nil {
				most += v.Remote.Queues + 1 // one that reads for each, and for the admin queue
			}
		}
	}
	over := time.Now().Add(idleWait)
	h.e.eventually("an idle node", func() bool {
		many := tooMany(h.goroutines(), most)
		if len(many) > 0 && time.Now().After(over) {
			h.e.Errorf("goroutines of an idle node, of which it may have %d each:\n%s", most, strings.Join(many, "\n\n"))
			return true
		}
		return len(many) == 0
	})
}

// tooMany are the stacks of a dump that more than so many goroutines share.
func tooMany(dump string, most int) (stacks []string) {
	for stack := range strings.SplitSeq(dump, "\n\n") {
		if title, rest, ok := strings.Cut(stack, "\n"); ok && strings.HasPrefix(title, "goroutine profile") {
			stack = rest
		}
		var n int
		if _, err := fmt.Sscanf(stack, "%d @", &n); err == nil && n > most && !elastic(stack) {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func TestLeaksAreSeen(t *testing.T) {
	// Of a dump those stacks that too many share are named, but the elastic ones; of
	// an output a race, a panic and what is left behind, at the start of a line.
	dump := "goroutine profile: total 40\n30 @ 0x1\n#\t0x1\tmain.leak+0x1\n\n7 @ 0x2\n#\t0x2\tnet/http.(*persistConn).readLoop+0x2\n\n3 @ 0x3\n#\t0x3\tmain.few+0x3\n"
	if many := tooMany(dump, 6); len(many) != 1 || !strings.Contains(many[0], "main.leak") {
		t.Errorf("too many are %q", many)
	}
	for out, want := range map[string]int{
		"mounted /m\nunmounted": 0,
		"mounted /m\n==================\nWARNING: DATA RACE\nRead at":                                        1,
		"hearth: left behind: 3 Views that were not released\npanic: x":                                      2,
		"mount in use: detached\nhearth: left behind: a goroutine: x":                                        0,
		"mount in use: detached\nhearth: left behind: a goroutine: x\nhearth: left behind: an open file: /c": 1,
		"what is no panic: this": 0,
	} {
		if said := unsound(out); len(said) != want {
			t.Errorf("%q: %q", out, said)
		}
	}
}
