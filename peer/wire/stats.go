package wire

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
)

// Stats are the figures of a Peer, or of a Server over all its askers. Each item of a
// request counts.
type Stats struct {
	// Connections are open, and items InFlight unanswered, now.
	Connections, InFlight int64
	// Queued is how many bytes of payloads wait to be written now.
	Queued int64
	// Requests are items asked for. The next seven say how they ended. An item of a Peer
	// that failed for want of a connection or of memory is in none of them.
	Requests int64
	// Answers have data, or answer a Fill without payload, or a Call.
	Answers int64
	Misses  int64
	Refused int64
	Stale   int64
	// Errors are answers that say what went wrong.
	Errors int64
	// Cancelled requests were confirmed by the side that answers.
	Cancelled int64
	// Mismatches are answers with a wrong checksum. A Server never sees any.
	Mismatches int64
	// Fillings were sent, or received.
	Fillings int64
	// Sent and Received are bytes, with everything that the protocol adds except the
	// hellos.
	Sent, Received int64
	// Broken connections ended by an error: lost, or the protocol violated.
	Broken int64
	// Silences is how often a Peer was silent.
	Silences int64
}

// Outage says since when, and why, a peer has answered nothing.
type Outage struct {
	// Since is when it first failed, Last when it last did.
	Since, Last time.Time
	Cause       error
}

// Outage returns the outage of a peer whose last request failed. It returns false if that
// request did not fail, or if there was none.
func (p *Peer) Outage() (Outage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.outage
	answers := slices.ContainsFunc(p.conns, func(c *conn) bool { return c.answered.Load() }) // then one more failed
	return Outage{Since: o.since, Last: o.last, Cause: o.err}, o.fails > 0 && !answers
}

// counters are the figures behind Stats.
type counters struct {
	connections, inFlight, queued, requests      atomic.Int64
	answers                                      [kinds]atomic.Int64
	mismatches, sent, received, broken, silences atomic.Int64
}

func (c *counters) stats() Stats {
	n := func(k kind) int64 { return c.answers[k].Load() }
	return Stats{
		Connections: c.connections.Load(), InFlight: c.inFlight.Load(), Queued: c.queued.Load(),
		Requests: c.requests.Load(), Answers: n(kindData), Misses: n(kindMiss), Refused: n(kindRefused),
		Stale: n(kindStale), Errors: n(kindError), Cancelled: n(kindCancelled), Fillings: n(kindFilling),
		Mismatches: c.mismatches.Load(), Sent: c.sent.Load(), Received: c.received.Load(),
		Broken: c.broken.Load(), Silences: c.silences.Load(),
	}
}

// kindOf is the answer as which an error travels.
func kindOf(err error) kind {
	switch {
	case err == nil:
		return kindData
	case errors.Is(err, hearth.ErrMiss):
		return kindMiss
	case errors.Is(err, hearth.ErrStale):
		return kindStale
	case errors.Is(err, hearth.ErrRefused):
		return kindRefused
	case errors.Is(err, errCancelled):
		return kindCancelled
	}
	return kindError
}
