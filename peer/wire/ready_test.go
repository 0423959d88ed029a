package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/piece"
)

// inMemory lets a rig's owner answer from memory.
func inMemory(o ServerOptions) ServerOptions {
	o.Handler.Ready = func(hearth.Block, int, int) *hearth.View { return nil }
	return o
}

// ready is what the owner has in memory.
func (o *owner) ready(b hearth.Block, off, n int) *hearth.View {
	switch b.Object.Key {
	case "data":
	case "panic":
		panic("a handler's bug")
	case "short":
		n--
	default:
		return nil
	}
	o.readies.Add(1)
	v := o.pool.TryAlloc(n)
	if v != nil {
		hearthtest.Fill(v.Bytes(), b.Object.Key, b.Offset()+int64(off), 1)
	}
	return v
}

func TestConformanceFromMemory(t *testing.T) {
	// Every answer is the same as without Ready, even if Ready panics or returns too
	// little.
	t.Run("pipes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { conform(t, newRig(t, pipes, inMemory(ServerOptions{}), PeerOptions{})) })
	})
	for name, over := range map[string]transport{"loopback": loopback, "TLS": encrypted} {
		t.Run(name, func(t *testing.T) {
			conform(t, newRig(t, over, inMemory(ServerOptions{}), PeerOptions{Silence: time.Minute}))
		})
	}
}

func TestMemoryIsAskedFirst(t *testing.T) {
	// A block in memory is answered from there, for either verb. Fill is called for what
	// memory does not hold, for what would hold up others by its size, and for no bytes
	// at all.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, inMemory(ServerOptions{}), PeerOptions{})
		b := object("data").Block(0)
		for _, get := range []sourceOf{r.peer.Fill, r.peer.Peek} {
			hearthtest.CheckGet(t, get, b, 3, readyMost, 1)
		}
		if n := r.owner.readies.Load(); n != 2 || r.owner.fills.Load() != 0 {
			t.Errorf("memory answered %d times, Fill was asked %d times", n, r.owner.fills.Load())
		}
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), b, 3, readyMost+1, 1)
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("other").Block(0), 0, 5, 1)
		if _, err := r.peer.Fill(t.Context(), b, 0, 0); err != nil {
			t.Error(err)
		}
		if n := r.owner.fills.Load(); n != 3 || r.owner.readies.Load() != 2 {
			t.Errorf("memory answered %d times, Fill was asked %d times", r.owner.readies.Load(), n)
		}
		if s := r.server.Stats(); s.Requests != 5 || s.Answers != 5 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAnswersDoNotWaitForARequestThatIsSlowInComing(t *testing.T) {
	// Answers are held back for answers to requests that came with theirs. They are not
	// held back for half a request, whose rest may take long, nor for a body. Nobody else
	// wakes the writer: another request is at work all the while.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, inMemory(ServerOptions{}), PeerOptions{})
		ended := make(chan error, 1)
		conn, slow := r.another("slow", ended)
		meta := fillMeta(Want{object("data").Block(0), 0, 4096})
		frame := func(id uint64) []byte { return slow.frame(header{id: id, kind: kindFill}, meta, 0) }
		expect := func(ids ...uint64) {
			t.Helper()
			for _, id := range ids {
				h, _, _, err := slow.in.next()
				if err != nil || h.kind != kindData || h.id != id || h.payload != 4096 {
					t.Fatalf("%+v, %v, want the answer to %d", h, err, id)
				}
				slow.skip(t, h.payload)
			}
		}
		begun := time.Now()
		slow.say(t, slow.frame(header{id: 1, kind: kindFill}, fillMeta(Want{object("hang").Block(0), 0, 1}), 0))
		synctest.Wait()
		slow.say(t, append(bytes.Join([][]byte{frame(2), frame(3)}, nil), frame(4)[:headerSize+9]...))
		expect(2, 3)
		slow.say(t, frame(4)[headerSize+9:])
		expect(4)
		body := make([]byte, 100)
		call := slow.frame(header{id: 6, kind: kindCall, item: 1, payload: len(body)}, piece.Append(make([]byte, callFixed), body, &piece.Noted{}), 0)
		slow.say(t, append(frame(5), call...))
		expect(5)
		slow.say(t, body)
		h, _, _, err := slow.in.next()
		if err != nil || h.id != 6 || h.payload != len(body) {
			t.Errorf("%+v, %v", h, err)
		}
		if waited := time.Since(begun); waited > 0 {
			t.Errorf("answers waited %v", waited)
		}
		slow.skip(t, h.payload)
		conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestASlowReaderOfMemoryIsBounded(t *testing.T) {
	// A peer asks for 200 ranges that lie in memory and reads nothing. What waits for it
	// stays within its bound, and another peer is served meanwhile. After a while the
	// first peer is cut off.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, inMemory(ServerOptions{QueuedBytes: 1 << 20}), PeerOptions{})
		ended := make(chan error, 1)
		conn, slow := r.another("slow", ended)
		var written atomic.Int64
		go func() {
			for id := range uint64(200) {
				if _, err := conn.Write(slow.frame(header{id: 1 + id, kind: kindFill}, fillMeta(Want{object("data").Block(0), 0, hearth.PieceSize}), 0)); err != nil {
					return // it was cut off
				}
				written.Add(1)
			}
		}()
		begun := time.Now()
		synctest.Wait()
		if s, views := r.server.Stats(), r.owner.pool.Stats().Views; s.Queued > 1<<20 || s.Queued == 0 || views > 17 { // one more is for gathering
			t.Errorf("%d Views for %+v", views, s)
		}
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, hearth.PieceSize, 1)
		if err := <-ended; err == nil || time.Since(begun) != stallAfter || !strings.Contains(err.Error(), "takes nothing") {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		conn.Close()
		synctest.Wait()
		if n := written.Load(); n == 200 {
			t.Error("all requests were taken, so this is no test")
		}
	})
}

func TestSmallAnswersGoOutTogether(t *testing.T) {
	// What was asked for together is answered in few writes. Without memory for that it
	// is answered all the same.
	for _, budget := range []int64{64 << 20, 0} {
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			counted := &writes{}
			pool := hearth.NewPool(budget)
			if budget == 0 && !pool.Reserve(pool.Stats().Budget) { // the smallest there is, and all of it is taken
				t.Fatal("no room to be taken")
			}
			o := newOutput(counted, &counters{}, pool)
			var want []byte
			for i := range 12 {
				v := hearth.NewView(bytes.Repeat([]byte{byte(i)}, 4096))
				head := []byte{byte(i), 255}
				want = append(append(want, head...), v.Bytes()...)
				o.hold(&small{head, v})
			}
			if err := o.write(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(counted.Bytes(), want) {
				t.Errorf("%d bytes came out of %d", counted.Len(), len(want))
			}
			if counted.calls != 1 {
				t.Errorf("%d writes", counted.calls)
			}
			if s := pool.Stats(); budget > 0 && s.Views != 0 {
				t.Errorf("leaked: %+v", s)
			}
		})
	}
}

// small is an answer that counts nothing.
type small struct {
	head []byte
	view *hearth.View
}

func (s *small) parts() ([]byte, *hearth.View) { return s.head, s.view }
func (s *small) gone()                         { s.view.Release() }

// writes is a connection that keeps what is written.
type writes struct {
	net.Conn
	bytes.Buffer
	calls int
}

func (w *writes) Read([]byte) (int, error) { return 0, io.EOF }

func (w *writes) Write(p []byte) (int, error) {
	n, err := w.WriteParts(p)
	return int(n), err
}

// WriteParts is joiner's. A socket, which need not be a joiner, does as much.
func (w *writes) WriteParts(parts ...[]byte) (n int64, err error) {
	w.calls++
	for _, p := range parts {
		m, _ := w.Buffer.Write(p)
		n += int64(m)
	}
	return n, nil
}

func (w *writes) SetWriteDeadline(time.Time) error { return nil }

func TestWhatIsHeldIsNotForgotten(t *testing.T) {
	// The writer is woken for what is put behind something held. What is queued while a
	// goroutine writes is written by that goroutine, be it a handler or the writer, and
	// nobody is woken.
	o := newOutput(&writes{}, &counters{}, hearth.NewPool(0))
	o.hold(plain("held"))
	if len(o.wake) != 0 {
		t.Error("woken for what is held")
	}
	o.put(plain("put"))
	if len(o.wake) != 1 {
		t.Error("not woken for what was put behind it")
	}
	for who, write := range map[string]func(*output) error{"who answers": (*output).write, "the writer": (*output).run} {
		w := &slowWrites{begun: make(chan struct{}, 3), free: make(chan struct{})}
		o := newOutput(w, &counters{}, hearth.NewPool(0))
		o.hold(plain("first"))
		ended := make(chan error, 1)
		go func() { ended <- write(o) }()
		<-w.begun
		o.hold(plain("second"))
		if err := o.write(); err != nil || len(o.wake) != 0 {
			t.Errorf("behind %s: %v, woken %d times", who, err, len(o.wake))
		}
		close(w.free)
		<-w.begun // or it waits for ever
		if who == "the writer" {
			o.close()
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if got := w.String(); got != "firstsecond" {
			t.Errorf("%s wrote %q", who, got)
		}
	}
}

// slowWrites are writes that begin, and go on when they may.
type slowWrites struct {
	writes
	begun, free chan struct{}
}

func (w *slowWrites) Write(p []byte) (int, error) {
	w.begun <- struct{}{}
	<-w.free
	return w.writes.Write(p)
}

func TestSumsAreNotMadeAgain(t *testing.T) {
	// A View that has its sums is sent with them, and one that came from a peer has them.
	// The asker finds wrong ones. So it checks what an owner read against the sums on the
	// owner's disk.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, inMemory(ServerOptions{}), PeerOptions{})
		of := hearth.NewView(make([]byte, 100<<10))
		hearthtest.Fill(of.Bytes(), "data", 0, 1)
		r.server.o.Handler.Ready = func(b hearth.Block, off, n int) *hearth.View { return of.Slice(off, n) }
		v, err := r.peer.Fill(t.Context(), object("data").Block(0), 0, of.Len())
		if err != nil {
			t.Fatal(err)
		}
		hearthtest.CheckSums(t, v)
		if !slices.Equal(piece.Known(v.Sums()), piece.Known(of.Sums())) || piece.Known(of.Sums()) == nil {
			t.Errorf("noted are %x and %x", piece.Known(of.Sums()), piece.Known(v.Sums()))
		}
		v.Release()
		of.Sums().Store(&[]uint64{1, 2})
		if _, err := r.peer.Fill(t.Context(), object("data").Block(0), 0, of.Len()); !errors.Is(err, ErrChecksum) {
			t.Errorf("with sums of other bytes: %v", err)
		}
	})
}
