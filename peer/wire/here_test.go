package wire

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// here is a Here that does what the object's key says. asked counts its calls.
type here func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View

func newHereRig(t *testing.T, over transport, get here) (r *rig, asked *atomic.Int64) {
	asked = &atomic.Int64{}
	so := ServerOptions{}
	so.Handler.Here = func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
		asked.Add(1)
		return get(ctx, b, off, n, stead)
	}
	return newRig(t, over, so, PeerOptions{Connections: 1}), asked
}

// held is a disk that holds the block of the key "data", and fails for others.
func (o *owner) held(_ context.Context, b hearth.Block, off, n int, _ func()) *hearth.View {
	return o.ready(b, off, n)
}

func TestConformanceFromDisk(t *testing.T) {
	// Every answer is the same as without Here, even if Here panics or returns too
	// little.
	for name, over := range map[string]transport{"loopback": loopback, "TLS": encrypted} {
		t.Run(name, func(t *testing.T) {
			var r *rig
			r, _ = newHereRig(t, over, func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
				return r.owner.held(ctx, b, off, n, stead)
			})
			r.peer.o.Silence = time.Minute
			conform(t, r)
		})
	}
}

func TestWhatTheDiskHoldsIsReadByTheReader(t *testing.T) {
	// A small object is answered from the disk on the goroutine that reads the
	// connection. What the disk does not hold, a large object, a Peek and a request that
	// came with others go the usual way.
	synctest.Test(t, func(t *testing.T) {
		var r *rig
		var asked *atomic.Int64
		r, asked = newHereRig(t, pipes, func(ctx context.Context, b hearth.Block, off, n int, stead func()) *hearth.View {
			return r.owner.held(ctx, b, off, n, stead)
		})
		fill, b := sourceOf(r.peer.Fill), object("data").Block(0)
		hearthtest.CheckGet(t, fill, b, 0, 100<<10, 1)
		if asked.Load() != 1 || r.owner.fills.Load() != 0 {
			t.Errorf("the disk was asked %d times, Fill %d", asked.Load(), r.owner.fills.Load())
		}
		hearthtest.CheckGet(t, fill, object("other").Block(0), 7, 1000, 1)
		if asked.Load() != 2 || r.owner.fills.Load() != 1 {
			t.Errorf("with what it does not hold %d times, Fill %d", asked.Load(), r.owner.fills.Load())
		}
		hearthtest.CheckGet(t, fill, b, 0, readyMost+1, 1)
		hearthtest.CheckGet(t, sourceOf(r.peer.Peek), b, 0, 100, 1)
		r.peer.Many(t.Context(), Fill, []Want{{b, 0, 1}, {b, 1, 1}}, func(_ int, v *hearth.View, err error) {
			if err != nil {
				t.Fatal(err)
			}
			v.Release()
		})
		if asked.Load() != 2 {
			t.Errorf("asked %d times with what is not its to answer", asked.Load())
		}
	})
}

func TestAReaderWhomTheDiskKeepsIsReplaced(t *testing.T) {
	// The disk does not answer. Meanwhile the owner sends "filling", and another
	// goroutine reads the connection in the reader's place. The request is answered the
	// usual way, and others are as well, even once the first reader is back. If it never
	// comes back, the connection ends all the same.
	synctest.Test(t, func(t *testing.T) {
		replace, ended := make(chan struct{}, 2), make(chan struct{}, 2)
		hang := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		var before, hangs atomic.Int64
		r, _ := newHereRig(t, pipes, func(_ context.Context, _ hearth.Block, _, _ int, stead func()) *hearth.View {
			if before.Add(1)%11 != 1 {
				return nil
			}
			i := hangs.Add(1) - 1
			<-replace
			go stead()
			<-hang[i]
			ended <- struct{}{}
			return nil
		})
		fill, b := sourceOf(r.peer.Fill), object("data").Block(0)
		for round := range 2 {
			go func() {
				time.Sleep(4 * Silence)
				replace <- struct{}{}
			}()
			hearthtest.CheckGet(t, fill, b, 0, 1000, 1)
			if round == 0 {
				close(hang[0])
				<-ended
				synctest.Wait()
			}
			for i := range 10 {
				hearthtest.CheckGet(t, fill, b, i, 1000, 1)
			}
		}
		if n, s := r.owner.fills.Load(), r.peer.Stats(); n != 22 || s.Broken > 0 || s.Errors > 0 {
			t.Errorf("%d of 22 answered the usual way, %+v", n, s)
		}
		r.peer.Close()
		if err := <-r.ended; err != nil {
			t.Errorf("the connection ended with %v", err)
		}
		close(hang[1])
		<-ended
	})
}

func TestOneOfTwoReadersGoesOn(t *testing.T) {
	// The disk lets go of the reader before its replacement has begun, returns all that
	// was asked for, or panics. The request is answered once, and one goroutine reads on.
	for name, last := range map[string]func(n int) *hearth.View{
		"nothing": func(int) *hearth.View { return nil },
		"all":     func(n int) *hearth.View { return hearth.NewView(make([]byte, n)) },
		"panic":   func(int) *hearth.View { panic("the disk") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var before atomic.Int64
				later := make(chan func(), 1)
				r, _ := newHereRig(t, pipes, func(_ context.Context, _ hearth.Block, _, n int, stead func()) *hearth.View {
					if before.Add(1) > 1 {
						return nil
					}
					later <- stead
					return last(n)
				})
				ended := make(chan error, 1)
				conn, x := r.another("other", ended)
				for id := range uint64(3) {
					x.say(t, x.frame(header{id: id + 1, kind: kindFill}, fillMeta(Want{object("data").Block(0), 0, 100}), 0))
					h, _, _, err := x.in.next()
					if err != nil || h.kind != kindData || h.id != id+1 {
						t.Fatalf("%+v, %v, want the answer to %d", h, err, id+1)
					}
					x.skip(t, h.payload)
					if id == 0 {
						(<-later)()
					}
				}
				conn.Close()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatMemoryHoldsDoesNotWaitForTheDisk(t *testing.T) {
	// Of two requests that came together, one is answered from memory. That answer goes
	// out before the disk is read for the other.
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		r, asked := newHereRig(t, pipes, func(_ context.Context, _ hearth.Block, _, n int, _ func()) *hearth.View {
			<-first
			return hearth.NewView(make([]byte, n))
		})
		r.server.o.Handler.Ready = r.owner.ready
		ended := make(chan error, 1)
		conn, x := r.another("other", ended)
		frame := func(id uint64, key string) []byte {
			return x.frame(header{id: id, kind: kindFill}, fillMeta(Want{object(key).Block(0), 0, 100}), 0)
		}
		x.say(t, append(frame(1, "data"), frame(2, "on disk")...))
		for id := range uint64(2) {
			h, _, _, err := x.in.next()
			for err == nil && h.kind == kindFilling {
				h, _, _, err = x.in.next()
			}
			if err != nil || h.kind != kindData || h.id != id+1 {
				t.Fatalf("%+v, %v, want the answer to %d", h, err, id+1)
			}
			x.skip(t, h.payload)
			if id == 0 {
				close(first)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("the disk was asked %d times", asked.Load())
		}
		conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
