package faultproxy

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// BlackHole drops every packet that reaches the proxy's port and connections, or lets packets in
// again. A filter on the sockets does it, in the kernel. Nothing is acknowledged: connecting,
// requests and half-read bodies all meet silence. Afterwards TCP goes on by its own
// retransmissions. It needs no privilege.
func (p *Proxy) BlackHole(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = on
	var errs []error
	if l, ok := p.listener.(*net.TCPListener); ok {
		errs = append(errs, filter(l, on))
	}
	for c := range p.conns {
		errs = append(errs, filter(c.(*net.TCPConn), on))
	}
	return errors.Join(errs...)
}

// filter attaches a program to a socket that accepts 0 bytes of every packet, or detaches it.
func filter(s syscall.Conn, on bool) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return fmt.Errorf("filter a socket: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		if on {
			drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
			set = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
		} else if set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); errors.Is(set, unix.ENOENT) {
			set = nil // there was no program
		}
	})
	if errors.Is(err, net.ErrClosed) {
		return nil // it drops everything
	}
	if err = errors.Join(err, set); err != nil {
		return fmt.Errorf("filter a socket: %w", err)
	}
	return nil
}
