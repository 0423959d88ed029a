package s3gw

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeListener gives its server the other ends of pipes, which wait in virtual time.
type fakeListener struct {
	conns chan net.Conn
	over  chan struct{}
	once  sync.Once
}

func (l *fakeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.once.Do(func() { close(l.over) })
	return nil
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *fakeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

func TestSlowHeadersAreCut(t *testing.T) {
	// A client that sends its headers a byte at a time is cut 15 s after it came, and one whose
	// headers take 14 s is answered; one that was answered may then ask nothing for two minutes.
	synctest.Test(t, func(t *testing.T) {
		l := &fakeListener{conns: make(chan net.Conn), over: make(chan struct{})}
		o := ServerOptions{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "of k") })}
		s := o.serve(l, nil)
		defer s.Close()
		// ends says how long after it came a client was cut that sends a byte each second, and the
		// end of its headers behind so many.
		ends := func(bytes int) (took time.Duration, got []byte) {
			c := l.dial()
			began := time.Now()
			answered := make(chan []byte, 1)
			go func() { // ends with the connection
				b, _ := io.ReadAll(c)
				took = time.Since(began)
				answered <- b
			}()
			_, err := io.WriteString(c, "GET /bucket/k HTTP/1.1\r\nHost: x\r\nX-Slow: ")
			for i := 0; err == nil && i < bytes; i++ {
				time.Sleep(time.Second)
				_, err = io.WriteString(c, "x")
			}
			if err == nil {
				_, _ = io.WriteString(c, "\r\n\r\n")
			}
			got = <-answered
			return took, got
		}
		if took, got := ends(1000); took != headersWithin || headersWithin != 15*time.Second || len(got) > 0 {
			t.Errorf("who sends headers for ever is cut after %v, answered %q", took, got)
		}
		if took, got := ends(14); took != 14*time.Second+idleFor || len(got) == 0 {
			t.Errorf("who sends headers for 14 s is cut after %v, answered %q", took, got)
		}
	})
}

func TestCertificateIsLookedForEachTenSeconds(t *testing.T) {
	// A certificate that is written anew is served ten seconds after the files were looked at
	// last, and not before: however many clients come, the files are looked at once.
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		files := [2]string{filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")}
		certify(t, "first.example", files[0], files[1], time.Now().Add(-time.Hour))
		told := 0
		keep := &certificate{files: files, trouble: func(error) { told++ }}
		if err := keep.read(); err != nil {
			t.Fatal(err)
		}
		first := keep.now
		get := func() any {
			t.Helper()
			c, err := keep.get(nil)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		certify(t, "second.example", files[0], files[1], time.Now())
		time.Sleep(certificateEvery - 1)
		if get() != any(first) {
			t.Error("the files are looked at for each client")
		}
		time.Sleep(time.Nanosecond)
		second := get()
		if second == any(first) {
			t.Error("after ten seconds the old certificate is served")
		}
		if err := errors.Join(os.Remove(files[0]), os.Remove(files[1])); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(certificateEvery)
			for range 100 {
				if get() != second {
					t.Fatal("another certificate")
				}
			}
		}
		if told != 3 || certificateEvery != 10*time.Second {
			t.Errorf("in three times %v the files were looked at %d times", certificateEvery, told)
		}
	})
}
