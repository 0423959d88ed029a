// Package pass answers a request with the origin's answer to it: a reverse proxy.
//
// The request goes on while its body still comes, and the answer comes back the same way. Status
// and headers stay as they are, and the body is copied piece by piece. Only one buffer is held, so
// there is back pressure: a slow client slows the origin down.
//
// A client that goes away ends the request at the origin. If the request is to be finished all the
// same, its answer is read and discarded. An origin that breaks off within its answer has the
// client's connection cut, since an answer that ends properly looks complete. A client that takes
// or sends nothing for some time is cut, too.
//
// What net/http does to an answer on its way:
//   - Header names are written anew. Those of user metadata go in lower case, as Amazon writes
//     them: some clients show them as they came. All other names are read without regard to case.
//   - Several values of one name keep their order. The names among each other do not.
//   - Headers about the connection to the origin (RFC 9110, section 7.6.1) are left out. The length,
//     or that there is none, is set anew. An answer that ended with its connection is sent chunked.
//   - A reason phrase becomes that of its code. A 304 has no body, and loses type and length of it.
//
// A client that goes away is noticed by the end of its connection. net/http looks for that only
// after the request's body was read. Until then there are other signs: the body ends, or the client
// sends nothing. If the origin takes nothing of the body, whatever gives up on the origin ends the
// wait.
package pass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

// Options bound how long a client may hold up a request. The zero Options works.
type Options struct {
	// Patience is how long a client may take or send nothing. It has this long for each piece of at
	// most 64 KiB. 0 means 30 s.
	Patience time.Duration
}

// Target is where a request goes.
type Target struct {
	// Forward sends the request to the origin: method, headers, query and body. bucket "" means the
	// account, and the key is in its escaped form. It bounds how many requests are in flight, and
	// with them the buffers here.
	Forward func(ctx context.Context, r *http.Request, bucket, escapedKey string) (*http.Response, error)
	// Bucket and Key name what is asked for.
	Bucket, Key string
	// ID is the request's, for an answer that is not the origin's.
	ID string
	// Ending is called once, after the origin has done its work and before the client can know.
	// That is before the last byte of the answer, or before its headers if no body follows. It is
	// called as well if the origin never got so far, since nobody can know that. broken means that
	// the origin's answer broke off. nil means that nothing is called.
	Ending func(broken bool)
	// Finish means that a request is finished even if its client goes away: the answer is read to
	// its end. The context that Forward gets is still the client's: Forward itself decides how long
	// it goes on then.
	Finish bool
}

// Pass passes requests on. It is safe for many goroutines.
type Pass struct {
	patience time.Duration
	buffers  sync.Pool // of *[pieceBytes]byte: one for each answer in flight
}

// pieceBytes is how much is read at a time. A usual small answer fits, and a larger buffer is no
// faster.
const pieceBytes = 64 << 10

const defaultPatience = 30 * time.Second

// ErrCut means that the answer broke off, and that the client's connection was cut.
var ErrCut = errors.New("the answer broke off")

// ErrGone means that the client went away, or did not take its answer.
var ErrGone = errors.New("the client went away")

// New returns a Pass for all requests. It holds nothing that must be released, so there is no
// Close.
func New(o Options) *Pass {
	p := &Pass{patience: o.Patience}
	if p.patience == 0 {
		p.patience = defaultPatience
	}
	p.buffers.New = func() any { return new([pieceBytes]byte) }
	return p
}

// Serve answers a request that was found to be allowed. It returns the status that the client was
// sent, 0 for none, and the error. Errors of the client's request, and an origin that could not be
// asked, were answered with a *request.Error. With ErrGone and ErrCut the connection was ended.
// Nothing may be written to w after an error. If w has neither deadlines nor Unwrap, Serve panics
// with http.ErrAbortHandler where it has to cut.
func (p *Pass) Serve(w http.ResponseWriter, r *http.Request, to Target) (status int, err error) {
	c := &client{ResponseWriter: w, control: http.NewResponseController(w), patience: p.patience, r: r, ending: func() {}}
	if to.Ending != nil {
		c.keep, c.ending = 1, sync.OnceFunc(func() { to.Ending(c.broken) })
	}
	defer c.ending()
	defer c.leave()
	if err := r.Context().Err(); err != nil && to.Finish { // the client is gone before anything began
		return c.refuse(err, to.ID)
	}
	out, early := c.request()
	resp, err := to.Forward(out.Context(), out, to.Bucket, to.Key)
	early.end()
	if err != nil {
		return c.refuse(err, to.ID)
	}
	defer resp.Body.Close()
	c.header(resp)
	if r.Method == http.MethodHead || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified || resp.ContentLength == 0 {
		c.ending()
		c.attend()
		w.WriteHeader(resp.StatusCode)
		return resp.StatusCode, nil
	}
	w.WriteHeader(resp.StatusCode)
	buffer := p.buffers.Get().(*[pieceBytes]byte)
	defer p.buffers.Put(buffer)
	if err := c.stream(resp, buffer[:]); err != nil {
		c.cut()
		if to.Finish && !c.whole {
			err = finish(resp, err)
		}
		c.broken = errors.Is(err, ErrCut)
		return resp.StatusCode, err
	}
	for name, values := range resp.Trailer {
		w.Header()[http.TrailerPrefix+name] = values
	}
	return resp.StatusCode, nil
}

// finish reads the rest of an answer that the client does not get.
func finish(resp *http.Response, why error) error {
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && !errors.Is(why, ErrCut) { // why may be that
		return fmt.Errorf("%w: %w: %w", why, ErrCut, err)
	}
	return why
}

// client is the client's side of a request.
type client struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	r        *http.Request
	body     *incoming // nil means that there is none
	ending   func()
	keep     int  // bytes of the answer held back until its end: 0 or 1
	whole    bool // the answer came to its end
	broken   bool // the answer broke off
}

// request returns the request for the origin, and its interim answers.
func (c *client) request() (*http.Request, *interim) {
	early := &interim{to: c.ResponseWriter}
	ctx := c.r.Context()
	if c.r.ProtoAtLeast(1, 1) && c.r.Header["Expect"] == nil { // else net/http itself may be writing 100 Continue
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: early.got})
	}
	out := c.r.WithContext(ctx)
	if c.r.Body != nil && c.r.Body != http.NoBody {
		c.body = &incoming{c: c, in: c.r.Body}
		out.Body = c.body
	}
	return out, early
}

// header sets the headers of the answer.
func (c *client) header(resp *http.Response) {
	h := c.Header()
	for name, values := range resp.Header {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
			continue
		}
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			name = strings.ToLower(name)
		}
		h[name] = values
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http would guess one
	}
	c.close()
}

// close announces that the connection ends with this answer, if more of the request may come. The
// server would have to wait for that rest, and would then take it for the next request.
func (c *client) close() {
	if c.body.unfinished() {
		c.Header()["Connection"] = []string{"close"}
	}
}

// stream copies the body as it comes.
func (c *client) stream(resp *http.Response, b []byte) error {
	if resp.ContentLength < 0 { // the first byte may take long
		if err := c.flush(); err != nil {
			return err
		}
	}
	kept := 0
	for left := resp.ContentLength; ; {
		n, err := resp.Body.Read(b[kept:])
		left -= int64(n)
		n += kept
		if err == io.EOF || left == 0 {
			c.ending()
			c.whole = true
			_ = resp.Body.Close() // or a slow client would hold the place at the origin
			return c.write(b[:n])
		}
		if err != nil {
			if c.r.Context().Err() != nil {
				return fmt.Errorf("%w: %w", ErrGone, err)
			}
			return fmt.Errorf("%w: %w", ErrCut, err)
		}
		if kept = min(n, c.keep); n == kept {
			continue
		}
		if err := c.write(b[:n-kept]); err != nil {
			return err
		}
		if err := c.flush(); err != nil {
			return err
		}
		copy(b, b[n-kept:n])
	}
}

func (c *client) write(b []byte) error {
	c.attend()
	if _, err := c.Write(b); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

func (c *client) flush() error {
	if err := c.control.Flush(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// attend renews the client's write deadline. net/http removes it after the answer.
func (c *client) attend() { _ = c.control.SetWriteDeadline(time.Now().Add(c.patience)) }

// cut ends the connection without ending the answer: all further writes of net/http fail. After a
// failed write net/http has ended it already.
func (c *client) cut() {
	if err := c.control.SetWriteDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, net.ErrClosed) {
		panic(http.ErrAbortHandler)
	}
}

// leave ends the read of the client's body: nobody needs the rest.
func (c *client) leave() {
	if c.body != nil {
		c.body.leave()
	}
}

// refuse answers in place of the origin.
func (c *client) refuse(err error, id string) (int, error) {
	c.ending()
	said := c.body.failure()
	var known *request.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &known), errors.As(said, &known):
	case errors.As(said, &large):
		known = request.Of(said, "EntityTooLarge", "The body is larger than %d bytes.", large.Limit)
	case c.r.Context().Err() != nil:
		c.cut()
		return 0, fmt.Errorf("%w: %w", ErrGone, err)
	case said != nil:
		known = request.Of(said, "IncompleteBody", "The body ended before it was whole.")
	default:
		known = request.Of(err, "ServiceUnavailable", "The origin cannot be asked now. Try again.")
	}
	c.close()
	c.attend()
	known.Write(c, c.r, id)
	return known.HTTPStatus(), known
}
