package object

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// line is what the kernel knows of a client's connection.
type line interface {
	// room is how many bytes the kernel takes at once. With wait it waits until it is more
	// than 0, or the connection's write deadline.
	room(wait bool) (int, error)
	// queued is how many bytes were written that the client has not taken.
	queued() int
}

// lineKey is where OnConnection leaves a line in a context.
type lineKey struct{}

// unsentMost is how many bytes a client's connection holds beside what is on its way; there is room
// where half of them are sent (tcp_stream_memory_free in net/tcp.h). Without it Linux gives a
// connection up to 4 MiB, and a thousand that stall all that its TCP may have (tcp_mem), so that
// honest ones crawl. Half as many cost a tenth more CPU time of a large answer.
const unsentMost = 2 * pieceMost

// OnConnection is for http.Server's ConnContext. Without it nobody knows how much a client's
// connection takes, and what is written to one that stalls is held until StallAfter.
func OnConnection(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return ctx
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return ctx
	}
	_ = raw.Control(func(fd uintptr) { // what refuses it is no TCP, and has bounds of its own
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMost)
		if onThisHost(c) {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, unpaced)
		}
	})
	return context.WithValue(ctx, lineKey{}, line(socket{raw}))
}

// unpaced is the congestion control of a client on this host, which has no line that could be
// congested. bbr, the default of many hosts, paces all the same: that is a third of the CPU time of
// a large answer. This one every kernel has, and allows to everybody (net/ipv4/tcp_cong.c).
const unpaced = "reno"

// onThisHost reports whether both ends of a connection are.
func onThisHost(c net.Conn) bool {
	at, _ := c.LocalAddr().(*net.TCPAddr)
	from, _ := c.RemoteAddr().(*net.TCPAddr)
	return at != nil && from != nil && (from.IP.IsLoopback() || from.IP.Equal(at.IP))
}

// socket is the line of a TCP connection.
type socket struct{ raw syscall.RawConn }

// roomShare of a socket's buffer is free where Linux calls it writable: a third, of which a fourth
// part is for what the kernel needs beside the bytes (sk_stream_is_writeable in net/sock.h).
const roomShare = 4

func (s socket) room(wait bool) (n int, err error) {
	failed := s.raw.Write(func(fd uintptr) bool {
		// Linux tells of an edge only to who was told that there is no room: poll counts as that.
		ready, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		if ready > 0 { // or broken, as the write will find
			n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
			n = max(min(n/roomShare, unsentMost/2), 1)
		}
		return ready > 0 || !wait
	})
	if failed != nil {
		return 0, failed
	}
	return n, err
}

func (s socket) queued() (n int) {
	_ = s.raw.Control(func(fd uintptr) { // of a connection that is closed: nothing
		n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
	})
	return n
}
