package nvmetcp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// wireConn is a connection that ends after so many bytes, of both directions together, or drips.
type wireConn struct {
	net.Conn
	mu    sync.Mutex // guards left
	left  int        // bytes until the end; negative means no end
	pause *atomic.Int64
}

// take counts up to n bytes, and returns how many may pass.
func (c *wireConn) take(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left < 0 {
		return n
	}
	n = min(n, c.left)
	c.left -= n
	return n
}

func (c *wireConn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left == 0
}

func (c *wireConn) cut(after int) {
	c.mu.Lock()
	c.left = after
	c.mu.Unlock()
	if after == 0 {
		_ = c.Close()
	}
}

func (c *wireConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b[:c.take(len(b))])
	if c.ended() {
		_ = c.Close()
		err = io.ErrClosedPipe
	}
	return n, err
}

func (c *wireConn) Read(b []byte) (int, error) {
	if c.ended() {
		return 0, io.EOF
	}
	if pause := time.Duration(c.pause.Load()); pause > 0 {
		b = b[:1]
		time.Sleep(pause)
	}
	c.mu.Lock()
	if c.left > 0 {
		b = b[:min(len(b), c.left)]
	}
	c.mu.Unlock()
	n, err := c.Conn.Read(b)
	if c.take(n); c.ended() {
		_ = c.Close()
		if err != nil {
			err = io.EOF
		}
	}
	return n, err
}

// wired makes the connections of a host wireConns. It returns a function for the last of them.
func wired(o *Options) (last func() *wireConn, pause *atomic.Int64) {
	dial, pause := o.Dial, new(atomic.Int64)
	var at atomic.Pointer[wireConn]
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &wireConn{Conn: conn, left: -1, pause: pause}
		at.Store(c)
		return c, nil
	}
	return at.Load, pause
}

func TestCutInEveryPDU(t *testing.T) {
	// The connection of an I/O queue ends after any byte of a command, data in it, R2T, H2CData, C2HData and response,
	// all with digests. Each time one new controller is made, the commands are repeated, and the bytes are right.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		f.blockBits, f.inline, f.noSuccess = 9, 16, true
		o := f.options()
		o.HeaderDigest, o.DataDigest = true, true
		queue, _ := wired(&o) // the last that is dialed is the one I/O queue's
		n := f.open(t, o)
		want, got := pages(0, 4096, 1)[:512], make([]byte, 512)
		cut := 0
		for whole := false; !whole; cut++ {
			clear(f.disk[:512])
			clear(got)
			conn, before := queue(), n.Stats().Connections
			conn.cut(cut)
			_, wrote := n.WriteAt(want, 0)    // command, R2T, H2CData, response
			discarded := n.Discard(4096, 512) // command with data, response
			_, read := n.ReadAt(got, 0)       // command, C2HData, response
			if err := errors.Join(wrote, discarded, read); err != nil || string(got) != string(want) {
				t.Fatalf("a cut after %d bytes: %v, or wrong bytes", cut, err)
			}
			synctest.Wait()
			whole = !conn.ended()
			if made := n.Stats().Connections - before; !whole && made > 1 {
				t.Fatalf("a cut after %d bytes: %d new connections", cut, made)
			}
		}
		const least = (76 + 28 + 28 + 512 + 4 + 28) + (76 + 16 + 4 + 28) + (76 + 28 + 512 + 4 + 28)
		if cut < least {
			t.Errorf("%d bytes were cut, and there are %d", cut, least)
		}
	})
}

func TestSlowDrip(t *testing.T) {
	// A target that sends byte by byte is read right, on the same connection, as long as a command ends in its time.
	// One that takes longer ends the connection, though bytes keep coming.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		f.blockBits = 9
		lost := make(chan error, 100)
		o := f.options()
		o.Events.Lost = func(err error) { lost <- err }
		_, pause := wired(&o)
		n := f.open(t, o)
		copy(f.disk, page(0, 1))
		b := make([]byte, 512)
		read := func() {
			t.Helper()
			clear(b)
			if _, err := n.ReadAt(b, 0); err != nil || string(b) != string(page(0, 1)[:512]) {
				t.Errorf("%v, or wrong bytes", err)
			}
		}
		pause.Store(int64(5 * time.Millisecond)) // 2.7 s for data and header
		read()
		if s := n.Stats(); s.Connections != 1 {
			t.Errorf("%+v", s)
		}
		pause.Store(int64(20 * time.Millisecond)) // 10.7 s
		time.AfterFunc(9*time.Second, func() { pause.Store(0) })
		read()
		if err := <-lost; !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), "no answer within 5s") {
			t.Error(err)
		}
	})
}

func TestDripOverTCP(t *testing.T) {
	// Every PDU of the strict target comes byte by byte, headers, data and digests.
	target := startFake(t, fakenvmet.Options{C2HData: 4096})
	n := openFake(t, target, Options{HeaderDigest: true, DataDigest: true})
	target.SetFault(func(p *fakenvmet.PDU) { p.Drip = func() {} })
	mustWrite(t, n, 0, 20<<10, 1)
	mustRead(t, n, 0, 20<<10, 1)
	if s := n.Stats(); s.Connections != 1 {
		t.Errorf("%+v", s)
	}
}

func TestTerminationRequests(t *testing.T) {
	// A termination request ends the controller, its reason is the cause, and the command is repeated. So does one of
	// the kind that only hosts may send. The target leaves it to us to close the connection.
	for _, c := range []struct {
		story string
		kind  byte
		cause string
	}{
		{"from a controller", pduC2HTermReq, "the target ended the connection: data transfer limit exceeded (05h"},
		{"of the host's kind", pduH2CTermReq, "a PDU of type 02h"},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := startFake(t, fakenvmet.Options{})
			lost := make(chan error, 10)
			n := openFake(t, target, Options{Events: Events{Lost: func(err error) { lost <- err }}})
			mustWrite(t, n, 0, 4096, 1)
			var sent atomic.Bool
			target.SetFault(func(p *fakenvmet.PDU) {
				if p.QID != 0 && p.Opcode == fakenvmet.OpRead && !sent.Swap(true) {
					end := fakenvmet.TermReq(5)
					end.Header[0] = c.kind
					p.Drop, p.Then = true, []*fakenvmet.PDU{end}
				}
			})
			mustRead(t, n, 0, 4096, 1)
			if err := wait(t, lost, "loss"); !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), c.cause) {
				t.Errorf("%v, want %s", err, c.cause)
			}
			if s := n.Stats(); s.Connections != 2 || s.Repeated != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestBackOff(t *testing.T) {
	// The pauses before connections are 10 ms at first and double to 2 s, each cut by up to a half at random.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		o := f.options()
		dial, dials := o.Dial, make(chan time.Time, 100)
		o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials <- time.Now()
			return dial(ctx, network, address)
		}
		f.open(t, o)
		<-dials
		<-dials
		for range 2 { // a controller that lived begins anew
			time.Sleep(time.Minute)
			f.refuse(errors.New("nobody there"))
			before := time.Now()
			f.drop()
			for pause := 10 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
				now := <-dials
				if took := now.Sub(before); took < pause/2 || took >= pause {
					t.Errorf("a pause of %v, want one of %v to %v", took, pause/2, pause)
				}
				if before = now; pause == 2*time.Second {
					break
				}
			}
			synctest.Wait() // the last dial is refused
			f.refuse(nil)
			<-dials
			<-dials
		}
	})
}

func TestTheReaderNeverWrites(t *testing.T) {
	// A target that asks for data and then stops reading does not stop us from reading: another command's answer
	// arrives while the data is stuck.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		answered := make(chan struct{})
		var held uint16
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
			cid := binary.LittleEndian.Uint16(sqe[2:])
			switch {
			case c.queue != 0 && sqe[0] == opRead:
				held = cid
				return true
			case c.queue != 0 && sqe[0] == opWrite: // nothing is read from the connection meanwhile
				c.writes[cid] = &fakeWrite{data: f.disk[:16<<10]}
				_ = c.r2t(cid, 0, 16<<10)
				synctest.Wait() // its sender waits for us
				if c.answer(held, f.disk[4<<20:][:4096]) == nil {
					<-answered
				}
				return true
			}
			return false
		}
		o := f.options()
		o.KeepAlive = time.Hour // the target is busy with the write alone
		n := f.open(t, o)
		copy(f.disk[4<<20:], page(4<<20, 1))
		go func() {
			defer close(answered)
			mustRead(t, n, 4<<20, 4096, 1)
		}()
		synctest.Wait()
		mustWrite(t, n, 0, 16<<10, 2)
		if s := n.Stats(); s.Connections != 1 || string(f.disk[:16<<10]) != string(pages(0, 16<<10, 2)) {
			t.Errorf("%+v, or wrong bytes", s)
		}
	})
}

func TestATargetThatStopsReadingWhatItCompleted(t *testing.T) {
	// A target completes a write of which it has read nothing, and reads no more: the connection ends within the time
	// of a command, and the next command has another.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		lost, over, hostile := make(chan error, 100), make(chan struct{}), true
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
			if c.queue == 0 || sqe[0] != opWrite || !hostile {
				return false
			}
			hostile = false
			f.hook.Unlock() // the other queue is served meanwhile
			defer f.hook.Lock()
			cid := binary.LittleEndian.Uint16(sqe[2:])
			_ = c.r2t(cid, 0, 16<<10)
			synctest.Wait() // the data is on its way
			_ = c.respond(cid, 0, 0)
			<-over
			return true
		}
		o := f.options()
		o.Events.Lost = func(err error) { lost <- err }
		n := f.open(t, o)
		defer close(over)
		_, _ = n.WriteAt(pages(0, 16<<10, 1), 0) // the target's word counts
		if err := <-lost; !errors.Is(err, ErrPath) {
			t.Error(err)
		}
		mustWrite(t, n, 0, 16<<10, 2)
		mustRead(t, n, 0, 16<<10, 2)
	})
}

// packets is a connection to a target on which each write of the host is one message, however many buffers it has.
func packets(t testing.TB, target net.Conn, seen func(message []byte)) net.Conn {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range ends {
		file := os.NewFile(uintptr(fd), "packets")
		if conns[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		_ = file.Close() // FileConn has its own
	}
	relay := func(to, from net.Conn, size int, seen func([]byte)) {
		for b := make([]byte, size); ; {
			n, err := from.Read(b)
			if n > 0 {
				seen(b[:n])
				_, err = to.Write(b[:n])
			}
			if err != nil {
				_ = to.Close() // the other side sees the end
				_ = from.Close()
				return
			}
		}
	}
	go relay(target, conns[1], 1<<20, seen)
	go relay(conns[1], target, readBuffer, func([]byte) {}) // a longer message would be cut by the host's buffer
	return conns[0]
}

func TestLargeWritesLetReadsIn(t *testing.T) {
	// Every PDU is one write to the connection, and has it for itself. Between the PDUs of a large write others send
	// theirs: reads begin before it is over.
	target := startFake(t, fakenvmet.Options{MaxData: 16 << 10})
	var mu sync.Mutex
	between, amid := 0, false // reads that began between two H2CData of one R2T
	o := Options{Queues: 1, HeaderDigest: true}
	o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return packets(t, conn, func(m []byte) {
			mu.Lock()
			defer mu.Unlock()
			if len(m) < commonLen || parseCommon(m).length != len(m) {
				t.Errorf("a write of %d bytes is no PDU", len(m))
				return
			}
			switch h := parseCommon(m); {
			case h.kind == pduH2CData:
				amid = h.flags&flagLast == 0
			case h.kind == pduCapsuleCmd && m[commonLen] == opRead && amid:
				between++
			}
		}), nil
	}
	n := openFake(t, target, o)
	mustWrite(t, n, 8<<20, 4096, 1)
	stop := make(chan struct{})
	var work sync.WaitGroup
	for _, do := range []func(){func() { mustWrite(t, n, 0, 1<<20, 2) }, func() { mustRead(t, n, 8<<20, 4096, 1) }} {
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					do()
				}
			}
		})
	}
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return between > 0 || t.Failed()
	}) {
		t.Error("no read begins before a write is over")
	}
	close(stop)
	work.Wait()
}
