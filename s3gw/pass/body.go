package pass

import (
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"sync"
	"time"

	"github.com/hearthfs/hearth/s3gw/fault"
)

// incoming is a request's body as it comes from the client.
type incoming struct {
	c  *client
	in io.Reader

	mu  sync.Mutex // guards err
	err error      // with which it ended, io.EOF included
}

// Read waits for the client as long as its patience is. It is called by the origin's side, while the
// answer may be on its way.
func (b *incoming) Read(p []byte) (int, error) {
	_ = b.c.control.SetReadDeadline(time.Now().Add(b.c.patience))
	n, err := b.in.Read(p)
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		// From here on net/http reads, to see the client go away.
		_ = b.c.control.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.Of(err, "RequestTimeout", "Nothing of the body came for %v.", b.c.patience)
	}
	b.mu.Lock()
	b.err = err
	b.mu.Unlock()
	return n, err
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
