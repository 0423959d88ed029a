package namespace

import (
	"context"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// newsSlack is what the way of news may have taken: the owner's answer may be that much older
// than the news seem to be. It is no older for it than what is known here.
const newsSlack = time.Second

// passedOn is how old news are at most that a directory's node passes on without knowing
// anything of them: two nodes that each take a directory for theirs for a while would else
// tell each other for ever.
const passedOn = 5 * time.Second

// listedShare is how many times its duration a listing is left alone, whatever is heard: it
// is believed for twenty times that at least.
const listedShare = 10

// tell has the nodes of a ring hear of an edit that the origin was asked for.
func (t *Tree) tell(e *edit) {
	s := e.d.sharer()
	if len(e.changes) == 0 || e.asked == 0 || s == nil {
		return
	}
	dir := hearth.Directory{ID: e.d.hash, Link: e.d.link.Name, Prefix: e.d.prefix()}
	s.Changed(dir, e.segments, since(t.clock.Now(), e.asked))
}

// Heard is told by another node that a segment of a directory, or "" for all of it, was found
// so long ago to mean another thing than before. That is doubt, not truth: who believes
// something older here asks the node that the directory belongs to, or the origin if that
// is this one; and all is told on from there as whatever is found out is. It returns once that is done.
func (t *Tree) Heard(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	done := make(chan struct{})
	if t.behind(func() { // or the tree could be closed meanwhile
		defer close(done)
		t.heard(ctx, dir, segment, old)
	}) {
		<-done
	}
}

func (t *Tree) heard(ctx context.Context, dir hearth.Directory, segment string, old time.Duration) {
	d, ok := t.doubted(dir)
	if !ok {
		t.passOn(dir, segment, old)
		return
	}
	defer d.release()
	at := t.clock.Now() - old.Milliseconds()
	if segment == "" {
		t.listHeard(ctx, d, at)
		return
	}
	if _, older := t.older(d, segment, at); !older {
		t.passOn(dir, segment, old)
		return
	}
	t.askAgain(ctx, d, segment, at, false)
}

// passOn has others hear of what this node, to which the directory belongs, has no opinion of, or
// a younger one: they may have, as who asked the origin by itself, or of a directory that was gone
// here; and not all that this one finds out was told them, as what is in a directory that is back.
func (t *Tree) passOn(dir hearth.Directory, segment string, old time.Duration) {
	p, err := t.sharedPlace(dir)
	if err != nil || old > passedOn {
		return
	}
	s, w := p.sharer(), p.elsewhere()
	if w != nil {
		w.end()
	} else if s != nil {
		s.Changed(dir, []string{segment}, old)
	}
}

// askAgain asks for a segment of a directory of which something is believed that was found
// out before then. anew: what somebody asks at the time, or the directory's node says, may be
// too old as well. sure false: nobody told.
func (t *Tree) askAgain(ctx context.Context, d *directory, segment string, at int64, anew bool) (sure bool) {
	k, older := t.older(d, segment, at)
	if !older {
		return true
	}
	q := &inquiry{t: t, d: d, segment: segment, heard: at - newsSlack.Milliseconds()}
	if anew {
		return q.ask(ctx)
	}
	w := d.elsewhere()
	if w == nil {
		return q.askOwn(ctx, at)
	}
	w.end()
	// If not, the bound will do: not every node is to ask the origin.
	return q.askElsewhere(ctx, &k, nil) && q.keep() == nil
}

// older is what is believed of a segment, if that was found out before then; false: it was
// not, or nobody here has an opinion.
func (t *Tree) older(d *directory, segment string, at int64) (k knowledge, older bool) {
	k, last, has := t.opinion(d, segment)
	return k, has && last < at
}

// opinion is what is believed of a segment, and when it was found out; false: nothing is.
func (t *Tree) opinion(d *directory, segment string) (k knowledge, last int64, has bool) {
	k, err := t.known(d, record.Meaning{Segment: segment})
	absent := min(t.neg.Since(absence{Dir: d.hash, Sort: segment}), t.neg.Since(absence{Dir: d.hash, Sort: segment + "/"}))
	last = max(d.listedAt(t, segment+"/"), t.clock.Trusted(k.Checked), absent)
	return k, last, err == nil && (k.found || absent > 0 || d.whole(t))
}

// askOwn asks the origin for a segment of a directory of this node's. What another asks at
// the time will do, or what a listing finds, unless that is older than the news.
func (q *inquiry) askOwn(ctx context.Context, at int64) (sure bool) {
	a, _ := q.t.askBehind(q.d, record.Meaning{Segment: q.segment}, nil)
	select {
	case <-a.done:
	case <-ctx.Done():
		return false
	}
	_, older := q.t.older(q.d, q.segment, at)
	return !older || q.ask(ctx)
}

// ask asks the origin for a segment of a directory of this node's.
func (q *inquiry) ask(ctx context.Context) (sure bool) {
	release, err := q.t.turn(ctx, q.t.tokens.asks)
	if err != nil {
		return false
	}
	defer release()
	q.begin()
	return q.fileFirst(ctx) == nil && q.keep() == nil
}

// listHeard has a directory listed that was listed before, if that was before then and it is
// time. As any listing, a copy goes to the origin if the owner does not answer.
func (t *Tree) listHeard(ctx context.Context, d *directory, at int64) {
	if l := d.running.Load(); l != nil && l.Wait(ctx) != nil { // it may have passed what changed
		return
	}
	s, listed := d.state.Load(), int64(0)
	if d.whole(t) {
		listed = t.clock.Trusted(s.listed)
	}
	if listed == 0 || listed >= at || since(t.clock.Now(), listed) < listedShare*s.took {
		return
	}
	if l, err := t.list(ctx, d, 0, nil); err == nil {
		_ = l.Wait(ctx)
	}
}

// doubted is a directory, in use, that another node tells of; false: nobody here knows it.
func (t *Tree) doubted(dir hearth.Directory) (*directory, bool) {
	p, err := t.sharedPlace(dir)
	if err != nil {
		return nil, false
	}
	id, ok, err := t.idOf(p)
	if !ok || err != nil {
		return nil, false
	}
	d, err := t.dirs.get(t, id)
	return d, err == nil
}
