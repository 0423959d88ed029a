package s3gw

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

func TestADocumentIsNotKeptForWhoTakesNone(t *testing.T) {
	// A client asks for more than its connection holds and reads nothing: the answer ends. One that reads, however late, gets all.
	text := bytes.Repeat([]byte("<Key>k</Key>"), 2<<20)
	sent := make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		patience := time.Minute
		if r.URL.Path == "/stalled" {
			patience = 50 * time.Millisecond
		}
		sent <- send(w, text, patience)
	}))
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /stalled HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("to who reads nothing: %v", err)
	}
	r, err := http.Get(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, text) {
		t.Errorf("to who reads: %d bytes of %d, %v", len(got), len(text), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}
