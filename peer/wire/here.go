package wire

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hearthfs/hearth"
)

// errReplaced: another goroutine reads the connection.
var errReplaced = errors.New("replaced")

// reads is the reader, until the connection is over or another one has taken its place.
func (s *session) reads(ctx context.Context) {
	if err := s.read(ctx); !errors.Is(err, errReplaced) {
		s.over <- err
	}
}

// here has the reader of the connection answer a request from this node's disk, if it has
// nothing else to do: a worker that is woken for each costs a fifth of what an owner spends on
// it (bench, W6 epoch). The next request, if one comes meanwhile, waits for the device, too, for
// as long as that has before another goroutine takes the reader's place. false: the request is not answered.
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
	var goesOn atomic.Bool // set by the first of two: this goroutine, or the one in its stead
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
	case failed != nil || size(v) != t.want.N: // the usual way says what is wrong
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

// busy reports whether something else that was asked over the connection is not written yet.
func (s *session) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open > 1
}

// replace goes on for a reader whom the disk does not let go of: with the request that he
// was at, by those that may wait, and with all that come.
func (s *session) replace(ctx context.Context, t *task) {
	t.release()
	s.startItems(t.of.tasks, kindFill)
	s.reads(ctx)
}
