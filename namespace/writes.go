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
//	begun    the origin is asked in a context of its own (Begin): an origin that has all of a
//	         write ends it, whoever waits, so what was begun is finished though its writer has gone
//	undone   nothing was written, and nobody is asked
//	done     what may have changed is asked for again (written.go) before the writer is answered
//	unknown  the answer was lost, or broke off: the write may be done yet. What may have changed
//	         is asked for at once, and again after 5 s, a minute and ten minutes. What is unknown
//	         at the end is doubted, which a restart keeps
//
// Writes whose outcome is unknown are uncertain. One goroutine attends to them, and only while there
// are any. They are bounded in keys; a write beyond that counts as one of its whole bucket.

const (
	// finishWithin is how long the answer to a write is waited for behind a writer that has gone,
	// where the origin says something now and then; its silence has bounds of its own. It is as long
	// as this: Amazon says of CompleteMultipartUpload that it "can take several minutes".
	finishWithin = 10 * time.Minute
	// writtenWithin is how long a writer waits until what it wrote is known here.
	writtenWithin = 5 * time.Second
	// mostUncertain keys are asked for again one by one, which are some 10 MiB.
	mostUncertain = 10_000
	// eachWithin is how long one uncertain write may be asked for, and allWithin all that are due:
	// after it they are only doubted.
	eachWithin, allWithin = 5 * time.Second, time.Minute
)

// errWritesEnd is why what is under way ends.
var errWritesEnd = fmt.Errorf("writes end: %w", context.Canceled)

// Write is what a write at an origin may change.
type Write struct {
	// Bucket is where, as WritesOptions.Links knows it.
	Bucket string
	// Keys are those that it may make, change or remove.
	Keys []string
	// Below are prefixes of keys: any key that begins with one may be changed, too.
	Below []string
	// KeepsNames is set of a write that changes no name and no version, but tags, for one:
	// WritesOptions.Changed hears of it, and nobody is asked.
	KeepsNames bool
}

// Outcome is what is known of a write that was begun.
type Outcome int

const (
	// Undone: nothing was written, nor will be.
	Undone Outcome = iota
	// Done: it was written, or may have been, and nothing follows.
	Done
	// Unknown: it may be written yet.
	Unknown
)

// WritesOptions say what a front end has to do with its writes. The zero WritesOptions works.
type WritesOptions struct {
	// Links are the names of those that lead to a bucket now; nil: a bucket is a link's name.
	Links func(bucket string) []string
	// Changed has the front end forget what itself keeps of keys, before their names are asked for;
	// nil keys: of all. Nil: it keeps nothing.
	Changed func(keys []string)
	// Settle returns once whoever is told of changes shows them; nil: there is nobody.
	Settle func(ctx context.Context)
	// After is when an uncertain write is asked for again, counted from when its outcome was found to
	// be unknown, each later than the one before. None: after 5 s, a minute, and finishWithin.
	After []time.Duration
}

// Writes are those of a front end.
type Writes struct {
	t    *Tree
	o    WritesOptions
	ask  func(ctx context.Context, x *Write) // askAgain, or a test's
	ctx  context.Context                     // ends with Close
	end  context.CancelCauseFunc
	more chan struct{}  // something is uncertain that may be due earlier than all else
	work sync.WaitGroup // the goroutine that attends

	mu        sync.Mutex                 // guards the rest, and against Close what begins work
	uncertain map[[sha256.Size]byte]turn // by what they may change; not empty: a goroutine attends to it
	keys      int                        // in them
}

// turn is an uncertain write and how often it was asked for again.
type turn struct {
	Write
	since time.Time
	next  int // of those in After
}

// Writes returns those of one more front end, of which none was begun. Close them before the Tree.
func (t *Tree) Writes(o WritesOptions) *Writes {
	w := &Writes{t: t, o: o, more: make(chan struct{}, 1), uncertain: map[[sha256.Size]byte]turn{}}
	if len(o.After) == 0 {
		w.o.After = []time.Duration{5 * time.Second, time.Minute, finishWithin}
	}
	w.ask = w.askAgain
	w.ctx, w.end = context.WithCancelCause(context.Background())
	return w
}

// Begin returns the context in which an origin is asked for a write: it has the values of the
// writer's, and ends with Close and finishWithin after the writer's. end must be called.
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

// Ended is told what is known of a write. It returns once what that may have changed was asked
// for again, or is doubted; after Close it is doubted at once.
func (w *Writes) Ended(x Write, o Outcome) {
	if o == Undone {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, writtenWithin) // not the writer's, who may be gone
	defer cancel()
	w.ask(ctx, &x)
	if o == Unknown && !w.again(x) && !w.again(Write{Bucket: x.Bucket, Below: []string{""}}) {
		w.ask(w.ctx, &x) // it was asked for before the end, perhaps
	}
}

// again has a write asked for again in its turns. One that is uncertain already begins anew. false:
// there is no room, which one without keys always has, or no time.
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

// Close ends the writes under way, and waits until what is uncertain was doubted.
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

// due is what is to be asked for now, or all of it for the last time, and else how long nothing is;
// negative: nothing is left, and whoever comes next has another attend.
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

// askDue asks for writes, some at a time.
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
