package members

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// ResolveListen finds the one address of this machine that listen names, with :port or
// the given port. listen is an address, the name of an interface, or a CIDR. Of an
// interface it takes the first address, IPv4 before IPv6, and of a CIDR the first one
// within. It takes a link-local address only if that is named. The error lists the
// addresses that there are.
func ResolveListen(listen string, port uint16) (netip.AddrPort, error) {
	there, err := interfaces()
	if err != nil {
		return netip.AddrPort{}, err
	}
	return resolveListen(listen, port, there)
}

// nic is an address of an interface.
type nic struct {
	name string
	addr netip.Addr
}

func interfaces() ([]nic, error) {
	list, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the machine's addresses: %w", err)
	}
	var there []nic
	for _, i := range list {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				there = append(there, nic{i.Name, p.Addr().Unmap()})
			}
		}
	}
	return there, nil
}

func resolveListen(listen string, port uint16, there []nic) (netip.AddrPort, error) {
	host, port, err := SplitHost(listen, port)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen at %q: %w", listen, err)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return oneAddress(listen, netip.AddrPortFrom(addr.Unmap(), port), there)
	}
	wanted := func(n nic) bool { return n.name == host }
	what := "no interface has that name and an address of use"
	if strings.Contains(host, "/") {
		p, err := network(host)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("listen at %q: %w", listen, err)
		}
		wanted = func(n nic) bool {
			return p.Contains(n.addr) && (p.Addr().IsLoopback() || !n.addr.IsLoopback())
		}
		what = "no address of this machine lies within"
	}
	var found netip.Addr
	for _, n := range there {
		if !wanted(n) || n.addr.IsLinkLocalUnicast() {
			continue
		}
		if !found.IsValid() || found.Is6() && n.addr.Is4() {
			found = n.addr
		}
	}
	if !found.IsValid() {
		return netip.AddrPort{}, fmt.Errorf("listen at %q: %s; there are %s", listen, what, listed(there))
	}
	return netip.AddrPortFrom(found, port), nil
}

// network parses a CIDR.
func network(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return p, fmt.Errorf("%s is no CIDR such as 10.0.0.0/8", text)
	case p.Bits() == 0: // a wildcard by another name
		return p, fmt.Errorf("%s is every address, and the others must be told one address: name the network that they are on, such as 10.0.0.0/8", text)
	}
	return p.Masked(), nil
}

func oneAddress(listen string, at netip.AddrPort, there []nic) (netip.AddrPort, error) {
	if at.Addr().IsUnspecified() {
		return netip.AddrPort{}, fmt.Errorf("listen at %q: the others must be told one address; name it, its interface or a CIDR; there are %s", listen, listed(there))
	}
	if at.Addr().IsLoopback() {
		return at, nil // all of 127.0.0.0/8 is there, though one address is listed
	}
	for _, n := range there {
		if n.addr == at.Addr() {
			return at, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("listen at %q: this machine has no such address; there are %s", listen, listed(there))
}

// listed are the addresses, for the reader of an error, at most a screenful.
func listed(there []nic) string {
	const most = 32
	var names []string
	for i, n := range there {
		if i == most {
			names = append(names, fmt.Sprintf("and %d more", len(there)-most))
			break
		}
		names = append(names, fmt.Sprintf("%s (%v)", n.name, n.addr))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
