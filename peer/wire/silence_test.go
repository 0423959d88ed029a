package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestSilenceFailsAllThatWaits(t *testing.T) {
	// A peer takes requests and then says nothing. All that wait fail with one error 500
	// ms after the first was sent. Later ones fail at once, until the peer answers.
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Bool
		p := rawRig(t, PeerOptions{}, func(r *raw, h header, _ uint64) {
			if back.Load() {
				r.say(t, r.frame(header{id: h.id, kind: kindMiss}, nil, 0))
			}
		})
		b, begun := object("data").Block(0), time.Now()
		var errs [4]error
		var work sync.WaitGroup
		for i := range errs {
			work.Go(func() {
				if i == 3 {
					p.Many(t.Context(), Peek, []Want{{b, 0, 1}, {b, 1, 1}}, func(_ int, _ *hearth.View, err error) { errs[i] = err })
					return
				}
				_, errs[i] = p.Fill(t.Context(), b, 0, 1+i)
			})
			time.Sleep(100 * time.Millisecond)
		}
		work.Wait()
		if took := time.Since(begun); took != Silence {
			t.Errorf("given up after %v", took)
		}
		for _, err := range errs {
			if !errors.Is(err, ErrSilent) || err != errs[0] {
				t.Errorf("%v beside %v", err, errs[0])
			}
		}
		at := time.Now()
		for range 10 {
			if _, err := p.Fill(t.Context(), b, 0, 1); !errors.Is(err, ErrSilent) {
				t.Errorf("in the pause: %v", err)
			}
		}
		if time.Since(at) != 0 {
			t.Errorf("the pause costs %v", time.Since(at))
		}
		if o, out := p.Outage(); !out || !o.Since.Equal(at) || !o.Last.Equal(at) || !errors.Is(o.Cause, ErrSilent) {
			t.Errorf("an outage of %+v, %v", o, out)
		}
		back.Store(true)
		time.Sleep(pauseFirst)
		if _, err := p.Fill(t.Context(), b, 0, 1); !errors.Is(err, ErrSilent) || time.Since(at) != pauseFirst {
			t.Errorf("while it is dialled: %v", err)
		}
		synctest.Wait()
		if _, err := p.Fill(t.Context(), b, 0, 1); !errors.Is(err, hearth.ErrMiss) {
			t.Errorf("when it is back: %v", err)
		}
		if o, out := p.Outage(); out {
			t.Errorf("an outage of one that answers: %+v", o)
		}
		if s := p.Stats(); s.Silences != 1 || s.Broken != 1 || s.InFlight != 0 || p.outage != (outage{}) {
			t.Errorf("%+v, %+v", s, p.outage)
		}
		time.Sleep(30 * time.Second) // nobody looks at what owes nothing
		back.Store(false)
		at = time.Now()
		if _, err := p.Fill(t.Context(), b, 0, 1); !errors.Is(err, ErrSilent) || time.Since(at) != Silence {
			t.Errorf("after a rest: %v after %v", err, time.Since(at))
		}
	})
}

func TestOneMoreConnectionThatFailsIsNoOutage(t *testing.T) {
	// A peer that answers on one connection is not out when another one cannot be made.
	p := NewPeer("b", PeerOptions{Pool: hearth.NewPool(16 << 20)})
	defer p.Close()
	c := &conn{}
	p.mu.Lock()
	p.conns = []*conn{c}
	p.failedLocked(errors.New("no memory for a connection"))
	p.mu.Unlock()
	if o, out := p.Outage(); !out || o.Cause == nil {
		t.Errorf("none has answered: %+v, %v", o, out)
	}
	c.answered.Store(true)
	if o, out := p.Outage(); out {
		t.Errorf("one answers: %+v", o)
	}
	p.mu.Lock()
	p.conns = nil
	p.mu.Unlock()
}

func TestHalfABlockOnItsWayCallsForAnotherConnection(t *testing.T) {
	// Requests share one connection while less than half a block is in flight.
	synctest.Test(t, func(t *testing.T) {
		for size, most := range map[int]int64{hearth.BlockSize / 4: 1, hearth.BlockSize / 2: 2} {
			p := rawRig(t, PeerOptions{}, func(*raw, header, uint64) {})
			ctx, cancel := context.WithCancel(t.Context())
			var readers sync.WaitGroup
			for range 2 {
				readers.Go(func() {
					if _, err := p.Fill(ctx, object("data").Block(0), 0, size); !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			if n := p.Stats().Connections; n != most {
				t.Errorf("%d connections where %d bytes are on their way", n, size)
			}
			cancel()
			readers.Wait()
		}
	})
}

func TestSilenceIsThePeersNotTheRequests(t *testing.T) {
	// One connection says nothing. As long as another one of that peer does, it is not
	// given up.
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		var work sync.WaitGroup
		p := rawRig(t, PeerOptions{}, func(r *raw, h header, _ uint64) {
			if requests.Add(1) < 3 {
				return // two blocks over the first connection
			}
			work.Go(func() {
				for range 5 {
					time.Sleep(400 * time.Millisecond)
					r.say(t, r.frame(header{id: h.id, kind: kindFilling}, nil, 0))
				}
			})
		})
		begun := time.Now()
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				if _, err := p.Fill(t.Context(), object("data").Block(0), 0, hearth.BlockSize); !errors.Is(err, ErrSilent) {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		if n := p.Stats().Connections; n != 2 {
			t.Errorf("%d connections for three blocks", n)
		}
		readers.Wait()
		if took := time.Since(begun); took != 5*400*time.Millisecond+Silence {
			t.Errorf("given up after %v", took)
		}
		work.Wait()
	})
}

func TestASlowOriginIsNoSilence(t *testing.T) {
	// An owner fetches for ten seconds. It sends "filling" ten times a second, and the
	// reader gets the bytes from it. Nothing is sent if nothing is owed.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		begun := time.Now()
		for range 2 {
			hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("slow").Block(0), 0, 5000, 1)
			time.Sleep(30 * time.Second)
		}
		if took := time.Since(begun); took != 80*time.Second {
			t.Errorf("took %v", took)
		}
		s := r.peer.Stats()
		if s.Fillings < 190 || s.Fillings > 200 || s.Silences != 0 || s.Fillings != r.server.Stats().Fillings {
			t.Errorf("%+v", s)
		}
	})
}

func TestFillingComesFromWhoSendsNothingElse(t *testing.T) {
	// The first "filling" comes 100 ms after the request, however long nothing was owed
	// before. If other answers are sent, none is needed.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, 1, 1)
		time.Sleep(1234567 * time.Microsecond)
		var work sync.WaitGroup
		work.Go(func() {
			if _, err := r.peer.Fill(ctx, object("hang").Block(0), 0, 1); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		time.Sleep(fillingAfter - 1)
		synctest.Wait()
		if n := r.peer.Stats().Fillings; n != 0 {
			t.Errorf("%d too soon", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := r.peer.Stats().Fillings; n != 1 {
			t.Errorf("%d after %v", n, fillingAfter)
		}
		for range 100 {
			time.Sleep(fillingAfter / 2)
			hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, 1, 1)
		}
		if n := r.peer.Stats().Fillings; n != 1 {
			t.Errorf("%d beside answers", n)
		}
		cancel()
		work.Wait()
	})
}

func TestDialling(t *testing.T) {
	// Nobody is there. The first reader learns why. Later dials wait for a pause that
	// doubles, and no reader waits for them. A dial that hangs is silence.
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		p := rawRig(t, PeerOptions{Dial: func(context.Context) (net.Conn, error) {
			dials++
			return nil, syscall.ECONNREFUSED
		}}, nil)
		begun := time.Now()
		for range 1000 {
			at := time.Now()
			if _, err := p.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, ErrDown) || time.Since(at) != 0 {
				t.Fatalf("%v after %v", err, time.Since(at))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if dials != 7 { // after 0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3 s
			t.Errorf("%d dials in %v", dials, time.Since(begun))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p := rawRig(t, PeerOptions{Dial: func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}, nil)
		begun := time.Now()
		if _, err := p.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, ErrSilent) || time.Since(begun) != Silence {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		if synctest.Wait(); p.Stats().Silences > 1 {
			t.Errorf("%d silences", p.Stats().Silences)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// A slow dial and then a slow answer are no silence: each byte counts.
		dial, _ := pipes(t, func(conn net.Conn) {
			answers(conn, func(r *raw, h header, _ uint64) {
				time.Sleep(400 * time.Millisecond)
				r.say(t, r.frame(header{id: h.id, kind: kindMiss}, nil, 0))
			})
		})
		p := rawRig(t, PeerOptions{Dial: func(ctx context.Context) (net.Conn, error) {
			time.Sleep(400 * time.Millisecond)
			return dial(ctx)
		}}, nil)
		if _, err := p.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, hearth.ErrMiss) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		// A host that is stopped takes connections, and sends no hello.
		p := rawRig(t, PeerOptions{Dial: func(context.Context) (net.Conn, error) {
			a, b := net.Pipe()
			go func() { _, _ = b.Read(make([]byte, helloSize)); _, _ = b.Read(make([]byte, 1)) }()
			return a, nil
		}}, nil)
		begun := time.Now()
		if _, err := p.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, ErrSilent) || time.Since(begun) != Silence {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
	})
}

func TestLostAndDialledAgain(t *testing.T) {
	// A connection that had answers is lost with a request in flight. That request fails,
	// and the next goes over a new connection at once. Idle connections are closed after
	// a minute, which fails nothing.
	synctest.Test(t, func(t *testing.T) {
		var last net.Conn
		var r *rig
		r = newRig(t, pipes, ServerOptions{}, PeerOptions{Dial: func(ctx context.Context) (net.Conn, error) {
			conn, err := r.dial(ctx)
			last = conn
			return conn, err
		}})
		get := func() { hearthtest.CheckGet(t, sourceOf(r.peer.Fill), object("data").Block(0), 0, 10, 1) }
		get()
		lost := make(chan error)
		go func() { _, err := r.peer.Fill(t.Context(), object("hang").Block(0), 0, 1); lost <- err }()
		synctest.Wait()
		last.Close()
		if err := <-lost; !errors.Is(err, ErrDown) {
			t.Errorf("lost: %v", err)
		}
		get()
		time.Sleep(idleAfter - time.Second)
		synctest.Wait()
		if n := r.peer.Stats().Connections; n != 1 {
			t.Errorf("%d connections", n)
		}
		time.Sleep(idleAfter)
		synctest.Wait()
		if a, b := r.peer.Stats(), r.server.Stats(); a.Connections+b.Connections != 0 || a.Broken != 1 {
			t.Errorf("after two idle minutes: %+v and %+v", a, b)
		}
		get()
	})
}

func TestClose(t *testing.T) {
	// Callers that wait when the Peer is closed get an error, and so do later ones.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pipes, ServerOptions{}, PeerOptions{})
		var work sync.WaitGroup
		for range 300 { // more than there are places
			work.Go(func() {
				if _, err := r.peer.Fill(t.Context(), object("hang").Block(0), 0, 1); !errors.Is(err, ErrClosed) {
					t.Errorf("waiting: %v", err)
				}
			})
		}
		synctest.Wait()
		r.peer.Close()
		work.Wait()
		if _, err := r.peer.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, ErrClosed) {
			t.Errorf("later: %v", err)
		}
		if err := <-r.ended; err != nil {
			t.Errorf("served until %v", err)
		}
	})
}

func TestOwnPauseIsNotThePeers(t *testing.T) {
	// This process stood still for longer than a peer may be silent. The peer gets its
	// time again, as if what it owes was asked for now.
	synctest.Test(t, func(t *testing.T) {
		p := rawRig(t, PeerOptions{}, nil)
		p.owe(1)
		time.Sleep(time.Minute)
		if wait, owes := p.due(); wait > 0 || !owes {
			t.Errorf("%v left, owes %v", wait, owes)
		}
		p.forgive()
		if wait, _ := p.due(); wait != Silence {
			t.Errorf("%v left", wait)
		}
		if err := p.places.Acquire(t.Context(), 1); err != nil {
			t.Error(err)
		}
		p.settle(1)
	})
}

func TestCloseWhileDialling(t *testing.T) {
	// The Peer is closed between a connection and its hello. Nothing of either is left.
	synctest.Test(t, func(t *testing.T) {
		closing := make(chan struct{})
		var r *rig
		r = newRig(t, pipes, ServerOptions{}, PeerOptions{Dial: func(ctx context.Context) (net.Conn, error) {
			close(closing)
			<-ctx.Done()
			return r.dial(ctx)
		}})
		got := make(chan error)
		go func() { _, err := r.peer.Fill(t.Context(), object("data").Block(0), 0, 1); got <- err }()
		<-closing
		r.peer.Close()
		if err := <-got; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

func TestNobodyWaitsForGoodbye(t *testing.T) {
	// A peer behind TLS takes a request, then nothing. It is given up in time. So is the
	// connection, for whose goodbye TLS would wait.
	synctest.Test(t, func(t *testing.T) {
		client, server := certified(t)
		a, b := pipe()
		go func() {
			r, err := newRaw(tls.Server(b, server), false)
			if err == nil {
				_, _, _, err = r.in.next()
			}
			if err != nil {
				t.Error(err)
			}
		}()
		p := NewPeer("hangs", PeerOptions{Pool: hearth.NewPool(0), Dial: func(context.Context) (net.Conn, error) { return tls.Client(a, client), nil }})
		begun := time.Now()
		if _, err := p.Fill(t.Context(), object("data").Block(0), 0, 1); !errors.Is(err, ErrSilent) {
			t.Error(err)
		}
		p.Close()
		if took := time.Since(begun); took != Silence {
			t.Errorf("took %v", took)
		}
		b.Close()
	})
}

func TestDeathWithinAnAnswer(t *testing.T) {
	// A peer sends half of a block and dies, so that its connection ends, or it is cut
	// off, so that nothing comes any more. In the first case its reader learns that at
	// once. In the second, it learns when the peer has been silent for Silence since the
	// last byte. Nothing of what came is kept.
	for name, c := range map[string]struct {
		ends bool
		want error
		took time.Duration
	}{"the connection ends": {true, ErrDown, 0}, "nothing comes": {false, ErrSilent, Silence}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				data := make([]byte, hearth.BlockSize)
				hearthtest.Fill(data, "data", 0, 1)
				last := make(chan time.Time, 1)
				p := rawRig(t, PeerOptions{}, func(r *raw, h header, question uint64) {
					r.say(t, r.frame(header{id: h.id, kind: kindData, payload: len(data)}, dataMeta(data), question))
					for part := 0; part < len(data)/2; part += len(data) / 8 { // slowly: bytes are no silence
						time.Sleep(Silence - time.Millisecond)
						r.say(t, data[part:part+len(data)/8])
					}
					last <- time.Now()
					if c.ends {
						r.conn.Close()
					}
				})
				_, err := p.Fill(t.Context(), object("data").Block(0), 0, len(data))
				if took := time.Since(<-last); !errors.Is(err, c.want) || took != c.took {
					t.Errorf("%v, %v after the last byte; want %v after %v", err, took, c.want, c.took)
				}
				synctest.Wait() // the result comes before it is counted
				if s := p.Stats(); s.InFlight != 0 || s.Broken != 1 || p.o.Pool.Stats().Views != 0 {
					t.Errorf("%d Views, %+v", p.o.Pool.Stats().Views, s)
				}
			})
		})
	}
}
