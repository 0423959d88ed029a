package object

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// drip is a client whose connection holds size bytes and that takes some of them each second. As
// with TCP there is room once a third is free.
type drip struct {
	*taker
	size, rate int
	pool       *hearth.Pool

	held float64 // bytes
	at   time.Time
	most time.Duration // the longest wait for room
	bad  error
}

func newDrip(k *bucket, size, rate int) *drip {
	d := &drip{taker: &taker{ResponseRecorder: httptest.NewRecorder()}, size: size, rate: rate, pool: k.pool, at: time.Now()}
	d.pace = func(n int) {
		if d.queued(); d.held+float64(n) > float64(d.size) {
			d.bad = fmt.Errorf("%d bytes are written where %v lie", n, d.held)
		}
		d.held += float64(n)
	}
	return d
}

func (d *drip) queued() int {
	d.held = max(0, d.held-time.Since(d.at).Seconds()*float64(d.rate))
	d.at = time.Now()
	return int(d.held)
}

func (d *drip) room(wait bool) (int, error) {
	begun := time.Now()
	for d.queued() > d.size*2/3 {
		if !wait {
			return 0, nil
		}
		if !time.Now().Before(d.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		time.Sleep(min(time.Until(d.deadline), 10*time.Millisecond)) // of a test's own clock
		d.most = max(d.most, time.Since(begun))
		if p := d.pool.Stats(); time.Since(begun) > slowAfter && (p.Views != 0 || p.Used-p.Idle > 4096) {
			d.bad = fmt.Errorf("who waits for room holds %d Views, %d bytes", p.Views, p.Used-p.Idle)
		}
	}
	return d.size / roomShare, nil
}

// on is a request that came over the client's connection.
func (d *drip) on(t *testing.T) *http.Request {
	return httptest.NewRequestWithContext(context.WithValue(t.Context(), lineKey{}, line(d)), http.MethodGet, "/", nil)
}

func TestSlowClientThatGoesOnIsNotCut(t *testing.T) {
	// A client takes 1 KiB a second, so its connection takes longer than StallAfter to have room
	// again. It gets all, and nothing is held for it meanwhile.
	for _, how := range ways() {
		synctest.Test(t, func(t *testing.T) {
			k := newBucket(t)
			s := serve(t, k, Options{})
			s.read(how)
			o := object("drip", 2*hearth.BlockSize+100)
			d := newDrip(k, 1536<<10, 1<<10)
			answered, n, err := s.Serve(d, d.on(t), o)
			if !answered || n != o.Size || err != nil || d.bad != nil || !bytes.Equal(d.Body.Bytes(), content(o, 0, o.Size)) {
				t.Errorf("%v, %d bytes, %v, %v", answered, n, err, d.bad)
			}
			if d.most < stallDefault-slowAfter || !d.deadline.IsZero() {
				t.Errorf("it was waited for %v, and has the deadline %v", d.most, d.deadline)
			}
			s.Close()
		})
	}
}

func TestWhoTakesNothingIsCut(t *testing.T) {
	// A client takes some of its answer and then nothing. It is cut after StallAfter, and nothing
	// is held for it meanwhile.
	synctest.Test(t, func(t *testing.T) {
		k := newBucket(t)
		s := serve(t, k, Options{})
		d := newDrip(k, 1536<<10, 0)
		begun := time.Now()
		answered, _, err := s.Serve(d, d.on(t), object("nothing", 2*hearth.BlockSize))
		if took := time.Since(begun); !answered || !errors.Is(err, ErrGone) || d.bad != nil || took < stallDefault || took > stallDefault+time.Second {
			t.Errorf("%v after %v: %v, %v", answered, took, err, d.bad)
		}
		if d.deadline.IsZero() || !d.deadline.Before(time.Now()) {
			t.Errorf("the deadline is %v", d.deadline)
		}
		s.Close()
	})
}

func TestQuickClientIsLentBlocks(t *testing.T) {
	// A client whose connection is full now and then, for less than slowAfter, has each block read
	// once.
	synctest.Test(t, func(t *testing.T) {
		k := newBucket(t)
		gets := 0
		k.gets = func(int, int) { gets++ }
		s := serve(t, k, Options{})
		d := newDrip(k, 1536<<10, 10<<20)
		o := object("quick", 8*hearth.BlockSize)
		if _, n, err := s.Serve(d, d.on(t), o); n != o.Size || err != nil || d.bad != nil || gets != 8 || d.most == 0 {
			t.Errorf("%d bytes, %v, %v, %d Gets, waited for %v", n, err, d.bad, gets, d.most)
		}
		s.Close()
	})
}

func TestStalledCrowd(t *testing.T) {
	// A thousand clients ask for a large object and take nothing of it, with the smallest Pool.
	// Each has its answer begun. Then a client that takes its answer gets all of it, and one that
	// needs memory beside the crowd gets nearly all of the Pool. Those of the crowd that go on get
	// all, too.
	const crowd, begins = 1000, "HTTP/1.1 200"
	k := newBucket(t)
	s := serve(t, k, Options{StallAfter: time.Hour})
	o := object("crowd", 4*hearth.BlockSize+77)
	server := httptest.NewUnstartedServer(s.handle(o))
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(64 << 10) // a thousand of the usual ones are gigabytes
		return OnConnection(ctx, c)
	}
	server.Start()
	conns := make([]net.Conn, crowd)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		server.Close()
	}()
	within := time.Now().Add(2 * time.Minute) // for a loaded machine; without the crowd's memory they would wait for an hour
	var all sync.WaitGroup
	for i := range conns {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c
		all.Go(func() {
			_ = c.(*net.TCPConn).SetReadBuffer(64 << 10)
			_ = c.SetDeadline(within)
			if _, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Error(err)
			}
			first := make([]byte, len(begins))
			if _, err := io.ReadFull(c, first); err != nil || string(first) != begins {
				t.Errorf("client %d: %q, %v", i, first, err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	honest := &http.Client{Timeout: time.Until(within)}
	defer honest.CloseIdleConnections()
	resp, err := honest.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := drain(t, resp.Body); err != nil || !bytes.Equal(p, content(o, 0, o.Size)) {
		t.Errorf("beside the crowd: %d bytes, %v", len(p), err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), within)
	defer cancel()
	for range k.pool.Stats().Budget * 3 / 4 / hearth.BlockSize {
		v, err := k.pool.Alloc(ctx, hearth.BlockSize)
		if err != nil {
			t.Fatalf("memory beside the crowd: %v", err)
		}
		defer v.Release()
	}
	for _, c := range conns[:3] {
		resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(begins), c)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := drain(t, resp.Body); err != nil || !bytes.Equal(p, content(o, 0, o.Size)) {
			t.Errorf("a client that goes on: %d bytes, %v", len(p), err)
		}
	}
}

func TestWhoIsOnThisHost(t *testing.T) {
	// A client is on this host if it comes from the loopback, or from the address that it goes to.
	for _, c := range []struct {
		at, from string
		want     bool
	}{
		{"127.0.0.1", "127.0.0.1", true}, {"127.0.0.1", "127.0.0.9", true}, {"::1", "::1", true}, {"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false}, {"fe80::1", "fe80::2", false}, {"", "", false},
	} {
		if got := onThisHost(ends{at: c.at, from: c.from}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// ends is a connection with addresses; without them it is not TCP.
type ends struct {
	net.Conn
	at, from string
}

func (e ends) LocalAddr() net.Addr  { return tcp(e.at) }
func (e ends) RemoteAddr() net.Addr { return tcp(e.from) }

func tcp(ip string) net.Addr {
	if ip == "" {
		return &net.UnixAddr{}
	}
	return &net.TCPAddr{IP: net.ParseIP(ip)}
}

func TestRoomOfASocket(t *testing.T) {
	// A connection has room until it is full. Then room waits for the deadline, or until the client
	// takes something; on a closed connection it does not wait. With TLS it is the same.
	for _, secure := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		asked := server
		if secure {
			asked = tls.Server(server, &tls.Config{})
		}
		x, _ := OnConnection(t.Context(), asked).Value(lineKey{}).(line)
		if x == nil {
			t.Fatal("nobody can be asked")
		}
		if err := x.(socket).raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); got != unpaced || err != nil {
				t.Errorf("a client on this host is sent to by %q, %v", got, err)
			}
		}); err != nil {
			t.Error(err)
		}
		written := 0
		for {
			// The kernel of a client that takes nothing still makes room for some time.
			if err := server.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			n, err := x.room(true)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if n, err = server.Write(make([]byte, n)); err != nil {
				t.Fatalf("what there was room for: %v", err)
			}
			written += n
		}
		if err := server.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := x.room(false); n != 0 || err != nil || x.queued() == 0 || written < x.queued() {
			t.Errorf("a full one: room for %d, %v, %d bytes of %d wait", n, err, x.queued(), written)
		}
		taken := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(client, make([]byte, written))
			taken <- err
		}()
		if n, err := x.room(true); n == 0 || err != nil {
			t.Errorf("once some was taken: room for %d, %v", n, err)
		}
		if err := <-taken; err != nil {
			t.Error(err)
		}
		server.Close()
		if _, err := x.room(true); err == nil || x.queued() != 0 {
			t.Errorf("a closed one: %v", err)
		}
	}
	if c, _ := net.Pipe(); OnConnection(t.Context(), c) != t.Context() {
		t.Error("a pipe has room, or none")
	}
}
