package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestAdminSocket(t *testing.T) {
	// The socket has mode 0660. A live socket is not taken over, a dead one is.
	path := filepath.Join(t.TempDir(), "d", "s")
	l, made, err := listen(path)
	if err != nil || !made {
		t.Fatalf("%v, made the directory: %v", err, made)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, _, err := listen(path); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a second node: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, made, err = listen(path)
	if err != nil || made {
		t.Fatalf("over a dead socket: %v, made the directory: %v", err, made)
	}
	l.Close()
}

// TestMain plays, if the environment asks for it, a node that leaves its listening socket to a child process.
// When that node is killed, its socket stays open, as if one of its threads hung in the kernel.
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
	// The node's socket takes connections, and is deserted. A client learns that at once, and the next node
	// takes the socket over.
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
	c, err := dial(t.Context(), socket)
	if err != nil {
		t.Fatalf("while it lives: %v", err)
	}
	c.Close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	if !hearthtest.Eventually(t.Context(), 20*time.Second, disk.ParseLockHolder(pid).Defunct) { // not waited for: a zombie
		t.Fatal("it lives on")
	}
	if c, err := net.Dial("unix", socket); err != nil {
		t.Fatalf("its socket takes no connections: %v", err)
	} else {
		c.Close()
	}
	if c, err := dial(t.Context(), socket); !deserted(err) {
		t.Errorf("%v, %v", c, err)
	}
	l, _, err := listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_ = cmd.Wait() // killed
}

func TestWhoIsNoted(t *testing.T) {
	// The kernel names a client of the Unix socket. A client of the pipe is the node itself. Anybody who comes
	// by TCP is a stranger.
	ask := func(l net.Listener, dial func() (net.Conn, error)) (who Asker) {
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- Serve(ctx, l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { who = From(r.Context()) }))
		}()
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}
		resp, err := (&http.Client{Transport: transport}).Get("http://hearth/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		transport.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		return who
	}
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pipe := newPipe()
	own := Asker{Rank: Owner, UID: uint32(os.Geteuid())}
	if who := ask(socket, func() (net.Conn, error) { return net.Dial("unix", path) }); who != own {
		t.Errorf("by the socket: %+v", who)
	}
	if who := ask(pipe, func() (net.Conn, error) { return pipe.Dial(t.Context(), "", "") }); who != own {
		t.Errorf("by the pipe: %+v", who)
	}
	if who := ask(tcp, func() (net.Conn, error) { return net.Dial("tcp", tcp.Addr().String()) }); who != (Asker{}) {
		t.Errorf("by TCP: %+v", who)
	}
}

func TestBusyMetricsPort(t *testing.T) {
	// A busy port is a warning if it is the default, and an error if it was asked for.
	doors := &Doors{Pipe: newPipe()}
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
	// A node removes the directory that it made for its socket, unless it holds another's socket. A directory
	// that existed before stays. Nodes that start while others end are well.
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

// crowd serves "ok" at a listener until the test ends.
func crowd(t *testing.T, l net.Listener) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// ask sends a request and reads its answer. A nil error means that an answer came.
func ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// closed reports whether the other end has closed an idle connection.
func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err := c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestACrowdAtTheMetricsPort(t *testing.T) {
	// One address opens hundreds of connections that send nothing, half a request, or nothing more. Its oldest
	// are closed. A connection of another address stays and is answered, and so is a newcomer.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	crowd(t, l)
	dial := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	scraper := dial("127.0.0.2")
	if err := ask(scraper); err != nil {
		t.Fatal(err)
	}
	var all []net.Conn
	for i := range 4 * mostByTCP {
		c := dial("127.0.0.1")
		all = append(all, c)
		switch i % 3 {
		case 0:
			_, _ = io.WriteString(c, "GET /healthz HT") // it may be cut
		case 1:
			if err := ask(c); err != nil {
				t.Errorf("the newest of the crowd: %v", err)
			}
		}
	}
	if err := ask(scraper); err != nil {
		t.Errorf("who scrapes: %v", err)
	}
	if err := ask(dial("127.0.0.3")); err != nil {
		t.Errorf("who comes new: %v", err)
	}
	for i, c := range all[:len(all)-mostByTCP] {
		if !closed(c) {
			t.Fatalf("connection %d of the crowd is open", i)
		}
	}
	long := dial("127.0.0.3")
	if _, err := io.WriteString(long, "GET / HTTP/1.1\r\nX: "+strings.Repeat("x", 2*mostHeaders)); err != nil {
		t.Error(err)
	}
	if text, _ := io.ReadAll(long); !strings.Contains(string(text), " 431 ") { // and a reset, since more was sent
		t.Errorf("long headers: %q", text)
	}
}

func TestACrowdAtTheSocket(t *testing.T) {
	// A user who is no owner opens more connections than a user may have. That user's oldest are closed. Those
	// of another user and of owners stay.
	inner, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	l := newShares(inner)
	next := make(chan Asker, 1)
	l.who = func(net.Conn) Asker { return <-next }
	crowd(t, l)
	dial := func(a Asker) net.Conn {
		t.Helper()
		next <- a
		c, err := net.Dial("unix", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := ask(c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	owner, other := Asker{Rank: Owner}, Asker{Rank: Member, UID: 1001}
	stay := []net.Conn{dial(other)}
	for range mostOfOne + 10 {
		stay = append(stay, dial(owner))
	}
	var all []net.Conn
	for range mostOfOne + 10 {
		all = append(all, dial(Asker{Rank: Member, UID: 1000}))
	}
	for i, c := range all[:10] {
		if !closed(c) {
			t.Errorf("connection %d of the crowd is open", i)
		}
	}
	for _, c := range append(stay, all[10:]...) {
		if err := ask(c); err != nil {
			t.Errorf("another one's: %v", err)
		}
	}
}
