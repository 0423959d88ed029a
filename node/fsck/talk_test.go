package fsck

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hearthfs/hearth/cache/check"
)

func TestAnAskerWhoDoesNotReadEndsTheCheck(t *testing.T) {
	// The check tells findings without end to a client that reads nothing.
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve(w, 50*time.Millisecond, false, func(run *check.Run) error {
			for r.Context().Err() == nil {
				run.Found(check.InFile(check.Damaged, "segment", 0, "bad"))
			}
			close(ended)
			return r.Context().Err()
		})
	}))
	defer s.Close()
	asker, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = asker.Close() }()
	if _, err := io.WriteString(asker, "POST / HTTP/1.1\r\nHost: hearth\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("it goes on for somebody who does not read")
		s.CloseClientConnections()
	}
}
