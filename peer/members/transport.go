package members

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// maxInbound connections are answered at a time; whoever finds no room tries again.
	maxInbound = 32
	// maxState is how many bytes are read from one connection: the state of some 6,000
	// nodes. Times maxInbound it bounds what strangers can make a node hold.
	maxState = 4 << 20
	// bindTries: a port that is free for TCP may be taken for UDP, where any would do.
	bindTries = 10
)

// transport is memberlist's own with bounds: connections end when the node closes, in
// number and in bytes.
type transport struct {
	*memberlist.NetTransport
	ctx     context.Context
	cancel  context.CancelFunc
	local   netip.Addr
	reach   func(netip.AddrPort) bool
	streams chan net.Conn
	slots   chan struct{}
	stopped chan struct{} // closed once nothing comes from NetTransport any more
	done    chan struct{} // closed when admit has ended
	once    sync.Once
}

func listen(at netip.AddrPort, reach func(netip.AddrPort) bool, cfg memberlist.NetTransportConfig) (*transport, error) {
	cfg.BindAddrs, cfg.BindPort = []string{at.Addr().String()}, int(at.Port())
	var inner *memberlist.NetTransport
	var err error
	for range bindTries {
		if inner, err = memberlist.NewNetTransport(&cfg); err == nil || at.Port() != 0 {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("gossip at %v: %w: %w", at, ErrPort, err)
	}
	t := &transport{NetTransport: inner, local: at.Addr(), reach: reach, streams: make(chan net.Conn),
		slots: make(chan struct{}, maxInbound), stopped: make(chan struct{}), done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.admit()
	return t, nil
}

// admit hands connections on while there is room.
func (t *transport) admit() {
	defer close(t.done)
	for {
		select {
		case c := <-t.NetTransport.StreamCh():
			select {
			case t.slots <- struct{}{}:
			default:
				c.Close()
				continue
			}
			b := t.bound(c, func() { <-t.slots })
			select {
			case t.streams <- b:
			case <-t.ctx.Done():
				b.Close()
			}
		case <-t.stopped:
			return
		}
	}
}

// StreamCh is memberlist's.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout is memberlist's.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout is memberlist's. It comes from the address that the others know.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if !t.reaches(a.Addr) {
		return nil, fmt.Errorf("dial %s: %w", a.Addr, context.DeadlineExceeded)
	}
	d := net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{IP: t.local.AsSlice(), Zone: t.local.Zone()}}
	c, err := d.DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	return t.bound(c, func() {}), nil
}

// WriteToAddress is memberlist's.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if !t.reaches(a.Addr) {
		return time.Now(), nil // lost on the way, as packets are
	}
	return t.NetTransport.WriteToAddress(b, a)
}

func (t *transport) reaches(addr string) bool {
	if t.reach == nil {
		return true
	}
	to, err := netip.ParseAddrPort(addr)
	return err == nil && t.reach(to)
}

// Shutdown ends what is under way and waits for the listeners; a second call does nothing.
func (t *transport) Shutdown() error {
	var err error
	t.once.Do(func() {
		t.cancel()
		err = t.NetTransport.Shutdown()
		close(t.stopped)
		<-t.done
	})
	return err
}

// boundConn ends with the transport, and gives up on who sends too much.
type boundConn struct {
	net.Conn
	left  int // bytes; memberlist reads from one goroutine at a time
	close func() error
}

func (t *transport) bound(c net.Conn, release func()) net.Conn {
	stop := context.AfterFunc(t.ctx, func() { c.Close() })
	return &boundConn{Conn: c, left: maxState, close: sync.OnceValue(func() error {
		stop()
		release()
		return c.Close()
	})}
}

// Read fails once more than maxState bytes came.
func (c *boundConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errors.New("too many bytes from one connection")
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// Close may be called more than once.
func (c *boundConn) Close() error { return c.close() }
