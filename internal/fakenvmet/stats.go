package fakenvmet

import "sync/atomic"

// Stats count since the target's start.
type Stats struct {
	// IO and Admin count commands by opcode.
	IO, Admin [256]int64
	// BytesRead and BytesWritten are data of Read and Write.
	BytesRead, BytesWritten int64
	// InCapsule counts commands whose data came in the capsule, R2Ts the requests for the others'.
	InCapsule, R2Ts int64
	// Connections counts accepted connections, Controllers admin Connects that succeeded.
	Connections, Controllers int64
	// Queues and IOQueues are open now: connections, and connected I/O queues.
	Queues, IOQueues int64
	// Events counts asynchronous events that were reported, Expired associations without Keep Alive.
	Events, Expired int64
	// HostTermReqs counts H2CTermReqs: hosts that found fault with the target.
	HostTermReqs int64
	// Violations counts what Violations lists, without its bound.
	Violations int64
}

type counts struct {
	io, admin                                  [256]atomic.Int64
	bytesRead, bytesWritten, inCapsule, r2ts   atomic.Int64
	connections, controllers, queues, ioQueues atomic.Int64
	events, expired, hostTerms, violations     atomic.Int64
}

// Stats returns the counts of now.
func (t *Target) Stats() Stats {
	c := &t.counts
	s := Stats{
		BytesRead: c.bytesRead.Load(), BytesWritten: c.bytesWritten.Load(),
		InCapsule: c.inCapsule.Load(), R2Ts: c.r2ts.Load(),
		Connections: c.connections.Load(), Controllers: c.controllers.Load(),
		Queues: c.queues.Load(), IOQueues: c.ioQueues.Load(),
		Events: c.events.Load(), Expired: c.expired.Load(), HostTermReqs: c.hostTerms.Load(),
		Violations: c.violations.Load(),
	}
	for i := range s.IO {
		s.IO[i], s.Admin[i] = c.io[i].Load(), c.admin[i].Load()
	}
	return s
}
