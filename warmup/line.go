package warmup

import "context"

// line lets so many jobs be at work at a time, in the order in which they came.
type line struct {
	slots chan struct{}
	last  chan struct{} // closed once who came last is in, or has left
}

// newLine lets most in at a time.
func newLine(most int) *line {
	l := &line{slots: make(chan struct{}, most), last: make(chan struct{})}
	close(l.last)
	return l
}

// place is one job's in a line.
type place struct {
	line    *line
	before  chan struct{} // closed once who came before is in, or has left
	in      chan struct{}
	entered bool
}

// Join is a place at the end. Nobody else joins at the same time.
func (l *line) Join() *place {
	p := &place{line: l, before: l.last, in: make(chan struct{})}
	l.last = p.in
	return p
}

// Enter waits until all who came before are in, and there is room for one more. begin is
// called before the next one is let in; an error is the context's cause.
func (p *place) Enter(ctx context.Context, begin func()) error {
	select {
	case <-p.before:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case p.line.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p.entered = true
	begin()
	close(p.in)
	return nil
}

// Leave gives the place up. One that was not let in waits for those who came before: who
// comes next is behind them.
func (p *place) Leave() {
	if p.entered {
		<-p.line.slots
		return
	}
	<-p.before
	close(p.in)
}
