package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is the other end of a reader: it hears what it says, and lets it go on.
type bench struct {
	said  strings.Builder
	goOn  *io.PipeReader
	begin *io.PipeWriter
}

func newBench() *bench {
	r, w := io.Pipe()
	return &bench{goOn: r, begin: w}
}

func (b *bench) Read(p []byte) (int, error) { return b.goOn.Read(p) }

// Write lets the reader begin once it says that it is ready to.
func (b *bench) Write(p []byte) (int, error) {
	if string(p) == "begin\n" {
		go func() { _, _ = fmt.Fprintln(b.begin, "go") }() // a reader that is gone says so by its end
	}
	return b.said.Write(p)
}

// served runs a program's serving side over loopback until the test ends.
func served(t *testing.T, p Program, w Work) (address string) {
	ctx, cancel := context.WithCancel(context.Background())
	said, says := io.Pipe()
	ended := make(chan error)
	go func() { ended <- Serve(ctx, p, "127.0.0.1:0", w, says) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "ready "))
}

func TestProgramsReadWhatIsAsked(t *testing.T) {
	// Each program, alone and with many in flight, plaintext and encrypted, brings every
	// byte and says how many; the reader begins when it is told to.
	for _, name := range []string{"wire", "nvme", "tcp", "framing"} {
		for _, w := range []Work{
			{Size: 4 << 10, InFlight: 1, Reads: 100, Connections: 1},
			{Size: 100 << 10, InFlight: 32, Reads: 101, Connections: 4, TLS: true, Check: true},
			{Size: 1 << 20, InFlight: 32, Reads: 70, Connections: 1, Sequential: true, Check: true},
		} {
			w.TLS = w.TLS && name != "nvme" && name != "framing"
			t.Run(fmt.Sprintf("%s/%d", name, w.Size), func(t *testing.T) {
				p, err := Named(name)
				if err != nil {
					t.Fatal(err)
				}
				b := newBench()
				if err := Read(t.Context(), p, served(t, p, w), w, b); err != nil {
					t.Fatal(err)
				}
				line, ok := strings.CutPrefix(b.said.String(), "begin\nend\n")
				var s Sum
				if err := json.Unmarshal([]byte(line), &s); !ok || err != nil {
					t.Fatalf("said %q, %v", b.said.String(), err)
				}
				if s.Reads != int64(w.Reads) || s.Bytes != int64(w.Reads*w.Size) || s.Wrong != 0 || s.Seconds <= 0 {
					t.Errorf("%+v", s)
				}
				if timed := name != "tcp" || w.InFlight == 1; timed != (s.P50us > 0 && s.P99us <= s.MaxUs) {
					t.Errorf("latencies of %+v", s)
				}
			})
		}
	}
}

func TestWrongBytesAreSeen(t *testing.T) {
	// A check that passes whatever comes would make "0 wrong bytes" worth nothing: the
	// right bytes of one place are the wrong ones of another.
	w := Work{Size: 4 << 10, InFlight: 1, Reads: 1, Connections: 1}
	conn, other := net.Pipe()
	defer conn.Close()
	go func() {
		memory := make([]byte, blocks*hearth.BlockSize) // zeros
		_ = answer(other, memory)
		_ = other.Close()
	}()
	r := &tcpReader{conns: []net.Conn{conn}, size: w.Size, alone: true}
	places := []Place{0, 3*hearth.BlockSize + 4096}
	if wrong, err := r.Wrong(t.Context(), places); wrong != 8<<10 || err != nil {
		t.Errorf("%d wrong bytes, %v", wrong, err)
	}
}

func TestPlacesAreWholeReadsOfBlocks(t *testing.T) {
	// Every read lies in one block, and checking reads each place once.
	for _, size := range []int{4 << 10, 100 << 10, 1 << 20} {
		w := Work{Size: size}
		seen := map[Place]bool{}
		for _, p := range w.every() {
			seen[p] = true
		}
		if n := blocks * (hearth.BlockSize / size); len(seen) != n {
			t.Errorf("%d places of %d bytes, want %d", len(seen), size, n)
		}
		for _, p := range w.places(1000, 3) {
			if !seen[p] || p.off()+size > hearth.BlockSize {
				t.Errorf("a read of %d bytes at %d", size, p)
			}
		}
	}
}

func TestWhatNoProgramCanDoIsRefused(t *testing.T) {
	// A work without sense ends with a line that says so, not with a figure.
	for _, w := range []Work{{}, {Size: 4096, InFlight: 1, Reads: 1, Connections: 4}, {Size: 2 << 20, InFlight: 1, Reads: 1, Connections: 1}} {
		if err := Read(t.Context(), wired{}, "127.0.0.1:1", w, newBench()); err == nil || !strings.Contains(err.Error(), "work") {
			t.Errorf("%+v: %v", w, err)
		}
	}
	if _, err := Named("quic"); err == nil {
		t.Error("a program that is not there")
	}
}
