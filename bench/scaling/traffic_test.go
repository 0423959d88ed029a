package scaling

import "testing"

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
