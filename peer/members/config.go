package members

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// DefaultPort is where nodes gossip, by TCP and UDP, if no other port is given.
	DefaultPort = 7946
	// DefaultCluster is the cluster's name if none is given.
	DefaultCluster = "hearth"
	// KeySize is the length of a gossip key, in bytes.
	KeySize = 32
	// maxSeeds is many more than a ring needs: a seed that answers knows the other nodes.
	maxSeeds = 64
	// maxDonated is the most that the metadata can say: 2^32 steps of 64 MiB, less one.
	maxDonated = (1<<32 - 1) * donatedStep
)

// ID is a node's identity: 16 random bytes that live in its cache directory.
type ID [16]byte

// String is the id in hexadecimal digits, which is also the node's name in memberlist.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Protocol says what a node speaks with its peers. Two nodes understand each other if
// each speaks at least the oldest version that the other understands.
type Protocol struct {
	// Speaks is the newest version that the node understands. 0 is invalid.
	Speaks uint8
	// Oldest is the oldest version that the node understands. 0 means Speaks.
	Oldest uint8
}

func (p Protocol) understands(o Protocol) bool { return p.Speaks >= o.Oldest && o.Speaks >= p.Oldest }

// String is the version, or the range of them.
func (p Protocol) String() string {
	if p.Oldest == p.Speaks {
		return strconv.Itoa(int(p.Speaks))
	}
	return fmt.Sprintf("%d-%d", p.Oldest, p.Speaks)
}

// Config is what a node says of itself, and how it finds the others.
type Config struct {
	// ID must not be all zeros.
	ID ID
	// Name is for people, and unique in a cluster. "" means the host name.
	Name string
	// Cluster is the name that all nodes of a ring share. "" means DefaultCluster.
	Cluster string
	// Listen is where to gossip: an address, an interface's name or a CIDR, with :port or
	// DefaultPort. See ResolveListen.
	Listen string
	// Data is where this node answers its peers' reads: an address that they reach.
	Data netip.AddrPort
	// Zone is where the node stands, such as a rack. "" means nowhere in particular.
	Zone string
	// Donated is how many bytes the node gives to the cache. The others get it rounded
	// down by the function Donated.
	Donated int64
	// Protocol is what the node speaks with peers.
	Protocol Protocol
	// Seeds are hosts, host:port or addresses of nodes that are in the ring already.
	// Names are resolved again at each attempt, and may have many addresses. There may be
	// 64. Without seeds the node waits for others.
	Seeds []string
	// Key is the gossip key, 32 bytes that all nodes of the ring share. nil means that
	// anybody may join, which is allowed only at a loopback address.
	Key []byte
	// Dir is the directory for the last known members. "" means that they are not kept.
	Dir string
	// Log receives what people can act on. nil means slog.Default(). At level debug it
	// also receives all that memberlist says.
	Log *slog.Logger
	// Resolve returns a seed's addresses. nil means the system's resolver.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Timing is for tests. The zero value is right.
	Timing Timing

	reach func(netip.AddrPort) bool // for tests: whom this node's packets reach; nil means everybody
	meets func()                    // for tests: called when a joining node has been told all and is not known here yet
}

// Timing is how often things happen and how long they take. A zero field has the default
// that stands beside it in brackets.
type Timing struct {
	// Probe is how often one member is probed (1 s). ProbeTimeout is how long its answer
	// may take (500 ms).
	Probe, ProbeTimeout time.Duration
	// Gossip is how often news is sent (200 ms). PushPull is how often the whole state is
	// compared with one other node (30 s).
	Gossip, PushPull time.Duration
	// Suspicion is how many probe intervals a suspect has to deny it (4). It is
	// multiplied by the decimal logarithm of the ring's size, if that is more than one.
	Suspicion int
	// Forget is how long memberlist remembers the dead (30 s).
	Forget time.Duration
	// Batch is the least time between two snapshots (250 ms).
	Batch time.Duration
	// Rejoin is how often missing members are sought (30 s). A node that is alone, or not
	// accepted yet, begins with Retry (1 s) and doubles it.
	Rejoin, Retry time.Duration
	// Dial is how long a connection and each of its reads may take (5 s). First is how
	// long Start waits for the first answers (10 s).
	Dial, First time.Duration
	// Save is the least time between two writes of the last known members (5 s).
	Save time.Duration
	// Absent is how long a member may be missing before it is forgotten (24 h).
	Absent time.Duration
}

func (t Timing) filled() Timing {
	for _, f := range []struct {
		value *time.Duration
		usual time.Duration
	}{
		{&t.Probe, time.Second}, {&t.ProbeTimeout, 500 * time.Millisecond},
		{&t.Gossip, 200 * time.Millisecond}, {&t.PushPull, 30 * time.Second},
		{&t.Forget, 30 * time.Second}, {&t.Batch, 250 * time.Millisecond},
		{&t.Rejoin, 30 * time.Second}, {&t.Retry, time.Second},
		{&t.Dial, 5 * time.Second}, {&t.First, 10 * time.Second},
		{&t.Save, 5 * time.Second}, {&t.Absent, 24 * time.Hour},
	} {
		if *f.value <= 0 {
			*f.value = f.usual
		}
	}
	if t.Suspicion <= 0 {
		t.Suspicion = 4
	}
	return t
}

// Check reports everything that is wrong with the configuration, without a look at the
// machine or the network. After nil, Start may still find the address missing.
func (c Config) Check() error {
	c, err := c.filled()
	bad := []error{err}
	report := func(format string, args ...any) { bad = append(bad, fmt.Errorf(format, args...)) }
	if c.ID == (ID{}) {
		report("the node id is empty: 16 random bytes of the cache directory are needed")
	}
	for _, s := range []struct{ what, text string }{{"the node's name", c.Name}, {"the cluster's name", c.Cluster}, {"the zone", c.Zone}} {
		if !printable(s.text) {
			report("%s, %q, has characters that cannot be shown: use letters, digits, - and .", s.what, s.text)
		}
		if len(s.text) > maxText {
			report("%s has %d bytes, at most %d are possible: %.40q...", s.what, len(s.text), maxText, s.text)
		}
	}
	if c.Protocol.Speaks == 0 || c.Protocol.Oldest > c.Protocol.Speaks {
		report("protocol versions %d to %d: the newest must not be 0 or below the oldest", c.Protocol.Oldest, c.Protocol.Speaks)
	}
	if a := c.Data.Addr(); !c.Data.IsValid() || c.Data.Port() == 0 || a.IsUnspecified() || a.Zone() != "" {
		report("data address %v: give one that peers can reach, with its port, such as 10.0.0.7:7947", c.Data)
	}
	if c.Donated < 0 || c.Donated > maxDonated {
		report("%d donated bytes: 0 to %d are possible", c.Donated, int64(maxDonated))
	}
	if n := len(c.meta(Joining).encode()); n > maxMeta {
		report("the names of node, zone and cluster are %d bytes too long together (%q, %q, %q): gossip carries %d bytes of a node", n-maxMeta, c.Name, c.Zone, c.Cluster, maxMeta)
	}
	for _, s := range c.Seeds {
		host, port, err := SplitHost(s, DefaultPort)
		switch {
		case err == nil && strings.Contains(host, "/"):
			err = errors.New("expected host or host:port, not a network")
		case err == nil && port == 0:
			err = errors.New("nobody listens at port 0: name the port at which that node gossips, or none for 7946")
		}
		if err != nil {
			report("seed %q: %w", s, err)
		}
	}
	if len(c.Seeds) > maxSeeds {
		report("%d seeds: %d at most; one name may have many addresses", len(c.Seeds), maxSeeds)
	}
	if len(c.Key) != 0 && len(c.Key) != KeySize {
		report("the gossip key has %d bytes, not %d", len(c.Key), KeySize)
	}
	bad = append(bad, c.checkListen())
	return errors.Join(bad...)
}

// checkListen reports what is wrong with the address to gossip at.
func (c Config) checkListen() error {
	host, _, err := SplitHost(c.Listen, DefaultPort)
	if err == nil && strings.Contains(host, "/") {
		_, err = network(host)
	}
	if err != nil {
		return fmt.Errorf("listen at %q: %w", c.Listen, err)
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err != nil:
		return nil // the name of an interface, or a network
	case a.IsUnspecified():
		return fmt.Errorf("listen at %q: the others must be told one address; name it, its interface or a CIDR", c.Listen)
	}
	return c.mayListen(a)
}

// mayListen makes sure that nobody can join from outside without the key.
func (c Config) mayListen(a netip.Addr) error {
	if len(c.Key) != 0 || a.IsLoopback() {
		return nil
	}
	return fmt.Errorf("listen at %v without a cluster key: anybody who reaches it could join. Give all nodes the same cluster key (hearth ring key > FILE, cluster.key_file: FILE), or listen at 127.0.0.1", a)
}

func (c Config) filled() (Config, error) {
	var err error
	if c.Name == "" {
		if c.Name, err = os.Hostname(); err != nil {
			err = fmt.Errorf("no name was given, and the host has none: %w", err)
		}
	}
	if c.Cluster == "" {
		c.Cluster = DefaultCluster
	}
	if c.Protocol.Oldest == 0 {
		c.Protocol.Oldest = c.Protocol.Speaks
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	c.Timing = c.Timing.filled()
	return c, err
}

func (c Config) meta(s State) meta {
	return meta{State: s, Protocol: c.Protocol, Donated: c.Donated, Data: c.Data, Name: c.Name, Zone: c.Zone, Cluster: c.Cluster}
}

// printable reports whether a terminal shows the text as it is.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) }) < 0
}

// SplitHost takes host, host:port, [v6]:port, or an IPv6 address or a CIDR alone. port is
// the default port.
func SplitHost(s string, port uint16) (string, uint16, error) {
	bare := strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	if a, err := netip.ParseAddr(bare); err == nil {
		return a.String(), port, nil
	}
	host := s
	if strings.Contains(s, ":") {
		if p, err := netip.ParsePrefix(bare); err == nil {
			return p.String(), port, nil
		}
		h, text, err := net.SplitHostPort(s)
		if err != nil {
			return "", 0, errors.New("expected host or host:port; an IPv6 address with a port reads [::1]:7946")
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return "", 0, fmt.Errorf("port %q is no number from 0 to 65535", text)
		}
		host, port = h, uint16(n)
	}
	if host == "" || strings.ContainsAny(host, " \t\r\n") {
		return "", 0, errors.New("expected host or host:port")
	}
	return host, port, nil
}
