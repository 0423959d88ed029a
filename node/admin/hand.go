package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// handed is the descriptor that arrived last over a connection and has not been taken yet.
type handed struct {
	mu sync.Mutex
	f  *os.File
}

// put keeps f, and closes the descriptor that was there before.
func (h *handed) put(f *os.File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.f != nil {
		_ = h.f.Close() // nobody took it
	}
	h.f = f
}

func (h *handed) take() *os.File {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.f
	h.f = nil
	return f
}

// Handed returns the descriptor that an owner sent with a request, which the caller closes. nil means that none
// came. The kernel closes descriptors that other users send, and all but the first of a request.
func Handed(ctx context.Context) *os.File {
	if h, ok := ctx.Value(handedKey{}).(*handed); ok {
		return h.take()
	}
	return nil
}

// handedKey is the context key under which note leaves a connection's descriptor.
type handedKey struct{}

// receiving is a Unix connection of an owner, who may send descriptors.
type receiving struct {
	*net.UnixConn
	handed handed
}

// Read reads bytes, and keeps a descriptor that comes with them.
func (c *receiving) Read(b []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := c.ReadMsgUnix(b, control)
	if m > 0 {
		c.keep(control[:m])
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF // a Reader returns io.EOF itself
	}
	return max(n, 0), err // recvmsg(2) gives -1 with an error
}

func (c *receiving) keep(control []byte) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return
	}
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m) // other control messages are ignored
		for _, fd := range fds {
			c.handed.put(os.NewFile(uintptr(fd), "handed"))
		}
	}
}

// Close also closes a descriptor that nobody took.
func (c *receiving) Close() error {
	c.handed.put(nil)
	return c.UnixConn.Close()
}

// DialHanding connects to a node's socket. It sends f with the first bytes.
func DialHanding(ctx context.Context, socket string, f *os.File) (net.Conn, error) {
	c, err := dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("descriptors go over Unix sockets alone")
	}
	return &handing{UnixConn: u, f: f}, nil
}

// handing sends f before anything else.
type handing struct {
	*net.UnixConn
	f *os.File // nil once it was sent
}

// Write is called by one goroutine at a time, as by net/http.
func (c *handing) Write(b []byte) (int, error) {
	if c.f == nil || len(b) == 0 {
		return c.UnixConn.Write(b)
	}
	n, _, err := c.WriteMsgUnix(b[:1], unix.UnixRights(int(c.f.Fd())), nil)
	if err != nil || n == 0 {
		return n, err
	}
	c.f = nil
	more, err := c.UnixConn.Write(b[1:])
	return n + more, err
}
