package nvmetcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestDiscovery(t *testing.T) {
	// The records of subsystems over TCP are told, with the host that was asked; a log without end is refused.
	record := func(transport, kind byte, nqn, address, port string) []byte {
		b := make([]byte, 1024)
		b[0], b[2] = transport, kind
		copy(b[32:], port)
		copy(b[256:], nqn)
		copy(b[512:], address)
		return b
	}
	f := newFakeTarget(t)
	var log []byte
	records := uint64(0)
	f.command = func(c *fakeConn, sqe, data []byte) bool {
		if sqe[0] == 0x7f && sqe[4] == 1 && !strings.HasPrefix(string(data[256:]), "nqn.2014-08.org.nvmexpress.discovery\x00") {
			t.Errorf("connect to %q", data[256:300])
		}
		if sqe[0] != opGetLogPage {
			return false
		}
		b := make([]byte, binary.LittleEndian.Uint32(sqe[32:]))
		binary.LittleEndian.PutUint64(b[8:], records)
		copy(b[1024:], log)
		_ = c.answer(binary.LittleEndian.Uint16(sqe[2:]), b)
		return true
	}
	o := f.options()
	o.Portals = []string{"target"}
	for _, c := range []struct {
		story string
		log   [][]byte
		want  string
	}{
		{"nothing", nil, "[]"},
		{"two portals", [][]byte{record(3, 2, "a", "10.0.2.15", "4420    "), record(3, 2, "a", "fe80::1", "4421")},
			"[{a target:4420 10.0.2.15:4420} {a target:4421 [fe80::1]:4421}]"},
		{"RDMA, another discovery service", [][]byte{record(1, 2, "a", "x", "1"), record(3, 1, "b", "x", "1"), record(3, 2, "c", "x", "2")},
			"[{c target:2 x:2}]"},
	} {
		log, records = nil, uint64(len(c.log))
		for _, r := range c.log {
			log = append(log, r...)
		}
		found, err := Discover(t.Context(), o)
		if err != nil || fmt.Sprint(found) != c.want {
			t.Errorf("%s: %v %v, want %s", c.story, found, err, c.want)
		}
	}
	records = 1 << 60
	if _, err := Discover(t.Context(), o); !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), "1024 is the most") {
		t.Error(err)
	}
}
