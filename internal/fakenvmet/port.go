package fakenvmet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
)

// ANA is an asymmetric namespace access state (NVMe Base 2.0, section 5.16.1.13).
type ANA byte

// The ANA states.
const (
	Optimized      ANA = 0x01
	NonOptimized   ANA = 0x02
	Inaccessible   ANA = 0x03
	PersistentLoss ANA = 0x04
	Change         ANA = 0x0F
)

// Port is an address at which the target listens, with an ANA state of its own.
type Port struct {
	t       *Target
	id      int
	address *net.TCPAddr
	ana     atomic.Uint32
	changes atomic.Uint64 // of the ANA state: the log page's change count

	keeper   int          // guarded by Target.mu: a bound socket, -1 after close
	listener net.Listener // guarded by Target.mu: nil while off
}

// newPort binds a socket that never listens. It keeps the port's number for On, which would
// otherwise find it taken now and then, by an outgoing connection of another test.
func newPort(t *Target, id int, address string) (*Port, error) {
	a, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("port %d: %w", id, err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("port %d: %w", id, err)
	}
	sa := &syscall.SockaddrInet4{Port: a.Port}
	copy(sa.Addr[:], a.IP.To4())
	err = errors.Join(syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1), syscall.Bind(fd, sa))
	bound, nameErr := syscall.Getsockname(fd)
	if err := errors.Join(err, nameErr); err != nil {
		_ = syscall.Close(fd) // nothing was written to it
		return nil, fmt.Errorf("bind port %d to %s: %w", id, address, err)
	}
	a.Port = bound.(*syscall.SockaddrInet4).Port
	p := &Port{t: t, id: id, address: a, keeper: fd}
	p.ana.Store(uint32(Optimized))
	return p, nil
}

// Address is the port's host:port. It stays the same while the port is off.
func (p *Port) Address() string { return p.address.String() }

// On listens again.
func (p *Port) On() error {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	if p.listener != nil || p.t.closed {
		return nil
	}
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // Go's default costs CPU, and a benchmark measures against this end
	l, err := plain.Listen(context.Background(), "tcp4", p.Address())
	if err != nil {
		return fmt.Errorf("port %d: %w", p.id, err)
	}
	p.listener = l
	p.t.wait.Add(1)
	go p.accept(l)
	return nil
}

// Off ends the port's connections and refuses new ones.
func (p *Port) Off() {
	p.t.mu.Lock()
	l := p.listener
	p.listener = nil
	p.t.mu.Unlock()
	if l != nil {
		_ = l.Close() // accept ends; there is nothing else to lose
	}
	p.t.endQueues(p)
}

// Drop ends the port's connections. Hosts may connect again at once.
func (p *Port) Drop() { p.t.endQueues(p) }

func (p *Port) close() {
	p.Off()
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	if p.keeper >= 0 {
		_ = syscall.Close(p.keeper) // it never carried a byte
		p.keeper = -1
	}
}

// SetANA changes the port's ANA state and tells the hosts that are connected through it.
func (p *Port) SetANA(state ANA) {
	p.ana.Store(uint32(state))
	p.changes.Add(1)
	p.t.raise(p, eventANA, 0)
}

// status is what I/O commands get in the port's ANA state.
func (p *Port) status() Status {
	switch ANA(p.ana.Load()) {
	case Inaccessible:
		return PathInaccessible
	case PersistentLoss:
		return PathPersistentLoss
	case Change:
		return PathTransition
	}
	return Success
}

func (p *Port) accept(l net.Listener) {
	defer p.t.wait.Done()
	for {
		conn, err := l.Accept()
		if err != nil {
			return // Off closed it
		}
		p.t.serve(p, l, conn.(*net.TCPConn))
	}
}

// serve starts the connection's goroutine, unless the port went off in between.
func (t *Target) serve(p *Port, l net.Listener, conn *net.TCPConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || p.listener != l {
		_ = conn.Close() // nobody was heard on it
		return
	}
	t.connections++
	t.counts.connections.Add(1)
	t.counts.queues.Add(1)
	q := newQueue(t, p, conn, t.connections)
	t.queues[q] = struct{}{}
	t.wait.Add(1)
	go q.serve()
}
