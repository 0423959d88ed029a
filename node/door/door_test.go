package door

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/holder"
	"github.com/hearthfs/hearth/internal/hearthtest"
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

// TestMain is a node that listens and leaves its socket to a child, where it is asked
// to be: then nothing ends with it, as where a thread of it hangs in the kernel.
func TestMain(m *testing.M) {
	socket := os.Getenv("HEARTH_TEST_LISTEN")
	if socket == "" {
		os.Exit(m.Run())
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		panic(err)
	}
	child := exec.Command("cat")
	child.Stdin, child.ExtraFiles = os.Stdin, []*os.File{f} // it ends with the test
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println("listening")
	select {}
}

func TestKilledNodeThatCannotEnd(t *testing.T) {
	// Its socket takes connections, and is deserted: who asks is told at once, and the
	// next node takes it over.
	socket := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HEARTH_TEST_LISTEN="+socket)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "listening\n" {
		t.Fatal(line, err)
	}
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatalf("while it lives: %v", err)
	}
	c.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if !hearthtest.Eventually(t.Context(), 20*time.Second, holder.Parse(pid).Defunct) { // not waited for: a zombie
		t.Fatal("it lives on")
	}
	if c, err := net.Dial("unix", socket); err != nil {
		t.Fatalf("its socket takes no connections: %v", err)
	} else {
		c.Close()
	}
	if c, err := Dial(t.Context(), socket); !Deserted(err) {
		t.Errorf("%v, %v", c, err)
	}
	l, _, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_ = cmd.Wait() // killed
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

func TestBusyMetricsPort(t *testing.T) {
	// A busy default port is a warning, one that was asked for an error.
	doors := &Doors{Pipe: NewPipe()}
	defer doors.Close()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := doors.ListenForMetrics(busy.Addr().String(), false); err != nil || doors.Warning == "" || doors.Metrics != nil {
		t.Errorf("the default port: %v, %+v", err, doors)
	}
	if err := doors.ListenForMetrics(busy.Addr().String(), true); err == nil {
		t.Error("a busy port that was asked for is no error")
	}
}

func TestSocketDirectoryGoesWithItsNode(t *testing.T) {
	// What a node made for its socket it takes away, unless another's socket lies
	// there; what was there before stays. Nodes that start while others end are well.
	dir := filepath.Join(t.TempDir(), "made")
	open := func(name string) *Doors {
		l, err := Open(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	here := func() bool { _, err := os.Stat(dir); return err == nil }
	first, second := open("first"), open("second")
	if first.Close(); !here() {
		t.Error("the directory went though a second node's socket lies there")
	}
	if second.Close(); !here() {
		t.Error("the directory went with a node that found it there")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if open("alone").Close(); here() {
		t.Error("the directory stayed")
	}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for range 200 {
				l, err := Open(filepath.Join(dir, strconv.Itoa(i)))
				if err != nil {
					t.Error(err)
					return
				}
				l.Close()
				_ = os.Remove(dir) // as the one that made it does
			}
		})
	}
	wg.Wait()
}
