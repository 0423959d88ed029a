package remote

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// plainTCP moves the bytes and does nothing else: no checksums, no memory of their own
// for answers, no reads that overtake each other. With one read in flight the reader asks
// and is answered; with more it asks once for all of them, and they are copied in one go.
type plainTCP struct{}

// ask is what a reader sends: where, and how many bytes; from there on around the blocks.
type ask struct{ At, Bytes int64 }

const askSize = 16

func (a ask) append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(a.At))
	return binary.LittleEndian.AppendUint64(dst, uint64(a.Bytes))
}

func parseAsk(p []byte) (a ask, err error) {
	a = ask{int64(binary.LittleEndian.Uint64(p)), int64(binary.LittleEndian.Uint64(p[8:]))}
	if a.At < 0 || a.At >= blocks*hearth.BlockSize || a.Bytes < 0 {
		return a, fmt.Errorf("asked for %d bytes from %d on", a.Bytes, a.At)
	}
	return a, nil
}

// Serve is Program's.
func (plainTCP) Serve(ctx context.Context, l net.Listener, w Work) error {
	own, err := identity("owner", w)
	if err != nil {
		return err
	}
	memory := make([]byte, blocks*hearth.BlockSize)
	hearthtest.Fill(memory, name, 0, 0)
	return accept(ctx, l, func(conn net.Conn) {
		if w.TLS {
			conn = tls.Server(conn, own.ServerConfig())
		}
		_ = answer(conn, memory) // the reader's side says what was wrong
	})
}

// accept serves each connection in a goroutine, and then closes it, until the context ends and the listener is closed.
func accept(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("serve: %w", err)
		}
		serving.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			serve(conn)
			_ = conn.Close()
		})
	}
}

func answer(conn net.Conn, memory []byte) error {
	var question [askSize]byte
	for {
		if _, err := io.ReadFull(conn, question[:]); err != nil {
			return err
		}
		a, err := parseAsk(question[:])
		if err != nil {
			return err
		}
		for at, left := a.At, a.Bytes; left > 0; {
			n := min(left, hearth.BlockSize, int64(len(memory))-at)
			if _, err := conn.Write(memory[at : at+n]); err != nil {
				return err
			}
			left -= n
			at = (at + n) % int64(len(memory))
		}
	}
}

// tcpReader has some connections.
type tcpReader struct {
	conns []net.Conn
	size  int
	alone bool // one read in flight
}

// Open is Program's.
func (plainTCP) Open(ctx context.Context, address string, w Work) (Reader, error) {
	own, err := identity("reader", w)
	if err != nil {
		return nil, err
	}
	r := &tcpReader{size: w.Size, alone: w.InFlight == 1}
	var d net.Dialer
	for range w.Connections {
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			r.Close()
			return nil, err
		}
		if w.TLS {
			conn = tls.Client(conn, own.ClientConfig())
		}
		r.conns = append(r.conns, conn)
	}
	return r, nil
}

// Read is Reader's.
func (r *tcpReader) Read(_ context.Context, places []Place, took []time.Duration) error {
	if r.alone {
		return r.askEach(places, func(i int, _ []byte, d time.Duration) {
			if took != nil {
				took[i] = d
			}
		})
	}
	var copies sync.WaitGroup
	failed := make([]error, len(r.conns))
	for i, conn := range r.conns {
		reads := len(places) / len(r.conns)
		if i == 0 {
			reads += len(places) % len(r.conns)
		}
		copies.Go(func() { failed[i] = r.copy(conn, ask{int64(places[i]), int64(reads * r.size)}) })
	}
	copies.Wait()
	return errors.Join(failed...)
}

func (r *tcpReader) copy(conn net.Conn, a ask) error {
	if _, err := conn.Write(a.append(nil)); err != nil {
		return err
	}
	buf := make([]byte, hearth.BlockSize)
	for left := a.Bytes; left > 0; {
		n, err := conn.Read(buf[:min(left, int64(len(buf)))])
		if left -= int64(n); err != nil {
			return err
		}
	}
	return nil
}

func (r *tcpReader) askEach(places []Place, do func(i int, p []byte, took time.Duration)) error {
	conn := r.conns[0]
	question, buf := make([]byte, 0, askSize), make([]byte, r.size)
	for i, p := range places {
		start := time.Now()
		if _, err := conn.Write(ask{int64(p), int64(r.size)}.append(question)); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buf); err != nil {
			return err
		}
		do(i, buf, time.Since(start))
	}
	return nil
}

// Wrong is Reader's.
func (r *tcpReader) Wrong(_ context.Context, places []Place) (wrong int64, err error) {
	err = r.askEach(places, func(i int, p []byte, _ time.Duration) {
		if !right(p, places[i]) {
			wrong += int64(len(p))
		}
	})
	return wrong, err
}

// Close is Reader's.
func (r *tcpReader) Close() {
	for _, c := range r.conns {
		_ = c.Close()
	}
}
