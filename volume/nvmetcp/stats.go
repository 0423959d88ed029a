package nvmetcp

import (
	"sync/atomic"
	"time"
)

// Operation counts the calls of one method since Open.
type Operation struct {
	Calls  int64
	Errors int64
	Bytes  int64         // that were moved or discarded
	Time   time.Duration // of all calls together, waits for a connection included
}

// Stats is the state of a Namespace, and what it did since Open.
type Stats struct {
	Portal      string // in use; "" while there is no connection
	Access      string // state of the path (ANA): optimized or non-optimized
	Queues      int    // I/O queues that the target granted
	Depth       int    // commands in flight on each, at most
	InFlight    int    // commands on all of them
	MaxTransfer int    // bytes of one command
	ReadOnly    bool   // the target protects the namespace from writes
	Down        error  // why there is no connection; nil while there is one
	Connections int64  // made since Open; the first is one of them
	Repeated    int64  // commands that another controller was asked again
	Reads       Operation
	Writes      Operation
	Flushes     Operation
	Discards    Operation
}

// Stats may be called at any time.
func (n *Namespace) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Stats{ReadOnly: n.space.readOnly, Down: n.cause, Connections: int64(n.connections), Repeated: n.repeated.Load(),
		Reads: n.reads.get(), Writes: n.writes.get(), Flushes: n.flushes.get(), Discards: n.discards.get()}
	if c := n.current; c != nil && c.ended() == nil {
		s.Portal, s.Access, s.MaxTransfer = c.portal, access(c.access.Load()).String(), c.info.maxTransfer
		s.Queues, s.Depth = len(c.io), len(c.io[0].slots)
		for _, q := range c.io {
			s.InFlight += q.inFlight()
		}
	}
	return s
}

// counter is an Operation that several goroutines count.
type counter struct{ calls, errors, bytes, time atomic.Int64 }

func (c *counter) add(begun time.Time, done *int, err *error) {
	c.calls.Add(1)
	c.bytes.Add(int64(*done))
	c.time.Add(int64(time.Since(begun)))
	if *err != nil {
		c.errors.Add(1)
	}
}

func (c *counter) get() Operation {
	return Operation{Calls: c.calls.Load(), Errors: c.errors.Load(), Bytes: c.bytes.Load(),
		Time: time.Duration(c.time.Load())}
}
