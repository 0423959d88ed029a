package object

import (
	"context"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// line is the kernel's view of a client's connection.
type line interface {
	// room returns how many bytes the kernel takes at once. With wait it waits until that is more
	// than 0, or until the connection's write deadline.
	room(wait bool) (int, error)
	// queued returns how many written bytes the client has not taken.
	queued() int
}

// lineKey is the key of a line in a context; OnConnection sets it.
type lineKey struct{}

// unsentMost bounds the bytes that a client's connection holds beside those in flight. It has room
// again when half of them are sent (tcp_stream_memory_free in net/tcp.h). Without a bound Linux
// gives a connection up to 4 MiB. A thousand stalled ones then take all the memory of its TCP
// (tcp_mem), and honest clients crawl. With half as many bytes a large answer costs a tenth more
// CPU time.
const unsentMost = 2 * pieceMost

// OnConnection is for http.Server's ConnContext. Without it nothing is known of the room of a
// client's connection, and a block for a stalled client is held until StallAfter.
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
	_ = raw.Control(func(fd uintptr) { // a socket that refuses it is not TCP, and has its own bounds
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMost)
		if onThisHost(c) {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, unpaced)
		}
	})
	return context.WithValue(ctx, lineKey{}, line(socket{raw}))
}

// unpaced is the congestion control for a client on this host: no line between them can be
// congested. bbr, the default of many hosts, paces all the same, which costs a third of the CPU
// time of a large answer. Every kernel has reno, and allows it to everybody (net/ipv4/tcp_cong.c).
const unpaced = "reno"

// onThisHost reports whether both ends of a connection are on this host.
func onThisHost(c net.Conn) bool {
	at, _ := c.LocalAddr().(*net.TCPAddr)
	from, _ := c.RemoteAddr().(*net.TCPAddr)
	return at != nil && from != nil && (from.IP.IsLoopback() || from.IP.Equal(at.IP))
}

// socket is the line of a TCP connection.
type socket struct{ raw syscall.RawConn }

// roomShare is the part of a socket's buffer that is surely free when Linux calls it writable. A
// third is free then, and a fourth part of that is for the kernel's own overhead
// (sk_stream_is_writeable in net/sock.h).
const roomShare = 4

func (s socket) room(wait bool) (n int, err error) {
	failed := s.raw.Write(func(fd uintptr) bool {
		// Linux sends an edge only after it has reported that there is no room; poll counts as such
		// a report.
		ready, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		if ready > 0 { // or broken: the write will fail
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
	_ = s.raw.Control(func(fd uintptr) { // 0 for a closed connection
		n, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
	})
	return n
}
