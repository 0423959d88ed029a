package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/piece"
)

// raw is one side of a connection that sends what a test wants.
type raw struct {
	conn net.Conn
	in   input
	seed uint64
}

func newRaw(conn net.Conn, asks bool) (*raw, error) {
	mine := newHello()
	mine.places = 1000
	theirs, err := exchange(conn, asks, mine, time.Minute)
	if err != nil {
		return nil, err
	}
	r := &raw{conn: conn}
	r.in = newInput(conn, &counters{}, nil, 0)
	if asks {
		r.seed, r.in.seed = seeds(mine, theirs)
	} else {
		r.in.seed, r.seed = seeds(theirs, mine)
	}
	return r, nil
}

// frame is a frame with right checksums, whatever it says.
func (r *raw) frame(h header, meta []byte, question uint64) []byte {
	h.meta = len(meta)
	if len(meta) > 0 {
		h.meta += sealSize
	}
	b := append(make([]byte, headerSize), meta...)
	sum := h.put(b, r.seed)
	if len(meta) > 0 {
		b = binary.LittleEndian.AppendUint64(b, xxh3.HashSeed(b[headerSize:], sum+question))
	}
	return b
}

// say writes what the other side reads to its end.
func (r *raw) say(t testing.TB, p []byte) {
	t.Helper()
	if _, err := r.conn.Write(p); err != nil {
		t.Errorf("say %d bytes: %v", len(p), err)
	}
}

// skip reads over a payload of n bytes.
func (r *raw) skip(t testing.TB, n int) {
	t.Helper()
	if err := r.in.discard(n); err != nil {
		t.Errorf("skip %d bytes: %v", n, err)
	}
}

func fillMeta(wants ...Want) []byte { return appendRequest(nil, 0, wants) }

// answers plays a peer. It exchanges hellos and hands each request with its question to
// answer, until the connection ends.
func answers(conn net.Conn, answer func(r *raw, h header, question uint64)) {
	defer conn.Close()
	r, err := newRaw(conn, false)
	for err == nil {
		var h header
		var sum, question uint64
		var meta []byte
		if h, sum, meta, err = r.in.next(); err == nil {
			if h.meta > 0 {
				_, question, _ = unseal(meta, sum, 0)
			}
			answer(r, h, question)
		}
	}
}

func TestBadFramesEndTheirConnectionOnly(t *testing.T) {
	// A frame that is malformed, oversized, replayed or unknown ends its connection, with
	// an error that says who sent what. Another connection of the same peer goes on.
	want := Want{object("data").Block(0), 0, 5}
	good := fillMeta(want)
	patched := func(at int, b ...byte) []byte {
		m := append([]byte(nil), good...)
		copy(m[at:], b)
		return m
	}
	fill := func(id uint64) header { return header{id: id, kind: kindFill} }
	cases := map[string]struct {
		frames func(r *raw) [][]byte
		says   string
	}{
		"junk":           {func(*raw) [][]byte { return [][]byte{[]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10))} }, "checksum"},
		"unknown kind":   {func(r *raw) [][]byte { return [][]byte{r.frame(header{id: 1, kind: 9}, nil, 0)} }, "unknown kind of frame 9"},
		"no kind":        {func(r *raw) [][]byte { return [][]byte{r.frame(header{id: 1}, nil, 0)} }, "unknown kind"},
		"an answer":      {func(r *raw) [][]byte { return [][]byte{r.frame(header{id: 1, kind: kindMiss}, nil, 0)} }, "nobody asked"},
		"oversized meta": {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), make([]byte, maxMeta), 0)} }, "at most"},
		"oversized payload": {func(r *raw) [][]byte {
			return [][]byte{r.frame(header{id: 1, kind: kindCall, payload: MaxBody + 1}, good, 0)}
		}, "at most"},
		"payload of a fill": {func(r *raw) [][]byte { return [][]byte{r.frame(header{id: 1, kind: kindFill, payload: 3}, good, 0)} }, "malformed"},
		"sums missing": {func(r *raw) [][]byte {
			return [][]byte{r.frame(header{id: 1, kind: kindCall, payload: 3}, make([]byte, 4), 0)}
		}, "malformed"},
		"request 0":          {func(r *raw) [][]byte { return [][]byte{r.frame(fill(0), good, 0)} }, "malformed"},
		"one left out":       {func(r *raw) [][]byte { return [][]byte{r.frame(fill(2), good, 0)} }, "replayed or lost"},
		"replayed":           {func(r *raw) [][]byte { f := r.frame(fill(1), good, 0); return [][]byte{f, f} }, "replayed or lost"},
		"cancelled too soon": {func(r *raw) [][]byte { return [][]byte{r.frame(header{id: 1, kind: kindCancel}, nil, 0)} }, "before it was asked"},
		"wrong seal":         {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), good, 1)} }, "checksum"},
		"no items":           {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), patched(4, 0), 0)} }, "0 items"},
		"too many items":     {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), patched(4, MaxItems+1), 0)} }, "at most 64"},
		"fewer items":        {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), patched(4, 2), 0)} }, "cut off"},
		"more items":         {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), append(patched(0), 1), 0)} }, "behind the last"},
		"beyond the block": {func(r *raw) [][]byte {
			return [][]byte{r.frame(fill(1), patched(requestFixed+28, 0xff, 0xff, 0xff, 0xff), 0)}
		}, "cannot be asked"},
		"no such block":   {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), patched(requestFixed+16, 7), 0)} }, "no such block"},
		"negative block":  {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), patched(requestFixed+23, 0x80), 0)} }, "no such block"},
		"another's frame": {func(r *raw) [][]byte { o := raw{seed: r.seed + 1}; return [][]byte{o.frame(fill(1), good, 0)} }, "checksum"},
		"a body that is not what was sent": {func(r *raw) [][]byte {
			return [][]byte{r.frame(header{id: 1, kind: kindCall, item: 1, payload: 3}, make([]byte, 12), 0), []byte("abc")}
		}, "checksum"},
		"cut off": {func(r *raw) [][]byte { return [][]byte{r.frame(fill(1), good, 0)[:50]} }, "unexpected EOF"},
	}
	for name, x := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
				hearthtest.CheckGet(t, sourceOf(r.peer.Fill), want.Block, 0, 5, 1)
				conn, _ := r.dial(t.Context())
				bad, err := newRaw(conn, true)
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				for _, f := range x.frames(bad) {
					if _, err := conn.Write(f); err != nil {
						break // the connection ends before all of it was read
					}
				}
				if name == "cut off" {
					conn.Close()
				}
				err = <-r.ended
				if err == nil || !strings.Contains(err.Error(), "peer asker") || !strings.Contains(err.Error(), x.says) {
					t.Errorf("ended by %v", err)
				}
				conn.Close()
				hearthtest.CheckGet(t, sourceOf(r.peer.Fill), want.Block, 0, 5, 1)
				if s := r.peer.Stats(); s.Broken != 0 || s.Connections != 1 || r.server.Stats().Broken != 1 {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// dataMeta is the meta of an answer.
func dataMeta(data []byte) []byte { return piece.Append(nil, data, &piece.Noted{}) }

func TestBadAnswersEndTheirConnection(t *testing.T) {
	// An answer that was not asked for, comes twice, or has another length ends the
	// connection. The caller gets an error, and the next request goes over a new
	// connection.
	cases := map[string]struct {
		frames func(r *raw, id, question uint64) []byte
		says   string
	}{
		"junk":          {func(*raw, uint64, uint64) []byte { return make([]byte, headerSize) }, "checksum"},
		"not asked":     {func(r *raw, id, q uint64) []byte { return r.frame(header{id: id + 1, kind: kindMiss}, nil, q) }, "not asked"},
		"another item":  {func(r *raw, id, q uint64) []byte { return r.frame(header{id: id, item: 1, kind: kindMiss}, nil, q) }, "not asked"},
		"item 64":       {func(r *raw, id, q uint64) []byte { return r.frame(header{id: id, item: 64, kind: kindMiss}, nil, q) }, "not asked"},
		"a request":     {func(r *raw, id, q uint64) []byte { return r.frame(header{id: id, kind: kindCancel}, nil, q) }, "a request"},
		"not cancelled": {func(r *raw, id, q uint64) []byte { return r.frame(header{id: id, kind: kindCancelled}, nil, q) }, "not cancelled"},
		"filling what?": {func(r *raw, id, q uint64) []byte { return r.frame(header{id: id + 1, kind: kindFilling}, nil, q) }, "not asked"},
		"no such class": {func(r *raw, id, q uint64) []byte {
			return r.frame(header{id: id, kind: kindError, code: uint8(classes)}, []byte("x"), q)
		}, "malformed"},
		"too short": {func(r *raw, id, q uint64) []byte {
			return append(r.frame(header{id: id, kind: kindData, payload: 4}, dataMeta([]byte("abcd")), q), "abcd"...)
		}, "4 bytes in answer"},
		"an end": {func(r *raw, id, q uint64) []byte {
			f := append(r.frame(header{id: id, kind: kindData, payload: 5}, dataMeta([]byte("abcde")), q), "abc"...)
			_, _ = r.conn.Write(f)
			r.conn.Close()
			return nil
		}, "unexpected EOF"},
	}
	for name, x := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := true
				r := rawRig(t, PeerOptions{}, func(r *raw, h header, question uint64) {
					if first {
						first = false
						_, _ = r.conn.Write(x.frames(r, h.id, question)) // it may be over before all was read
						return
					}
					r.say(t, r.frame(header{id: h.id, kind: kindMiss}, nil, 0))
				})
				b := object("data").Block(0)
				if _, err := r.Peek(t.Context(), b, 0, 5); !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), "peer raw") || !strings.Contains(err.Error(), x.says) {
					t.Errorf("got %v", err)
				}
				// A connection without any answer is a failure: a pause follows.
				if name != "an end" {
					if _, err := r.Peek(t.Context(), b, 0, 5); !errors.Is(err, ErrDown) || r.Stats().Broken != 1 {
						t.Errorf("in the pause: %v, %+v", err, r.Stats())
					}
				}
				for range 2 {
					time.Sleep(pauseMost)
					synctest.Wait()
					_, _ = r.Peek(t.Context(), b, 0, 5) // a failure or a miss; the next one is checked
					synctest.Wait()
				}
				if _, err := r.Peek(t.Context(), b, 0, 5); !errors.Is(err, hearth.ErrMiss) {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}

// rawRig is a Peer whose every connection is answered by a func.
func rawRig(t *testing.T, o PeerOptions, answer func(r *raw, h header, question uint64)) *Peer {
	pool := hearth.NewPool(64 << 20)
	dial, stop := pipes(t, func(conn net.Conn) { answers(conn, answer) })
	if o.Pool = pool; o.Dial == nil {
		o.Dial = dial
	}
	p := NewPeer("raw", o)
	t.Cleanup(func() {
		p.Close()
		stop()
		if s := pool.Stats(); s.Views != 0 || s.Used != s.Idle {
			t.Errorf("leaked: %+v", s)
		}
		if s := p.Stats(); s.Connections+s.InFlight != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
	return p
}

func TestChecksumMismatchIsThatAnswersError(t *testing.T) {
	// A bit is flipped in a payload, in its sums or in an error's text, or an answer
	// belongs to another question. That answer is an error, never data, and the
	// connection goes on.
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 3*hearth.PieceSize)
		hearthtest.Fill(data, "data", 0, 1)
		n := 0
		p := rawRig(t, PeerOptions{}, func(r *raw, h header, question uint64) {
			meta, payload := dataMeta(data), append([]byte(nil), data...)
			head := header{id: h.id, kind: kindData, payload: len(data)}
			switch n++; n {
			case 1:
				payload[len(data)-1] ^= 1
			case 2:
				meta[3] ^= 1
			case 3:
				question++
			case 4:
				r.say(t, r.frame(header{id: h.id, kind: kindError}, []byte("text"), question+1))
				return
			}
			r.say(t, append(r.frame(head, meta, question), payload...))
		})
		for i := range 4 {
			if v, err := p.Fill(t.Context(), object("data").Block(0), 0, len(data)); v != nil || !errors.Is(err, ErrChecksum) {
				t.Errorf("answer %d: %v, %v", i+1, v, err)
			}
		}
		hearthtest.CheckGet(t, sourceOf(p.Fill), object("data").Block(0), 0, len(data), 1)
		if s := p.Stats(); s.Mismatches != 4 || s.Broken != 0 || s.Connections != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestIncompatibleVersions(t *testing.T) {
	// Both sides say which versions the other speaks.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		conn, _ := r.dial(t.Context())
		newer := hello{oldest: 7, newest: 9}
		if _, err := exchange(conn, true, newer, time.Second); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "speaks versions 1 to 1, this node 7 to 9") {
			t.Errorf("the newer one: %v", err)
		}
		if err := <-r.ended; !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "peer asker") || !strings.Contains(err.Error(), "speaks versions 7 to 9, this node 1 to 1") {
			t.Errorf("the older one: %v", err)
		}
		conn.Close()
		p := NewPeer("newer", PeerOptions{Pool: r.pool, Dial: func(context.Context) (net.Conn, error) {
			a, b := net.Pipe()
			go func() { _, _ = exchange(b, false, newer, time.Second); b.Close() }()
			return a, nil
		}})
		defer p.Close()
		if _, err := p.Peek(t.Context(), object("data").Block(0), 0, 5); !errors.Is(err, ErrIncompatible) || !errors.Is(err, ErrDown) || !strings.Contains(err.Error(), "peer newer") {
			t.Errorf("a peer: %v", err)
		}
	})
}

func TestStrangers(t *testing.T) {
	// A side that speaks another protocol gets no answer, and is named. A side that says
	// nothing is cut off. A port scanner that goes at once is no error.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		conn, _ := r.dial(t.Context())
		go func() { _, _ = conn.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 10))) }() // cut off within it
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d, %v", n, err)
		}
		if err := <-r.ended; !errors.Is(err, ErrProtocol) {
			t.Errorf("a browser: %v", err)
		}
		conn.Close()
		conn, _ = r.dial(t.Context())
		if err := <-r.ended; err == nil {
			t.Error("one that says nothing was served")
		}
		conn.Close()
		conn, _ = r.dial(t.Context())
		synctest.Wait()
		conn.Close()
		if err := <-r.ended; err != nil {
			t.Errorf("one that goes at once: %v", err)
		}
	})
}

func TestLeavingWithinAnAnswer(t *testing.T) {
	// A reader leaves while its block comes. What has come is released, the rest is read,
	// and the connection goes on.
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, hearth.BlockSize)
		hearthtest.Fill(data, "data", 0, 1)
		goOn := make(chan struct{})
		p := rawRig(t, PeerOptions{}, func(r *raw, h header, question uint64) {
			if h.kind == kindCancel {
				return
			}
			r.say(t, r.frame(header{id: h.id, kind: kindData, payload: len(data)}, dataMeta(data), question))
			r.say(t, data[:len(data)/2])
			<-goOn
			r.say(t, data[len(data)/2:])
		})
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := p.Fill(ctx, object("data").Block(0), 0, len(data)); left <- err }()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(goOn)
		synctest.Wait()
		if s := p.Stats(); s.InFlight != 0 || p.o.Pool.Stats().Views != 0 {
			t.Errorf("%d Views, %+v", p.o.Pool.Stats().Views, s)
		}
		hearthtest.CheckGet(t, sourceOf(p.Fill), object("data").Block(0), 0, len(data), 1)
	})
}
