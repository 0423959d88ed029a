package wire

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a peer that asks a server.
type rig struct {
	owner  *owner
	server *Server
	peer   *Peer
	pool   *hearth.Pool // of who asks
	dial   func(ctx context.Context) (net.Conn, error)
	ended  chan error // of what was served
}

// transport makes a dialler whose connections are served, and a func that waits for
// these.
type transport func(t testing.TB, serve func(net.Conn)) (dial func(context.Context) (net.Conn, error), stop func())

func pipe() (a, b net.Conn) { return net.Pipe() }

func pipes(_ testing.TB, serve func(net.Conn)) (func(context.Context) (net.Conn, error), func()) {
	var work sync.WaitGroup
	return func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		work.Go(func() { serve(b) })
		return a, nil
	}, work.Wait
}

func loopback(t testing.TB, serve func(net.Conn)) (func(context.Context) (net.Conn, error), func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { serve(conn) })
		}
	})
	dial := func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}
	return dial, func() { l.Close(); work.Wait() }
}

// certified are configurations of TLS for both sides.
func certified(t testing.TB) (client, server *tls.Config) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"owner"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}
	return &tls.Config{RootCAs: pool, ServerName: "owner"}, server
}

// encrypted is loopback with TLS.
func encrypted(t testing.TB, serve func(net.Conn)) (func(context.Context) (net.Conn, error), func()) {
	client, server := certified(t)
	dial, stop := loopback(t, func(conn net.Conn) { serve(tls.Server(conn, server)) })
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return tls.Client(conn, client), nil
	}, stop
}

func newRig(t *testing.T, over transport, so ServerOptions, po PeerOptions) *rig {
	r := &rig{owner: &owner{pool: hearth.NewPool(64 << 20)}, pool: hearth.NewPool(64 << 20), ended: make(chan error, 1000)}
	run := so.Handler.Run
	handler := r.owner.handler()
	if so.Handler.Ready != nil {
		handler.Ready = r.owner.ready
	}
	handler.Here = so.Handler.Here
	so.Handler, so.Pool = handler, r.owner.pool
	so.Handler.Run = run
	r.server = NewServer(so)
	ctx, cancel := context.WithCancelCause(context.Background())
	dial, stop := over(t, func(conn net.Conn) { r.ended <- r.server.Serve(ctx, conn, "asker") })
	r.dial = dial
	if po.Pool = r.pool; po.Dial == nil {
		po.Dial = dial
	}
	r.peer = NewPeer("owner", po)
	t.Cleanup(func() {
		r.peer.Close()
		cancel(errors.New("test over"))
		stop()
		for _, p := range []*hearth.Pool{r.pool, r.owner.pool} {
			if s := p.Stats(); s.Views != 0 || s.Used != s.Idle {
				t.Errorf("leaked: %+v", s)
			}
		}
		for _, s := range []Stats{r.peer.Stats(), r.server.Stats()} {
			if s.Connections+s.InFlight+s.Queued != 0 {
				t.Errorf("left over: %+v", s)
			}
		}
	})
	return r
}

// owner answers as the object's key says.
type owner struct {
	pool                      *hearth.Pool
	fills, readies, cancelled atomic.Int64
}

func (o *owner) handler() Handler {
	return Handler{Fill: o.fill, Peek: o.get, Calls: map[uint16]Answer{
		1: func(ctx context.Context, body []byte) (*hearth.View, error) { // gives it back
			if len(body) == 0 {
				return nil, nil
			}
			v, err := o.pool.Alloc(ctx, len(body))
			if err == nil {
				copy(v.Bytes(), body)
			}
			return v, err
		},
		2: func(context.Context, []byte) (*hearth.View, error) { return nil, fs.ErrNotExist },
		3: func(context.Context, []byte) (*hearth.View, error) { return o.pool.TryAlloc(MaxBody + 1), nil },
		5: func(context.Context, []byte) (*hearth.View, error) { return o.pool.TryAlloc(MaxBody), nil },
	}}
}

func (o *owner) fill(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	o.fills.Add(1)
	return o.get(ctx, b, off, n)
}

func (o *owner) get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	switch key := b.Object.Key; key {
	case "miss":
		return nil, fmt.Errorf("look: %w", hearth.ErrMiss)
	case "stale":
		return nil, hearth.ErrStale
	case "refused":
		return nil, hearth.ErrRefused
	case "absent":
		return nil, fmt.Errorf("get %s: %w", key, fs.ErrNotExist)
	case "forbidden":
		return nil, fs.ErrPermission
	case "archived":
		return nil, fmt.Errorf("get archived: %w", hearth.ErrArchived)
	case "away":
		return nil, fmt.Errorf("get %s: %w", key, &Error{Class: Away, Text: "503 SlowDown"})
	case "long":
		return nil, errors.New(strings.Repeat("x", 2*MaxText))
	case "panic":
		panic("a handler's bug")
	case "short":
		n--
	case "slow":
		time.Sleep(10 * time.Second)
	case "hang":
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), errCancelled) {
			o.cancelled.Add(1)
		}
		return nil, context.Cause(ctx)
	}
	if n == 0 {
		return nil, nil
	}
	v, err := o.pool.Alloc(ctx, n)
	if err == nil {
		hearthtest.Fill(v.Bytes(), b.Object.Key, b.Offset()+int64(off), 1)
	}
	return v, err
}

func object(key string) *hearth.Object {
	return hearthtest.NewObject(key, hearth.BlockSize+hearth.PieceSize+5, 1)
}

// sourceOf makes a verb a hearth.Source.
type sourceOf Get

func (s sourceOf) Get(ctx context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	return s(ctx, b, off, n)
}

// bad are keys, and what an asker sees for each.
func bad() map[string]func(error) bool {
	is := func(target error) func(error) bool {
		return func(err error) bool { return errors.Is(err, target) }
	}
	class := func(c Class, text string) func(error) bool {
		return func(err error) bool {
			var e *Error
			return errors.As(err, &e) && e.Class == c && strings.Contains(e.Text, text) && len(e.Text) <= MaxText &&
				strings.Contains(err.Error(), "peer owner")
		}
	}
	return map[string]func(error) bool{
		"miss": is(hearth.ErrMiss), "stale": is(hearth.ErrStale), "refused": is(hearth.ErrRefused), "absent": is(fs.ErrNotExist),
		"forbidden": is(fs.ErrPermission), "archived": is(hearth.ErrArchived), "away": class(Away, "get away: 503 SlowDown"), "long": class(Other, "xxx"),
		"panic": class(Other, "a handler's bug"), "short": class(Other, "of 5"),
	}
}

func TestConformance(t *testing.T) {
	// Each verb and each answer works over pipes in virtual time, and over loopback,
	// plain and with TLS.
	t.Run("pipes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { conform(t, newRig(t, pipes, ServerOptions{}, PeerOptions{})) })
	})
	for name, over := range map[string]transport{"loopback": loopback, "TLS": encrypted} {
		t.Run(name, func(t *testing.T) { conform(t, newRig(t, over, ServerOptions{}, PeerOptions{Silence: time.Minute})) })
	}
}

func conform(t *testing.T, r *rig) {
	p, data := r.peer, object("data")
	for _, get := range []sourceOf{p.Fill, p.Peek} {
		for _, x := range [][2]int{{0, 1}, {7, 4096}, {0, hearth.PieceSize}, {1, hearth.PieceSize}, {5, 3*hearth.PieceSize + 1}, {0, hearth.BlockSize}, {hearth.BlockSize - 1, 1}} {
			if hearthtest.CheckGet(t, get, data.Block(0), x[0], x[1], 1) {
				t.Errorf("missed %v", x)
			}
		}
		hearthtest.CheckGet(t, get, data.Block(1), 0, data.Block(1).Len(), 1)
		for key, right := range bad() {
			if v, err := get(t.Context(), object(key).Block(0), 0, 5); v != nil || !right(err) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if _, err := get(t.Context(), data.Block(2), 0, 1); err == nil {
			t.Error("a block beyond the end was asked for")
		}
	}
	before := r.owner.fills.Load()
	if v, err := p.Fill(t.Context(), data.Block(0), 0, 0); v != nil || err != nil || r.owner.fills.Load() != before+1 {
		t.Errorf("load: %v, %v", v, err)
	}
	if _, err := p.Fill(t.Context(), object("away").Block(0), 0, 0); err == nil {
		t.Error("loaded what is away")
	}
	before = r.owner.fills.Load()
	if v, err := p.Peek(t.Context(), data.Block(0), 0, 0); v != nil || err != nil || r.owner.fills.Load() != before {
		t.Errorf("asked whether it is held: %v, %v", v, err)
	}
	if v, err := p.Peek(t.Context(), object("miss").Block(0), 0, 0); v != nil || !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("asked whether it is held: %v, %v", v, err)
	}
	many(t, p)
	calls(t, r)
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Fill(soon, object("hang").Block(0), 0, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	hearthtest.Eventually(t.Context(), 10*time.Second, func() bool { return p.Stats().InFlight == 0 }) // it was cancelled
	if s := p.Stats(); s.Requests != s.Answers+s.Misses+s.Refused+s.Stale+s.Errors+s.Cancelled+s.InFlight || s.Mismatches+s.Broken+s.Silences != 0 {
		t.Errorf("figures: %+v", s)
	}
	for _, c := range p.conns {
		if n := c.load.Load(); n != 0 {
			t.Errorf("%d bytes are still asked for", n)
		}
	}
}

func many(t *testing.T, p *Peer) {
	keys := []string{"data", "other"}
	for key := range bad() {
		keys = append(keys, key)
	}
	long := object("data" + strings.Repeat("k", 3000)) // four of them fill a frame
	var wants []Want
	for i := range 3 * MaxItems {
		o := object(keys[i%len(keys)])
		if i%7 == 0 {
			o = long
		}
		wants = append(wants, Want{o.Block(0), i, 5})
	}
	wants = append(wants, Want{object("data").Block(0), -1, 5}, Want{object("data").Block(0), 0, 0})
	seen := make([]int, len(wants))
	p.Many(t.Context(), Fill, wants, func(i int, v *hearth.View, err error) {
		seen[i]++
		o := wants[i].Block.Object
		right, isBad := bad()[o.Key]
		switch {
		case i == len(wants)-2:
			if err == nil {
				t.Error("a range before the block was got")
			}
		case i == len(wants)-1:
			if v != nil || err != nil {
				t.Errorf("load: %v, %v", v, err)
			}
		case isBad && (v != nil || !right(err)):
			t.Errorf("item %d, %s: %v", i, o.Key, err)
		case !isBad && err != nil:
			t.Errorf("item %d, %.9s: %v", i, o.Key, err)
		case !isBad:
			if err := hearthtest.Check(v.Bytes(), o.Key, int64(i), 1); err != nil {
				t.Errorf("item %d: %v", i, err)
			}
		}
		if v != nil {
			v.Release()
		}
	})
	for i, n := range seen {
		if n != 1 {
			t.Errorf("item %d was answered %d times", i, n)
		}
	}
}

func calls(t *testing.T, r *rig) {
	for _, n := range []int{0, 1, 1000, hearth.PieceSize + 1, MaxBody} {
		var body *hearth.View
		if n > 0 {
			body, _ = r.pool.Alloc(t.Context(), n)
			hearthtest.Fill(body.Bytes(), "body", 0, n)
		}
		v, err := r.peer.Call(t.Context(), 1, body)
		if err != nil || size(v) != n {
			t.Errorf("call with %d bytes: %d, %v", n, size(v), err)
		}
		if n > 0 {
			if !bytes.Equal(body.Bytes(), v.Bytes()) {
				t.Errorf("call with %d bytes: others came back", n)
			}
			body.Release()
			v.Release()
		}
	}
	body := hearth.NewView([]byte("body"))
	for number, right := range map[uint16]func(error) bool{
		2: func(err error) bool { return errors.Is(err, fs.ErrNotExist) },
		3: func(err error) bool { var e *Error; return errors.As(err, &e) },
		4: func(err error) bool { return errors.Is(err, hearth.ErrRefused) },
	} {
		if v, err := r.peer.Call(t.Context(), number, body); v != nil || !right(err) {
			t.Errorf("call %d: %v", number, err)
		}
	}
	if _, err := r.peer.Call(t.Context(), 1, hearth.NewView(make([]byte, MaxBody+1))); err == nil {
		t.Error("called with too much")
	}
}

func TestManyAtOnce(t *testing.T) {
	// A hundred readers of mixed sizes share a peer. All get the right bytes, within the
	// asker's memory of a few blocks and the server's bound.
	r := newRig(t, loopback, ServerOptions{QueuedBytes: 2 << 20}, PeerOptions{Silence: time.Minute})
	var work sync.WaitGroup
	for reader := range 100 {
		work.Go(func() {
			o := object(fmt.Sprint("data", reader))
			for i := range 8 {
				n := []int{100, 4096, 128 << 10, 1 << 20}[(reader+i)%4]
				for {
					v, err := r.peer.Fill(t.Context(), o.Block(0), hearth.BlockSize-n, n)
					if errors.Is(err, ErrMemory) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if err := hearthtest.Check(v.Bytes(), o.Key, int64(hearth.BlockSize-n), 1); err != nil {
						t.Error(err)
					}
					v.Release()
					break
				}
			}
		})
	}
	work.Wait()
	if s := r.peer.Stats(); s.Connections < 2 || s.Connections > 4 || s.Broken != 0 {
		t.Errorf("%+v", s)
	}
}
