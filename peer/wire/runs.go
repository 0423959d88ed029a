package wire

import (
	"context"

	"github.com/hearthfs/hearth"
)

// Run has the signature of hearth.Source's GetMany: whole blocks in order. With load it
// makes each block present, and calls each without a View.
type Run func(ctx context.Context, first hearth.Block, n int, load bool, each func(b hearth.Block, v *hearth.View, err error) bool)

// runOf counts how many wants, from the first on, are one run. A run is consecutive
// blocks of one extent, all whole or all without payload. It ends with the extent:
// somebody else may share the fetch of the next one, and must not get the failure of this
// one.
func runOf(wants []Want) int {
	first := wants[0]
	n := 1
	for ; n < len(wants); n++ {
		w := wants[n]
		next := w.Block.Object.Version == first.Block.Object.Version && w.Block.Index == first.Block.Index+int64(n) &&
			w.Block.Index%hearth.ExtentBlocks != 0
		if !next || !w.whole() && w.N > 0 || (w.N == 0) != (first.N == 0) {
			break
		}
	}
	if !first.whole() && first.N > 0 {
		return 1
	}
	return n
}

func (w Want) whole() bool { return w.Off == 0 && w.N == w.Block.Len() }

// startRun has the tasks of one run worked on by one goroutine, or refuses them.
func (s *session) startRun(tasks []task, h Handler) {
	n := int64(len(tasks))
	if s.guest.working.Add(n) > int64(s.server.o.Requests) {
		s.guest.working.Add(-n)
		for i := range tasks {
			tasks[i].answer(hearth.ErrRefused)
		}
		return
	}
	s.working.Go(func() {
		left := tasks
		err := guard(func() error { return s.work(&left, h) })
		for i := range left {
			s.finish(&left[i], err)
		}
	})
}

// work answers the tasks of one run as their blocks come. If it ends early, the tasks
// that are left share its error, which is that of the next block.
func (s *session) work(left *[]task, h Handler) error {
	err := errMissed
	first := (*left)[0]
	h.Run(first.of.ctx, first.want.Block, len(*left), first.want.N == 0, func(_ hearth.Block, v *hearth.View, failed error) bool {
		if failed != nil {
			err = failed
			return false
		}
		t := &(*left)[0]
		*left = (*left)[1:]
		t.view = v
		switch n := int64(t.want.N); {
		case size(v) != t.want.N:
			s.finish(t, t.wrong())
		case !s.guest.room.TryAcquire(n): // as in get; a tier has the block meanwhile
			t.release()
			s.working.Go(func() { s.finish(t, guard(func() error { return t.get(h.Fill) })) })
		default:
			t.held = n
			s.finish(t, nil)
		}
		return len(*left) > 0
	})
	return err
}

// finish answers a task that was worked on.
func (s *session) finish(t *task, err error) {
	s.guest.working.Add(-1)
	t.answer(err)
}

// reply is finish on a goroutine that has nothing else to do. If the answer would go out
// alone, this goroutine writes it.
func (s *session) reply(t *task, err error) {
	s.guest.working.Add(-1)
	t.prepare(err)
	s.mu.Lock()
	alone := t.queued > smallMost || s.open <= fewOpen
	s.mu.Unlock()
	switch {
	case !alone:
		t.send()
	case !s.out.hold(t):
		t.gone()
	default: // the task may be over by now
		if err := s.out.write(); err != nil {
			s.end(err)
		}
	}
}
