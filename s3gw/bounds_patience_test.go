package s3gw

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// pair is a connection of a listener that has patience, and its client's end.
func pair(t *testing.T, patience time.Duration) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = patientListener(l, patience).Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return server, client
}

func TestWritesEnd(t *testing.T) {
	// A write without a deadline has the connection's patience, also where one was set and taken
	// back; one with a deadline has that, however much longer it is.
	text := bytes.Repeat([]byte("x"), 32<<20) // more than a connection holds
	const patience = 50 * time.Millisecond
	given, reads := pair(t, patience)
	if err := given.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var wrote error
	var work sync.WaitGroup
	work.Go(func() { _, wrote = given.Write(text) })
	for _, change := range []func(net.Conn) error{
		func(net.Conn) error { return nil },
		func(c net.Conn) error {
			return errors.Join(c.SetWriteDeadline(time.Now().Add(time.Hour)), c.SetWriteDeadline(time.Time{}))
		},
		func(c net.Conn) error {
			return errors.Join(c.SetDeadline(time.Now().Add(time.Hour)), c.SetDeadline(time.Time{}))
		},
	} {
		c, _ := pair(t, patience)
		if err := change(c); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(text); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("who reads nothing: %v", err)
		}
	}
	if n, err := io.CopyN(io.Discard, reads, int64(len(text))); err != nil { // patience is long over
		t.Errorf("who reads late: %d bytes, %v", n, err)
	}
	if work.Wait(); wrote != nil {
		t.Error(wrote)
	}
}

func TestAnswersThatNobodyReads(t *testing.T) {
	// Clients that ask and read nothing are as many as connections may be open: whoever asks then is
	// answered when their time is over, in TLS, too.
	for _, safe := range []bool{false, true} {
		d := newDoor(t, 3, safe)
		for range 3 {
			c := d.open()
			d.ask(c, "/work")
			<-d.at
			d.ask(c, "/large")
		}
		for range 3 {
			d.work <- struct{}{}
			<-d.at // it writes
		}
		for range 3 {
			c := d.open()
			d.ask(c, "/")
			d.answers(c)
		}
	}
}

func TestRequestsThatFollowAtOnce(t *testing.T) {
	// A client has its next request ready before it was answered: while another waits for a connection
	// it has its answer, and is ended.
	for range 20 {
		d := newDoor(t, 1, false)
		c := d.open()
		d.ask(c, "/work")
		d.ask(c, "/work")
		<-d.at
		other := d.open()
		d.ask(other, "/")
		if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.wanted
		}) {
			t.Fatal("nobody waits")
		}
		d.work <- struct{}{}
		d.answers(c)
		d.answers(other)
		close(d.work) // what was read already is answered to nobody
		if d.Stats().Closed != 1 {
			t.Fatalf("%+v", d.Stats())
		}
	}
}
