package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/hearthfs/hearth"
)

// denial is the error of a name that the origin denies (403) while it answers for others. A denial is
// an answer: the last known name is not served in its place.
type denial struct{ error }

func (d denial) Unwrap() error { return d.error }

func denied(err error) bool { return errors.As(err, new(denial)) }

const (
	// slowQuestion is how long a question waits for its answer before a witness is asked beside
	// it. That is longer than a healthy origin takes, and short beside the 30 s after which a silent
	// origin is given up. Those who ask after that would wait as long again.
	slowQuestion = 5 * time.Second
	// verdictWait bounds a failed question together with its wait for the witness:
	// a user who sees the error finds its cause in the status at once.
	verdictWait = time.Second
)

// question is one that an origin has answered: about a key, or about a page below a prefix.
type question struct {
	of   string
	list bool
}

// ask asks the question again. Nil means that the origin answered.
func (q question) ask(ctx context.Context, o Origin) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("ask for %s: panic: %v", q.of, r)
		}
	}()
	if q.list {
		err = o.List(ctx, hearth.Listing{Prefix: q.of, Limit: 1, Recursive: true}, func(hearth.Object) error { return nil })
	} else {
		_, err = o.Head(ctx, q.of)
	}
	if errors.Is(err, fs.ErrInvalid) {
		return nil
	}
	return err
}

// asking is a question under way at a link's origin.
type asking struct {
	answers int64 // how many the origin had given before
	began   time.Time
	slow    *time.Timer // nil: it has not begun
}

// asking begins a question; the caller ends it.
func (t *Tree) asking(l *link) asking {
	answers := l.answers.Load()
	return asking{answers, time.Now(), time.AfterFunc(slowQuestion, func() {
		if l.answers.Load() == answers {
			t.witness(l)
		}
	})}
}

func (a *asking) end() {
	if a.slow != nil {
		a.slow.Stop()
	}
}

// answered notes that the link's origin has answered a question: it can be asked.
func (t *Tree) answered(l *link, q question) {
	if last := l.last.Load(); q.of != l.Prefix && (last == nil || *last != q) {
		l.last.Store(&q)
	}
	t.well(l)
}

// well notes that the link's origin can be asked.
func (t *Tree) well(l *link) {
	l.answers.Add(1)
	if l.down.Load() != nil && l.down.Swap(nil) != nil && t.o.Events.Origin != nil {
		t.o.Events.Origin(l.Name, nil)
	}
}

// ill notes that the link's origin is unreachable.
func (t *Tree) ill(l *link, err error) {
	if l.down.Swap(&err) == nil && t.o.Events.Origin != nil {
		t.o.Events.Origin(l.Name, err)
	}
}

// failed notes that a question failed, and returns the error for the caller: a denial, or err itself.
// One failed question says nothing of the origin. If the origin has answered another question since, it
// is reachable; else a witness decides. Only a denial waits for the witness without a bound: with
// expired credentials everything may be denied.
func (t *Tree) failed(ctx context.Context, l *link, a *asking, err error) error {
	t.stats.originErrors.Add(1)
	forbidden := errors.Is(err, fs.ErrPermission)
	if forbidden || l.answers.Load() == a.answers {
		w := t.witness(l)
		if !forbidden {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, a.began.Add(verdictWait))
			defer cancel()
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			return err
		}
		if w.err != nil {
			return err
		}
	}
	if t.o.Events.Name != nil {
		t.o.Events.Name(l.Name, err)
	}
	if forbidden {
		return denial{err}
	}
	return err
}

// witness tells an outage of an origin from a name that fails. It consists of questions about other
// names.
type witness struct {
	done chan struct{}
	err  error // once done is closed; nil: the origin can be asked
}

// witness asks the link's origin for other names, once for all who want to know (singleflight).
func (t *Tree) witness(l *link) *witness {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.witness != nil {
		return l.witness
	}
	w := &witness{done: make(chan struct{}), err: fs.ErrClosed}
	run := func() {
		if w.err = t.askWitness(l); w.err != nil && t.ctx.Err() == nil {
			t.ill(l, w.err)
		}
		l.mu.Lock()
		l.witness = nil
		l.mu.Unlock()
		close(w.done)
	}
	if l.witness = w; !t.behind(run) {
		l.witness = nil
		close(w.done)
	}
	return w
}

// askWitness asks for a key below the link's prefix, which each link needs, and for what was answered
// last, since the prefix may be denied by now. One answer is enough. A question about a single name
// that hangs delays nobody.
func (t *Tree) askWitness(l *link) error {
	asks := []question{{l.Prefix, true}}
	if last := l.last.Load(); last != nil {
		asks = append(asks, *last)
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	var errs [2]error
	told := make(chan int, len(errs))
	for i, q := range asks {
		if !t.behind(func() { errs[i] = q.ask(ctx, l.Origin); told <- i }) {
			return context.Cause(t.ctx)
		}
	}
	for range asks {
		if i := <-told; errs[i] == nil {
			t.answered(l, asks[i])
			return nil
		}
	}
	return cmp.Or(errs[0], errs[1])
}
