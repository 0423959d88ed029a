package wire

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file reads a connection of frames: what is small through a buffer, and what is large
// straight to where it is to lie, together with the beginning of what follows, which would be a
// system call of its own: a tenth of what a read of 100 KiB costs who asks (bench, W6 blocks).

// scatterReader reads a connection, for one goroutine.
type scatterReader struct {
	// Ahead are the most bytes that are read beyond what is wanted, and at least as many as Peek
	// wants; the buffer has room for more.
	Ahead int

	conn  net.Conn
	heard func(n int)
	buf   []byte
	r, w  int // buf[r:w] was read, and not taken

	// Of a socket, which reads into two places at once.
	socket syscall.RawConn
	readv  func(fd uintptr) (over bool)
	parts  [2][]byte
	n      int
	err    error
}

// newScatterReader returns a Reader with a buffer of size bytes; heard is told of each read.
func newScatterReader(conn net.Conn, size int, heard func(n int)) *scatterReader {
	r := &scatterReader{Ahead: size, conn: conn, heard: heard, buf: make([]byte, size)}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			r.socket = raw
		}
	}
	r.readv = func(fd uintptr) (over bool) {
		for {
			if r.n, r.err = unix.Readv(int(fd), r.parts[:]); r.err != unix.EINTR {
				return r.err != unix.EAGAIN
			}
		}
	}
	return r
}

// Buffered is what was read and not taken, valid until more is read.
func (r *scatterReader) Buffered() []byte { return r.buf[r.r:r.w] }

// Skip takes n bytes that are buffered.
func (r *scatterReader) Skip(n int) { r.r += n }

// Peek returns the next n bytes, at most the buffer's size, and perhaps more; or an error, io.EOF
// only if there is nothing.
func (r *scatterReader) Peek(n int) ([]byte, error) {
	if n <= r.w-r.r {
		return r.Buffered(), nil
	}
	r.r, r.w = 0, copy(r.buf, r.Buffered())
	m, err := io.ReadAtLeast(reads{r}, r.buf[r.w:max(n, r.Ahead)], n-r.w)
	if r.w += m; err != nil && r.w > 0 {
		err = unexpected(err)
	}
	return r.Buffered(), err
}

// ReadFull fills p, which is to come: an end before is io.ErrUnexpectedEOF.
func (r *scatterReader) ReadFull(p []byte) error {
	if r.socket == nil && len(p) <= r.Ahead {
		b, err := r.Peek(len(p))
		r.Skip(copy(p, b))
		return unexpected(err)
	}
	n := copy(p, r.Buffered())
	r.Skip(n)
	for n < len(p) {
		m, err := r.read(p[n:], r.buf[:r.Ahead])
		if err != nil {
			return unexpected(err)
		}
		r.r, r.w = 0, max(0, m-(len(p)-n))
		n += m
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Discard is ReadFull of what nobody wants.
func (r *scatterReader) Discard(n int) error {
	for n > 0 {
		b, err := r.Peek(1)
		if err != nil {
			return unexpected(err)
		}
		m := min(n, len(b))
		r.Skip(m)
		n -= m
	}
	return nil
}

// reads is a Reader's connection.
type reads struct{ *scatterReader }

func (r reads) Read(p []byte) (int, error) { return r.read(p, nil) }

// read reads into p, and what comes behind that into more, if it takes no second read.
func (r *scatterReader) read(p, more []byte) (n int, err error) {
	if r.socket == nil || len(more) == 0 {
		n, err = r.conn.Read(p)
	} else {
		n, err = r.scatter(p, more)
	}
	if n > 0 {
		r.heard(n)
	}
	return n, err
}

func (r *scatterReader) scatter(p, more []byte) (int, error) {
	r.parts = [2][]byte{p, more}
	err := r.socket.Read(r.readv)
	r.parts = [2][]byte{}
	switch {
	case err != nil:
		return 0, fmt.Errorf("read: %w", err)
	case r.err != nil:
		return 0, os.NewSyscallError("readv", r.err)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}
