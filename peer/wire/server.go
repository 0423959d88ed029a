package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/hearthfs/hearth"
)

// ServerOptions configure a Server.
type ServerOptions struct {
	// Handler answers.
	Handler Handler
	// Pool counts the bodies of Calls and the buffers of connections. It is required.
	Pool *hearth.Pool
	// Connections is how many a peer may have; 0 means 8. More are refused.
	Connections int
	// Requests is how many items of a peer are worked on at a time, each on a goroutine.
	// 0 means 256. It is at least MaxItems. More are refused. A connection may have as
	// many unanswered.
	Requests int
	// QueuedBytes bounds what a peer has in payloads that are not written yet, and in
	// bodies of Calls. 0 means the default: 8 MiB, or an eighth of the Pool if that is
	// less. It is never less than one block. An answer beyond it waits without its bytes;
	// a Call is refused.
	QueuedBytes int64
}

// Server answers peers.
type Server struct {
	o        ServerOptions
	counters counters
	spare    sync.Pool   // of *ready that were written
	idle     idleWorkers // for all sessions

	mu     sync.Mutex // guards guests and their connections
	guests map[string]*guest
}

// guest is a peer with at least one connection.
type guest struct {
	connections int
	working     atomic.Int64
	room        *semaphore.Weighted // semaphore for QueuedBytes
}

// NewServer returns a Server without connections.
func NewServer(o ServerOptions) *Server {
	if o.Connections <= 0 {
		o.Connections = 8
	}
	if o.Requests <= 0 {
		o.Requests = 256
	}
	o.Requests = max(o.Requests, MaxItems)
	o.QueuedBytes = queuedBytes(o.QueuedBytes, o.Pool)
	return &Server{o: o, guests: map[string]*guest{}, spare: sync.Pool{New: func() any { return new(ready) }}}
}

// queuedBytes bounds what waits to be written to a peer.
func queuedBytes(said int64, pool *hearth.Pool) int64 {
	if said <= 0 {
		said = min(8<<20, pool.Stats().Budget/8)
	}
	return max(said, hearth.BlockSize)
}

// Stats are the figures so far.
func (s *Server) Stats() Stats { return s.counters.stats() }

// Serve answers requests over a connection until that or the context ends. Then it closes
// the connection, and returns when every handler has returned. A handler whose place
// another goroutine took (Handler.Here) is not waited for. peer names the asker in
// errors. Two connections of one name share its bounds. The error is nil if the peer left
// in good order, and the context's cause if that ended. Otherwise it says what was wrong:
// ErrProtocol, ErrChecksum, ErrIncompatible, hearth.ErrRefused, or an error of the
// network.
func (s *Server) Serve(ctx context.Context, conn net.Conn, peer string) error {
	err := s.serve(ctx, conn, peer)
	conn.Close()
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	default:
		s.counters.broken.Add(1)
	}
	return fmt.Errorf("serve peer %s: %w", peer, err)
}

func (s *Server) serve(ctx context.Context, conn net.Conn, peer string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errMissed)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	g := s.admit(peer)
	if g != nil {
		defer s.leave(peer, g)
	}
	room := s.o.Pool.Reserve(connBytes)
	if room {
		defer s.o.Pool.Unreserve(connBytes)
	}
	mine := newHello()
	mine.refused, mine.places = g == nil || !room, uint32(s.o.Requests)
	theirs, err := exchange(conn, false, mine, stallAfter)
	switch {
	case err != nil:
		return err
	case g == nil:
		return fmt.Errorf("%w: it has %d connections", hearth.ErrRefused, s.o.Connections)
	case !room:
		return fmt.Errorf("%w: no memory for its connection", hearth.ErrRefused)
	}
	s.counters.connections.Add(1)
	defer s.counters.connections.Add(-1)
	return newSession(s, g, conn, theirs, mine).run(ctx, cancel)
}

// connBytes is the size of a connection's buffers, one each way.
const connBytes = 2 * bufferSize

// admit returns the account of a peer that may have one more connection, or nil.
func (s *Server) admit(peer string) *guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.guests[peer]
	if g == nil {
		g = &guest{room: semaphore.NewWeighted(s.o.QueuedBytes)}
		s.guests[peer] = g
	}
	if g.connections >= s.o.Connections {
		return nil
	}
	g.connections++
	return g
}

func (s *Server) leave(peer string, g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.connections--; g.connections == 0 {
		delete(s.guests, peer)
	}
}
