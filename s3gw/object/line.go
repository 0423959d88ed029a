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
	return context.WithValue(ctx, lineKey{}, line(socket{raw}))
}

// socket is the line of a TCP connection.
type socket struct{ raw syscall.RawConn }

// roomShare of a socket's buffer is free where Linux calls it writable: a third, of which half is
// taken for what the kernel needs beside the bytes (sk_stream_is_writeable in net/sock.h).
const roomShare = 6

func (s socket) room(wait bool) (n int, err error) {
	failed := s.raw.Write(func(fd uintptr) bool {
		// Linux tells of an edge only to who was told that there is no room: poll counts as that.
		ready, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
		if ready > 0 { // or broken, as the write will find
			n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
			n = max(n/roomShare, 1)
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
