package warmup

import "context"

// line lets a bounded number of jobs work at a time, first come, first served.
type line struct {
	slots chan struct{}
	last  chan struct{} // closed once the job that came last is in, or has left
}

// newLine returns a line that lets most jobs in at a time.
func newLine(most int) *line {
	l := &line{slots: make(chan struct{}, most), last: make(chan struct{})}
	close(l.last)
	return l
}

// place is one job's place in a line.
type place struct {
	line    *line
	before  chan struct{} // closed once the job before is in, or has left
	in      chan struct{}
	entered bool
}

// Join takes the last place. Calls must not be concurrent.
func (l *line) Join() *place {
	p := &place{line: l, before: l.last, in: make(chan struct{})}
	l.last = p.in
	return p
}

// Enter waits until all earlier jobs are in and there is room for one more. It calls
// begin before the next job is let in. An error is the context's cause.
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

// Leave gives the place up. A job that was not let in first waits for the jobs before it,
// so that the next one stays behind them.
func (p *place) Leave() {
	if p.entered {
		<-p.line.slots
		return
	}
	<-p.before
	close(p.in)
}
