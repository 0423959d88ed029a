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

// incoming is a request's body as it comes from the client.
type incoming struct {
	c  *client
	in io.Reader

	busy   sync.Mutex    // held by Read, and guards waited and got; before mu
	waited time.Duration // for the client, since got
	got    int           // bytes, fewer than leastPiece
	mu     sync.Mutex    // guards the fields below
	err    error         // with which it ended, io.EOF included
	left   bool          // nobody answers any more, and the client's connection is the server's alone
}

// leastPiece bytes of a body are to come while a client is waited for as long as patience is: one
// that trickles would keep a way to the origin for as long as it likes.
const leastPiece = 64 << 10

// Read waits for the client as long as its patience is, for each leastPiece; an origin that takes
// its time is not the client's. It is called by the origin's side, which may
// go on with it while the answer is on its way, and after.
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
		b.deadline(time.Time{}) // from here on net/http reads, to see the client go away
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = request.Of(err, "RequestTimeout", "Less than %d KiB of the body came in %v.", leastPiece>>10, b.c.patience)
	}
	b.mu.Lock()
	b.err = err
	b.mu.Unlock()
	return n, err
}

// deadline sets the client's, unless it was left.
func (b *incoming) deadline(at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.left {
		_ = b.c.control.SetReadDeadline(at)
	}
	return !b.left
}

// grace is how long an answered client may go on with its body: one whose connection ends while it
// sends may lose the answer. net/http waits as long after a body that is larger than it discards.
const grace = 500 * time.Millisecond

// leave ends a Read that is under way, and forbids others. It waits for its end: net/http would
// interrupt it as well, and take the deadline away, behind which it discards what is left of the body.
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

// unfinished says that more of the body may come.
func (b *incoming) unfinished() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err != io.EOF
}

// failure is why the body is not whole; nil: nothing is known against it.
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

// interim passes on what an origin says ahead of its answer, until that is there.
type interim struct {
	mu    sync.Mutex // guards the fields below
	to    http.ResponseWriter
	ended bool
}

// got is called by the goroutine that reads from the origin.
func (i *interim) got(code int, header textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended || code == http.StatusContinue { // the client asked for none
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
