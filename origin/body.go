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

// PassPatience is how long a body of a client that sent "Expect: 100-continue" is held back from an
// origin that sends nothing: the origin may not know Expect. Clients themselves wait about as long.
const PassPatience = time.Second

var (
	errTaken   = errors.New("the request was given up")
	errUnasked = errors.New("the origin did not ask for the body")
)

// The states of a Body.
const (
	fresh int32 = iota
	begun       // the body is being read from the client
	taken       // it must not be read any more: another attempt has it
)

// passedBody is a client's body on its way to the origin, for one attempt at one request.
//
// Its last byte goes on only when the body has ended correctly after it. A reader that verifies a hash
// or a signature of the body finds out at its end, and an origin that has as many bytes as were
// announced keeps them, whatever happens to the connection then.
type passedBody struct {
	ctx    context.Context // of the attempt
	in     io.Reader
	left   int64 // bytes left of the announced length; -1: none was announced
	expect bool  // the client waits for 100 Continue
	state  atomic.Int32
	asked  atomic.Bool   // the origin said 100 Continue
	over   chan struct{} // closed by End
	since  time.Time     // when the wait for 100 Continue began; owned by the goroutine that writes the request
	waits  passWaits

	mu    sync.Mutex // guards what is below
	err   error      // how the client's side ended, io.EOF included; nil: it has not
	watch *time.Timer
	quiet bool // the watchdog has ended
}

// passWaits bound the waits for an origin.
type passWaits struct {
	// Asked bounds the wait for 100 Continue, as in the transport: PassPatience.
	Asked time.Duration
	// Stall bounds the time in which the origin reads nothing of the body.
	Stall time.Duration
	// Answer bounds the wait for an answer once the origin has the whole body; 0: no bound.
	Answer time.Duration
}

// newPassedBody wraps a request's body for an attempt. It returns nil for a request without a body.
// silent is called when the origin stalls, or does not answer.
func newPassedBody(ctx context.Context, r *http.Request, w passWaits, silent func()) *passedBody {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	b := &passedBody{ctx: ctx, in: r.Body, left: r.ContentLength, waits: w, over: make(chan struct{}), expect: r.Header.Get("Expect") != ""}
	b.watch = time.AfterFunc(time.Hour, silent)
	b.watch.Stop()
	return b
}

// Trace returns the hooks that tell the body when the origin sends 100 Continue. Nil means that no
// hooks are needed.
func (b *passedBody) Trace() *httptrace.ClientTrace {
	if b == nil || !b.expect {
		return nil
	}
	return &httptrace.ClientTrace{
		Wait100Continue: func() { b.since = time.Now() },
		Got100Continue:  func() { b.asked.Store(true) },
	}
}

// Read returns the next bytes of the client.
func (b *passedBody) Read(p []byte) (n int, err error) {
	if b.expect && !b.asked.Load() && time.Since(b.since) < b.waits.Asked {
		// An answer came in place of 100 Continue. net/http would now send the body, so that the
		// connection can be kept, and the client would have to send it for nothing.
		select {
		case <-b.over:
		case <-b.ctx.Done(): // net/http waits for this Read before it says that it was cancelled
		}
		return 0, errUnasked
	}
	if !b.state.CompareAndSwap(fresh, begun) && b.state.Load() == taken {
		return 0, errTaken
	}
	b.expect = false // the origin asked for it, or the wait is over
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

// ended notes the end of the body. After io.EOF it begins the wait for the answer.
func (b *passedBody) ended(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	if err == io.EOF && b.waits.Answer > 0 && !b.quiet {
		b.watch.Reset(b.waits.Answer)
	}
}

// count subtracts n bytes from the announced length. It holds back the last byte of a body that does
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

// attend starts the watchdog over the origin, or pauses it while the client is waited for.
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

// Close does nothing. The client's body is its server's to close. The watchdog is ended by Answered and
// End: net/http closes a body that was read to its end while the answer is still to come.
func (b *passedBody) Close() error { return nil }

// Answered ends the watchdog: an origin that answers need not read the rest of the body.
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

// Unread takes the body back for another attempt, and reports whether nothing of it was read yet. A nil
// body is unread.
func (b *passedBody) Unread() bool {
	return b == nil || b.state.CompareAndSwap(fresh, taken)
}

// Err is how the client's side ended, io.EOF for a complete body. Nil means that it has not ended.
func (b *passedBody) Err() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
