package wire

import (
	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/piece"
)

// A block in memory is answered on the goroutine that reads the connection. Answers to
// requests that came together go out together, in one write. A goroutine for each would
// need a context, a stack that grows anew each time, and a wake-up of the writer. That
// costs more than all else of a read of 4 KiB (bench, W6 blocks).

const (
	// readyMost is the largest answer made this way, a large picture. Its checksums take
	// some 20 us, in which no other request is begun.
	readyMost = 256 << 10
	// heldMost bytes of answers are held back to go out together.
	heldMost = togetherMost
)

// ready is an answer from memory on its way out.
type ready struct {
	session *session
	view    *hearth.View
	n       int64
	head    []byte
	room    [headerSize + maxSums + sealSize]byte // backs head
}

// ready answers a request of one item, if memory holds it and the peer may have more to
// take.
func (s *session) ready(h header, question uint64, w Want) bool {
	get, n := s.server.o.Handler.Ready, int64(w.N)
	if get == nil || n == 0 || n > readyMost || !s.guest.room.TryAcquire(n) {
		return false
	}
	var v *hearth.View
	err := guard(func() error { v = get(w.Block, w.Off, w.N); return nil })
	if err != nil || v == nil || v.Len() != w.N || !s.place() {
		// The usual way reports the error.
		if v != nil {
			v.Release()
		}
		s.guest.room.Release(n)
		return false
	}
	x := s.server.spare.Get().(*ready)
	x.session, x.view, x.n = s, v, n
	x.head, _ = seal(piece.Append(x.room[:headerSize], v.Bytes(), v.Sums()), header{id: h.id, kind: kindData, payload: w.N}, s.seed, question)
	s.server.counters.queued.Add(n)
	if !s.out.hold(x) {
		x.gone()
	}
	s.held += n
	return true
}

// place counts one more item that is not written. It returns false if there are too many.
func (s *session) place() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= s.server.o.Requests {
		return false
	}
	s.open++
	s.server.counters.inFlight.Add(1)
	s.server.counters.requests.Add(1)
	return true
}

// release writes the answers that were held back.
func (s *session) release() (err error) {
	if s.held > 0 {
		s.held = 0
		err = s.out.write()
	}
	return err
}

// parts is outgoing's.
func (x *ready) parts() (head []byte, v *hearth.View) {
	s := x.session
	s.mu.Lock()
	s.open--
	s.mu.Unlock()
	s.server.counters.inFlight.Add(-1)
	s.server.counters.answers[kindData].Add(1)
	return x.head, x.view
}

// gone is outgoing's.
func (x *ready) gone() {
	x.session.server.counters.queued.Add(-x.n)
	x.view.Release()
	x.session.guest.room.Release(x.n)
	spare := &x.session.server.spare
	x.session, x.view = nil, nil
	spare.Put(x)
}
