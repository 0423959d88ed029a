// Package pass answers a request with what the origin says to it.
//
// The request goes on, its body while it comes, and the answer comes back the same way: status and
// headers as they are, the body piece by piece. Nothing is kept but a buffer, so both sides feel each
// other: a slow client slows the origin down, and one that goes away ends the request there, unless
// that is to be finished, in which case its answer is read by nobody. An origin
// that breaks off in the midst of its answer has the client's connection cut, since what ends rightly
// is taken for whole. Who takes or sends nothing for some time is cut, too.
//
// What net/http does to an answer on its way:
//   - Header names are written anew. Those of user metadata go in small letters, as Amazon writes
//     them: some clients show them as they came. Whatever else is read without regard to case.
//   - Several values of a name keep their order, names among each other do not.
//   - What is about the connection to the origin (RFC 9110, section 7.6.1) stays; the length, or that
//     there is none, is told anew. An answer that ended with its connection comes in chunks.
//   - A reason phrase becomes that of its code, and a 304 loses the type and the length of the body that
//     it has not.
//
// A client that goes away is seen by its connection's end, and net/http looks for that only once the
// request's body was read. Until then what tells is the end of the body, or a client that sends
// nothing, and, where the origin takes nothing of it, whatever gives that up.
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

// Options bound how long a client may hold a request up. The zero Options works.
type Options struct {
	// Patience with a client that takes or sends nothing; it has this long for each piece of at most
	// 64 KiB. 0: 30 s.
	Patience time.Duration
}

// Target is where a request goes.
type Target struct {
	// Forward sends it to the origin: method, headers, query and body of the request, for a bucket
	// ("": the account) and a key in its escaped form. It bounds how many are under way, and with
	// them the buffers here.
	Forward func(ctx context.Context, r *http.Request, bucket, escapedKey string) (*http.Response, error)
	// Bucket and Key are what it is asked for.
	Bucket, Key string
	// ID of the request, for an answer that is not the origin's.
	ID string
	// Ending is called once, when the origin has done what it does, and before the client can
	// know: ahead of the last byte of the answer, or of its header if nothing else comes. It is
	// called as well if that never was, for who cannot know: broken is an answer of the origin
	// that broke off. nil: nothing is.
	Ending func(broken bool)
	// Finish has what was begun finished though the client has gone: the answer is read to its end.
	// How long Forward goes on then is its own to say; the context that it is given is the client's.
	Finish bool
}

// Pass passes requests on; it is used by many at a time.
type Pass struct {
	patience time.Duration
	buffers  sync.Pool // of *[pieceBytes]byte: one for each answer under way
}

// pieceBytes is what is read at a time: an answer of the usual small size at once, and more brings
// no more.
const pieceBytes = 64 << 10

const defaultPatience = 30 * time.Second

// ErrCut is an answer that broke off; so did the client's connection.
var ErrCut = errors.New("the answer broke off")

// ErrGone is a client that went away, or did not take its answer.
var ErrGone = errors.New("the client went away")

// New takes nothing that must be given back: there is no Close. One serves every request.
func New(o Options) *Pass {
	p := &Pass{patience: o.Patience}
	if p.patience == 0 {
		p.patience = defaultPatience
	}
	p.buffers.New = func() any { return new([pieceBytes]byte) }
	return p
}

// Serve answers a request, which was found to be allowed. It returns the status that the client was
// told, 0 for none, and what went wrong: an error of the client's request and an origin that could
// not be asked were told to it as a *request.Error; ErrGone and ErrCut ended its connection. Nothing
// may be written to w after an error. A w that has no deadlines, and no Unwrap, makes Serve panic with
// http.ErrAbortHandler where it has to cut.
func (p *Pass) Serve(w http.ResponseWriter, r *http.Request, to Target) (status int, err error) {
	c := &client{ResponseWriter: w, control: http.NewResponseController(w), patience: p.patience, r: r, ending: func() {}}
	if to.Ending != nil {
		c.keep, c.ending = 1, sync.OnceFunc(func() { to.Ending(c.broken) })
	}
	defer c.ending()
	defer c.leave()
	if err := r.Context().Err(); err != nil && to.Finish { // it is not begun
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

// finish reads what is left of an answer that the client does not get.
func finish(resp *http.Response, why error) error {
	if _, err := io.Copy(io.Discard, resp.Body); err != nil && !errors.Is(why, ErrCut) { // as again where that is why
		return fmt.Errorf("%w: %w: %w", why, ErrCut, err)
	}
	return why
}

// client is the side that asks.
type client struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience time.Duration
	r        *http.Request
	body     *incoming // nil: none
	ending   func()
	keep     int  // bytes of the answer that wait for its end: 0 or 1
	whole    bool // the answer came to its end
	broken   bool // it broke off
}

// request is what goes on.
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

// header sets the answer's.
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

// close tells that the connection ends with this answer, if more of the request may come: it would be
// waited for, and then taken for the next request.
func (c *client) close() {
	if c.body.unfinished() {
		c.Header()["Connection"] = []string{"close"}
	}
}

// stream copies the body as it comes.
func (c *client) stream(resp *http.Response, b []byte) error {
	if resp.ContentLength < 0 { // it may be long in coming
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
			_ = resp.Body.Close() // so that nobody waits for the origin while the client takes the rest
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

// attend gives the client its time anew. net/http takes the deadline away after the answer.
func (c *client) attend() { _ = c.control.SetWriteDeadline(time.Now().Add(c.patience)) }

// cut ends the connection without ending the answer: what net/http would add fails. After a failed
// write it has done so itself.
func (c *client) cut() {
	if err := c.control.SetWriteDeadline(time.Unix(1, 0)); err != nil && !errors.Is(err, net.ErrClosed) {
		panic(http.ErrAbortHandler)
	}
}

// leave ends the wait for what the client may still send: nobody reads it any more.
func (c *client) leave() {
	if c.body != nil {
		c.body.leave()
	}
}

// refuse answers in the origin's place.
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
