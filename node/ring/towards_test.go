package ring

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestTheWayToTheOthersTellsWhereToListen(t *testing.T) {
	// The first node of join that is elsewhere, and whose name is known, gives the address. A machine's own
	// name, at 127.0.1.1, does not. If nothing else does, the error names what was asked and the cure.
	known := map[string]string{"gpu-1": "127.0.0.1", "gpu-2": "10.0.0.5", "gpu-3": "10.9.0.5", "127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.1", "::1": "::1", "localhost": "127.0.0.1",
		"both": "127.0.0.1 10.0.0.6"} // this machine's address on the way there
	to := func(_ context.Context, host, port string) (all []netip.Addr, err error) {
		if port != "7946" && port != "7950" {
			t.Errorf("port %q of %s", port, host)
		}
		for _, a := range strings.Fields(known[host]) {
			all = append(all, netip.MustParseAddr(a))
		}
		if all == nil {
			err = errors.New("no such host")
		}
		return all, err
	}
	const itself = "join names this machine itself ("
	for _, c := range []struct{ join, want string }{
		{"gpu-2,gpu-3", "10.0.0.5"},
		{"gpu-1,gpu-2", "10.0.0.5"},
		{"gone,gpu-3:7950", "10.9.0.5"},
		{"gone,gpu-1:7950,gone-too,gpu-2", "10.0.0.5"},
		{"both", "10.0.0.6"},
		{"127.0.0.1:7950,gpu-2", "10.0.0.5"},
		{"127.0.0.1:7950", "127.0.0.1"}, {"localhost,127.0.0.2", "127.0.0.1"}, {"[::1]:7950", "::1"}, {"::1", "::1"}, {"[::1]", "::1"},
		{"gpu-1", itself + "gpu-1 is 127.0.0.1 here), so it does not tell by which address the others reach it: set node.listen"},
		{"127.0.0.1,gpu-1", itself + "127.0.0.1, gpu-1 is "},
		{"gpu-1,gone", itself + "gpu-1 is 127.0.0.1 here), so it does not tell by which address the others reach it: no way to gone: no such host; set node.listen"},
		{"127.0.0.1,gone", itself + "127.0.0.1 is "},
		{"gone,gone-too:7950", "find the address by which join is reached: gone: no such host; gone-too:7950: no such host; set node.listen"},
	} {
		got, err := towards(t.Context(), strings.Split(c.join, ","), to)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s", c.join, got)
		}
	}
}

func TestTheWayIsAskedOfTheMachine(t *testing.T) {
	// A loopback address is reached from a loopback address, and nothing has to listen there. A host that is no
	// name is an error.
	for _, host := range []string{"127.0.0.1", "localhost"} {
		if got, err := routed(t.Context(), host, "7946"); err != nil || len(got) == 0 || !got[0].IsLoopback() {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
	if got, err := routed(t.Context(), "no name", "7946"); err == nil {
		t.Error(got)
	}
}
