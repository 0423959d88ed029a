package door

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAdminSocket(t *testing.T) {
	// The socket is 0660, a living one is not taken over, a dead one is.
	path := filepath.Join(t.TempDir(), "d", "s")
	l, made, err := Listen(path)
	if err != nil || !made {
		t.Fatalf("%v, made the directory: %v", err, made)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, _, err := Listen(path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a second node: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, made, err = Listen(path)
	if err != nil || made {
		t.Fatalf("over a dead socket: %v, made the directory: %v", err, made)
	}
	l.Close()
}

func TestWhoMayAsk(t *testing.T) {
	// Root and the node's own user may ask; a stranger, and who has no credentials, may not.
	if !mayAsk(&unix.Ucred{Uid: 0}) || !mayAsk(&unix.Ucred{Uid: uint32(os.Geteuid()), Gid: 12345}) {
		t.Error("root or the own user is refused")
	}
	if mayAsk(&unix.Ucred{Uid: 4_000_000_001, Gid: 4_000_000_001}) {
		t.Error("a stranger is let in")
	}
	h := Check(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("let in") }), func(w http.ResponseWriter, err error) {
		if errors.Is(err, fs.ErrPermission) {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &recorder{header: http.Header{}}
	if h.ServeHTTP(w, r); w.code != http.StatusForbidden {
		t.Errorf("without credentials: %d", w.code)
	}
}

type recorder struct {
	header http.Header
	code   int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }
func (r *recorder) WriteHeader(code int)        { r.code = code }
