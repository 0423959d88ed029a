package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestWhatGoesOutAloneIsWrittenByItsSender(t *testing.T) {
	// Nobody runs the writers of these connections. A request is written all the same,
	// and so is an answer, even a large one among others. If many are in flight, the
	// writer is woken and finds them together.
	t.Run("requests", func(t *testing.T) {
		counted := &writes{}
		p := NewPeer("owner", PeerOptions{Pool: hearth.NewPool(0)})
		defer p.Close()
		c := newConn(p, counted, newHello(), hello{places: 1000})
		ask := func() {
			x := &call{kind: kindFill, items: 1, results: make(chan result, 1)}
			x.one[0] = Want{object("data").Block(0), 0, 5}
			x.wants = x.one[:]
			x.encode(t.Context())
			if err := c.send(x); err != nil {
				t.Fatal(err)
			}
		}
		for i := range fewOpen {
			if ask(); counted.calls != i+1 || len(c.out.wake) != 0 {
				t.Fatalf("%d writes of %d requests", counted.calls, i+1)
			}
		}
		for range 100 {
			ask()
		}
		alone := counted.calls
		ask()
		if counted.calls != alone || len(c.out.wake) != 1 {
			t.Errorf("written alone with %d under way", len(c.calls))
		}
		if err := c.out.write(); err != nil || counted.calls > alone+2 {
			t.Errorf("%d writes of those that were put, %v", counted.calls-alone, err)
		}
	})
	t.Run("answers", func(t *testing.T) {
		for _, x := range []struct{ n, open, writes, left int }{{5, 1, 1, 0}, {5, fewOpen + 1, 0, fewOpen + 1}, {smallMost + 1, 100, 1, 99}} {
			counted := &writes{}
			s := NewServer(ServerOptions{Pool: hearth.NewPool(0)})
			g := s.admit("asker")
			session := newSession(s, g, counted, newHello(), newHello())
			r := &request{id: 1, tasks: make([]task, x.open)}
			if err := session.begin(t.Context(), r, 0); err != nil {
				t.Fatal(err)
			}
			g.working.Add(1)
			r.tasks[0].view = hearth.NewView(make([]byte, x.n))
			if session.reply(&r.tasks[0], nil); counted.calls != x.writes || session.open != x.left {
				t.Errorf("%d writes of an answer of %d bytes among %d, and %d are open", counted.calls, x.n, x.open, session.open)
			}
			session.out.drain()
			r.cancel(nil)
		}
	})
	t.Run("to nobody", func(t *testing.T) {
		// A write that fails ends the connection, as the writer's would.
		s := NewServer(ServerOptions{Pool: hearth.NewPool(0)})
		session := newSession(s, s.admit("asker"), gone{&writes{}}, newHello(), newHello())
		ctx, cancel := context.WithCancelCause(t.Context())
		session.end = cancel
		r := &request{id: 1}
		r.tasks = r.one[:]
		if err := session.begin(ctx, r, 0); err != nil {
			t.Fatal(err)
		}
		session.reply(&r.tasks[0], hearth.ErrMiss)
		if context.Cause(ctx) == nil {
			t.Error("the session goes on")
		}
	})
}

// gone is a connection whose other side reads nothing.
type gone struct{ *writes }

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestACallIsUsedAgainByNobodyElse(t *testing.T) {
	// The memory of a call serves the next one once both users are done: the caller has
	// its answer, and the call is written. A call whose caller left may still be
	// answered, and is not reused.
	p := NewPeer("owner", PeerOptions{Pool: hearth.NewPool(0), Dial: func(context.Context) (net.Conn, error) { return nil, io.ErrClosedPipe }})
	defer p.Close()
	w := Want{object("data").Block(0), 1, 2}
	for _, users := range []int{0, 1} { // a pool returns only what was put there
		c := p.newCall(Fill, w)
		for range users {
			c.done()
		}
		if other := p.newCall(Peek, w); other == c || other.kind != kindPeek || other.wants[0] != w {
			t.Fatalf("used by two: %+v", other)
		}
	}
	c := p.newCall(Fill, w)
	c.gone() // it is written
	c.done()
	if c.one[0].Block.Object != nil {
		t.Error("it keeps an object")
	}
	// A call that could not be sent ends for its caller only by its error.
	if _, err := p.Fill(t.Context(), w.Block, 1, 2); !errors.Is(err, ErrDown) {
		t.Errorf("%v", err)
	}
}
