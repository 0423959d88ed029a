package namespace

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A front end writes at an origin past the tree, and the tree asks for what came of it:
//
//	begun    the origin is asked in a context of its own (Begin). An origin that received all of
//	         a write completes it whoever waits, so the write goes on when its writer has gone
//	undone   nothing was written; the origin is not asked
//	done     what may have changed is asked for again (written.go) before the writer is answered
//	unknown  the answer was lost or cut off: the write may still happen. What may have changed
//	         is asked for at once, and again after 5 s, a minute and ten minutes. What is still unknown
//	         then is doubted; the doubt outlives a restart
//
// Writes whose outcome is unknown are uncertain. One goroutine asks for them, and only while there
// are any. Their keys are bounded; a write beyond the bound counts as a write of its whole bucket.

const (
	// finishWithin is how long a write waits for its answer after its writer has gone, if the origin
	// sends something now and then. Silence has bounds of its own. It is long, since Amazon says of
	// CompleteMultipartUpload that it "can take several minutes".
	finishWithin = 10 * time.Minute
	// writtenWithin is how long a writer waits until what it wrote is known here.
	writtenWithin = 5 * time.Second
	// mostUncertain bounds the keys that are asked for again one by one. They take some 10 MiB.
	mostUncertain = 10_000
	// eachWithin bounds the questions for one uncertain write, and allWithin those for all that are due.
	// After it names are only doubted.
	eachWithin, allWithin = 5 * time.Second, time.Minute
)

// errWritesEnd is the cause with which Close ends the writes in flight.
var errWritesEnd = fmt.Errorf("writes end: %w", context.Canceled)

// Write says what a write at an origin may change.
type Write struct {
	// Bucket is where, as WritesOptions.Links knows it.
	Bucket string
	// Keys are those that the write may make, change or remove.
	Keys []string
	// Below are prefixes of keys: any key that begins with one may be changed, too.
	Below []string
	// KeepsNames is set of a write that changes no name and no version, such as a write of tags.
	// WritesOptions.Changed hears of it, and the origin is not asked.
	KeepsNames bool
}

// Outcome is what is known of a write that was begun.
type Outcome int

const (
	// Undone means that nothing was written, nor will be.
	Undone Outcome = iota
	// Done means that the write is over. It was written, or may have been.
	Done
	// Unknown means that it may still be written.
	Unknown
)

// WritesOptions say what a front end has to do with its writes. The zero WritesOptions works.
type WritesOptions struct {
	// Links returns the names of the links that lead to a bucket now. Nil means that a bucket's name is
	// its link's.
	Links func(bucket string) []string
	// Changed makes the front end forget what it caches of keys, before their names are asked for. With
	// nil keys it forgets all. A nil Changed means that the front end caches nothing.
	Changed func(keys []string)
	// Settle returns once those who are told of changes show them. A nil Settle means that there is
	// nobody to wait for.
	Settle func(ctx context.Context)
	// After says when an uncertain write is asked for again, counted from when its outcome was found
	// unknown, in rising order. None means after 5 s, a minute, and finishWithin.
	After []time.Duration
}

// Writes are the writes of one front end, and the tree's questions about what came of them.
type Writes struct {
	t    *Tree
	o    WritesOptions
	ask  func(ctx context.Context, x *Write) // askAgain, or a test's
	ctx  context.Context                     // ends with Close
	end  context.CancelCauseFunc
	more chan struct{}  // wakes attend: a new uncertain write may be due first
	work sync.WaitGroup // the goroutine that attends

	mu        sync.Mutex                 // guards the rest, and keeps work from beginning after Close
	uncertain map[[sha256.Size]byte]turn // by what they may change; attend runs while it is not empty
	keys      int                        // in them
}

// turn is an uncertain write and how often it was asked for again.
type turn struct {
	Write
	since time.Time
	next  int // of those in After
}

// Writes returns the writes of one more front end. Close it before the Tree.
func (t *Tree) Writes(o WritesOptions) *Writes {
	w := &Writes{t: t, o: o, more: make(chan struct{}, 1), uncertain: map[[sha256.Size]byte]turn{}}
	if len(o.After) == 0 {
		w.o.After = []time.Duration{5 * time.Second, time.Minute, finishWithin}
	}
	w.ask = w.askAgain
	w.ctx, w.end = context.WithCancelCause(context.Background())
	return w
}

// Begin returns the context in which an origin is asked for a write. It has the values of the writer's
// context. It ends with Close, or finishWithin after the writer's context has ended. end must be
// called.
func (w *Writes) Begin(writer context.Context) (lasting context.Context, end func()) {
	lasting, cancel := context.WithCancelCause(context.WithoutCancel(writer))
	late := time.AfterFunc(finishWithin, func() {
		cancel(fmt.Errorf("the origin is not done %v after its client has gone", finishWithin))
	})
	late.Stop()
	gone := context.AfterFunc(writer, func() { late.Reset(finishWithin) })
	ends := context.AfterFunc(w.ctx, func() { cancel(context.Cause(w.ctx)) })
	return lasting, func() {
		gone()
		ends()
		late.Stop()
		cancel(nil)
	}
}

// Ended reports the outcome of a write. It returns once what the write may have changed was asked for
// again, or is doubted. After Close it is doubted at once.
func (w *Writes) Ended(x Write, o Outcome) {
	if o == Undone {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, writtenWithin) // not the writer's, who may be gone
	defer cancel()
	w.ask(ctx, &x)
	if o == Unknown && !w.again(x) && !w.again(Write{Bucket: x.Bucket, Below: []string{""}}) {
		w.ask(w.ctx, &x) // Close came meanwhile: this doubts it
	}
}

// again schedules an uncertain write to be asked for again. One that is scheduled already begins anew.
// It returns false when there is no room for its keys, or after Close. A write without keys always has
// room.
func (w *Writes) again(x Write) bool {
	name := sha256.Sum256(fmt.Appendf(nil, "%#v", x))
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.uncertain[name]
	more := len(x.Keys) - len(before.Keys)
	if w.ctx.Err() != nil || len(x.Keys) > 0 && w.keys+more > mostUncertain {
		return false
	}
	begins := len(w.uncertain) == 0
	w.keys += more
	w.uncertain[name] = turn{Write: x, since: time.Now()}
	if begins {
		w.work.Go(w.attend) // ends when nothing is uncertain any more
	}
	select {
	case w.more <- struct{}{}:
	default:
	}
	return true
}

// Close ends the writes under way, and waits until the uncertain ones are doubted.
func (w *Writes) Close() {
	w.mu.Lock()
	w.end(errWritesEnd)
	w.mu.Unlock()
	w.work.Wait()
}

// attend asks for what is due until nothing is uncertain any more.
func (w *Writes) attend() {
	for {
		due, wait := w.due(time.Now(), w.ctx.Err() != nil)
		w.askDue(due)
		switch {
		case len(due) > 0:
			continue
		case wait < 0:
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

// due returns the writes to be asked for now, and else how long to wait for the next. last makes all of
// them due for the last time. A negative wait means that nothing is left: attend ends, and the next
// uncertain write starts another one.
func (w *Writes) due(now time.Time, last bool) (due []Write, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait = -1
	for name, u := range w.uncertain {
		if u.next == len(w.o.After) { // its last turn is over
			w.keys -= len(u.Keys)
			delete(w.uncertain, name)
			continue
		}
		if left := u.since.Add(w.o.After[u.next]).Sub(now); left > 0 && !last {
			if wait < 0 || left < wait {
				wait = left
			}
			continue
		}
		if u.next++; last {
			u.next = len(w.o.After)
		}
		w.uncertain[name] = u
		due = append(due, u.Write)
	}
	return due, wait
}

// askDue asks for writes, atOnce at a time.
func (w *Writes) askDue(due []Write) {
	ctx, cancel := context.WithTimeout(w.ctx, allWithin)
	defer cancel()
	var work errgroup.Group
	work.SetLimit(atOnce)
	for i := range due {
		work.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, eachWithin)
			defer cancel()
			w.ask(ctx, &due[i])
			return nil
		})
	}
	_ = work.Wait() // none fails
}

// askAgain asks again for all that a write may have changed.
func (w *Writes) askAgain(ctx context.Context, x *Write) {
	switch {
	case w.o.Changed == nil:
	case len(x.Below) > 0:
		w.o.Changed(nil)
	case len(x.Keys) > 0:
		w.o.Changed(x.Keys)
	}
	if x.KeepsNames || len(x.Keys)+len(x.Below) == 0 {
		return
	}
	names := []string{x.Bucket}
	if w.o.Links != nil {
		names = w.o.Links(x.Bucket)
	}
	var links []*link
	for _, name := range names {
		if l := w.t.links.Load().named(name); l != nil {
			links = append(links, l)
		}
	}
	w.t.writtenKeys(ctx, links, x.Keys)
	w.t.writtenBelow(ctx, links, x.Below)
	if w.o.Settle != nil {
		w.o.Settle(ctx)
	}
}
