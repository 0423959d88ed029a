package admin

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// handTo sends a request with a file as an asker, and returns what the handler read of the file.
func handTo(t *testing.T, as Asker, takes bool, content string) (read string, came bool) {
	t.Helper()
	dir := t.TempDir()
	inner, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	l := newShares(inner)
	l.who = func(net.Conn) Asker { return as }
	s := &http.Server{ConnContext: note, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "all of it" {
			t.Errorf("the request's body: %q, %v", body, err)
		}
		if !takes {
			return
		}
		f := Handed(r.Context())
		if came = f != nil; came {
			b, err := io.ReadAll(f)
			read = string(b)
			if err = errors.Join(err, f.Close()); err != nil {
				t.Error(err)
			}
			if Handed(r.Context()) != nil {
				t.Error("it is handed out twice")
			}
		}
	})}
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	name := filepath.Join(dir, "f")
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := DialHanding(t.Context(), inner.Addr().String(), f)
	if err != nil {
		t.Fatal(err)
	}
	const request = "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 9\r\n\r\nall of it"
	if n, err := conn.Write([]byte(request)); err != nil || n != len(request) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		t.Errorf("%q, %v", answer, err)
	}
	if err := errors.Join(conn.Close(), f.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if to, _ := os.Readlink(fd); to == name {
			t.Errorf("%s is open still", fd)
		}
	}
	return read, came
}

func TestADescriptorComesFromOwnersAlone(t *testing.T) {
	// An owner's descriptor arrives with the request, once, and is closed if nobody takes it. A member's
	// descriptor never arrives. The bytes of the request are complete in each case.
	owner := Asker{Rank: Owner}
	if read, came := handTo(t, owner, true, "content"); !came || read != "content" {
		t.Errorf("of an owner: %v, %q", came, read)
	}
	handTo(t, owner, false, "not taken")
	if _, came := handTo(t, Asker{Rank: Member, UID: 1000}, true, "content"); came {
		t.Error("of a member it came")
	}
}

func TestAReadThatEndsHasNoNegativeCount(t *testing.T) {
	// recvmsg(2) returns -1 with an error, and bufio panics at a negative count. net/http's reads in the
	// background end in such an error.
	ours, theirs, err := func() (net.Conn, net.Conn, error) {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			return nil, nil, err
		}
		defer func() { _ = l.Close() }()
		theirs, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			return nil, nil, err
		}
		ours, err := l.Accept()
		return ours, theirs, err
	}()
	if err != nil {
		t.Fatal(err)
	}
	c := &receiving{UnixConn: ours.(*net.UnixConn)}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("unread")); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Close(); err != nil { // with what it did not read, so that the connection is reset
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 8)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d, %v", n, err)
	}
}
