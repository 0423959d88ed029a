package draft

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/hearthfs/hearth"
)

// rounds is how often Publish looks for a moment of a draft that is written faster than it is sent.
const rounds = 8

// Publish makes an object of the draft, as it is at one moment after the call. If nothing was written since the last one
// it returns that, without a request. Of several calls one does the work; the others get its outcome, unless something
// was written before them that it has not seen. After an error the draft is as before, and may be published again:
// hearth.ErrConflict says that its name has another object; ErrUnanswered that nobody knows whether it was published, and
// the next call asks first. syscall.EBUSY says that it is written faster than it is sent. After ErrConflict without ErrUnanswered
// the draft has the name that Options.Conflict gives, and is not sent before Claim.
func (d *Draft) Publish(ctx context.Context) (hearth.Object, error) {
	return d.publishAs(ctx, nil, d.conflict)
}

// PublishAt is Publish, but ErrRenamed once the draft has another name than n: its publish may have waited for a rename.
func (d *Draft) PublishAt(ctx context.Context, n Name) (hearth.Object, error) {
	return d.publishAs(ctx, &n, d.conflict)
}

// ErrRenamed says that a draft has another name by now.
var ErrRenamed = errors.New("the draft was renamed")

// publishAs is PublishAt; a nil name is any. What fails is given to settled, with busy held.
func (d *Draft) publishAs(ctx context.Context, at *Name, settled func(error) error) (hearth.Object, error) {
	d.mu.RLock()
	want, ran := d.gen, d.runs
	d.mu.RUnlock()
	if err := d.lock(ctx); err != nil {
		return hearth.Object{}, err
	}
	defer d.unlock()
	d.mu.RLock()
	renamed := at != nil && d.name != *at && !d.removed
	done, base := d.clean >= want, d.base
	failed, kept, why := d.failed, d.beside, d.why
	if d.runs == ran || d.tried < want || errors.Is(failed, context.Canceled) || errors.Is(failed, context.DeadlineExceeded) {
		failed = nil // not of a call that this one waited for, or of its caller's own end
	}
	d.mu.RUnlock()
	switch {
	case renamed:
		return hearth.Object{}, ErrRenamed
	case done:
		d.tellOnce()
		return *base, nil
	case failed != nil:
		return hearth.Object{}, failed
	case kept:
		return hearth.Object{}, &keptError{why}
	}
	ctx, end, err := d.works(ctx)
	if err != nil {
		return hearth.Object{}, fmt.Errorf("publish: %w", err)
	}
	defer end()
	d.mu.Lock()
	tried := d.gen
	d.mu.Unlock()
	o, err := d.publish(ctx)
	if err == nil {
		d.tellOnce()
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, hearth.ErrUnanswered) {
			err = cause
		}
		err = settled(d.fail(fmt.Errorf("publish %s: %w", d.Info().Key, err)))
	}
	d.mu.Lock()
	d.runs++
	d.failed, d.tried = err, tried
	d.wakeAt = d.next + firstWake
	d.run = d.next
	d.mu.Unlock()
	return o, err
}

// works is for who has busy: its context ends with Remove and Close, and the file is open until end.
func (d *Draft) works(ctx context.Context) (_ context.Context, end func(), err error) {
	if !d.s.begin() {
		return nil, nil, ErrClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.s.ctx, func() { cancel(ErrClosed) })
	d.mu.Lock()
	switch {
	case d.removed:
		err = ErrRemoved
	case d.nameless:
		err = errors.New(d.why)
	default:
		err = d.pinLocked()
	}
	if err == nil {
		d.cancel = cancel
	}
	d.mu.Unlock()
	end = func() {
		d.mu.Lock()
		d.cancel = nil
		d.mu.Unlock()
		stop()
		cancel(nil)
		d.unpin()
		d.s.work.Done()
	}
	if err != nil {
		stop()
		cancel(nil)
		d.s.work.Done()
		return nil, nil, err
	}
	return ctx, end, nil
}

func (d *Draft) uploader() (hearth.Uploader, error) {
	if d.s.o.Uploader == nil {
		return nil, errors.New("no origin is given to drafts")
	}
	return d.s.o.Uploader(d.Info().Link)
}

// fail notes why publishing failed. What the origin refused is failed, all else may be tried again.
func (d *Draft) fail(err error) error {
	d.mu.Lock()
	state := Waiting
	for _, refusal := range []error{hearth.ErrConflict, hearth.ErrStale, fs.ErrPermission, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, refusal) && !errors.Is(err, hearth.ErrUnanswered) {
			state = Failed
		}
	}
	removed := d.removed
	d.setLocked(state, err.Error())
	d.mu.Unlock()
	if !removed { // the caller is told that it is kept: over a power cut, too
		saved := d.syncBytes()
		if saved = errors.Join(saved, d.save(saved == nil)); saved != nil {
			d.s.log("%v", saved)
		}
	}
	return err
}

func (d *Draft) setLocked(state State, why string) {
	if d.state != state {
		d.since = d.s.o.Now()
	}
	d.state, d.why = state, why
}

func (d *Draft) publish(ctx context.Context) (hearth.Object, error) {
	up, err := d.uploader()
	if err != nil {
		return hearth.Object{}, err
	}
	if d.pending != nil {
		if err := d.settle(ctx); err != nil {
			return hearth.Object{}, err
		}
	}
	if err := d.unwriteBack(ctx, up); err != nil {
		return hearth.Object{}, err
	}
	if d.recovered {
		d.compare()
	}
	if d.isPublished() {
		d.tellOnce()
		return *d.base, nil
	}
	for range rounds {
		d.mu.RLock()
		size, u := d.size, d.up
		d.mu.RUnlock()
		var again bool
		if u == nil && size <= up.PartSize(size) || u != nil && size <= u.partSize {
			again, err = d.put(ctx, up, size)
		} else {
			again, err = d.multipart(ctx, up, size)
		}
		switch {
		case errors.Is(err, hearth.ErrStale) && d.base != nil: // it is gone, so that the name has another object
			return hearth.Object{}, errors.Join(fmt.Errorf("%w: %w", hearth.ErrConflict, err), d.giveUp(ctx, up))
		case errors.Is(err, hearth.ErrStale): // of what a conflict had begun with nobody has all
			return hearth.Object{}, errors.Join(err, d.giveUp(ctx, up))
		case err != nil:
			return hearth.Object{}, err
		case !again:
			return *d.base, nil
		}
	}
	return hearth.Object{}, fmt.Errorf("it is written faster than it is sent: %w", syscall.EBUSY)
}

// compare tells, after a restart, whether the file has something that was not published.
func (d *Draft) compare() {
	d.mu.Lock()
	d.recovered, d.left = false, true
	if d.published == nil && d.base != nil && d.ext.untouched(d.size) && d.base.Size == d.size && !d.anew { // it was opened, and not written
		d.clean = d.gen
	}
	clean := d.isCleanLocked()
	d.mu.Unlock()
	switch {
	case clean:
		d.finish(Published)
		return
	case d.published == nil, d.anew: // somebody else's bytes may have to go
		return
	}
	if gen, same := d.same(d.published); same {
		d.mu.Lock()
		d.clean = gen
		d.mu.Unlock()
		d.finish(Published)
	}
}

// finish notes the state of a draft that has an object. Its record is in order before its files may go.
func (d *Draft) finish(state State) {
	d.mu.Lock()
	d.setLocked(state, "")
	gone, durable := d.removed, d.durable
	d.mu.Unlock()
	if gone {
		return
	}
	var err error
	if durable { // else a power cut could leave less than what was published, which would be published again
		err = d.syncBytes()
	}
	if err = errors.Join(err, d.save(false), d.syncNames()); err != nil {
		d.s.log("%v", err) // the object is there: after a restart it is found by its token, or its bytes are sent again
	}
}

// put publishes a draft of at most size bytes by one request. again means that it has grown.
func (d *Draft) put(ctx context.Context, up hearth.Uploader, size int64) (again bool, err error) {
	if d.up != nil {
		if err := d.giveUp(ctx, up); err != nil {
			return false, err
		}
	}
	room := min(max(size, 1), d.s.o.Memory)
	if err := d.queue(ctx, d.s.memory, room); err != nil {
		return false, err
	}
	defer d.s.memory.Release(room)
	d.mu.RLock()
	if d.size > size {
		d.mu.RUnlock()
		return true, nil
	}
	t, err := d.takeLocked(0, 0, d.size, false)
	d.mu.RUnlock()
	if err == nil {
		err = d.fill(ctx, t)
	}
	if err != nil {
		return false, err
	}
	n := t.size
	a := &attempt{Token: d.token(), Size: n, PartSize: max(n, 1), Sum: combine([][]byte{t.sum}), gen: t.gen, sums: [][]byte{t.sum}}
	err = d.attempt(ctx, up, a, func(u *hearth.Upload) (hearth.Object, error) {
		d.sent.Add(n)
		body := d.body(t.data)
		defer body.turn()
		return up.Put(ctx, u, body)
	})
	if errors.Is(err, errLate) {
		return true, nil
	}
	return false, err
}

// multipart publishes a draft by an upload in parts. again means that no moment was found, or that the upload is gone.
func (d *Draft) multipart(ctx context.Context, up hearth.Uploader, size int64) (again bool, err error) {
	u, err := d.begun(ctx, up, d.Info().Key, size)
	if err != nil {
		return false, err
	}
	parts, a, err := d.moment(ctx, up, u)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.lose(u)
		return true, nil
	case err != nil || parts == nil:
		return err == nil, err
	}
	if u.tried != nil && !bytes.Equal(u.tried, a.Sum) {
		// Somewhere a Complete of other parts may be under way, with the same token. Were it done now, it would be
		// taken for this one.
		return true, d.giveUp(ctx, up)
	}
	err = d.attempt(ctx, up, a, func(spec *hearth.Upload) (hearth.Object, error) {
		d.silent.Add(1)
		defer d.silent.Add(-1)
		return up.Complete(ctx, spec, u.ID, parts)
	})
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, errLate):
		return true, d.giveUp(ctx, up)
	case errors.Is(err, fs.ErrNotExist) && !errors.Is(err, hearth.ErrUnanswered):
		d.lose(u)
		return true, nil
	case errors.Is(err, hearth.ErrConflict) && !errors.Is(err, hearth.ErrUnanswered):
		return false, errors.Join(err, d.giveUp(ctx, up))
	}
	d.mu.Lock()
	u.known = false // what the origin has may be something else than was thought
	if errors.Is(err, hearth.ErrUnanswered) {
		u.tried = a.Sum
	}
	d.mu.Unlock()
	return false, err
}

// lose forgets an upload that the origin does not know.
func (d *Draft) lose(u *upload) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.up == u {
		d.up = nil
	}
}

// attempt does a request that makes the object, and finds out whether it did.
func (d *Draft) attempt(ctx context.Context, up hearth.Uploader, a *attempt, do func(*hearth.Upload) (hearth.Object, error)) error {
	d.mu.Lock()
	d.pending = a
	d.setLocked(Publishing, "")
	d.mu.Unlock()
	if err := d.save(false); err != nil {
		d.mu.Lock()
		d.pending = nil
		d.mu.Unlock()
		return err
	}
	spec := d.spec("", a.Token, a.Size)
	unheard := false // of an earlier try
	for try := 1; ; try++ {
		d.asks(true)
		o, err := do(spec)
		d.asks(false)
		if err == nil {
			d.done(a, o)
			return nil
		}
		unanswered := errors.Is(err, hearth.ErrUnanswered)
		if unanswered || errors.Is(err, hearth.ErrConflict) || errors.Is(err, fs.ErrNotExist) {
			// It may have been this attempt, sent before, that is in the way.
			seen, asked := up.Written(ctx, spec)
			switch {
			case asked == nil:
				d.done(a, seen)
				return nil
			case !errors.Is(asked, hearth.ErrConflict):
				return fmt.Errorf("%w: %w, and whether it was done: %w", hearth.ErrUnanswered, err, asked)
			case unanswered && try < tries:
				unheard = true
				continue // the same bytes and the same token: that it is done twice does no harm
			}
		} else if unheard { // a refusal of this try says nothing of the one before
			err = fmt.Errorf("%w: %w", hearth.ErrUnanswered, err)
			unanswered = true
		}
		if !unanswered { // else it may still be done, and is asked for again
			d.mu.Lock()
			d.pending = nil
			d.mu.Unlock()
		}
		if !unanswered && errors.Is(err, hearth.ErrConflict) {
			return d.late(ctx, up, *spec, err)
		}
		return err
	}
}

// errLate says that the object in the way is an earlier attempt's.
var errLate = errors.New("an earlier attempt was done late")

// late gives an attempt's conflict the error errLate, if the object that is in its way is the draft's own: of an attempt before, which nobody waits for any
// more, since the process of that time was killed or had no answer, and which the origin has done after it was asked for. The draft goes
// on from that object.
func (d *Draft) late(ctx context.Context, up hearth.Uploader, spec hearth.Upload, conflict error) error {
	var o hearth.Object
	err := error(hearth.ErrConflict)
	for i := len(d.unheard) - 1; i >= 0 && errors.Is(err, hearth.ErrConflict); i-- {
		spec.Draft = d.unheard[i]
		o, err = up.Written(ctx, &spec)
	}
	switch {
	case errors.Is(err, hearth.ErrConflict):
		return conflict
	case err != nil:
		return fmt.Errorf("%w: %w, and whose it is: %w", hearth.ErrUnanswered, conflict, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	o.Link = d.name.Link
	if d.base != nil && d.base.ETag == o.ETag { // the condition did not fail for it
		return conflict
	}
	// Nobody knows which bytes it has: all are sent again.
	d.base, d.under, d.published, d.anew = &o, &o, nil, false
	return errLate
}

// asks notes whether a request that makes the object is under way. After it nothing more is sent of a draft that was removed
// meanwhile.
func (d *Draft) asks(now bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asking = now
	if !now && d.removed && d.cancel != nil {
		d.cancel(ErrRemoved)
	}
}

// settle asks whether the attempt that had no answer was done. If nobody can tell, that is an error.
func (d *Draft) settle(ctx context.Context) error {
	up, err := d.uploader()
	if err != nil {
		return err
	}
	a := d.pending
	o, err := up.Written(ctx, d.spec("", a.Token, a.Size))
	switch {
	case err == nil:
		d.done(a, o)
		return nil
	case !errors.Is(err, hearth.ErrConflict):
		return fmt.Errorf("%w: ask whether it was done: %w", hearth.ErrUnanswered, err)
	}
	d.unheard = append(d.unheard[max(0, len(d.unheard)-mostUnheard+1):], a.Token)
	d.mu.Lock()
	d.pending = nil
	if d.up != nil && d.up.token == a.Token {
		d.up.tried = a.Sum
	}
	d.mu.Unlock()
	return nil
}

// mostUnheard is how many attempts without an answer are remembered.
const mostUnheard = 8

// ask is settle for who reads, and has nothing to be sent.
func (d *Draft) ask(ctx context.Context) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	if d.pending == nil { // a publish has ended meanwhile
		return nil
	}
	return d.settle(ctx)
}

// done notes that an attempt made an object.
func (d *Draft) done(a *attempt, o hearth.Object) {
	gen := a.gen
	if gen == 0 { // of before the restart
		if at, same := d.same(a); same {
			gen = at
		}
	}
	d.mu.Lock()
	o.Link = d.name.Link
	if !d.removed {
		d.pending = nil
	} // else cleanUp deletes the object
	d.base, d.under, d.published, d.anew = &o, &o, a, false
	d.clean = max(d.clean, gen)
	if d.up != nil && d.up.token == a.Token {
		d.up = nil
	}
	state := Opened
	if d.isCleanLocked() {
		state = Published
	}
	gone := d.removed
	d.mu.Unlock()
	d.finish(state)
	if !gone {
		d.tell(&o)
	}
}

// tellOnce says what the bucket has, if the process ended before it could.
func (d *Draft) tellOnce() {
	d.mu.RLock()
	due, base := d.told != d.base && !d.removed, d.base
	d.mu.RUnlock()
	if due {
		d.tell(base)
	}
}

// tell says that the draft was published.
func (d *Draft) tell(o *hearth.Object) {
	if d.s.o.Published != nil {
		d.s.o.Published(d, *o)
	}
	d.mu.Lock()
	d.told = o
	d.mu.Unlock()
}

// cleanUp aborts what a draft has left at the origin. A removed one goes with that.
func (d *Draft) cleanUp(ctx context.Context) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	return d.cleaned(ctx)
}

// cleaned is cleanUp for who has busy.
func (d *Draft) cleaned(ctx context.Context) error {
	d.mu.Lock()
	gone := d.removed
	left := d.leavesLocked()
	if gone && d.up != nil {
		d.abort, d.up = append(d.abort, d.up.uploadRef), nil
	}
	files := !gone || d.held
	d.mu.Unlock()
	if left {
		up, err := d.uploader()
		if err != nil {
			return err
		}
		if err := errors.Join(d.unwrite(ctx, up), d.unwriteBack(ctx, up), d.lost(ctx, up), d.aborts(ctx, up)); err != nil {
			return errors.Join(err, d.save(false))
		}
	}
	d.mu.RLock()
	yet := d.leavesLocked() // what the origin may do yet
	d.mu.RUnlock()
	if files || yet {
		if left {
			return d.save(false)
		}
		return nil
	}
	if err := d.erase(); err != nil {
		return err
	}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.mu.RLock()
	defer d.mu.RUnlock()
	d.s.settleLocked(d)
	return nil
}

// unwriteBack deletes the object that a rename has made which was taken back, and broken off. Another version of it stays.
func (d *Draft) unwriteBack(ctx context.Context, up hearth.Uploader) error {
	d.mu.RLock()
	o := d.unwritten
	d.mu.RUnlock()
	if o == nil {
		return nil
	}
	if err := up.Delete(ctx, o.Key, o.ETag); err != nil && !errors.Is(err, hearth.ErrConflict) {
		return fmt.Errorf("take back %s: %w", o.Key, err)
	}
	d.mu.Lock()
	d.unwritten, d.changed = nil, true
	d.mu.Unlock()
	return d.save(false)
}

// unwrite deletes the object of a removed draft whose attempt may have made it.
func (d *Draft) unwrite(ctx context.Context, up hearth.Uploader) error {
	if !d.removed || d.pending == nil {
		return nil
	}
	o, err := up.Written(ctx, d.spec("", d.pending.Token, d.pending.Size))
	if err == nil {
		err = up.Delete(ctx, o.Key, o.ETag)
	}
	if err != nil && !errors.Is(err, hearth.ErrConflict) {
		return fmt.Errorf("delete what a removed draft may have written: %w", err)
	}
	// It is not asked for again: what is done late may lie over what has the name by then, and that is better than nothing.
	d.mu.Lock()
	d.pending = nil
	if err == nil && d.base != nil { // it was that object, or was written over
		d.base, d.published, d.told, d.clean = nil, nil, nil, 0
		d.setLocked(Opened, "")
	}
	d.mu.Unlock()
	return nil
}
