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

// handed is the descriptor that came last over a connection and was not taken yet.
type handed struct {
	mu sync.Mutex
	f  *os.File
}

// put takes f in the place of what was there.
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

// Handed is the descriptor that an owner sent along with a request, and the caller's to close;
// nil: none came. The kernel closes those that others send, and all but the first.
func Handed(ctx context.Context) *os.File {
	if h, ok := ctx.Value(handedKey{}).(*handed); ok {
		return h.take()
	}
	return nil
}

// handedKey is where Note leaves a connection's descriptor.
type handedKey struct{}

// receiving is a Unix connection of an owner, who may send descriptors.
type receiving struct {
	*net.UnixConn
	handed handed
}

// Read keeps a descriptor that comes with the bytes.
func (c *receiving) Read(b []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := c.ReadMsgUnix(b, control)
	if m > 0 {
		c.keep(control[:m])
	}
	if errors.Is(err, io.EOF) {
		err = io.EOF // as Read has it
	}
	return max(n, 0), err // recvmsg(2) has -1 with an error
}

func (c *receiving) keep(control []byte) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return
	}
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m) // what is no descriptor is nothing here
		for _, fd := range fds {
			c.handed.put(os.NewFile(uintptr(fd), "handed"))
		}
	}
}

// Close closes what nobody took, too.
func (c *receiving) Close() error {
	c.handed.put(nil)
	return c.UnixConn.Close()
}

// DialHanding connects to a node's socket; f goes with the first bytes.
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
	f *os.File // nil: it was sent
}

// Write is that of one goroutine at a time, as HTTP's is.
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
