package gate

import "context"

// Line lets so many jobs be at work at a time, in the order in which they came.
type Line struct {
	slots chan struct{}
	last  chan struct{} // closed once who came last is in, or has left
}

// NewLine lets most in at a time.
func NewLine(most int) *Line {
	l := &Line{slots: make(chan struct{}, most), last: make(chan struct{})}
	close(l.last)
	return l
}

// Place is one job's in a Line.
type Place struct {
	line    *Line
	before  chan struct{} // closed once who came before is in, or has left
	in      chan struct{}
	entered bool
}

// Join is a place at the end. Nobody else joins at the same time.
func (l *Line) Join() *Place {
	p := &Place{line: l, before: l.last, in: make(chan struct{})}
	l.last = p.in
	return p
}

// Enter waits until all who came before are in, and there is room for one more. begin is
// called before the next one is let in; an error is the context's cause.
func (p *Place) Enter(ctx context.Context, begin func()) error {
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
func (p *Place) Leave() {
	if p.entered {
		<-p.line.slots
		return
	}
	<-p.before
	close(p.in)
}
