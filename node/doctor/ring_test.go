package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthfs/hearth/node/config"
)

func TestRingVerdicts(t *testing.T) {
	// Ports may be free, the node's own, somebody else's or forbidden. An address may not be this
	// machine's.
	at := netip.MustParseAddrPort("10.0.0.5:7946")
	for _, c := range []struct {
		taken   string // network and port
		failed  error
		runs    bool
		verdict Verdict
		found   string
	}{
		{"", nil, false, OK, "10.0.0.5:7946 by TCP and UDP, and port 7947, are free"},
		{"tcp 7946", syscall.EADDRINUSE, true, OK, "10.0.0.5:7946 is in use, and a node runs"},
		{"udp 7946", syscall.EADDRINUSE, false, Fail, "port 7946 cannot be listened at by UDP: address already in use"},
		{"tcp 7947", syscall.EADDRINUSE, false, Fail, "port 7947 cannot be listened at by TCP"},
		{"tcp 7946", syscall.EACCES, true, Fail, "permission denied"},
	} {
		f := judgeRing("eth0", at, nil, c.runs, func(network string, port int) error {
			if fmt.Sprint(network, " ", port) == c.taken {
				return c.failed
			}
			return nil
		})
		if f.Verdict != c.verdict || !strings.Contains(f.Found, c.found) || (f.Verdict == OK) != (f.Cure == "") || f.Subject != "eth0" {
			t.Errorf("%+v: %+v", c, f)
		}
	}
	if f := judgeRing("x", at, errors.New("no interface has that name"), false, nil); f.Verdict != Fail || !strings.Contains(f.Found, "no interface") || f.Cure == "" {
		t.Errorf("%+v", f)
	}
}

func TestNodesToJoinAreTried(t *testing.T) {
	// Both ports of each node of join are tried, at the port that is named or the default one. This node
	// itself is not asked.
	self := netip.MustParseAddrPort("10.0.0.5:7946")
	for join, want := range map[string]string{"a": "a:7946 a:7947", "a:5": "a:5 a:6", "[fd00::1]:9": "[fd00::1]:9 [fd00::1]:10", "fd00::1": "[fd00::1]:7946 [fd00::1]:7947", "10.0.0.5": "", "10.0.0.5:7946": "", "10.0.0.5:1": "10.0.0.5:1 10.0.0.5:2"} {
		var tried []string
		f := judgeJoin(join, self, func(address string) error { tried = append(tried, address); return nil })
		if got := strings.Join(tried, " "); got != want || f.Verdict != OK || f.Found == "" {
			t.Errorf("%s: tried %q, want %q: %+v", join, got, want, f)
		}
	}
	nobody := func(address string) error { t.Errorf("tried %s", address); return nil }
	if f := judgeJoin("a:gossip", self, nobody); f.Verdict != Warn || !strings.Contains(f.Found, "gossip") {
		t.Errorf("%+v", f)
	}
	if f := judgeJoin("a:5", self, func(string) error { return syscall.ECONNREFUSED }); f.Verdict != Warn || !strings.Contains(f.Found, "refused") || !strings.Contains(f.Cure, "ports 5 (TCP and UDP) and 6 (TCP)") {
		t.Errorf("%+v", f)
	}
}

func TestLookAtARing(t *testing.T) {
	// On this machine there is a free address, and a listener at one of a node's two ports.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	all := atRing(t.Context(), config.Membership{Listen: "127.0.0.1:0", Join: []string{l.Addr().String()}}, nil)
	if len(all) != 2 || all[0].Check != "ring address" || all[1].Check != "ring node" || all[1].Subject != l.Addr().String() {
		t.Errorf("%+v", all)
	}
	all = atRing(t.Context(), config.Membership{Listen: l.Addr().String()}, &Running{})
	if len(all) != 1 || all[0].Verdict != OK || !strings.Contains(all[0].Found, "a node runs") {
		t.Errorf("%+v", all)
	}
}
