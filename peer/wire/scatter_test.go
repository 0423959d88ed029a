package wire

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestReader(t *testing.T) {
	// What is peeked at, read whole and discarded comes in the order in which it was
	// sent, whatever is read ahead. An end within an expected part is unexpected.
	sent := make([]byte, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	for name, over := range map[string]func(*testing.T) (from, to net.Conn){"socket": hearthtest.Sockets, "pipe": func(*testing.T) (from, to net.Conn) { return net.Pipe() }} {
		for _, ahead := range []int{1, 100, 4096} {
			from, to := over(t)
			go func() {
				_, _ = from.Write(sent)
				from.Close()
			}()
			heard, left := 0, sent
			r := newScatterReader(to, 4096, func(n int) { heard += n })
			r.Ahead = ahead
			take := func(n int) error {
				switch random.IntN(3) {
				case 0:
					return r.Discard(n)
				case 1:
					p := make([]byte, n)
					err := r.ReadFull(p)
					if err == nil && !bytes.Equal(p, left[:n]) {
						t.Fatalf("%s, %d ahead: other bytes were read", name, ahead)
					}
					return err
				}
				n = min(n, 4096)
				b, err := r.Peek(n)
				if err == nil && !bytes.Equal(b[:n], left[:n]) {
					t.Fatalf("%s, %d ahead: other bytes were peeked at", name, ahead)
				}
				return err
			}
			for len(left) > 100<<10 {
				n := 1 + random.IntN(1<<random.IntN(17))
				before := heard - len(r.Buffered())
				if err := take(n); err != nil {
					t.Fatalf("%s, %d ahead: %v", name, ahead, err)
				}
				left = left[heard-len(r.Buffered())-before:]
			}
			if err := r.ReadFull(make([]byte, len(left)+1)); err != io.ErrUnexpectedEOF || heard != len(sent) {
				t.Errorf("%s, %d ahead: %v after %d bytes", name, ahead, err, heard)
			}
			if _, err := r.Peek(1); err != io.EOF {
				t.Errorf("%s, %d ahead: %v behind the end", name, ahead, err)
			}
			to.Close()
		}
	}
}
