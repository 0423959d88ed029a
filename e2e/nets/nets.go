// Package nets makes machines for a test out of network namespaces: hosts with an address
// and a link each, around one router.
//
// Every host has a network of its own, 10.77.N.0/24, and reaches the others through the
// router, which is a namespace, too. A cut is a rule of the router by which packets between
// some hosts are dropped and nobody is told, as a broken switch does; it holds for
// connections that stand. A link's rate is that of a token bucket at both of its ends.
//
// No namespace has a name, and no device lies in the machine's own: all of them live by the
// descriptors and the processes of the test, so nothing is left of them however it ends.
// It takes root or a user namespace, the programs ip and tc (iproute2) and nsenter
// (util-linux), and a kernel with veth, policy routing and, for rates, sch_tbf.
package nets

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// most hosts have a network of their own each.
const most = 250

// Net is a router and the hosts around it. Its methods, and those of its hosts, are for one
// goroutine at a time, but for Do, Wrap and Traffic.
type Net struct {
	router *namespace
	hosts  []*Host
	rules  []string // of cuts that hold
}

// Host is a machine with one link, eth0, and a loop-back of its own.
type Host struct {
	*namespace
	net    *Net
	number int
	addr   netip.Addr
}

// New makes a router that has no hosts yet. Close it. The error says what is missing.
func New() (*Net, error) {
	for _, program := range []string{"ip", "tc", "nsenter"} {
		if _, err := find(program); err != nil {
			return nil, fmt.Errorf("make a network: %w (Debian's packages iproute2 and util-linux have ip, tc and nsenter)", err)
		}
	}
	router, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace (it takes root): %w", err)
	}
	err = router.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) })
	if err != nil {
		router.close()
		return nil, fmt.Errorf("make a router: %w", err)
	}
	return &Net{router: router}, nil
}

// Close gives the namespaces back. Those in which processes run, or sockets are open, end
// with them.
func (n *Net) Close() {
	for _, h := range n.hosts {
		h.close()
	}
	n.router.close()
}

// Host makes one more host, at most 250; mbit is the rate of its link in each direction in
// Mbit/s; 0: as fast as the machine.
func (n *Net) Host(mbit int) (*Host, error) {
	if len(n.hosts) == most {
		return nil, fmt.Errorf("make a host: there are %d, and no more addresses", most)
	}
	space, err := newNamespace()
	if err != nil {
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	h := &Host{namespace: space, net: n, number: len(n.hosts) + 1}
	n.hosts = append(n.hosts, h)
	h.addr = h.at(1)
	if err := h.link(mbit); err != nil {
		return nil, fmt.Errorf("link host %d: %w", h.number, err)
	}
	return h, nil
}

// at is an address of the host's network.
func (h *Host) at(last byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, byte(h.number), last})
}

// network is the one that the host has for itself.
func (h *Host) network() string { return netip.PrefixFrom(h.at(0), 24).String() }

// port is the router's end of the host's link.
func (h *Host) port() string { return fmt.Sprintf("port%d", h.number) }

// link makes the cable and plugs it in at both ends.
func (h *Host) link(mbit int) error {
	gateway := h.at(254)
	err := h.net.router.ip(
		fmt.Sprintf("link add %s type veth peer name eth0 netns %s", h.port(), h.path()),
		fmt.Sprintf("addr add %v/24 dev %s", gateway, h.port()),
		fmt.Sprintf("link set %s up", h.port()))
	if err != nil {
		return err
	}
	// What the kernel was built with may be BBR, of which many connections over one short
	// queue lose so much that all of them stand still for half a second.
	err = h.ip("link set lo up", fmt.Sprintf("addr add %v/24 dev eth0", h.addr), "link set eth0 up",
		fmt.Sprintf("route add default via %v congctl cubic", gateway))
	if err != nil || mbit == 0 {
		return err
	}
	return h.Limit(mbit)
}

// Limit has the host's link be of another rate from now on, in Mbit/s, 1 or more;
// connections stay.
func (h *Host) Limit(mbit int) error {
	// 5 ms at the rate are more than a timer's slack, and a queue of 50 ms is a small switch's.
	bucket := []string{"root", "tbf", "rate", fmt.Sprintf("%dmbit", mbit), "burst", fmt.Sprint(max(64<<10, mbit*1e6/8/200)), "latency", "50ms"}
	shape := func(n *namespace, device string) error {
		return n.run("", "tc", slices.Concat([]string{"qdisc", "replace", "dev", device}, bucket)...)
	}
	return errors.Join(shape(h.namespace, "eth0"), shape(h.net.router, h.port()))
}

// Addr is the host's address.
func (h *Host) Addr() netip.Addr { return h.addr }

// Move gives the host another address of its network in place of the one that it has.
// Connections by the old one are lost, and nobody is told.
func (h *Host) Move() error {
	old := h.addr
	h.addr = h.at(h.addr.As4()[3] + 1)
	err := h.ip(fmt.Sprintf("addr del %v/24 dev eth0", old), // and every route that stands on it
		fmt.Sprintf("addr add %v/24 dev eth0", h.addr), fmt.Sprintf("route add default via %v congctl cubic", h.at(254)))
	if err != nil {
		return fmt.Errorf("move host %d: %w", h.number, err)
	}
	return nil
}

// Cut drops what is sent between the hosts of one side and those of the other, until Heal.
func (n *Net) Cut(one, other []*Host) error {
	var add []string
	for _, a := range one {
		for _, b := range other {
			for _, way := range [][2]*Host{{a, b}, {b, a}} {
				rule := fmt.Sprintf("from %s to %s blackhole", way[0].network(), way[1].network())
				add, n.rules = append(add, "rule add "+rule), append(n.rules, rule)
			}
		}
	}
	if err := n.router.ip(add...); err != nil {
		return fmt.Errorf("cut: %w", err)
	}
	return nil
}

// Heal ends all cuts.
func (n *Net) Heal() error {
	var del []string
	for _, rule := range n.rules {
		del = append(del, "rule del "+rule)
	}
	n.rules = nil
	if err := n.router.ip(del...); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	return nil
}

// Traffic is what passed the host's link since it was made, in bytes, its headers included.
func (h *Host) Traffic() (sent, received int64, err error) {
	err = h.Do(func() error {
		table, err := os.ReadFile("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(table)) {
			var packets, skip int64
			name, figures, _ := strings.Cut(line, ":")
			if strings.TrimSpace(name) == "eth0" {
				_, err := fmt.Sscan(figures, &received, &packets, &skip, &skip, &skip, &skip, &skip, &skip, &sent)
				return err
			}
		}
		return errors.New("no link")
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read the traffic of host %d: %w", h.number, err)
	}
	return sent, received, nil
}

// namespace is held by a descriptor.
type namespace struct{ fd int }

func newNamespace() (*namespace, error) {
	n := &namespace{}
	return n, apart(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		return err
	})
}

func (n *namespace) close() { _ = unix.Close(n.fd) }

// path names the namespace for programs, while this process lives.
func (n *namespace) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd) }

// Wrap is the beginning of a command that runs there; what stands behind it takes the
// process over, so signals, standard files and its end are those of the program.
func (n *namespace) Wrap() []string { return []string{"nsenter", "--net=" + n.path(), "--"} }

// Do runs do there. Sockets that it makes stay there; goroutines and processes that it
// starts do not belong there, and it must not start any that outlive it.
func (n *namespace) Do(do func() error) error {
	return apart(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return do()
	})
}

// apart runs do on a thread that ends with it: no other goroutine meets what do made of it.
func apart(do func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			ended <- do()
			return // locked, so the thread ends
		}
		// The first thread cannot end, and is what /proc shows of the process.
		err := apart(do)
		runtime.UnlockOSThread()
		ended <- err
	}()
	return <-ended
}

// ip runs lines of ip there, up to the first that fails.
func (n *namespace) ip(lines ...string) error {
	return n.run(strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

// run runs a program there to its end.
func (n *namespace) run(input, program string, args ...string) error {
	path, err := find(program)
	if err != nil {
		return err
	}
	return n.Do(func() error { // a process begins where the thread is that starts it
		cmd := exec.Command(path, args...)
		cmd.Stdin = strings.NewReader(input)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s%s", program, strings.Join(args, " "), err, out, input)
		}
		return nil
	})
}

// find finds a program also where only root's PATH leads.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		if beside, found := exec.LookPath("/usr/sbin/" + program); found == nil {
			return beside, nil
		}
	}
	return path, err
}
