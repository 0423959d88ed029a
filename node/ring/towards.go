package ring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/peer/members"
)

// lookFor bounds the look-up of one name. If a machine starts before its name servers do, the next name is
// tried, and one wrong name among many does not delay a start by minutes.
const lookFor = 5 * time.Second

// ways returns this machine's source addresses on its routes to the addresses of a host.
type ways func(ctx context.Context, host, port string) ([]netip.Addr, error)

// towards returns this machine's source address on its route to the first node of join that gives one. Debian
// gives a machine's own name the address 127.0.1.1. So a node that names itself in join learns nothing from
// that, and nobody would reach it there. Loopback is meant only if join has nothing but loopback addresses.
func towards(ctx context.Context, join []string, to ways) (string, error) {
	var here, failed []string
	var loop netip.Addr
	meant := true
	for _, seed := range join {
		host, port, err := members.SplitHost(seed, members.DefaultPort)
		var found []netip.Addr
		if err == nil {
			found, err = to(ctx, host, strconv.Itoa(int(port)))
		}
		for _, a := range found {
			if !a.IsLoopback() {
				return a.String(), nil
			}
			loop = a
		}
		if meant = meant && loopback(host); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", seed, err))
		} else {
			here = append(here, seed)
		}
	}
	switch { // a name that is not known yet may be known the next time
	case len(here) == 0:
		return "", lacking(fmt.Errorf("find the address by which join is reached: %s; set node.listen, or correct join", strings.Join(failed, "; ")))
	case meant && len(failed) == 0:
		return loop.String(), nil
	}
	told := fmt.Sprintf("join names this machine itself (%s is %v here), so it does not tell by which address the others reach it", strings.Join(here, ", "), loop)
	if len(failed) == 0 {
		return "", wrong(fmt.Errorf("%s: set node.listen", told))
	}
	return "", lacking(fmt.Errorf("%s: no way to %s; set node.listen", told, strings.Join(failed, "; ")))
}

// loopback reports whether a host always means the machine itself.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// routed asks the resolver and the kernel. Nothing is sent to the host.
func routed(ctx context.Context, host, port string) (all []netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var bad error
	for _, a := range addrs {
		conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(a.Unmap().String(), port))
		if err != nil {
			bad = errors.Join(bad, err)
			continue
		}
		if at, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
			all = append(all, at.Addr().Unmap())
		}
		_ = conn.Close()
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, bad
}
