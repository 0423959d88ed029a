package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/peer/members"
)

const (
	// mostJoined bounds the nodes of join that are asked. A node that answers knows the others.
	mostJoined = 8
	// answerBound is how long one of them may take.
	answerBound = 2 * time.Second
)

// atRing checks whether a node could listen for its peers, and whether the nodes that it is to join can be
// reached.
func atRing(ctx context.Context, r config.Membership, running *Running) (all []Finding) {
	var self netip.AddrPort
	if r.Listen != "" {
		at, err := members.ResolveListen(r.Listen, members.DefaultPort)
		self = at
		all = append(all, judgeRing(r.Listen, at, err, running != nil, func(network string, port int) error { return tryPort(ctx, network, at.Addr(), port) }))
	}
	found := make([]Finding, min(len(r.Join), mostJoined))
	var wait sync.WaitGroup
	for i := range found {
		wait.Go(func() {
			found[i] = judgeJoin(r.Join[i], self, func(address string) error { return tryDial(ctx, address) })
		})
	}
	wait.Wait()
	return append(all, found...)
}

// judgeRing says whether a node can gossip at an address, and answer reads one port above.
func judgeRing(listen string, at netip.AddrPort, err error, runs bool, try func(network string, port int) error) Finding {
	f := Finding{Check: "ring address", Subject: listen, Verdict: OK, Found: fmt.Sprintf("%v by TCP and UDP, and port %d, are free", at, at.Port()+1)}
	if err != nil {
		f.Verdict, f.Found, f.Cure = Fail, err.Error(), "name an address, an interface or a network of this machine: --listen"
		return f
	}
	port := int(at.Port())
	for _, x := range []struct {
		network string
		port    int
	}{{"tcp", port}, {"udp", port}, {"tcp", port + 1}} {
		failed := try(x.network, x.port)
		switch {
		case failed == nil:
		case errors.Is(failed, syscall.EADDRINUSE) && runs:
			f.Found = fmt.Sprintf("%v is in use, and a node runs", at)
			return f
		default:
			f.Verdict, f.Found, f.Cure = Fail, fmt.Sprintf("port %d cannot be listened at by %s: %v", x.port, strings.ToUpper(x.network), failed), "end who has it, or choose another port: --listen ADDRESS:PORT"
			return f
		}
	}
	return f
}

// judgeJoin says whether a node of join answers at its two ports.
func judgeJoin(join string, self netip.AddrPort, try func(address string) error) Finding {
	f := Finding{Check: "ring node", Subject: join, Verdict: OK}
	host, port, err := members.SplitHost(join, members.DefaultPort)
	gossip := int(port)
	if a, wrong := netip.ParseAddr(host); wrong == nil && a.Unmap() == self.Addr() && gossip == int(self.Port()) {
		f.Found = "it is this node"
		return f
	}
	for p := gossip; p <= gossip+1 && err == nil; p++ {
		err = try(net.JoinHostPort(host, strconv.Itoa(p)))
	}
	if f.Found = fmt.Sprintf("somebody answers at ports %d and %d by TCP", gossip, gossip+1); err != nil {
		f.Verdict, f.Found = Warn, err.Error()
		f.Cure = fmt.Sprintf("look whether a node runs there, and whether ports %d (TCP and UDP) and %d (TCP) are open both ways", gossip, gossip+1)
	}
	return f
}

// tryPort listens at a port for a moment.
func tryPort(ctx context.Context, network string, at netip.Addr, port int) error {
	address := net.JoinHostPort(at.String(), strconv.Itoa(port))
	var listen net.ListenConfig
	if network == "udp" {
		l, err := listen.ListenPacket(ctx, network, address)
		if err == nil {
			err = l.Close()
		}
		return err
	}
	l, err := listen.Listen(ctx, network, address)
	if err == nil {
		err = l.Close()
	}
	return err
}

// tryDial connects to an address for a moment.
func tryDial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: answerBound}).DialContext(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	return err
}
