package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/piece"
)

func TestASlowReaderIsBounded(t *testing.T) {
	// A peer asks for 200 blocks and reads nothing. What waits for it stays within its
	// bound, and another peer is served meanwhile. After a while the first peer is cut
	// off.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{QueuedBytes: 3 << 20}, PeerOptions{})
		serverErr := make(chan error, 1)
		conn, slow := r.another("slow", serverErr)
		for id := range uint64(200) {
			slow.say(t, slow.frame(header{id: 1 + id, kind: kindFill}, fillMeta(Want{object("data").Block(0), 0, hearth.BlockSize}), 0))
		}
		begun := time.Now()
		synctest.Wait()
		if s, views := r.server.Stats(), r.owner.pool.Stats().Views; s.Queued != 3<<20 || views != 3 || s.InFlight < 199 {
			t.Errorf("%d Views for %+v", views, s)
		}
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, hearth.BlockSize, 1)
		if err := <-serverErr; err == nil || time.Since(begun) != stallAfter || !strings.Contains(err.Error(), "takes nothing") {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		conn.Close()
	})
}

// another is a connection of a peer that the test plays.
func (r *rig) another(name string, ended chan error) (net.Conn, *raw) {
	a, b := pipe()
	go func() { ended <- r.server.Serve(context.Background(), b, name) }()
	x, err := newRaw(a, true)
	if err != nil {
		panic(err)
	}
	return a, x
}

func TestAnswersOfCallsAreBounded(t *testing.T) {
	// A peer asks for a megabyte with a few bytes and reads nothing. Three requests wait
	// for it, and the others are refused.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{QueuedBytes: 3 << 20}, PeerOptions{})
		ended := make(chan error, 1)
		conn, slow := r.another("slow", ended)
		for id := range uint64(10) {
			slow.say(t, slow.frame(header{id: 1 + id, kind: kindCall, item: 5}, make([]byte, callFixed), 0))
		}
		synctest.Wait()
		if n := r.owner.pool.Stats().Views; n != 3 {
			t.Errorf("%d Views", n)
		}
		seen := map[kind]int{}
		for range 10 {
			h, _, _, err := slow.in.next()
			if err != nil {
				t.Fatal(err)
			}
			seen[h.kind]++
			slow.skip(t, h.payload)
		}
		if seen[kindData] != 3 || seen[kindRefused] != 7 {
			t.Errorf("answers by kind: %v", seen)
		}
		conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWhoReadsSlowlyGetsAll(t *testing.T) {
	// Answers without room wait without their bytes, and come when there is room.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{QueuedBytes: 1 << 20}, PeerOptions{})
		var work sync.WaitGroup
		for range 40 {
			work.Go(func() {
				hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, hearth.BlockSize, 1)
			})
		}
		work.Wait()
	})
}

func TestAskingForMoreThanAllowed(t *testing.T) {
	// A peer that has more requests unanswered than it was allowed is cut off.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{Requests: MaxItems}, PeerOptions{})
		ended := make(chan error, 1)
		conn, greedy := r.another("greedy", ended)
		for id := range uint64(MaxItems + 1) {
			greedy.say(t, greedy.frame(header{id: 1 + id, kind: kindFill}, fillMeta(Want{object("hang").Block(0), 0, 1}), 0))
		}
		if err := <-ended; !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "peer greedy") || !strings.Contains(err.Error(), "at most 64") {
			t.Errorf("ended by %v", err)
		}
		conn.Close()
	})
}

func TestABusyServerSheds(t *testing.T) {
	// One peer has as many requests in flight as it may. More, over another connection,
	// are refused, and so is one connection too many. Another peer is served. There are
	// as many goroutines as requests in flight, and refused requests add none.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{Requests: MaxItems, Connections: 2}, PeerOptions{})
		second := NewPeer("owner", PeerOptions{Pool: r.pool, Dial: r.dial})
		third := NewPeer("owner", PeerOptions{Pool: r.pool, Dial: r.dial})
		b := object("hang").Block(0)
		none := runtime.NumGoroutine()
		var work sync.WaitGroup
		for range MaxItems {
			work.Go(func() {
				if _, err := r.peer.Fill(t.Context(), b, 0, 1); err == nil {
					t.Error("what hangs was answered")
				}
			})
		}
		synctest.Wait()
		busy := runtime.NumGoroutine()
		if most := 2*MaxItems + 16; busy-none > most { // askers, which are here as well, and workers
			t.Errorf("%d goroutines more for %d requests, at most %d", busy-none, MaxItems, most)
		}
		if _, err := r.peer.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, hearth.ErrRefused) {
			t.Errorf("beyond the places: %v", err)
		}
		if _, err := second.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, hearth.ErrRefused) {
			t.Errorf("beyond the requests: %v", err)
		}
		for range 4 * MaxItems {
			if _, err := second.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, hearth.ErrRefused) {
				t.Error(err)
			}
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - busy; n > 16 { // of its connection
			t.Errorf("%d goroutines more for what was refused", n)
		}
		if _, err := third.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, hearth.ErrRefused) {
			t.Errorf("beyond the connections: %v", err)
		}
		if n := r.server.Stats().Connections; n != 2 {
			t.Errorf("%d connections", n)
		}
		ended := make(chan error, 1)
		conn, other := r.another("other", ended)
		other.say(t, other.frame(header{id: 1, kind: kindFill}, fillMeta(Want{object("miss").Block(0), 0, 1}), 0))
		if h, _, _, err := other.in.next(); err != nil || h.kind != kindMiss {
			t.Errorf("another peer: %+v, %v", h, err)
		}
		conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		third.Close()
		second.Close()
		r.peer.Close()
		work.Wait()
	})
}

func TestCancellingFreesPlaces(t *testing.T) {
	// All places are taken, and one caller waits. Their readers leave at once, and the
	// handlers learn that. On both sides there is room for as many again. Rounds leave
	// nothing behind.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{Requests: MaxItems}, PeerOptions{Requests: MaxItems})
		for round := range 10 {
			ctx, cancel := context.WithCancelCause(t.Context())
			gone := errors.New("reader gone")
			var work sync.WaitGroup
			for i := range MaxItems + 1 {
				work.Go(func() {
					if _, err := r.peer.Fill(ctx, object("hang").Block(0), 0, 1+i); err != gone {
						t.Errorf("left with %v", err)
					}
				})
			}
			synctest.Wait()
			at := time.Now()
			if a, b := r.peer.Stats().InFlight, r.server.Stats().InFlight; a != MaxItems || b != MaxItems {
				t.Fatalf("round %d: %d and %d under way", round, a, b)
			}
			cancel(gone)
			work.Wait()
			synctest.Wait()
			if a, b := r.peer.Stats().InFlight, r.server.Stats().InFlight; a+b != 0 || time.Since(at) != 0 {
				t.Fatalf("round %d: %d and %d are left after %v", round, a, b, time.Since(at))
			}
		}
		if n := r.owner.cancelled.Load(); n != 10*MaxItems || r.peer.Stats().Cancelled != n {
			t.Errorf("%d handlers were told, %+v", n, r.peer.Stats())
		}
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, 1, 1)
	})
}

func TestManyIsCancelledAsOne(t *testing.T) {
	// Some items are answered, and the reader leaves. Each of the other items is reported
	// once.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		var wants []Want
		for i := range MaxItems {
			wants = append(wants, Want{object([]string{"data", "hang"}[i%2]).Block(0), 0, 7})
		}
		ctx, cancel := context.WithCancel(t.Context())
		data, left := 0, 0
		r.peer.Many(ctx, Peek, wants, func(i int, v *hearth.View, err error) {
			switch {
			case err == nil && i%2 == 0:
				v.Release()
				if data++; data == MaxItems/2 {
					cancel()
				}
			case errors.Is(err, context.Canceled) && i%2 == 1:
				left++
			default:
				t.Errorf("item %d: %v", i, err)
			}
		})
		if data != MaxItems/2 || left != MaxItems/2 {
			t.Errorf("%d answered, %d left", data, left)
		}
		synctest.Wait()
		if n := r.server.Stats().InFlight; n != 0 {
			t.Errorf("%d under way", n)
		}
	})
}

func TestNoMemoryForAnAnswer(t *testing.T) {
	// Readers hold all of the asker's memory. An answer is dropped after a tenth of a
	// second, while small frames go on. When some memory is released, the connection
	// still works.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		b := object("data").Block(0)
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), b, 0, 1, 1)
		var held []*hearth.View
		for n := hearth.BlockSize; n > 0; n /= 2 {
			for v := r.pool.TryAlloc(n); v != nil; v = r.pool.TryAlloc(n) {
				held = append(held, v)
			}
		}
		for range 10 {
			begun := time.Now()
			if _, err := r.peer.Fill(t.Context(), b, 0, hearth.BlockSize); !errors.Is(err, ErrMemory) || time.Since(begun) != memoryWait {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		}
		if _, err := r.peer.Fill(t.Context(), object("miss").Block(0), 0, 1); !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("a miss: %v", err)
		}
		for _, v := range held {
			v.Release()
		}
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), b, 0, hearth.BlockSize, 1)
		if s := r.peer.Stats(); s.Silences+s.Broken != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWaitingForMemoryIsNoSilence(t *testing.T) {
	// Twenty small answers have come at once, and there is no memory for any. Each is
	// given its time, and the peer that sent them is not blamed for the delay.
	synctest.Test(t, func(t *testing.T) {
		p := rawRig(t, PeerOptions{}, func(r *raw, h header, question uint64) {
			var all []byte
			for i := range 20 {
				all = append(all, r.frame(header{id: h.id, item: uint16(i), kind: kindData, payload: 3}, dataMeta([]byte("abc")), question)...)
				all = append(all, "abc"...)
			}
			r.say(t, all)
		})
		var wants []Want
		for range 20 {
			wants = append(wants, Want{object("data").Block(0), 0, 3})
		}
		others := p.o.Pool.Stats().Budget - connBytes
		if !p.o.Pool.Reserve(others) {
			t.Fatal("no memory at all")
		}
		begun := time.Now()
		p.Many(t.Context(), Fill, wants, func(_ int, v *hearth.View, err error) {
			if !errors.Is(err, ErrMemory) {
				t.Error(err)
			}
		})
		if s := p.Stats(); time.Since(begun) != 20*memoryWait || s.Silences+s.Broken != 0 {
			t.Errorf("after %v: %+v", time.Since(begun), s)
		}
		p.o.Pool.Unreserve(others)
	})
}

func TestServeEndsWithItsContext(t *testing.T) {
	// The node stops. Handlers are told, askers learn it at once, and Serve says why it
	// ended.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		stopping := errors.New("node stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		a, b := pipe()
		ended := make(chan error, 1)
		go func() { ended <- r.server.Serve(ctx, b, "asker") }()
		x, err := newRaw(a, true)
		if err != nil {
			t.Fatal(err)
		}
		x.say(t, x.frame(header{id: 1, kind: kindFill}, fillMeta(Want{object("hang").Block(0), 0, 1}), 0))
		synctest.Wait()
		cancel(stopping)
		if err := <-ended; !errors.Is(err, stopping) {
			t.Errorf("ended by %v", err)
		}
		if _, _, _, err := x.in.next(); err != io.EOF {
			t.Errorf("the asker reads %v", err)
		}
		a.Close()
	})
}

func TestACancelledAnswerIsNotSent(t *testing.T) {
	// Two blocks wait for a reader that cancels the second, which is not sent. To cancel
	// a request that is answered already is no error.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		ended := make(chan error, 1)
		conn, x := r.another("other", ended)
		for id := range uint64(2) {
			x.say(t, x.frame(header{id: 1 + id, kind: kindFill}, fillMeta(Want{object("data").Block(0), 0, hearth.BlockSize}), 0))
			synctest.Wait()
		}
		for id := range uint64(2) {
			x.say(t, x.frame(header{id: 1 + id, kind: kindCancel}, nil, 0))
			synctest.Wait()
		}
		first, _, _, err := x.in.next()
		if err != nil || first.kind != kindData || first.id != 1 {
			t.Errorf("%+v, %v", first, err)
		}
		x.skip(t, first.payload)
		second, _, _, err := x.in.next()
		if err != nil || second.kind != kindCancelled || second.id != 2 {
			t.Errorf("%+v, %v", second, err)
		}
		conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestABodyThatDoesNotCome(t *testing.T) {
	// A peer announces a body and sends a part of it. It does not hold memory for ever. A
	// body beyond the peer's bound is refused, and read past.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{QueuedBytes: hearth.BlockSize}, PeerOptions{})
		ended := make(chan error, 1)
		conn, x := r.another("other", ended)
		x.say(t, x.frame(header{id: 1, kind: kindFill}, fillMeta(Want{object("data").Block(0), 0, smallMost + 1}), 0))
		synctest.Wait() // it waits to be read
		body := make([]byte, MaxBody)
		call := func(id uint64) []byte {
			return x.frame(header{id: id, kind: kindCall, item: 1, payload: MaxBody}, append(make([]byte, callFixed), piece.Append(nil, body, &piece.Noted{})...), 0)
		}
		x.say(t, call(2))
		x.say(t, body)
		if h, _, _, err := x.in.next(); err != nil || h.kind != kindData {
			t.Errorf("%+v, %v", h, err)
		}
		x.skip(t, smallMost+1)
		if h, _, _, err := x.in.next(); err != nil || h.kind != kindRefused || h.id != 2 {
			t.Errorf("%+v, %v", h, err)
		}
		begun := time.Now()
		x.say(t, call(3))
		x.say(t, body[:1000])
		synctest.Wait()
		if n := r.owner.pool.Stats().Views; n != 1 {
			t.Errorf("%d Views", n)
		}
		go func() { _, _ = io.Copy(io.Discard, x.conn) }()
		if err := <-ended; err == nil || time.Since(begun) != stallAfter || !strings.Contains(err.Error(), "request 3: body of 1048576 bytes") {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		conn.Close()
	})
}

func TestBodiesThatWaitAreBounded(t *testing.T) {
	// A peer takes no bodies. Beyond a bound Calls are refused at this side.
	synctest.Test(t, func(t *testing.T) {
		a, b := pipe()
		p := NewPeer("slow", PeerOptions{Pool: hearth.NewPool(64 << 20), QueuedBytes: 2 << 20, Dial: func(context.Context) (net.Conn, error) { return a, nil }})
		go func() {
			if _, err := newRaw(b, false); err != nil {
				t.Error(err)
			}
		}()
		var work sync.WaitGroup
		for range 2 {
			work.Go(func() {
				if _, err := p.Call(t.Context(), 1, hearth.NewView(make([]byte, MaxBody))); !errors.Is(err, ErrSilent) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if _, err := p.Call(t.Context(), 1, hearth.NewView(make([]byte, MaxBody))); !errors.Is(err, hearth.ErrRefused) {
			t.Error(err)
		}
		work.Wait()
		p.Close()
		b.Close()
	})
}
