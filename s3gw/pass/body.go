package pass

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"sync"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

// incoming is a request's body while it comes from the client.
type incoming struct {
	c  *client
	in io.Reader

	busy   sync.Mutex    // held during Read, and guards waited and got; locked before mu
	waited time.Duration // time waited for the client since got was 0
	got    int           // bytes since then, fewer than leastPiece
	mu     sync.Mutex    // guards the fields below
	err    error         // the error that ended the body, io.EOF included
	left   bool          // the answer is over, and the server alone uses the client's connection
}

// leastPiece bytes of a body must come within the patience. Otherwise a client that trickles could
// hold a place at the origin for as long as it likes.
const leastPiece = 64 << 10

// Read waits for the client within its patience, for each leastPiece. Time that the origin takes
// does not count. The origin's side calls it, and may go on with it during the answer, and after.
func (b *incoming) Read(p []byte) (int, error) {
	b.busy.Lock()
	defer b.busy.Unlock()
	begun := time.Now()
	if !b.deadline(begun.Add(b.c.patience - b.waited)) {
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.in.Read(p)
	b.waited += time.Since(begun)
	if b.got += n; b.got >= leastPiece {
		b.waited, b.got = 0, 0
	}
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		b.deadline(time.Time{}) // from here on net/http reads, to notice a client that goes away
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = request.Of(err, "RequestTimeout", "Less than %d KiB of the body came in %v.", leastPiece>>10, b.c.patience)
	}
	b.mu.Lock()
	b.err = err
	b.mu.Unlock()
	return n, err
}

// deadline sets the client's read deadline, and reports whether the body was not left yet.
func (b *incoming) deadline(at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.left {
		_ = b.c.control.SetReadDeadline(at)
	}
	return !b.left
}

// grace is how long an answered client may go on with its body: if the connection ended while it
// sends, it could lose the answer. net/http waits as long after a body that is larger than it
// discards.
const grace = 500 * time.Millisecond

// leave ends a Read under way, forbids others, and waits for its end. Otherwise net/http would
// interrupt it as well, and would remove the deadline while it discards the rest of the body.
func (b *incoming) leave() {
	b.mu.Lock()
	b.left = true
	whole := b.err == io.EOF
	b.mu.Unlock()
	if whole || b.c.control.SetReadDeadline(time.Unix(1, 0)) != nil {
		return
	}
	b.busy.Lock()
	defer b.busy.Unlock()
	_ = b.c.control.SetReadDeadline(time.Now().Add(grace))
}

// Close leaves the body to the server.
func (b *incoming) Close() error { return nil }

// unfinished reports whether more of the body may come.
func (b *incoming) unfinished() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != io.EOF
}

// failure returns the error that broke off the body, or nil if none is known.
func (b *incoming) failure() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

// interim passes on an origin's interim answers (1xx) until the answer itself is there.
type interim struct {
	mu    sync.Mutex // guards the fields below
	to    http.ResponseWriter
	ended bool
}

// got is called by the goroutine that reads from the origin.
func (i *interim) got(code int, header textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || code == http.StatusContinue { // the client asked for no 100
		return nil
	}
	h := i.to.Header()
	before := h.Clone()
	for name, values := range header {
		h[name] = values
	}
	i.to.WriteHeader(code)
	clear(h)
	for name, values := range before {
		h[name] = values
	}
	return nil
}

func (i *interim) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
}
