package scaling

import (
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestASetIsCountedByHand(t *testing.T) {
	// Two directories below one: blocks, requests and pages are those that a reader of the
	// code counts.
	s := SetOf([]hearthtest.File{{Path: "a/b/one", Size: 100 << 10}, {Path: "a/b/two", Size: 1<<20 + 1}, {Path: "a/c/three", Size: 40 << 20}})
	if s.Files != 3 || s.Blocks != 1+2+40 || s.Gets != 1+1+3 || s.Bytes != 100<<10+1<<20+1+40<<20 || s.Dirs != 4 || s.Lists != 4 {
		t.Errorf("%+v", s)
	}
	// A block costs its bytes, and a tenth of them more at most; what is said of it is small.
	if s.served < s.Bytes*105/100 || s.served > s.Bytes*110/100 || s.asked+s.pages > s.Bytes/100 {
		t.Errorf("%d bytes are %d on a link, questions %d, names %d", s.Bytes, s.served, s.asked, s.pages)
	}
}

func TestEachOfTheOthersReadsASetOnce(t *testing.T) {
	// What passes between nodes grows with all but one of them, and what the bucket is asked
	// does not grow.
	s, g := SetOf([]hearthtest.File{{Path: "d/f", Size: 10 << 20}}), RingGossip(40)
	one, two, eight := Predict(s, g, 1), Predict(s, g, 2), Predict(s, g, 8)
	if one.PeerBytes != 0 || one.OriginBytes != eight.OriginBytes || one.Gets != 1 || one.Gossip != 0 {
		t.Errorf("alone: %+v", one)
	}
	if ratio := float64(eight.PeerBytes) / float64(two.PeerBytes); ratio < 6.9 || ratio > 7.1 {
		t.Errorf("8 nodes send %v times what 2 do", ratio)
	}
}

func TestFramesAreCounted(t *testing.T) {
	// A byte is a frame and its acknowledgement, and TLS adds a record.
	for n, want := range map[int64]int64{1: 1 + 2*66, 1448: 1448 + 2*66, 1449: 1449 + 3*66, 10 * 1448: 10*1448 + 15*66} {
		if got := Stream(n); got != want {
			t.Errorf("%d bytes are %d on a link, want %d", n, got, want)
		}
	}
	if got := Secured(1 << 20); got != 1<<20+64*22 {
		t.Errorf("%d", got)
	}
	if got := Datagram(100); got != 142 {
		t.Errorf("%d", got)
	}
}

func TestPacketsOfGossipAreTold(t *testing.T) {
	// By either port, of UDP and TCP, behind a header with options; nothing else.
	p := func(protocol byte, from, to int) []byte {
		b := make([]byte, 28)
		b[0], b[9] = 0x46, protocol
		b[24], b[25], b[26], b[27] = byte(from>>8), byte(from), byte(to>>8), byte(to)
		return b
	}
	for _, c := range []struct {
		packet []byte
		want   bool
	}{{p(17, 7946, 1), true}, {p(17, 1, 7946), true}, {p(6, 1, 7946), true}, {p(6, 7947, 40000), false}, {p(1, 7946, 7946), false}, {p(17, 7946, 1)[:26], false}} {
		if got := gossips(c.packet); got != c.want {
			t.Errorf("%v: %v", c.packet, got)
		}
	}
}
