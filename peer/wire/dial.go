package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// dialLocked dials on a goroutine, and has the peer watched.
func (p *Peer) dialLocked() {
	p.dialing = true
	p.work.Go(func() {
		c, err := p.dial()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.dialing = false
		switch {
		case err != nil:
			p.failedLocked(p.fault(fmt.Errorf("%w: %w", ErrDown, err)))
		case p.closed:
			c.close()
		default:
			p.conns = append(slices.Clip(p.conns), c)
			p.counters.connections.Add(1)
			p.work.Go(c.write)
			p.work.Go(c.read)
		}
		p.signalLocked()
	})
	if !p.watched.runs {
		p.watched = watched{runs: true}
		p.work.Go(p.watch)
	}
}

func (p *Peer) dial() (c *conn, err error) {
	ctx, cancel := context.WithTimeoutCause(p.ctx, p.o.Silence, ErrSilent)
	defer cancel()
	if !p.o.Pool.Reserve(connBytes) {
		return nil, errors.New("no memory for a connection: donate more RAM")
	}
	c, err = p.open(ctx)
	if err == nil {
		return c, nil
	}
	p.o.Pool.Unreserve(connBytes)
	if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return nil, err
}

func (p *Peer) open(ctx context.Context) (*conn, error) {
	raw, err := p.o.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	deadline, _ := ctx.Deadline()
	mine := newHello()
	theirs, err := exchange(raw, true, mine, time.Until(deadline))
	if !stop() && err == nil {
		err = context.Cause(ctx) // raw is closed, or about to be
	}
	if err != nil {
		raw.Close()
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			err = fmt.Errorf("%w: %w", ErrSilent, err)
		}
		return nil, err
	}
	p.hear()
	return newConn(p, raw, mine, theirs), nil
}

// failedLocked begins a pause before the next dial, or continues one that has begun.
func (p *Peer) failedLocked(err error) {
	now := time.Now()
	p.outage.err, p.outage.last = err, now
	if p.outage.since.IsZero() {
		p.outage.since = now
	}
	if now.Before(p.outage.until) {
		return
	}
	pause := pauseMost
	if p.outage.fails < 6 { // 100 ms doubled six times is more than pauseMost
		pause = pauseFirst << p.outage.fails
	}
	p.outage.fails++
	p.outage.until = now.Add(pause)
}

// recovered ends an outage, since an answer has come.
func (p *Peer) recovered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outage = outage{}
}

// lost takes a connection out. A connection that brought no answer counts as a failure.
// Otherwise a peer that accepts connections and ends them would be dialled for each
// request.
func (p *Peer) lost(c *conn, err error) {
	p.o.Pool.Unreserve(connBytes)
	good := errors.Is(err, errIdle) || errors.Is(err, ErrClosed)
	if !good {
		p.counters.broken.Add(1)
	}
	p.counters.connections.Add(-1) // last: whoever sees no connection also sees all that it counted
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = slices.DeleteFunc(slices.Clone(p.conns), func(x *conn) bool { return x == c })
	if !good && !c.answered.Load() {
		p.failedLocked(err)
	}
	p.signalLocked()
}

// hear notes that a byte came.
func (p *Peer) hear() { p.heard.Store(int64(time.Since(p.begun))) }

// watch gives the peer up when it is silent while it owes something, and closes
// connections that nobody uses. Then it ends, until the next dial.
func (p *Peer) watch() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait, owes := p.due()
		if wait <= 0 {
			p.silent()
			continue
		}
		timer.Reset(wait)
		due := time.Now().Add(wait)
		select {
		case <-p.kick:
			continue
		case <-p.ctx.Done():
			return
		case <-timer.C:
		}
		if !owes {
			if p.rest() {
				return
			}
			continue
		}
		if time.Since(due) > p.o.Silence/5 {
			p.forgive() // this process stood still, so all peers look silent
		}
	}
}

// due is how long the peer may still be silent, or unused.
func (p *Peer) due() (wait time.Duration, owes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.debt.items == 0 {
		p.watched.parked = true
		return idleAfter, false
	}
	p.watched.parked = false
	last := p.begun.Add(time.Duration(p.heard.Load()))
	if p.debt.since.After(last) {
		last = p.debt.since
	}
	return p.o.Silence - time.Since(last), true
}

func (p *Peer) forgive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.debt.since = time.Now()
}

// silent fails everything that waits, with one error.
func (p *Peer) silent() {
	p.counters.silences.Add(1)
	err := p.fault(fmt.Errorf("%w: no byte for %v", ErrSilent, p.o.Silence))
	p.mu.Lock()
	conns := p.conns
	p.debt.since = time.Now() // for callers that have not left yet
	p.failedLocked(err)
	p.signalLocked()
	p.mu.Unlock()
	for _, c := range conns {
		_ = c.fail(err) // fail tells the calls
	}
}

// rest closes connections that nobody has used for long. It reports whether the watch is
// over.
func (p *Peer) rest() bool {
	p.mu.Lock()
	if p.debt.items > 0 || !p.watched.parked {
		p.mu.Unlock()
		return false
	}
	conns := p.conns
	p.watched = watched{runs: p.dialing}
	over := !p.watched.runs
	if over {
		p.conns = nil
	}
	p.mu.Unlock()
	if over {
		for _, c := range conns {
			_ = c.fail(errIdle) // fail tells the calls, if any began just now
		}
	}
	return over
}
