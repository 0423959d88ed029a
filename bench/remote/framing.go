package remote

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hearthfs/hearth/internal/device"
)

// framing moves the bytes of NVMe/TCP without being it: 72 bytes that ask, 24 bytes before the data. Whoever reads waits
// for its own answer, and answers come in order. Each side does with the data what the NVMe side does, and nothing
// else: the target copies it from its medium into its output, in pieces that stay in a processor's cache, and writes
// the answers to all that has arrived at once; the host has it in the buffer of the reader.
type framing struct{}

const (
	capsuleLen = 72        // of a command capsule
	headLen    = 24        // of a C2HData
	outputMost = 256 << 10 // bytes that wait for the end of the input, as of the target
	outputPart = 128 << 10
	inputSize  = 64 << 10
	hostBuffer = 16 << 10
)

// Serve is Program's, who never calls it.
func (framing) Serve(context.Context, net.Listener, Work) error { return errors.ErrUnsupported }

// bind implements binder. It listens without Multipath TCP, as the target does: Go's default costs CPU.
func (framing) bind(ctx context.Context, address string, ready func(string) error) error {
	medium := content()
	var plain net.ListenConfig
	plain.SetMultipathTCP(false)
	l, err := plain.Listen(ctx, "tcp", address)
	if err == nil {
		err = ready(l.Addr().String())
	}
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	return accept(ctx, l, func(conn net.Conn) {
		_ = frames(conn, medium) // the reader's side says what was wrong
	})
}

// frames answers one connection.
func frames(conn net.Conn, medium []byte) error {
	in, out := make([]byte, inputSize), make([]byte, 0, outputMost+outputPart+headLen)
	have := 0
	for {
		n, err := conn.Read(in[have:])
		if err != nil {
			return err
		}
		have += n
		at := 0
		for ; have-at >= capsuleLen; at += capsuleLen {
			a, err := parseAsk(in[at : at+askSize])
			if err != nil || a.Bytes > int64(len(medium))-a.At {
				return fmt.Errorf("asked for %+v: %w", a, err)
			}
			head := [headLen]byte{}
			binary.LittleEndian.PutUint64(head[:], uint64(a.Bytes))
			out = append(out, head[:]...)
			for data := medium[a.At : a.At+a.Bytes]; len(data) > 0; {
				part := data[:min(len(data), outputPart)]
				out, data = append(out, part...), data[len(part):]
				if len(out) >= outputMost {
					if _, err := conn.Write(out); err != nil {
						return err
					}
					out = out[:0]
				}
			}
		}
		if _, err := conn.Write(out); err != nil {
			return err
		}
		out, have = out[:0], copy(in, in[at:have])
	}
}

// frame is one reader's place on a connection.
type frame struct {
	capsule [capsuleLen]byte
	buffer  []byte
	done    chan struct{}
}

// frameConn is a connection with the reads in flight on it.
type frameConn struct {
	net.Conn
	mu    sync.Mutex  // held while a capsule is written, so that asked has the order of the answers
	asked chan *frame // room for all
	ended chan struct{}
}

// frameReader has connections.
type frameReader struct {
	conns  []*frameConn
	frames []*frame
}

// Open is Program's.
func (framing) Open(ctx context.Context, address string, w Work) (Reader, error) {
	r := &frameReader{}
	for range w.Connections {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			r.Close()
			return nil, err
		}
		c := &frameConn{Conn: conn, asked: make(chan *frame, w.InFlight), ended: make(chan struct{})}
		go c.receive()
		r.conns = append(r.conns, c)
	}
	for range w.InFlight {
		r.frames = append(r.frames, &frame{buffer: device.Aligned(w.Size), done: make(chan struct{}, 1)})
	}
	return r, nil
}

// receive hands each answer to the reader who asked for it.
func (c *frameConn) receive() {
	defer close(c.ended)
	from, head := bufio.NewReaderSize(c.Conn, hostBuffer), make([]byte, headLen)
	for {
		if _, err := io.ReadFull(from, head); err != nil {
			return
		}
		f := <-c.asked
		if _, err := io.ReadFull(from, f.buffer); err != nil {
			return
		}
		f.done <- struct{}{}
	}
}

// read asks for a place, and waits for the answer in the frame's buffer.
func (c *frameConn) read(f *frame, p Place) error {
	ask{int64(p), int64(len(f.buffer))}.append(f.capsule[:0])
	c.mu.Lock()
	c.asked <- f
	_, err := c.Write(f.capsule[:])
	c.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-f.done:
		return nil
	case <-c.ended:
		return io.ErrUnexpectedEOF
	}
}

// Read is Reader's.
func (r *frameReader) Read(_ context.Context, places []Place, took []time.Duration) error {
	return together(len(r.frames), places, took, func(reader int, p Place) error {
		return r.conns[reader%len(r.conns)].read(r.frames[reader], p)
	})
}

// Wrong is Reader's.
func (r *frameReader) Wrong(_ context.Context, places []Place) (wrong int64, err error) {
	for _, p := range places {
		if err := r.conns[0].read(r.frames[0], p); err != nil {
			return wrong, err
		}
		if !right(r.frames[0].buffer, p) {
			wrong += int64(len(r.frames[0].buffer))
		}
	}
	return wrong, nil
}

// Close is Reader's.
func (r *frameReader) Close() {
	for _, c := range r.conns {
		_ = c.Conn.Close() // nothing was written that matters
		<-c.ended
	}
}
