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

	"github.com/hearthfs/hearth/internal/admit"
)

const (
	// maxInbound connections may wait for their message at a time. A member's message
	// takes a round trip. The more places there are, the longer it has while strangers
	// come.
	maxInbound = 256
	// maxState is how many bytes are read from one connection: the state of some 6,000
	// nodes.
	maxState = 4 << 20
	// smallState is what any of maxInbound connections may send: the state of some 100
	// nodes. Only maxLarge may send more. So strangers can make a node hold 16 MiB and
	// 128 MiB, and twice that while memberlist's buffers grow.
	smallState = 64 << 10
	maxLarge   = 32
	// bindTries is for any port: one that is free for TCP may be taken for UDP.
	bindTries = 10
)

// transport is memberlist's own, bounded in connections and in bytes. Connections end
// when the node closes.
type transport struct {
	*memberlist.NetTransport
	ctx     context.Context
	cancel  context.CancelFunc
	address netip.AddrPort
	reach   func(netip.AddrPort) bool
	streams chan net.Conn
	unheard *admit.Table  // places of connections that have not sent anything that is understood
	large   *admit.Table  // places of those that sent much
	stopped chan struct{} // closed once nothing more comes from NetTransport
	done    chan struct{} // closed when accept has ended
	once    sync.Once
}

// listen keeps the places of strangers apart from those of known addresses.
func listen(at netip.AddrPort, reach func(netip.AddrPort) bool, known func(netip.Addr) bool, cfg memberlist.NetTransportConfig) (*transport, error) {
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
	t := &transport{NetTransport: inner, address: netip.AddrPortFrom(at.Addr(), uint16(inner.GetAutoBindPort())), reach: reach, streams: make(chan net.Conn),
		unheard: admit.New(maxInbound, known), large: admit.New(maxLarge, known), stopped: make(chan struct{}), done: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	go t.accept()
	return t, nil
}

// accept hands connections on.
func (t *transport) accept() {
	defer close(t.done)
	for {
		select {
		case c := <-t.NetTransport.StreamCh():
			g := t.guest(c)
			select {
			case t.streams <- g:
			case <-t.ctx.Done():
				_ = g.Close()
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

// DialAddressTimeout is memberlist's. It dials from the address that the other nodes
// know.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if !t.reaches(a.Addr) {
		return nil, fmt.Errorf("dial %s: %w", a.Addr, context.DeadlineExceeded)
	}
	d := net.Dialer{Timeout: timeout, LocalAddr: &net.TCPAddr{IP: t.address.Addr().AsSlice(), Zone: t.address.Addr().Zone()}}
	c, err := d.DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	return t.bound(c), nil
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

// Shutdown ends what is in flight and waits for the listeners. A second call does
// nothing.
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

// boundConn ends with the transport, and fails once the other side has sent too much.
type boundConn struct {
	net.Conn
	left  int // bytes; memberlist reads from one goroutine at a time
	close func() error
}

func (t *transport) bound(c net.Conn) *boundConn {
	stop := context.AfterFunc(t.ctx, func() { c.Close() })
	return &boundConn{Conn: c, left: maxState, close: sync.OnceValue(func() error {
		stop()
		return c.Close()
	})}
}

// Read fails once more than maxState bytes have come.
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

// guest is an accepted connection. It holds a place until this node writes: by then
// memberlist has understood the message, or it says what is wrong and closes the
// connection.
type guest struct {
	*boundConn
	of         *transport
	unheard    *admit.Place
	large      *admit.Place // nil means that it has not sent much
	understood bool
}

func (t *transport) guest(c net.Conn) *guest {
	return &guest{boundConn: t.bound(c), of: t, unheard: t.unheard.Begin(c)}
}

// Read takes one of the fewer places once much was sent. That may end another connection.
func (g *guest) Read(p []byte) (int, error) {
	n, err := g.boundConn.Read(p)
	if !g.understood && g.large == nil && maxState-g.left > smallState {
		g.large = g.of.large.Begin(g.boundConn.Conn)
	}
	return n, err
}

// Write comes after memberlist has read the whole message.
func (g *guest) Write(p []byte) (int, error) {
	g.leave()
	return g.boundConn.Write(p)
}

// Close may be called more than once.
func (g *guest) Close() error {
	g.leave()
	return g.boundConn.Close()
}

func (g *guest) leave() {
	g.understood = true
	g.unheard.Done()
	if g.large != nil {
		g.large.Done()
	}
}
