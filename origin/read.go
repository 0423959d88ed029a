package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth"
)

// slot is the right to one connection for data.
type slot struct {
	s *S3
}

// slot waits for a connection. The caller must not hold a View.
func (s *S3) slot(ctx context.Context) (slot, error) {
	_, err := acquire(ctx, s.data)
	return slot{s}, err
}

// trySlot is slot without waiting.
func (s *S3) trySlot() (slot, bool) {
	select {
	case s.data <- struct{}{}:
		return slot{s}, true
	default:
		return slot{}, false
	}
}

func (c slot) release() {
	if c.s != nil {
		<-c.s.data
	}
}

// Read opens a range of one version.
func (s *S3) Read(ctx context.Context, o *hearth.Object, off, n int64) (io.ReadCloser, error) {
	c, err := s.slot(ctx)
	if err != nil {
		return nil, err
	}
	b, err := s.read(ctx, o, off, n)
	if err != nil {
		c.release()
		return nil, err
	}
	b.slot = c
	return b, nil
}

// read is Read for a caller that holds a slot and keeps it.
func (s *S3) read(ctx context.Context, o *hearth.Object, off, n int64) (*body, error) {
	b := &body{s: s, ctx: ctx, object: o, off: off, end: off + n, budget: budget{Retry: s.retry}}
	if err := b.open(); err != nil {
		return nil, err
	}
	return b, nil
}

// body is the body of an answer. When it is cut off it opens itself again at its offset, within the
// budget that it began with.
type body struct {
	s        *S3
	ctx      context.Context
	object   *hearth.Object
	off, end int64
	in       *answer
	slot     slot
	budget   budget
	closed   bool
}

// open asks for the rest of the range and compares the answer with the object.
func (b *body) open() error {
	o := b.object
	c := &call{op: "get", method: http.MethodGet, key: o.Key, off: b.off, n: b.end - b.off}
	if o.Cacheable() && !b.s.shown.plain.Load() {
		c.etag = o.ETag
	}
	for without := false; ; {
		a, err := b.s.ask(b.ctx, c, &b.budget)
		if c.etag != "" && mayRefuseIfMatch(err) {
			c.etag, without = "", true
			continue
		}
		if without && err == nil { // the server refused the condition itself
			b.s.shown.plain.Store(true)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("get %s: it is gone: %w", o.Key, hearth.ErrStale)
		}
		if e := new(Error); errors.Is(err, hearth.ErrArchived) && errors.As(err, &e) {
			e.Class = cmp.Or(e.Class, o.Class)
		}
		if err != nil {
			return err
		}
		if err = compare(a.resp, o, c.off, c.n); err == nil {
			b.in = a
			return nil
		}
		a.close()
		b.s.counts.errors.Add(1)
		b.s.note("get", o.Key, err)
		if errors.Is(err, hearth.ErrStale) && b.current() {
			err = fmt.Errorf("%w: %v, and then it was that again", errContradiction, err)
		}
		if last := b.budget.spend(b.ctx, err); last != nil {
			return b.s.wrap("get", o.Key, last)
		}
		b.s.counts.retries.Add(1)
	}
}

// mayRefuseIfMatch reports whether an error may be about the condition itself, as of servers that do
// not know If-Match. The same request without it shows that. Versions are then told apart by their
// answers. Refusals with other codes are found out by a Probe.
func mayRefuseIfMatch(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case "", "NotImplemented", "InvalidArgument", "InvalidRequest", "BadRequest", "UnsupportedArgument", "UnsupportedOperation":
		return e.Status == http.StatusNotImplemented || e.Status == http.StatusBadRequest
	}
	return e.Status == http.StatusNotImplemented
}

// current asks whether the key still names the object's version, after an answer showed another one. If
// it does, the object changed and changed back, or the origin is mistaken. Then asking again is right:
// ErrStale would send the reader in circles, since each look-up finds this version again.
func (b *body) current() bool {
	a, err := b.s.ask(b.ctx, &call{op: "head", method: http.MethodHead, key: b.object.Key}, &b.budget)
	if err != nil {
		return false
	}
	defer a.close()
	return bareETag(a.resp.Header.Get("ETag")) == b.object.ETag && a.resp.ContentLength == b.object.Size
}

// compare checks an answer against the object and the range that were asked for. Another version is
// ErrStale; any other difference is a protocol error (errLied).
func compare(resp *http.Response, o *hearth.Object, off, n int64) error {
	if etag := bareETag(resp.Header.Get("ETag")); etag != o.ETag {
		return fmt.Errorf("its ETag is %q and was %q: %w", etag, o.ETag, hearth.ErrStale)
	}
	if resp.ContentLength >= 0 && resp.StatusCode == http.StatusOK && off == 0 && n == o.Size {
		if resp.ContentLength != o.Size {
			return fmt.Errorf("its size is %d and was %d: %w", resp.ContentLength, o.Size, hearth.ErrStale)
		}
		return nil // the whole object, which is the range that was asked for
	}
	if resp.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("%w: status %d for bytes %d to %d", errLied, resp.StatusCode, off, off+n-1)
	}
	first, last, total, err := contentRange(resp.Header.Get("Content-Range"))
	switch {
	case err != nil:
		return err
	case total != o.Size:
		return fmt.Errorf("its size is %d and was %d: %w", total, o.Size, hearth.ErrStale)
	case first != off || last != off+n-1:
		return fmt.Errorf("%w: bytes %d to %d for %d to %d", errLied, first, last, off, off+n-1)
	case resp.ContentLength >= 0 && resp.ContentLength != n:
		return fmt.Errorf("%w: %d bytes for %d", errLied, resp.ContentLength, n)
	}
	return nil
}

// contentRange reads "bytes 0-99/1234".
func contentRange(value string) (first, last, total int64, err error) {
	rest, ok := strings.CutPrefix(value, "bytes ")
	span, size, _ := strings.Cut(rest, "/")
	from, to, _ := strings.Cut(span, "-")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	total, err3 := strconv.ParseInt(size, 10, 64)
	if err := errors.Join(err1, err2, err3); !ok || err != nil {
		return 0, 0, 0, fmt.Errorf("%w: Content-Range %q", errLied, value)
	}
	return first, last, total, nil
}

// Read yields the next bytes, read from the connection directly into p.
func (b *body) Read(p []byte) (int, error) {
	for b.off < b.end {
		if len(p) == 0 {
			return 0, nil
		}
		n, err := b.next(p[:min(int64(len(p)), b.end-b.off)])
		b.off += int64(n)
		b.s.counts.bytes.Add(int64(n))
		if n > 0 && b.s.limit != nil {
			if err := b.s.limit.WaitN(b.ctx, n); err != nil {
				return n, fmt.Errorf("get %s: %w", b.object.Key, err)
			}
		}
		if n > 0 || err == nil {
			return n, nil // an error shows again at the next call
		}
		if err := b.resume(err); err != nil {
			return 0, err
		}
	}
	return 0, io.EOF
}

// next reads once, under the watchdog timer.
func (b *body) next(p []byte) (int, error) {
	if b.in == nil {
		return 0, io.ErrUnexpectedEOF
	}
	if b.s.limit != nil {
		p = p[:min(len(p), hearth.BlockSize)]
	}
	b.in.watch.Reset(b.s.silence.Read)
	n, err := b.in.resp.Body.Read(p)
	b.in.watch.Stop()
	if err != nil && err != io.EOF {
		err = b.in.cause(err)
	}
	if err == io.EOF && b.off+int64(n) < b.end {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// resume opens the body again at its offset, if the budget covers the error.
func (b *body) resume(err error) error {
	if b.in != nil {
		b.in.close()
		b.in = nil
	}
	b.s.failed("get", b.object.Key, err)
	if last := b.budget.spend(b.ctx, err); last != nil {
		return b.s.wrap("get", b.object.Key, last)
	}
	b.s.counts.retries.Add(1)
	b.s.counts.resumed.Add(1)
	return b.open()
}

// Close ends the read. The connection of a body that was read to its end is kept for the next request.
func (b *body) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	if b.in != nil {
		b.in.close()
		b.in = nil
	}
	b.slot.release()
	return nil
}
