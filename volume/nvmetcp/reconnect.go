package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The pauses before connections: the first is short, since most ends are restarts; the last loads nobody.
const (
	minPause = 10 * time.Millisecond
	maxPause = 2 * time.Second
	// recheck is how often a better path is looked for, while the one in use is not optimized.
	recheck = 10 * time.Second
)

// errBetter is why commands leave a path that works.
var errBetter = fmt.Errorf("%w: another portal has a better path", ErrPath)

// run keeps a controller connected until ctx is done. It is a goroutine of Open, and alone changes n.current.
func (n *Namespace) run(ctx context.Context, c *controller) {
	var pause time.Duration
	for {
		begun := time.Now()
		better := n.await(ctx, c)
		switch {
		case ctx.Err() != nil:
			c.shutDown()
			return
		case better != nil:
			n.up(better)
			c.close(errBetter)
			c = better
			continue
		}
		c.close(nil) // it ended; its goroutines do now
		n.down(c)
		if time.Since(begun) > maxPause {
			pause = 0 // a controller that lived tells that connecting again is of use
		}
		if c, pause = n.reconnect(ctx, pause); c == nil {
			return
		}
	}
}

// await returns when c ended, ctx is done, or a controller on a better path is connected, which it returns.
func (n *Namespace) await(ctx context.Context, c *controller) *controller {
	ticks := time.NewTicker(recheck)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.gone:
			return nil
		case <-ticks.C:
		}
		if len(n.o.Portals) > 1 && access(c.access.Load()) != optimized {
			if better := n.better(ctx, c); better != nil {
				return better
			}
		}
	}
}

// better connects to another portal, if its path is optimized.
func (n *Namespace) better(ctx context.Context, than *controller) *controller {
	ctx, cancel := context.WithTimeout(ctx, n.o.Timeout)
	defer cancel()
	for i, portal := range n.o.Portals {
		if portal == than.portal {
			continue
		}
		c, err := connect(ctx, &n.o, portal, n.changed)
		switch {
		case err != nil: // the path in use is good enough
		case access(c.access.Load()) == optimized:
			n.first.Store(int64(i))
			return c
		default:
			c.shutDown()
		}
	}
	return nil
}

// reconnect connects until it succeeds or ctx is done, and returns the last pause.
func (n *Namespace) reconnect(ctx context.Context, pause time.Duration) (*controller, time.Duration) {
	impatient := time.AfterFunc(n.o.Patience, func() { n.failed(nil) }) // an attempt may take longer
	defer impatient.Stop()
	for {
		pause = min(max(2*pause, minPause), maxPause)
		select {
		case <-ctx.Done():
			return nil, 0
		case <-time.After(pause/2 + rand.N(pause/2)): // hosts that lost one target come back one by one
		}
		c, err := n.connect(ctx)
		if err == nil {
			n.up(c)
			return c, pause
		}
		n.failed(err)
	}
}

// connect tries the portals in turn, and takes the first whose path is optimized, or else the first that works. The
// next time it begins with the one behind: what was in use ended.
func (n *Namespace) connect(ctx context.Context) (*controller, error) {
	var best *controller
	var failed error
	first := int(n.first.Load())
	for i := range n.o.Portals {
		i = (first + i) % len(n.o.Portals)
		c, err := connect(ctx, &n.o, n.o.Portals[i], n.changed)
		switch {
		case err != nil && failed == nil:
			failed = err
		case err != nil:
			failed = fmt.Errorf("%w; %w", failed, err)
		case best == nil:
			best = c
			n.first.Store(int64(i+1) % int64(len(n.o.Portals)))
		case access(c.access.Load()) == optimized:
			best.shutDown()
			best = c
			n.first.Store(int64(i+1) % int64(len(n.o.Portals)))
		default:
			c.shutDown()
		}
		if best != nil && access(best.access.Load()) == optimized {
			break
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%s: %w", n.o.SubsystemNQN, failed)
	}
	return best, nil
}

// up lets commands run on a new controller.
func (n *Namespace) up(c *controller) {
	n.mu.Lock()
	n.connections++
	c.number = n.connections
	n.current, n.failing, n.cause = c, nil, nil
	n.moved.Broadcast()
	n.mu.Unlock()
	n.volatile.Store(c.info.volatile)
	if n.o.Events.Connected != nil {
		n.o.Events.Connected(c.portal)
	}
}

// down lets commands wait.
func (n *Namespace) down(c *controller) {
	n.mu.Lock()
	n.current, n.cause, n.lost = nil, c.ended(), time.Now()
	n.mu.Unlock()
	if n.o.Events.Lost != nil {
		n.o.Events.Lost(c.ended())
	}
}

// failed notes why there is no connection. Once Patience is over, commands fail at once. A refusal gets no shorter
// time: a target that starts has its subsystems and namespaces one after another. Another namespace in our place does.
func (n *Namespace) failed(cause error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != nil {
		return
	}
	if cause != nil {
		n.cause = cause
	}
	if errors.Is(cause, ErrReplaced) { // it does not come back by itself
		n.failing = fmt.Errorf("no connection: %w", cause)
		n.moved.Broadcast()
		return
	}
	if time.Since(n.lost) < n.o.Patience {
		return
	}
	n.failing = fmt.Errorf("no connection for more than %v: %w", n.o.Patience, n.cause)
	n.moved.Broadcast()
}

// changed takes what a controller says of the namespace, and refuses another one in its place.
func (n *Namespace) changed(now namespaceInfo) error {
	n.mu.Lock()
	was := n.space
	switch {
	case was.blocks == 0: // of Open
	case now.id != was.id:
		n.mu.Unlock()
		return fmt.Errorf("%w: namespace %d was %q and is %q now: %w", ErrNamespace, n.o.NSID,
			was.id, now.id, ErrReplaced)
	case now.blockBits != was.blockBits:
		n.mu.Unlock()
		return fmt.Errorf("%w: namespace %d had blocks of %d bytes and has %d now: %w", ErrNamespace,
			n.o.NSID, 1<<was.blockBits, 1<<now.blockBits, ErrReplaced)
	}
	n.space = now
	n.mu.Unlock()
	if n.o.Events.Changed != nil && was.blocks != 0 && (now.blocks != was.blocks || now.readOnly != was.readOnly) {
		n.o.Events.Changed(now.size(), now.readOnly)
	}
	return nil
}
