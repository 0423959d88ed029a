package nvmetcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode"
)

const (
	defaultDepth     = 64              // a queue of nvmet has up to 128 entries, and one of ours is left free
	maxDepth         = 1 << slotBits   // slots that a command identifier can name
	maxQueues        = 64              // connections to one target; more only cost memory
	defaultKeepAlive = 5 * time.Second // Linux has the same
	defaultTimeout   = 5 * time.Second
	defaultPatience  = 10 * time.Second
	maxNQN           = 223 // bytes (Base, 4.5)
	portNVMe         = "4420"
	portDiscovery    = "8009"
)

// Options says which namespace to open, and how. Portals and SubsystemNQN are needed; every other field may be zero.
type Options struct {
	// Portals are the addresses of the subsystem, as host:port. A missing port means 4420. With several, each is
	// tried in turn, and the one with the best path to the namespace is used.
	Portals []string
	// SubsystemNQN names the subsystem.
	SubsystemNQN string
	// HostNQN names this host, for targets that let in known hosts only. "" is made of HostID.
	HostNQN string
	// HostID identifies this host. Zero means a random one for each Open.
	HostID [16]byte
	// NSID is the namespace's number. 0 means 1.
	NSID uint32
	// Queues is the number of I/O queues, each a connection; the target may grant fewer. 0 means the number of
	// processors, at most 4. At most 64.
	Queues int
	// Depth is the number of commands in flight on each queue; the target may allow fewer. 0 means 64. At most 1024.
	Depth int
	// HeaderDigest and DataDigest ask for CRC32C on PDU headers and on data. A target that cannot do so is refused.
	HeaderDigest, DataDigest bool
	// FlowControl leaves submission queue flow control on. It is asked off by default, which saves the target a
	// response for each read; the fixed number of slots bounds the queue anyway.
	FlowControl bool
	// KeepAlive is the time without a sign of life after which the target gives up a controller. Keep-alives are
	// sent twice as often. 0 means 5 s. At least 1 s, which is as fine as targets count.
	KeepAlive time.Duration
	// Timeout bounds one command, and one connection up to its ICResp. A command without an answer ends the
	// controller. 0 means 5 s.
	Timeout time.Duration
	// Patience is how long commands wait for a new connection before they fail. 0 means 10 s.
	Patience time.Duration
	// Secret is the host's key for DH-HMAC-CHAP with SHA-256, as "DHHC-1:00:...:" or "DHHC-1:01:...:". "" means that
	// a target that wants authentication refuses us. The target does not authenticate itself to us.
	Secret string
	// Events are called when the state changes. The zero value means that nobody wants to know.
	Events Events
	// Dial connects to a portal. nil means a plain TCP connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Events has a function for each change of a Namespace. Any may be nil. They are called by goroutines of the
// Namespace, perhaps two at once, and must not call it.
type Events struct {
	// Lost is called when a controller ended, with its cause.
	Lost func(cause error)
	// Connected is called with the portal of each new controller.
	Connected func(portal string)
	// Changed is called when the target announced another size or write protection.
	Changed func(size int64, readOnly bool)
}

// withDefaults returns the options with each zero field set, or says which field is wrong and how it should be.
func (o Options) withDefaults() (Options, error) {
	if len(o.Portals) == 0 {
		return o, errors.New("nvmetcp: no portal: name the target's address, as host:port")
	}
	portals := make([]string, len(o.Portals))
	for i, p := range o.Portals {
		var err error
		if portals[i], err = portal(p, portNVMe); err != nil {
			return o, err
		}
	}
	o.Portals = portals
	if o.SubsystemNQN == "" {
		return o, errors.New("nvmetcp: no subsystem: name its NQN, as nqn.2014-08.org.example:name")
	}
	if o.HostID == [16]byte{} {
		_, _ = rand.Read(o.HostID[:]) // it never fails (crypto/rand)
		o.HostID[6], o.HostID[8] = o.HostID[6]&0x0f|0x40, o.HostID[8]&0x3f|0x80
	}
	if o.HostNQN == "" {
		o.HostNQN = "nqn.2014-08.org.nvmexpress:uuid:" + uuid(o.HostID)
	}
	for _, nqn := range []string{o.SubsystemNQN, o.HostNQN} {
		blank := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
		if len(nqn) > maxNQN || strings.ContainsFunc(nqn, blank) {
			return o, fmt.Errorf("nvmetcp: %.40q is no NQN: it has at most %d bytes, none of them zero or a blank, "+
				"as nqn.2014-08.org.example:name", nqn, maxNQN)
		}
	}
	if _, err := parseSecret(o.Secret, o.HostNQN); err != nil {
		return o, err
	}
	o.NSID = either(o.NSID, 1)
	o.Queues = either(o.Queues, min(runtime.GOMAXPROCS(0), 4))
	o.Depth = either(o.Depth, defaultDepth)
	o.KeepAlive = either(o.KeepAlive, defaultKeepAlive)
	o.Timeout = either(o.Timeout, defaultTimeout)
	o.Patience = either(o.Patience, defaultPatience)
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	return o, o.check()
}

// Check says which option is wrong and how it should be. Open does so, too.
func (o Options) Check() error {
	_, err := o.withDefaults()
	return err
}

func (o Options) check() error {
	switch {
	case o.NSID == 0xffffffff:
		return errors.New("nvmetcp: namespace 4294967295 means all of them: name one")
	case o.Queues < 1 || o.Queues > maxQueues:
		return fmt.Errorf("nvmetcp: %d queues: 1 to %d are possible", o.Queues, maxQueues)
	case o.Depth < 1 || o.Depth > maxDepth:
		return fmt.Errorf("nvmetcp: depth %d: 1 to %d are possible", o.Depth, maxDepth)
	case o.KeepAlive < time.Second || o.KeepAlive > time.Hour:
		return fmt.Errorf("nvmetcp: keep-alive of %v: 1s to 1h are possible", o.KeepAlive)
	case o.Timeout < 0 || o.Patience < 0:
		return fmt.Errorf("nvmetcp: timeout %v, patience %v: neither can be negative", o.Timeout, o.Patience)
	}
	return nil
}

// portal completes an address. TLS is refused here, with what to use instead.
func portal(p, standard string) (string, error) {
	if scheme, _, found := strings.Cut(p, "://"); found || strings.ContainsAny(p, "?#/ ") {
		if strings.Contains(strings.ToLower(p), "tls") {
			return "", fmt.Errorf("nvmetcp: %s: there is no TLS here: reach the target through a tunnel (WireGuard, "+
				"or stunnel on both sides) and name the tunnel's end as host:port", p)
		}
		return "", fmt.Errorf("nvmetcp: %s: a portal is host:port, without %q", p, scheme+"://")
	}
	host, port, err := net.SplitHostPort(p)
	if err != nil {
		host, port = strings.Trim(p, "[]"), standard
	}
	if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 {
		return "", fmt.Errorf("nvmetcp: %q is no portal: it is host:port, an IPv6 host in brackets", p)
	}
	return net.JoinHostPort(host, port), nil
}

func either[T comparable](value, standard T) T {
	var zero T
	if value == zero {
		return standard
	}
	return value
}

func uuid(b [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
