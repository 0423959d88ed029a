package s3gw

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// finishWithin is how long the answer to a write is waited for behind a client that has gone,
	// where the origin says something now and then; Forward knows when it is silent. It is as long
	// as that: Amazon says of CompleteMultipartUpload that it can take several minutes.
	finishWithin = 10 * time.Minute
	// mostUnsure keys are asked for again one by one, which are some 10 MiB at most; beyond them the
	// names of their buckets are listed again.
	mostUnsure = 10_000
	// againWithin is how long asking again for all that is due may take; what is left then is
	// doubted, and whoever looks it up next asks.
	againWithin = time.Minute
)

// againAfter is when what a write may have changed is asked for again, counted from when its answer
// was lost: an origin may be at work on it still, for as long as Forward waits for one at least.
func againAfter() []time.Duration { return []time.Duration{5 * time.Second, time.Minute, finishWithin} }

// errEnds is why what is under way ends.
var errEnds = fmt.Errorf("the endpoint ends: %w", context.Canceled)

// work is what goes on in a Gateway, behind clients that have gone too.
type work struct {
	sync.WaitGroup // of requests under way, and of the unsure

	ctx    context.Context // ends with the Gateway
	end    context.CancelCauseFunc
	finish time.Duration   // finishWithin
	after  []time.Duration // againAfter
	more   chan struct{}   // something is unsure that may be due earlier than all else

	mu     sync.Mutex        // guards the rest
	unsure map[string]unsure // by what was written; not empty: a goroutine attends to it
	count  int               // keys in them
}

// unsure is a write of which nobody knows whether it was, or is yet to be, done.
type unsure struct {
	writing
	since time.Time
	turn  int // of those in after
}

func (w *work) begin() {
	w.ctx, w.end = context.WithCancelCause(context.Background())
	w.finish, w.after, w.more, w.unsure = finishWithin, againAfter(), make(chan struct{}, 1), map[string]unsure{}
}

// lasting is the context of a write that is finished though its client has gone: it ends with the
// endpoint, and some time after the client. end must be called.
func (x *exchange) lasting(ctx context.Context) (lasting context.Context, end func()) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	late := time.AfterFunc(x.work.finish, func() {
		cancel(fmt.Errorf("the origin is not done %v after the client has gone", x.work.finish))
	})
	late.Stop()
	gone := context.AfterFunc(x.r.Context(), func() { late.Reset(x.work.finish) })
	ends := context.AfterFunc(x.work.ctx, func() { cancel(context.Cause(x.work.ctx)) })
	return lasting, func() {
		gone()
		ends()
		late.Stop()
		cancel(nil)
	}
}

// outcome is what is known of a write.
type outcome int

const (
	undone    outcome = iota // nothing was written
	done                     // it may have been, and nothing follows
	uncertain                // it may be done yet
)

// outcome tells it by what came of asking the origin. That it finds no such object or upload, or
// another object than the client expects, says that what is believed here may be wrong, too: a
// CompleteMultipartUpload whose answer was lost and that is sent again is answered NoSuchUpload.
func (x *exchange) outcome(answer *http.Response, err error) outcome {
	switch {
	case err != nil && origin.Unsent(err), answer == nil && err == nil:
		return undone
	case err != nil:
		return uncertain
	case answer.StatusCode == http.StatusNotImplemented, answer.StatusCode == http.StatusServiceUnavailable:
		return done
	case answer.StatusCode >= 500: // perhaps of a proxy that waits no longer
		return uncertain
	case answer.StatusCode < 400:
		return done
	case x.asks.Touches == request.TheKey && slices.Contains([]int{http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed}, answer.StatusCode):
		return done
	}
	return undone
}

// after has what a write may have changed forgotten, and forgotten again where that may come later.
func (x *exchange) after(o outcome, w writing) {
	if o == undone {
		return
	}
	ctx, cancel := context.WithTimeout(x.work.ctx, seenWithin) // not the client's, who may be gone
	defer cancel()
	w.forget(ctx)
	if o == uncertain {
		x.again(w)
	}
}

// again has what a write may have changed forgotten again, several times. What is written anew
// meanwhile begins anew.
func (x *exchange) again(what writing) {
	w := &x.work
	name := strconv.Itoa(int(x.asks.Touches)) + "/" + x.asks.Bucket + "/" + x.asks.Key
	if x.asks.Touches == request.Listed {
		name += x.id
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	begins := len(w.unsure) == 0
	w.count -= w.unsure[name].keys
	delete(w.unsure, name)
	if w.count+what.keys > mostUnsure {
		all := &exchange{Gateway: x.Gateway, asks: &request.Request{Bucket: x.asks.Bucket, Touches: request.Everything}, links: x.links}
		name, what = "all/"+x.asks.Bucket, writing{0, func(ctx context.Context) { all.forget(ctx, nil) }}
	}
	w.count += what.keys
	w.unsure[name] = unsure{writing: what, since: time.Now()}
	if begins {
		w.Go(w.attend)
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// attend forgets what is due until nothing is unsure any more. At the end all is doubted once more,
// which a restart does not undo.
func (w *work) attend() {
	for {
		due, wait := w.due(time.Now(), w.ctx.Err() != nil)
		w.forgetAll(due)
		if len(due) > 0 {
			continue
		}
		if wait < 0 {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-w.more:
		case <-w.ctx.Done():
		}
		timer.Stop()
	}
}

// due is what is to be forgotten now, or at once whenever it was to be, and else how long nothing is;
// negative: nothing is left, and whoever comes next has another attend.
func (w *work) due(now time.Time, atOnce bool) (due []func(context.Context), wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait = -1
	for name, u := range w.unsure {
		left := u.since.Add(w.after[min(u.turn, len(w.after)-1)]).Sub(now)
		switch {
		case u.turn == len(w.after): // its last turn is over
			w.count -= u.keys
			delete(w.unsure, name)
		case atOnce:
			u.turn = len(w.after)
			w.unsure[name] = u
			due = append(due, u.forget)
		case left <= 0:
			u.turn++
			w.unsure[name] = u
			due = append(due, u.forget)
		case wait < 0 || left < wait:
			wait = left
		}
	}
	return due, wait
}

// forgetAll forgets, some at a time.
func (w *work) forgetAll(all []func(context.Context)) {
	ctx, cancel := context.WithTimeout(w.ctx, againWithin)
	defer cancel()
	var work sync.WaitGroup
	defer work.Wait()
	room := make(chan struct{}, atOnce)
	for _, forget := range all {
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			ctx, cancel := context.WithTimeout(ctx, seenWithin)
			defer cancel()
			forget(ctx)
		})
	}
}
