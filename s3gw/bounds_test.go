package s3gw

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// door is a server of at most so many connections.
type door struct {
	*testing.T
	*boundedConnections
	at, work chan struct{} // a request came to /work; it may go on
	dial     func() (net.Conn, error)
}

func newDoor(t *testing.T, most int, safe bool) *door {
	t.Helper()
	d := &door{T: t, at: make(chan struct{}, 100), work: make(chan struct{})}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/work" {
			d.at <- struct{}{}
			<-d.work
		}
		if r.URL.Path == "/large" {
			d.at <- struct{}{}
			_, _ = w.Write(make([]byte, 32<<20)) // more than a connection holds, and its client takes none
			return
		}
		_, _ = io.WriteString(w, "ok") // the client may be gone
	}))
	if s.EnableHTTP2 = false; safe {
		s.StartTLS() // for its certificate; another server answers
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l = patientListener(l, 300*time.Millisecond)
	d.dial = func() (net.Conn, error) { return net.Dial("tcp", addr) }
	if safe {
		l = tls.NewListener(l, &tls.Config{Certificates: s.TLS.Certificates})
		d.dial = func() (net.Conn, error) { return tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) }
	}
	d.boundedConnections = newBoundedConnections(l, most)
	h := &http.Server{Handler: s.Config.Handler, ConnState: d.State, ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = h.Serve(d) // ends with Close
	}()
	t.Cleanup(func() { _ = h.Close(); <-served })
	return d
}

func (d *door) open() net.Conn {
	d.Helper()
	c, err := d.dial()
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		d.Fatal(err)
	}
	return c
}

// ask sends a request, and answers reads what came of it.
func (d *door) ask(c net.Conn, path string) {
	d.Helper()
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		d.Error(err)
	}
}

func (d *door) answers(c net.Conn) {
	d.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		d.Error(err)
		return
	}
	if text, err := io.ReadAll(resp.Body); string(text) != "ok" || err != nil {
		d.Errorf("%q, %v", text, err)
	}
	_ = resp.Body.Close() // it was read
}

func TestACrowdThatAsksForNothing(t *testing.T) {
	// Many more connections than may be open ask for nothing, or for nothing more: those who ask are
	// answered at once, among them one that asked before, and it is the crowd that is closed.
	for _, safe := range []bool{false, true} {
		d := newDoor(t, 4, safe)
		var crowd []net.Conn
		for i := range 20 {
			c := d.open()
			if crowd = append(crowd, c); i%2 == 0 {
				d.ask(c, "/")
				d.answers(c)
			}
		}
		busy := d.open()
		d.ask(busy, "/work")
		<-d.at
		for range 20 {
			c := d.open()
			d.ask(c, "/")
			d.answers(c)
		}
		d.work <- struct{}{}
		d.answers(busy)
		for _, c := range crowd {
			if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("one of the crowd is still there: %v", err)
			}
		}
		if s := d.Stats(); s.Open > 4 || s.Most != 4 || s.Closed < 36 {
			t.Errorf("%+v", s)
		}
	}
}

func TestAllAreAtWork(t *testing.T) {
	// While each connection has a request at work a new one waits; it is answered when one of them
	// asks for nothing more, and a listener that closes waits for none.
	d := newDoor(t, 2, false)
	for range 2 {
		d.ask(d.open(), "/work") // one after the other: what has asked nothing yet makes room
		<-d.at
	}
	third := d.open()
	d.ask(third, "/work")
	if len(d.at) != 0 {
		t.Error("three are at work")
	}
	d.work <- struct{}{}
	<-d.at
	d.work <- struct{}{}
	d.work <- struct{}{}
	d.answers(third)
	for range 2 {
		d.ask(d.open(), "/work")
		<-d.at
	}
	d.open()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	close(d.work)
}

func TestPlaces(t *testing.T) {
	// Who finds no place waits in turn, for a while, and only so many do.
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(2, 1, time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		for range 2 {
			if err := p.Take(ctx, 1); err != nil {
				t.Fatal(err)
			}
		}
		came := make(chan error)
		take := func() { came <- p.Take(ctx, 1) }
		go take()
		synctest.Wait()
		if err := p.Take(ctx, 1); err != errFull || p.Waiting() != 1 {
			t.Errorf("a second one waits: %v, %d", err, p.Waiting())
		}
		began := time.Now()
		if err := <-came; err != errFull || time.Since(began) != time.Second {
			t.Errorf("it waits %v: %v", time.Since(began), err)
		}
		go take()
		synctest.Wait()
		p.Give(1)
		if err := <-came; err != nil || p.Taken() != 2 || p.Most() != 2 {
			t.Errorf("a place that was given back: %v, %d", err, p.Taken())
		}
		go take()
		synctest.Wait()
		gone := errors.New("gone")
		cancel(gone)
		if err := <-came; err != gone {
			t.Errorf("who went away: %v", err)
		}
		p.Give(2)
		if err := p.Take(t.Context(), 100); err != nil || p.Taken() != 2 {
			t.Errorf("more than there are: %v, %d", err, p.Taken())
		}
		if p.Give(100); p.Taken() != 0 || p.Waiting() != 0 {
			t.Errorf("%d taken, %d waiting", p.Taken(), p.Waiting())
		}
	})
}
