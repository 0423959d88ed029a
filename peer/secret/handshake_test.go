package secret

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pair is both ends of a connection over loopback.
func pair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// side is the outcome of a handshake at one end.
type side struct {
	conn net.Conn
	id   string
	err  error
}

// shake has two nodes shake hands over the two ends.
func shake(ctx context.Context, near, far net.Conn, client, server *Identity) (atClient, atServer side) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		atServer.conn, atServer.id, atServer.err = server.Server(ctx, far)
	}()
	atClient.conn, atClient.id, atClient.err = client.Client(ctx, near, "")
	<-done
	return atClient, atServer
}

// talk sends a word each way.
func talk(t *testing.T, client, server net.Conn) {
	t.Helper()
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(way[0], "hello")
			sent <- err
		}()
		got := make([]byte, 5)
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "hello" {
			t.Fatalf("%q %v", got, err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

func keylessNode(t *testing.T, name, id string) *Identity {
	t.Helper()
	i, err := Keyless(name, id)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// nodes are two nodes of one cluster.
func nodes(t testing.TB, o Options) (a, b *Identity) {
	c := cluster(t, keyHex, "test")
	return identity(t, c, "a", o), identity(t, c, "b", o)
}

func TestNodesOfOneClusterTalk(t *testing.T) {
	// Each node learns the other's id, and what follows passes both ways, in all three
	// forms.
	encA, encB := nodes(t, Options{})
	plainA, plainB := nodes(t, Options{Plain: true})
	for name, x := range map[string][2]*Identity{"encrypted": {encA, encB}, "plain": {plainA, plainB},
		"keyless": {keylessNode(t, "test", "a"), keylessNode(t, "test", "b")}} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t)
			ctx, cancel := context.WithCancel(t.Context())
			c, s := shake(ctx, near, far, x[0], x[1])
			cancel() // has no effect any more
			if c.err != nil || s.err != nil || c.id != "b" || s.id != "a" {
				t.Fatalf("client: %q %v; server: %q %v", c.id, c.err, s.id, s.err)
			}
			if (c.conn == near) != (name != "encrypted") {
				t.Error("the wrong connection to go on with")
			}
			talk(t, c.conn, s.conn)
		})
	}
}

func TestNoDeadlineIsLeft(t *testing.T) {
	// A connection that had a deadline of its own works beyond that, and beyond the
	// handshake's.
	for _, o := range []Options{{}, {Plain: true}} {
		synctest.Test(t, func(t *testing.T) {
			a, b := nodes(t, o)
			near, far := net.Pipe()
			for _, end := range []net.Conn{near, far} {
				if err := end.SetDeadline(time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			c, s := shake(t.Context(), near, far, a, b)
			if c.err != nil || s.err != nil {
				t.Fatal(c.err, s.err)
			}
			time.Sleep(time.Hour)
			talk(t, c.conn, s.conn)
			near.Close()
			far.Close()
		})
	}
}

func TestWhatDiffersIsToldOnBothSides(t *testing.T) {
	// Two nodes that do not belong together both learn why, and both connections are
	// closed.
	is := func(key, name string, o Options) func(string) *Identity {
		c := cluster(t, key, name)
		return func(id string) *Identity { return identity(t, c, id, o) }
	}
	off := Options{Plain: true}
	enc, plain, none := is(keyHex, "test", Options{}), is(keyHex, "test", off), func(id string) *Identity { return keylessNode(t, "test", id) }
	for _, x := range []struct {
		name           string
		client, server func(id string) *Identity
		want           error
		says           string // at the server; at the client the same or its opposite
	}{
		{"another key", enc, is(otherHex, "test", Options{}), ErrKey, "the fingerprint here is"},
		{"another key, plain", plain, is(otherHex, "test", off), ErrKey, "the fingerprint here is"},
		{"another name", enc, is(keyHex, "prod", Options{}), ErrName, `"prod" here`},
		{"another name, plain", plain, is(keyHex, "prod", off), ErrName, `"prod" here`},
		{"another key and name", enc, is(otherHex, "prod", Options{}), ErrName, `"prod" here`},
		{"on against off", enc, plain, ErrEncryption, "on there, off here"},
		{"off against on", plain, enc, ErrEncryption, "off there, on here"},
		{"key against none", enc, none, ErrNoKey, "none here"},
		{"none against key", none, plain, ErrNoKey, "none there"},
		{"none, another name", none, func(id string) *Identity { return keylessNode(t, "prod", id) }, ErrName, `"prod" here`},
		{"a pass phrase against a key", plain, is(phrase, "test", off), ErrKey, "the fingerprint here is"},
	} {
		t.Run(x.name, func(t *testing.T) {
			near, far := pair(t)
			c, s := shake(t.Context(), near, far, x.client("a"), x.server("b"))
			if !errors.Is(c.err, x.want) || !errors.Is(s.err, x.want) || !strings.Contains(s.err.Error(), x.says) {
				t.Errorf("client: %v\nserver: %v", c.err, s.err)
			}
			for _, conn := range []net.Conn{near, far} {
				if _, err := conn.Write([]byte{0}); !errors.Is(err, net.ErrClosed) {
					t.Errorf("a connection is left open: %v", err)
				}
			}
			if c.conn != nil || s.conn != nil || c.id != "" || s.id != "" {
				t.Error("a refused peer has a connection or an id")
			}
			if strings.Contains(fmt.Sprint(c.err, s.err), keyHex[:16]) {
				t.Error("an error tells the key")
			}
		})
	}
}

func TestAnotherNodeThanWanted(t *testing.T) {
	// An address that another node has now is told from a stranger. The right id passes.
	for _, o := range []Options{{}, {Plain: true}} {
		a, b := nodes(t, o)
		for want, expect := range map[string]error{"b": nil, "c": ErrOtherNode, "a": ErrOtherNode} {
			near, far := pair(t)
			done := make(chan error, 1)
			go func() {
				_, _, err := b.Server(t.Context(), far)
				done <- err
			}()
			_, id, err := a.Client(t.Context(), near, want)
			if !errors.Is(err, expect) || (err == nil) != (id == "b") {
				t.Errorf("%v: wanted %s: %q %v", o, want, id, err)
			}
			if err := <-done; err != nil {
				t.Errorf("%v: wanted %s: at the server: %v", o, want, err)
			}
		}
	}
}

func TestNodeMeetsItself(t *testing.T) {
	// A node that reaches its own address, or a copy of itself, says so on both sides.
	for _, o := range []Options{{}, {Plain: true}} {
		a, _ := nodes(t, o)
		near, far := pair(t)
		if c, s := shake(t.Context(), near, far, a, a); !errors.Is(c.err, ErrSelf) || !errors.Is(s.err, ErrSelf) {
			t.Errorf("%v: %v; %v", o, c.err, s.err)
		}
	}
}

// distant is a connection that claims to come from a network.
type distant struct{ net.Conn }

func (distant) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7070}
}

func TestKeylessStaysOnLoopback(t *testing.T) {
	// Two nodes without a key do not talk over a network, whichever side it is.
	a, b := keylessNode(t, "test", "a"), keylessNode(t, "test", "b")
	near, far := pair(t)
	if c, s := shake(t.Context(), distant{near}, distant{far}, a, b); !errors.Is(c.err, ErrNotLoopback) || !errors.Is(s.err, ErrNotLoopback) {
		t.Errorf("%v; %v", c.err, s.err)
	}
}

func TestClocksDoNotMatter(t *testing.T) {
	// Nodes whose clocks are 110 years apart, and one whose certificate is older than its
	// clock, find each other. (The bubble's clock begins in 2000.)
	for _, o := range []Options{{}, {Plain: true}} {
		synctest.Test(t, func(t *testing.T) {
			early, _ := nodes(t, o)
			for range 2 {
				_, late := nodes(t, o)
				near, far := net.Pipe()
				c, s := shake(t.Context(), near, far, early, late)
				if c.err != nil || s.err != nil {
					t.Fatalf("in %d: %v; %v", time.Now().Year(), c.err, s.err)
				}
				near.Close()
				far.Close()
				time.Sleep(110 * 365 * 24 * time.Hour)
			}
		})
	}
}

func TestSilentPeer(t *testing.T) {
	// A peer says one byte a second, stops after its greeting, or does not even read. It
	// holds up nobody longer than the context or ten seconds.
	for _, o := range []Options{{}, {Plain: true}} {
		a, b := nodes(t, o)
		greet := func(k kind) []byte { return message{version: version, kind: k, body: b.greet()}.encode() }
		dribble := func(c net.Conn) {
			for _, x := range []byte(magic) {
				time.Sleep(1100 * time.Millisecond)
				if _, err := c.Write([]byte{x}); err != nil {
					return
				}
			}
		}
		for _, x := range []struct {
			name   string
			client bool
			peer   func(net.Conn)
		}{
			{"dribbling server", true, dribble},
			{"dribbling client", false, dribble},
			{"server that greets", true, func(c net.Conn) { _, _ = c.Write(greet(serverGreeting)) }},
			{"client that greets", false, func(c net.Conn) { _, _ = c.Write(greet(clientGreeting)) }},
			{"deaf server", true, nil},
			{"deaf client", false, nil},
		} {
			run := a.Server
			if x.client {
				run = func(ctx context.Context, c net.Conn) (net.Conn, string, error) { return a.Client(ctx, c, "") }
			}
			t.Run(x.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { silent(t, run, x.peer) })
			})
		}
	}
}

func silent(t *testing.T, run func(context.Context, net.Conn) (net.Conn, string, error), peer func(net.Conn)) {
	gone := errors.New("the caller has gone")
	for _, x := range []struct {
		after time.Duration
		cause error
	}{{time.Second, gone}, {time.Hour, os.ErrDeadlineExceeded}} {
		near, far := net.Pipe()
		var others sync.WaitGroup
		if peer != nil {
			others.Go(func() { peer(far) })
			others.Go(func() { _, _ = io.Copy(io.Discard, far) })
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := time.AfterFunc(x.after, func() { cancel(gone) })
		began := time.Now()
		_, _, err := run(ctx, near)
		if took := time.Since(began); !errors.Is(err, x.cause) || took != min(x.after, maxHandshake) {
			t.Errorf("after %v: %v", took, err)
		}
		stop.Stop()
		cancel(nil)
		far.Close()
		others.Wait()
	}
}

func TestManyAtOnce(t *testing.T) {
	// One identity serves many connections at a time.
	for _, o := range []Options{{}, {Plain: true}} {
		a, b := nodes(t, o)
		var all sync.WaitGroup
		for range 16 {
			near, far := pair(t)
			all.Go(func() {
				if c, s := shake(t.Context(), near, far, a, b); c.err != nil || s.err != nil || c.id != "b" || s.id != "a" {
					t.Errorf("%v; %v", c.err, s.err)
				}
			})
		}
		all.Wait()
	}
}

func TestCancelledBefore(t *testing.T) {
	// A caller whose context has ended gets its cause, and no connection.
	a, b := nodes(t, Options{})
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	near, far := pair(t)
	if c, s := shake(ctx, near, far, a, b); !errors.Is(c.err, gone) || !errors.Is(s.err, gone) {
		t.Errorf("%v; %v", c.err, s.err)
	}
}
