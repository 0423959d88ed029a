package wire

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
)

// Stats are the figures of a Peer, or of a Server over all that ask it. Items of a request
// count one by one.
type Stats struct {
	// Connections that are open, and items that are unanswered, now.
	Connections, InFlight int64
	// Queued are bytes of payloads that wait to be written, now.
	Queued int64
	// Requests are items asked for. The next seven are how they ended; those of a Peer that
	// failed for want of a connection or memory are in none.
	Requests int64
	// Answers have data, or are of a Fill without payload, or of a Call.
	Answers int64
	Misses  int64
	Refused int64
	Stale   int64
	// Errors are answers that say what went wrong.
	Errors int64
	// Cancelled were confirmed by the side that answers.
	Cancelled int64
	// Mismatches are answers whose checksum was wrong; a Server never sees any.
	Mismatches int64
	// Fillings were sent, or received.
	Fillings int64
	// Sent and Received are bytes, all that the protocol adds included, but the hellos.
	Sent, Received int64
	// Broken are connections that ended by an error: lost, or the protocol violated.
	Broken int64
	// Silences are times that a Peer was silent.
	Silences int64
}

// Outage is what a peer fails with that has answered nothing since.
type Outage struct {
	// Since is when it failed first, Last when it did so last.
	Since, Last time.Time
	Cause       error
}

// Outage is that of a peer which failed what it was asked last; false: it did not, or was
// asked nothing.
func (p *Peer) Outage() (Outage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.outage
	answers := slices.ContainsFunc(p.conns, func(c *conn) bool { return c.answered.Load() }) // then what failed was one more
	return Outage{Since: o.since, Last: o.last, Cause: o.err}, o.fails > 0 && !answers
}

// counters are what Stats are made of.
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

// kindOf is the answer that an error travels as.
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
