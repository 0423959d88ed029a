package wire

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// errReplaced means that another goroutine reads the connection now.
var errReplaced = errors.New("replaced")

// reads is the reader. It ends with the connection, or when another goroutine takes its
// place.
func (s *session) reads(ctx context.Context) {
	if err := s.read(ctx); !errors.Is(err, errReplaced) {
		s.over <- err
	}
}

// here answers a request from this node's disk on the connection's reader, if nothing
// else is asked. Waking a worker for each would cost a fifth of what an owner spends on
// it (bench, W6 epoch). A request that comes meanwhile waits for the device, too, until
// another goroutine takes the reader's place. done is false if the request is not
// answered.
func (s *session) here(ctx context.Context, t *task) (done bool, err error) {
	get, n := s.server.o.Handler.Here, int64(t.want.N)
	if get == nil || n == 0 || n > readyMost || s.in.whole() {
		return false, nil
	}
	if err := s.release(); err != nil {
		return false, err
	}
	if s.busy() || !s.guest.room.TryAcquire(n) {
		return false, nil
	}
	t.held = n
	var goesOn atomic.Bool // set by the first of two: this goroutine, or the one that replaces it
	var v *hearth.View
	failed := guard(func() error {
		v = get(t.of.ctx, t.want.Block, t.want.Off, t.want.N, func() {
			if goesOn.CompareAndSwap(false, true) {
				s.replace(ctx, t)
			}
		})
		return nil
	})
	if !goesOn.CompareAndSwap(false, true) {
		if v != nil {
			v.Release()
		}
		return false, errReplaced
	}
	switch {
	case failed != nil || size(v) != t.want.N: // the usual way reports the error
		if v != nil {
			v.Release()
		}
		t.release()
		return false, nil
	}
	s.guest.working.Add(1)
	t.view = v
	s.reply(t, nil)
	return true, nil
}

// busy reports whether another item of the connection is not written yet.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open > 1
}

// replace takes the place of a reader that the disk holds up. It has that reader's
// request worked on by goroutines that may wait, and reads on.
func (s *session) replace(ctx context.Context, t *task) {
	t.release()
	s.startItems(t.of.tasks, kindFill)
	s.reads(ctx)
}
