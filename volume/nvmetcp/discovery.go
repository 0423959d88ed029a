package nvmetcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
)

const (
	discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery" // (Fabrics, 5)
	recordLen    = 1024                                   // of the log's header, and of each of its records
	maxRecords   = 1024                                   // 1 MiB of log
	transportTCP = 3                                      // TRTYPE
	subsystemNVM = 2                                      // SUBTYPE
	// logReads is how often a log that changes meanwhile is read.
	logReads = 5
)

// Subsystem is a record of a discovery log: a portal of a subsystem.
type Subsystem struct {
	NQN string
	// Portal has the host that was asked and the record's port: a target behind a relay knows its own address only.
	Portal string
	// Advertised is the address in the record.
	Advertised string
}

// Discover asks the discovery controller of the first usable portal for the subsystems that it knows, of TCP. A
// missing port means 8009. Options.SubsystemNQN and what concerns a namespace are not used.
func Discover(ctx context.Context, o Options) ([]Subsystem, error) {
	o.SubsystemNQN = discoveryNQN
	portals := make([]string, len(o.Portals))
	for i, p := range o.Portals {
		var err error
		if portals[i], err = portal(p, portDiscovery); err != nil {
			return nil, err
		}
	}
	o.Portals = portals
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	for _, p := range o.Portals {
		var found []Subsystem
		if found, err = discover(ctx, &o, p); err == nil {
			return found, nil
		}
		err = fmt.Errorf("nvmetcp: discover: %s: %w", p, err)
	}
	return nil, err
}

func discover(ctx context.Context, o *Options, portal string) (found []Subsystem, err error) {
	c := &controller{o: o, portal: portal, gone: make(chan struct{})}
	err = c.within(ctx, func(ctx context.Context) error {
		if _, err := c.enable(ctx); err != nil {
			return err
		}
		records, err := c.readDiscovery()
		host, _, _ := net.SplitHostPort(portal) // it has the form that Options gave it
		for ; len(records) > 0; records = records[recordLen:] {
			if s, ok := parseRecord(records[:recordLen], host); ok {
				found = append(found, s)
			}
		}
		return err
	})
	if err != nil {
		c.close(err)
		return nil, err
	}
	c.shutDown()
	return found, nil
}

// readDiscovery reads the records, again if their generation changed meanwhile.
func (c *controller) readDiscovery() ([]byte, error) {
	head := make([]byte, recordLen)
	for range logReads {
		if err := c.readLog(logDiscovery, head); err != nil {
			return nil, err
		}
		generation, n := binary.LittleEndian.Uint64(head), binary.LittleEndian.Uint64(head[8:])
		if n > maxRecords {
			return nil, protocolError("a discovery log of %d records, and %d is the most", n, maxRecords)
		}
		if n == 0 {
			return nil, nil
		}
		b := make([]byte, (n+1)*recordLen)
		if err := c.readLog(logDiscovery, b); err != nil {
			return nil, err
		}
		if binary.LittleEndian.Uint64(b) == generation && binary.LittleEndian.Uint64(b[8:]) == n {
			return b[recordLen:], nil
		}
	}
	return nil, fmt.Errorf("%w: the discovery log changed %d times while it was read", ErrPath, logReads)
}

// parseRecord reads a Discovery Log Page Entry (Fabrics, 5.1). It reports whether it is a subsystem over TCP.
func parseRecord(b []byte, host string) (Subsystem, bool) {
	port, address := text(b[32:64]), text(b[512:768])
	s := Subsystem{NQN: text(b[256:512]), Portal: net.JoinHostPort(host, port),
		Advertised: net.JoinHostPort(address, port)}
	return s, b[0] == transportTCP && b[2] == subsystemNVM && s.NQN != "" && port != ""
}

// text ends with the first zero, or in spaces.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return strings.TrimRight(s, " ")
}
