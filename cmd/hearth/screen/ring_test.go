package screen

import (
	"strings"
	"testing"
	"unicode"

	"github.com/hearthfs/hearth/node/status"
)

func inRing() *status.RingLine {
	return &status.RingLine{Name: "gpu-1", Address: "10.0.0.5:7946", Cluster: "prod", Encryption: "on", State: "active", Alive: 7, Share: 0.142, Donated: 1 << 40,
		Reads: status.RingReads{Asked: 31_000, Bytes: 31 << 30, Detours: 3}, Served: status.Served{Bytes: 12 << 30, Connections: 12, Answers: map[string]int64{"data": 9}},
		Peers: []status.Peer{{Name: "gpu-2", Requests: 9, Bytes: 20 << 30, Failures: map[string]int64{"silence": 1}}, {Name: "other", Bytes: 11 << 30}}}
}

func TestARingIsOneLine(t *testing.T) {
	// The usual node in a ring fits 80x24 with nothing left out; without a ring there is no line; -v names the peers. What comes
	// from volumes, and what was waited for them, is shown where there are some.
	s := usual()
	without := len(Lines(s, Options{}))
	s.Ring = inRing()
	s.Reads.Now.From["peers"], s.Egress.Avoided["peers"] = 77<<20, status.Requests{Requests: 31_000, Bytes: 31 << 30}
	lines := Lines(s, Options{Width: 80, Height: 24})
	wide(t, lines, 80, 24)
	has(t, lines, "ring  7 nodes alive; share 14%; served 12 GiB, got 31 GiB, 3 detours", "/mnt/llama", "3 errors", "last error 12s ago", "DISK     PEERS   ORIGIN", "77 MiB", "; peers 31.0k, 31 GiB")
	if n := len(Lines(s, Options{})); n != without+2 {
		t.Errorf("%d lines, and %d without a ring", n, without)
	}
	has(t, lines, "waited   5m57s: origin 5m1s, throttled 12.4s, disk 40.7s, list 3.1s")
	s.Tiers, s.Waits["volume"] = append(s.Tiers, status.Tier{Name: "volume"}), 2
	s.Reads.Now.From["volume"], s.Egress.Avoided["volume"] = 800<<20, status.Requests{Requests: 5000, Bytes: 5 << 30}
	has(t, Lines(s, Options{Width: 80}), "DISK     VOLUME   PEERS   ORIGIN", "800 MiB  77 MiB  13 MiB", "; volume 5.00k, 5.0 GiB; peers",
		"waited   5m59s: origin 5m1s, throttled 12.4s, volume 2.0s, disk 40.7s, list 3.1s")
	s.Ring.Suspect, s.Ring.Missing = 1, 2
	has(t, Lines(s, Options{Width: 80, Height: 24}), "ring  7 nodes alive, 1 suspect, 2 missing; share 14%; served 12 GiB, got 31")
	has(t, Lines(s, Options{Verbose: true}), "ring prod: this node is gpu-1 at 10.0.0.5:7946, active, encryption on; it gives 1.0 TiB", "peer gpu-2: 9 requests, 20 GiB; silence 1", "peers: 12 connections, asked for data 9")
}

func TestNodesOfARingAreListed(t *testing.T) {
	// Each node has a row, the missing one last, and a row has the sums, to which a missing node
	// adds nothing. Shown are who thinks a node not alive, and why a node said nothing. Control
	// characters of strangers are quoted.
	r := &status.RingStatus{Self: "1", Cluster: "prod", Encryption: "on", Fingerprint: "abcd", Reads: status.RingReads{Asked: 31_000, Detours: 3, Elsewhere: 1}, Members: []status.Member{
		{ID: "4", Name: "gpu-0", Address: "10.0.0.4:7946", State: "missing", Health: "dead", Silent: "it is not in the ring", Donated: 1 << 40, MemberFigures: status.MemberFigures{HitRatio: -1}},
		{ID: "3", Name: "gpu-3", Zone: "b", Address: "10.0.0.7:7946", State: "active", Health: "suspect", Share: 0.25, Donated: 1 << 40, Silent: "no byte for 500 ms", MemberFigures: status.MemberFigures{HitRatio: -1}},
		{ID: "2", Name: "gpu-2", Zone: "a", Address: "10.0.0.6:7946", State: "active", Health: "alive", Share: 0.5, Donated: 1 << 40, MemberFigures: status.MemberFigures{Version: "1.0", Used: 1 << 39, HitRatio: -1, Served: 12 << 30, Suspects: []string{"gpu-3"}}},
		{ID: "1", Name: "gpu-1", Zone: "a", Address: "10.0.0.5:7946", State: "active", Health: "alive", Share: 0.25, Donated: 1 << 39, MemberFigures: status.MemberFigures{Version: "1.0", HitRatio: 0.9999, Asked: 3 << 30, Suspects: []string{"gpu-3"}, Unreached: []string{"gpu-2"}}},
	}}
	want := `ring prod, encryption on, key abcd, as gpu-1 sees it
NODE   ZONE  ADDRESS        STATE                GIVES    USED     SHARE  HIT BYTES  SERVED  GOT      VERSION  NOT ALIVE FOR
gpu-1  a     10.0.0.5:7946  active               512 GiB  0 B      25%    99.9%      0 B     3.0 GiB  1.0
gpu-2  a     10.0.0.6:7946  active               1.0 TiB  512 GiB  50%    -          12 GiB  0 B      1.0
gpu-3  b     10.0.0.7:7946  active, suspect      1.0 TiB  -        25%    -          -       -        -        gpu-1, gpu-2
gpu-0  -     10.0.0.4:7946  missing              1.0 TiB  -        0%     -          -       -        -
total        4 nodes        3 active, 1 missing  2.5 TiB  512 GiB  100%              12 GiB  3.0 GiB
gpu-2 is alive, and fails what these ask it: gpu-1; hearth status there says why
gpu-3 did not answer: no byte for 500 ms
gpu-1 asked others for 31000 blocks: 3 by a detour, 1 of the bucket past all owners
`
	var b strings.Builder
	if err := PrintRing(&b, r); err != nil || b.String() != want {
		t.Errorf("%v:\n%s\nwant\n%s", err, b.String(), want)
	}
	const bad = "\x1b]0;x\a\n\t\u009b"
	m := &r.Members[1]
	m.Name, m.Zone, m.Address, m.State, m.Version, m.Silent, m.Suspects, r.Cluster = bad, bad, bad, bad, bad, bad, []string{bad, bad, bad, bad, bad}, bad
	b.Reset()
	if err := PrintRing(&b, r); err != nil || strings.Count(b.String(), "\n") != strings.Count(want, "\n") || strings.ContainsFunc(strings.ReplaceAll(b.String(), "\n", ""), unicode.IsControl) {
		t.Errorf("%v: %q", err, b.String())
	}
}

func TestOwnersOfARunAreOneLine(t *testing.T) {
	// Parts beside each other with the same owners share a line, and the last one ends with the file.
	var b strings.Builder
	err := PrintOwners(&b, []status.Owned{{Path: "/a b", Size: 5, Extents: []status.OwnedExtent{{Offset: 0, Owners: []string{"x"}}}},
		{Path: "/c", Size: 50, Extents: []status.OwnedExtent{{Offset: 0, Owners: []string{"x", "y"}}, {Offset: 16, Owners: []string{"x", "y"}}, {Offset: 32, Owners: []string{"y", "x"}}, {Offset: 48, Owners: []string{"x", "y"}}}}, {Path: "/empty"}})
	if want := "PATH    BYTES  OWNERS\n'/a b'  0-5    x\n/c      0-32   x, y\n/c      32-48  y, x\n/c      48-50  x, y\n"; err != nil || b.String() != want {
		t.Errorf("%v:\n%s", err, b.String())
	}
}
