package wire

import (
	"context"

	"github.com/hearthfs/hearth"
)

// Run has the signature of hearth.Source's GetMany: whole blocks in order. With load
// each block is made present, and each is called without a View.
type Run func(ctx context.Context, first hearth.Block, n int, load bool, each func(b hearth.Block, v *hearth.View, err error) bool)

// runOf counts the wants from the first on that are one run: blocks of one extent that
// follow each other, all of them whole or all of them without payload. Those of the next
// extent somebody else may have asked for, who is not told of another's failure.
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

// startRun has tasks that are one run worked on by one goroutine, or refuses them.
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

// work answers the tasks of one run as their blocks come. What is left of them when it
// ends has the error in common: it is that of the block that comes next.
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
		case !s.guest.room.TryAcquire(n): // as in get; the block is in a tier meanwhile
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

// reply is finish on a goroutine that has nothing else to do: it writes the answer where
// that would go out alone.
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
