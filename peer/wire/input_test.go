package wire

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/piece"
)

func TestFramesInAnyPieces(t *testing.T) {
	// Frames are read as they were written, in whatever pieces they come, with their
	// payloads wanted or not. A connection that ends within a frame is an error; between
	// two frames it is none.
	for name, over := range map[string]func(t *testing.T) (a, b net.Conn){"socket": hearthtest.Sockets, "pipe": func(*testing.T) (a, b net.Conn) { return net.Pipe() }} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(8) {
				random := rand.New(rand.NewPCG(seed, 1))
				var sizes []int
				for range 25 {
					sizes = append(sizes, []int{0, 1, 4096, smallMost, smallMost + 1, 100 << 10, hearth.BlockSize}[random.IntN(7)])
				}
				var stream []byte
				var ends []int
				for i, n := range sizes {
					stream = appendFrame(stream, uint64(i+1), n)
					ends = append(ends, len(stream))
				}
				cut := len(stream)
				if seed%2 == 1 {
					cut = random.IntN(cut)
				}
				from, to := over(t)
				go func() {
					defer from.Close()
					for left := stream[:cut]; len(left) > 0; {
						n := min(1+random.IntN(1<<random.IntN(20)), len(left))
						if _, err := from.Write(left[:n]); err != nil {
							return
						}
						left = left[n:]
					}
				}()
				readFrames(t, to, sizes, ends, cut, rand.New(rand.NewPCG(seed, 2)))
				to.Close()
			}
		})
	}
}

func readFrames(t *testing.T, conn net.Conn, sizes, ends []int, cut int, random *rand.Rand) {
	t.Helper()
	counted := &counters{}
	in := newInput(conn, counted, nil, 7)
	for i, n := range sizes {
		h, _, _, err := in.next()
		if err == nil && (h.id != uint64(i+1) || h.payload != n) {
			t.Fatalf("frame %d of %d bytes came as %+v", i+1, n, h)
		}
		if err == nil {
			if random.IntN(4) == 0 {
				err = in.discard(n)
			} else {
				p := make([]byte, n)
				if err = in.payload(p); err == nil {
					err = hearthtest.Check(p, "frame", int64(i), 0)
				}
			}
		}
		switch {
		case cut >= ends[i] && err != nil:
			t.Fatalf("frame %d: %v", i+1, err)
		case cut >= ends[i]:
		case i > 0 && cut == ends[i-1] || cut == 0:
			if err != io.EOF {
				t.Errorf("an end between frames: %v", err)
			}
			return
		default:
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("an end in a frame: %v", err)
			}
			return
		}
	}
	if _, _, _, err := in.next(); err != io.EOF || counted.received.Load() != int64(cut) {
		t.Errorf("the end: %v after %d bytes of %d", err, counted.received.Load(), cut)
	}
}

func appendFrame(dst []byte, id uint64, n int) []byte {
	p := make([]byte, n)
	hearthtest.Fill(p, "frame", int64(id-1), 0)
	head := piece.Append(make([]byte, headerSize), p, &piece.Noted{})
	head, _ = seal(head, header{id: id, kind: kindData, payload: n}, 7, 0)
	return append(append(dst, head...), p...)
}

func TestLargeAnswersGoOutTogether(t *testing.T) {
	// Large answers go out in few writes of about a block, in order, with the small ones
	// between them. Each is released once, even if a write fails.
	for _, fails := range []int{0, 1, 2} {
		counted := &failing{writes: &writes{}, at: fails}
		o := newOutput(counted, &counters{}, hearth.NewPool(0))
		var want []byte
		var views []*hearth.View
		for i := range 60 {
			v := hearth.NewView(bytes.Repeat([]byte{byte(i)}, []int{100 << 10, 100}[i%2]))
			head := []byte{byte(i), 255}
			want = append(append(want, head...), v.Bytes()...)
			views = append(views, v)
			o.hold(&small{head, v})
		}
		err := o.write()
		if fails == 0 && (err != nil || !bytes.Equal(counted.Bytes(), want) || counted.calls > 3) {
			t.Errorf("%d bytes of %d in %d writes, %v", counted.Len(), len(want), counted.calls, err)
		}
		if fails > 0 && (!errors.Is(err, io.ErrClosedPipe) || counted.calls != fails) {
			t.Errorf("%v after %d writes, the %d. fails", err, counted.calls, fails)
		}
		for i, v := range views {
			if v.Bytes() != nil { // a second release would have panicked
				t.Fatalf("answer %d is held", i)
			}
		}
	}
}

// failing fails at a write.
type failing struct {
	*writes
	at int
}

func (f *failing) WriteParts(parts ...[]byte) (int64, error) {
	n, err := f.writes.WriteParts(parts...)
	if f.calls == f.at {
		err = io.ErrClosedPipe
	}
	return n, err
}
