package clients

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// buffer of a connection in bytes: what a fast server has ready at once.
const buffer = 256 << 10

// SlowRate is what a slow client takes, in bytes a second, and slowWindow the most that its kernel
// holds for it, in bytes.
const (
	SlowRate   = 4 << 10
	slowWindow = 4 << 10
)

// answerWithin is how long a client of a crowd waits for what it is owed: an endpoint that keeps one
// waiting for the others fails the figure instead of holding it up.
const answerWithin = 30 * time.Second

// conn is a client's connection.
type conn struct {
	net.Conn
	r    *bufio.Reader
	body []byte // for bodies that are checked
}

// dial connects to a server; window bounds what the kernel holds of its answers, 0: nothing does.
func dial(ctx context.Context, at *hearthtest.S3, window int) (*conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(at.Endpoint, "http://"))
	if err != nil {
		return nil, err
	}
	size := buffer
	if tcp, ok := c.(*net.TCPConn); ok && window > 0 {
		size = window
		if err := tcp.SetReadBuffer(window); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return &conn{Conn: c, r: bufio.NewReaderSize(c, size)}, nil
}

func (c *conn) close() {
	if c != nil {
		_ = c.Close()
	}
}

// ask sends a request and takes its answer; n counts the body's bytes.
func (c *conn) ask(request []byte, a Ask, check bool) (n int64, right bool, err error) {
	if _, err := c.Write(request); err != nil {
		return 0, true, err
	}
	status, n, err := c.head()
	if err == nil && status != 200 && status != 206 {
		text, _ := c.r.Peek(int(min(n, 500)))
		err = fmt.Errorf("%s %s: status %d: %s", a.Key, a.Query, status, text)
	}
	if err == nil && a.Len > 0 && n != a.Len {
		err = fmt.Errorf("%s: %d bytes instead of %d", a.Key, n, a.Len)
	}
	if err != nil {
		return 0, true, err
	}
	if !check || a.Key == "" {
		_, err = io.CopyN(io.Discard, c.r, n)
		return n, true, err
	}
	if int64(cap(c.body)) < n {
		c.body = make([]byte, n)
	}
	body := c.body[:n]
	_, err = io.ReadFull(c.r, body)
	return n, err != nil || hearthtest.Check(body, a.Key, a.Off, 0) == nil, err
}

// head reads an answer's headers and returns its status and the length of its body in bytes.
func (c *conn) head() (status int, length int64, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return 0, 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if f := bytes.Fields(line); len(f) > 1 {
				status, _ = strconv.Atoi(string(f[1]))
			}
		case len(line) == 0:
			if length < 0 {
				return status, 0, fmt.Errorf("an answer %d without a length", status)
			}
			return status, length, nil
		default:
			const name = "content-length:"
			if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
				if length, err = strconv.ParseInt(string(bytes.TrimSpace(line[len(name):])), 10, 64); err != nil {
					return status, 0, err
				}
			}
		}
	}
}

// Stay makes the crowd, tells when it stands, and keeps it until ctx ends; stayed are those whom
// the server had not turned away by then. Who is kept waiting for an answer is the last to come.
func (w *Work) Stay(ctx context.Context, stands func()) (stayed int, err error) {
	signed, err := w.sign(ctx)
	if err != nil {
		return 0, err
	}
	window := 0
	if w.Crowd == "slow" {
		window = slowWindow
	}
	conns := make([]*conn, w.Connections)
	defer func() {
		for _, c := range conns {
			c.close()
		}
	}()
	for i := range conns {
		if conns[i], err = dial(ctx, &w.Account, window); err != nil {
			return 0, err
		}
		err := w.enter(conns[i], signed[i%len(signed)], w.Asks[i%len(signed)])
		waits := errors.Is(err, os.ErrDeadlineExceeded) && stayed > 0
		switch {
		case err == nil:
			stayed++
			continue
		case !waits && !isAway(err):
			return stayed, fmt.Errorf("%s client %d: %w", w.Crowd, i, err)
		}
		conns[i].close()
		conns[i] = nil
		if waits {
			break
		}
	}
	stands()
	if w.Crowd == "idle" {
		<-ctx.Done()
		return stayed, nil
	}
	gone, err := w.sip(ctx, conns)
	return stayed - gone, err
}

// errBusy is an answer by which a server turns a client away.
var errBusy = errors.New("turned away")

// isAway: the server ended the connection, or was too busy.
func isAway(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, errBusy)
}

// enter has a client send its request: an idle one takes all of the answer, a slow one the headers.
func (w *Work) enter(c *conn, request []byte, a Ask) error {
	if err := c.SetDeadline(time.Now().Add(w.within())); err != nil {
		return err
	}
	if w.Crowd == "idle" {
		_, _, err := c.ask(request, a, w.Check)
		c.r = nil
		return err
	}
	if _, err := c.Write(request); err != nil {
		return err
	}
	status, _, err := c.head()
	switch {
	case err == nil && status == 503:
		return errBusy
	case err == nil && status/100 != 2:
		return fmt.Errorf("status %d", status)
	}
	return err
}

func (w *Work) within() time.Duration { return cmp.Or(w.patience, answerWithin) }

// sip takes a little from each connection, again and again until ctx ends; gone are those that the
// server ended.
func (w *Work) sip(ctx context.Context, conns []*conn) (gone int, err error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return gone, nil
		case <-tick.C:
		}
		for i, c := range conns {
			if c == nil {
				continue
			}
			if err := c.SetDeadline(time.Now().Add(w.within())); err != nil {
				return gone, err
			}
			_, err := io.CopyN(io.Discard, c.r, SlowRate)
			switch {
			case err == nil:
				continue
			case !isAway(err) && !errors.Is(err, os.ErrDeadlineExceeded):
				return gone, fmt.Errorf("slow client %d: %w", i, err)
			}
			c.close()
			conns[i] = nil
			gone++
		}
	}
}
