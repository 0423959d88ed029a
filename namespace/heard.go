package namespace

import (
	"context"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// newsSlack is how long news may have travelled. The owner's answer may be that much older than the
// news seems to be, but never older than what is known here.
const newsSlack = time.Second

// passedOn is the age up to which an owner passes on news. Without it two nodes that both take
// themselves for the owner for a while would send news to each other for ever.
const passedOn = 5 * time.Second

// listedShare is how many times its duration a listing is left alone, whatever news comes. It is
// believed for at least twenty times its duration.
const listedShare = 10

// tell tells the nodes of a ring of an edit that came from the origin.
func (t *Tree) tell(e *edit) {
	s := e.d.sharer()
	if len(e.changes) == 0 || e.asked == 0 || s == nil {
		return
	}
	dir := hearth.Directory{ID: e.d.hash, Link: e.d.link.Name, Prefix: e.d.prefix()}
	s.Changed(dir, e.segments, since(t.clock.Now(), e.asked))
}

// Heard is news from another node: a segment of a directory, or "" for all of it, was found that long
// ago to have changed. News is doubt, not truth. If something older is believed here, this node asks
// the directory's owner, or the origin if it is the owner itself. What it finds out is told on like any
// other change. Heard returns once that is done.
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
	at, sure := t.clock.Now()-old.Milliseconds(), true
	if d, ok := t.doubted(dir); ok {
		defer d.release()
		if segment == "" {
			sure = t.listHeard(ctx, d, at)
		} else {
			sure = t.askAgain(ctx, d, segment, at, false)
		}
	}
	if sure {
		t.passOn(dir, segment, at)
	}
}

// passOn passes on news that this node heard, if it is the owner, whether or not they changed what it
// believes. Others may still believe something older than the news: one may have asked the origin by
// itself, or have kept a directory that was gone here. The owner may know the change already, from a
// listing that began before they asked. And when a directory comes back, the others are not told of
// each name in it.
func (t *Tree) passOn(dir hearth.Directory, segment string, at int64) {
	p, err := t.sharedPlace(dir)
	old := since(t.clock.Now(), at)
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

// askAgain asks again for a segment of a directory, if what is believed of it was found out before that
// time. anew means that neither a question in flight nor the owner's answer is enough, as both may be
// too old. sure is false when nobody answered.
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
	if q.askElsewhere(ctx, &k, nil) {
		return q.keep() == nil
	}
	if !k.Dir { // else the owner may be wrong that the directory is gone
		t.doubtName(d, segment) // not every node is to ask the origin: those do whose users ask for the name
	}
	return false
}

// older is what is believed of a segment, and whether it was found out before that time. It returns
// false when it was not, or when nothing is believed.
func (t *Tree) older(d *directory, segment string, at int64) (k knowledge, older bool) {
	k, last, has := t.opinion(d, segment)
	return k, has && last < at
}

// opinion is what is believed of a segment, and when that was found out. It returns false when nothing
// is.
func (t *Tree) opinion(d *directory, segment string) (k knowledge, last int64, has bool) {
	k, err := t.known(d, record.Meaning{Segment: segment})
	absent := min(t.neg.Since(absence{Dir: d.hash, Sort: segment}), t.neg.Since(absence{Dir: d.hash, Sort: segment + "/"}))
	last = max(d.listedAt(t, segment+"/"), t.clock.Trusted(k.Checked), absent)
	return k, last, err == nil && (k.found || absent > 0 || d.whole(t))
}

// askOwn asks the origin for a segment of a directory that this node owns. It joins a question in
// flight; when the answer of that is older than the news, it asks by itself.
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

// listHeard lists a directory again of which something is believed that was found out before that time.
// It does not if the last listing is too recent (listedShare). Like any listing, a copy falls back to
// the origin if the owner does not answer. It returns false when a listing failed.
func (t *Tree) listHeard(ctx context.Context, d *directory, at int64) (sure bool) {
	if l := d.running.Load(); l != nil && l.Wait(ctx) != nil { // it may have passed what changed
		return false
	}
	if d.whole(t) {
		s := d.state.Load()
		listed := t.clock.Trusted(s.listed)
		if listed >= at || listed > 0 && since(t.clock.Now(), listed) < listedShare*s.took {
			return true
		}
	} else if !t.neg.Any(d.hash) && !t.holds(d) {
		return true
	}
	l, err := t.list(ctx, d, 0, nil)
	return err == nil && l.Wait(ctx) == nil
}

// doubted is a directory, in use, that news from another node names. It returns false when this node
// does not know it.
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
