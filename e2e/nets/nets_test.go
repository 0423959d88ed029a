package nets

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// victimVariable makes a process of this test one that is killed with a network in use.
const victimVariable = "NETS_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" {
		os.Exit(beVictim())
	}
	goleak.VerifyTestMain(m)
}

// beVictim makes a network with a process in it, names its namespaces and waits for its death.
func beVictim() int {
	n, err := New()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	h, err := n.Host(0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	sleep := exec.Command(h.Wrap()[0], append(h.Wrap()[1:], "sleep", "1000")...)
	if err := hearthtest.Spawn(sleep); err != nil {
		fmt.Println(err)
		return 1
	}
	for { // until the program is there: before, it is nsenter
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", sleep.Process.Pid))
		if !strings.HasSuffix(name, "nsenter") && name != "" && sleep.Process.Signal(syscall.Signal(0)) == nil {
			break
		}
	}
	for _, space := range []*namespace{n.router, h.namespace} {
		fmt.Println(must(os.Readlink(space.path())))
	}
	select {}
}

func must(s string, err error) string {
	if err != nil {
		return err.Error()
	}
	return s
}

func newNet(t *testing.T) *Net {
	t.Helper()
	n, err := New()
	if errors.Is(err, unix.EPERM) {
		t.Skip("skipped because this user may make no network namespace: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

func newHost(t *testing.T, n *Net, mbit int) *Host {
	t.Helper()
	h, err := n.Host(mbit)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// echo answers at a host what it is sent, until the test ends.
func echo(t *testing.T, h *Host) (address string) {
	t.Helper()
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(h.Addr().String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() }) // after the connections of the test, which end first
	return l.Addr().String()
}

// dial connects from a host.
func dial(t *testing.T, h *Host, address string) (net.Conn, error) {
	t.Helper()
	var conn net.Conn
	err := h.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

func connect(t *testing.T, h *Host, address string) net.Conn {
	t.Helper()
	conn, err := dial(t, h, address)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// say sends a line and returns what comes back within a time.
func say(t *testing.T, conn net.Conn, line string, within time.Duration) (string, error) {
	t.Helper()
	if _, err := conn.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(line))
	n, err := io.ReadFull(conn, buf)
	return string(buf[:n]), err
}

func TestACutIsSilentAndHeals(t *testing.T) {
	// What is said across a cut is heard of by nobody, until it has healed; hosts of one
	// side go on. The connection is the same all the time.
	n := newNet(t)
	a, b, c := newHost(t, n, 0), newHost(t, n, 0), newHost(t, n, 0)
	at := echo(t, c)
	across, beside := connect(t, a, at), connect(t, b, at)
	for _, conn := range []net.Conn{across, beside} {
		if got, err := say(t, conn, "before", 5*time.Second); err != nil {
			t.Fatal(got, err)
		}
	}
	if err := n.Cut([]*Host{a}, []*Host{c}); err != nil {
		t.Fatal(err)
	}
	if got, err := say(t, across, "during", 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("across the cut came %q, %v", got, err)
	}
	if got, err := say(t, beside, "beside", 5*time.Second); err != nil {
		t.Errorf("beside the cut came %q, %v", got, err)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	if got, err := say(t, across, " after", 20*time.Second); got != "during" || err != nil {
		t.Errorf("after the cut came %q, %v", got, err)
	}
}

func TestALinkHasItsRate(t *testing.T) {
	// More than a link's rate does not pass it, and its counters say what did; the rate
	// changes under a connection.
	n := newNet(t)
	const mbit, size = 80, 3 << 20
	a, b := newHost(t, n, 1000), newHost(t, n, 0)
	conn := connect(t, a, echo(t, b))
	if err := a.Limit(mbit); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	go func() { _, _ = conn.Write(make([]byte, size)) }()
	if _, err := io.ReadFull(conn, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	const bucket = mbit * 1e6 / 8 / 200
	if least := time.Duration(float64(size-2*bucket) / (mbit * 1e6 / 8) * 1e9); time.Since(start) < least {
		t.Errorf("%d bytes took %v, at least %v at the rate", size, time.Since(start), least)
	}
	sent, received, err := a.Traffic()
	if err != nil || sent < size || received < size || sent > size*3/2 {
		t.Errorf("%d bytes there and back are %d sent, %d received, %v", size, sent, received, err)
	}
}

func TestAMovedHostIsReachedByItsNewAddressOnly(t *testing.T) {
	// Who moves has the next address; nobody is at the one before.
	n := newNet(t)
	a, b := newHost(t, n, 0), newHost(t, n, 0)
	old, here := b.Addr(), echo(t, a)
	if err := b.Move(); err != nil {
		t.Fatal(err)
	}
	if b.Addr() == old {
		t.Errorf("still at %v", old)
	}
	if got, err := say(t, connect(t, a, echo(t, b)), "there", 5*time.Second); err != nil {
		t.Errorf("at the new address: %q, %v", got, err)
	}
	if got, err := say(t, connect(t, b, here), "back", 5*time.Second); err != nil {
		t.Errorf("from the new address: %q, %v", got, err)
	}
	err := a.Do(func() error {
		_, err := net.DialTimeout("tcp", net.JoinHostPort(old.String(), "7"), 300*time.Millisecond)
		return err
	})
	if err == nil || errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("somebody is at the old address: %v", err)
	}
}

func TestAProgramRunsAtItsHost(t *testing.T) {
	// What Wrap starts sees the host's link and address, and this process sees neither
	// them nor any device that it had not before.
	before, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	n := newNet(t)
	a, b := newHost(t, n, 0), newHost(t, n, 0)
	out, err := exec.Command(b.Wrap()[0], append(b.Wrap()[1:], "cat", "/proc/net/fib_trie")...).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(b.Addr().String()+"\n")) || bytes.Contains(out, []byte(a.Addr().String())) {
		t.Errorf("the routes of %v: %v: %s", b.Addr(), err, out)
	}
	after, err := net.Interfaces()
	if err != nil || len(after) != len(before) {
		t.Errorf("%d devices of the machine became %d, %v", len(before), len(after), err)
	}
}

func TestACaptureSeesWhatPasses(t *testing.T) {
	// A marker that is sent between two hosts is seen, with where it came from and went to,
	// and by which port.
	n := newNet(t)
	a, b := newHost(t, n, 0), newHost(t, n, 0)
	marker := []byte("a marker in a packet")
	at := echo(t, b)
	var found atomic.Int64
	c, err := n.Capture(func(p Packet) {
		protocol, from, to := p.Ports()
		asked := netip.AddrPortFrom(p.To, to).String() == at && from != to && protocol == unix.IPPROTO_TCP
		if bytes.Contains(p.Data, marker) && p.From == a.Addr() && asked {
			found.Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := say(t, connect(t, a, at), string(marker), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for over := time.Now().Add(10 * time.Second); found.Load() < 2 && time.Now().Before(over); {
		<-time.After(time.Millisecond) // nothing tells that the capture has come so far
	}
	seen, lost, err := c.Stop()
	if found.Load() != 2 || seen < 4 || lost != 0 || err != nil {
		t.Errorf("of one packet with the marker %d were seen, of all %d; %d lost, %v", found.Load(), seen, lost, err)
	}
}

func TestNothingIsLeftOfAKilledTest(t *testing.T) {
	// Who made a network is killed, and soon no process and no mount has one of its
	// namespaces any more; while it lives, some do.
	newNet(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	victim := exec.Command(self)
	victim.Env = append(os.Environ(), victimVariable+"=yes")
	said, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hearthtest.Spawn(victim); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	var spaces []string
	for len(spaces) < 2 && lines.Scan() {
		spaces = append(spaces, lines.Text())
	}
	if len(spaces) < 2 || !strings.HasPrefix(spaces[0], "net:[") {
		t.Fatalf("the process says %q", spaces)
	}
	if users(t, spaces) == 0 {
		t.Error("nobody has the namespaces of a process that lives")
	}
	_ = victim.Process.Kill()
	_ = victim.Wait() // the error says that it was killed
	for over := time.Now().Add(10 * time.Second); users(t, spaces) > 0; <-time.After(10 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatalf("%d still have %v", users(t, spaces), spaces)
		}
	}
}

// users counts the processes that are in one of the namespaces or hold one open, and the
// mounts of one.
func users(t *testing.T, spaces []string) (n int) {
	t.Helper()
	inside, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	held, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, space := range spaces {
		n += bytes.Count(mounts, []byte(space))
		for _, link := range append(inside, held...) {
			if at, err := os.Readlink(link); err == nil && at == space {
				n++
			}
		}
	}
	return n
}
