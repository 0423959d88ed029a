package origin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"
)

// PassPatience is how long a body that the client wants to be asked for is held back from an origin that
// says nothing: it may not know Expect. Every client's own patience is of this size.
const PassPatience = time.Second

var (
	errTaken   = errors.New("the request was given up")
	errUnasked = errors.New("the origin did not ask for the body")
)

// The states of a Body.
const (
	fresh int32 = iota
	begun       // something was asked of the client
	taken       // nothing may be: it goes with another attempt
)

// passedBody is a client's body on its way to the origin, for one attempt at one request.
//
// Its last byte goes on only when the body has ended rightly behind it: who checks a hash or a
// signature of it finds out at its end, and an origin that has as many bytes as were announced keeps
// them, whatever happens to the connection then.
type passedBody struct {
	ctx    context.Context // of the attempt
	in     io.Reader
	left   int64 // until the announced length; -1: none was announced
	expect bool  // the client waits to be asked
	state  atomic.Int32
	asked  atomic.Bool   // the origin said 100 Continue
	over   chan struct{} // closed by End
	since  time.Time     // when the wait for 100 Continue began; of the goroutine that writes the request
	waits  passWaits

	mu    sync.Mutex // guards what is below
	err   error      // with which the client's side ended, io.EOF included
	watch *time.Timer
	quiet bool // the watch is over
}

// passWaits are how long an origin is waited for.
type passWaits struct {
	// Asked is how long for 100 Continue, as the transport has it: Patience.
	Asked time.Duration
	// Stall is how long it may take nothing while the body is under way.
	Stall time.Duration
	// Answer is how long it may say nothing once it has the whole body; 0: for ever.
	Answer time.Duration
}

// newPassedBody takes a request's body for an attempt; nil if it has none. silent is called when the origin
// stalls, or does not answer.
func newPassedBody(ctx context.Context, r *http.Request, w passWaits, silent func()) *passedBody {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	b := &passedBody{ctx: ctx, in: r.Body, left: r.ContentLength, waits: w, over: make(chan struct{}), expect: r.Header.Get("Expect") != ""}
	b.watch = time.AfterFunc(time.Hour, silent)
	b.watch.Stop()
	return b
}

// Trace are the hooks by which the body learns what the origin asks for; nil: it need not.
func (b *passedBody) Trace() *httptrace.ClientTrace {
	if b == nil || !b.expect {
		return nil
	}
	return &httptrace.ClientTrace{
		Wait100Continue: func() { b.since = time.Now() },
		Got100Continue:  func() { b.asked.Store(true) },
	}
}

// Read gives what the client sends next.
func (b *passedBody) Read(p []byte) (n int, err error) {
	if b.expect && !b.asked.Load() && time.Since(b.since) < b.waits.Asked {
		// An answer came instead. net/http would now send the body after it, so that the
		// connection can be kept, and the client would be asked for it in vain.
		select {
		case <-b.over:
		case <-b.ctx.Done(): // net/http waits for this Read before it says that it was cancelled
		}
		return 0, errUnasked
	}
	if !b.state.CompareAndSwap(fresh, begun) && b.state.Load() == taken {
		return 0, errTaken
	}
	b.expect = false // it was asked for, or waited long enough
	if err := b.Err(); err != nil {
		return 0, err
	}
	b.attend(false)
	if b.left > 0 {
		p = p[:min(int64(len(p)), b.left)]
	}
	n, err = b.in.Read(p)
	if b.left >= 0 {
		n, err = b.count(n, err)
	}
	if err != nil {
		b.ended(err)
	} else {
		b.attend(true)
	}
	return n, err
}

// ended notes the end, and begins the wait for the answer where it was the right one.
func (b *passedBody) ended(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	if err == io.EOF && b.waits.Answer > 0 && !b.quiet {
		b.watch.Reset(b.waits.Answer)
	}
}

// count takes n bytes off the announced length, and keeps the last one back from a body that did
// not end there.
func (b *passedBody) count(n int, err error) (int, error) {
	b.left -= int64(n)
	if b.left > 0 {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	if err == nil {
		var one [1]byte
		if _, err = io.ReadFull(b.in, one[:]); err == nil {
			err = errors.New("the body is longer than was announced")
		}
	}
	if err == io.EOF {
		return n, err
	}
	return max(0, n-1), err
}

// attend begins the watch over the origin, or pauses it while the client is waited for.
func (b *passedBody) attend(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.quiet:
	case on:
		b.watch.Reset(b.waits.Stall)
	default:
		b.watch.Stop()
	}
}

// Close leaves the client's body, which is its server's to close, and the watch to Answered and End:
// net/http closes a body that was read to its end, and the answer is to come.
func (b *passedBody) Close() error { return nil }

// Answered ends the watch: an origin that answers may leave the rest of a body.
func (b *passedBody) Answered() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.quiet = true
	b.watch.Stop()
}

// End says that the attempt is over, its answer included. It may be called once.
func (b *passedBody) End() {
	if b != nil {
		b.Answered()
		close(b.over)
	}
}

// Unread takes the body back if nothing of it was asked for, for another attempt. No body at all is
// unread.
func (b *passedBody) Unread() bool {
	return b == nil || b.state.CompareAndSwap(fresh, taken)
}

// Err is what went wrong on the client's side, io.EOF once the body came to its end; nil: nothing yet.
func (b *passedBody) Err() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
