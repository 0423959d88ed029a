package wire

import (
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file reads a connection of frames. Small parts go through a buffer. Large ones go
// straight to their place, together with the beginning of what follows. Reading that
// separately would be one more system call: a tenth of what a read of 100 KiB costs the
// asker (bench, W6 blocks).

// scatterReader reads a connection, for one goroutine.
type scatterReader struct {
	// Ahead bounds how many bytes are read beyond those wanted. A Peek of more reads them all
	// the same. The buffer has room for more.
	Ahead int

	conn  net.Conn
	heard func(n int)
	buf   []byte
	r, w  int // buf[r:w] was read and not taken

	// For a socket, which can read into two places at once.
	socket syscall.RawConn
	readv  func(fd uintptr) (over bool)
	parts  [2][]byte
	n      int
	err    error
}

// newScatterReader returns a reader with a buffer of size bytes. It calls heard after
// each read.
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

// Buffered is what was read and not taken, valid until the next read.
func (r *scatterReader) Buffered() []byte { return r.buf[r.r:r.w] }

// Skip takes n buffered bytes.
func (r *scatterReader) Skip(n int) { r.r += n }

// Peek returns the next n bytes, and perhaps more. n is at most the buffer's size. io.EOF
// means that there is nothing; a shorter rest is another error.
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

// ReadFull fills p. If the connection ends before that, the error is io.ErrUnexpectedEOF.
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

// Discard drops n bytes, with the errors of ReadFull.
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

// reads is the connection of a scatterReader.
type reads struct{ *scatterReader }

func (r reads) Read(p []byte) (int, error) { return r.read(p, nil) }

// read reads into p. What follows goes into more, if that takes no second read.
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
