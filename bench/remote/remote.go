// Package remote are programs that read blocks from each other's memory: by Hearth's block
// protocol as two nodes do it, by NVMe/TCP as a node reads a volume, and by plain TCP. The bench runs each side in a process and
// a network namespace of its own, and says with a Work what is to be read.
//
// Who serves holds some blocks whose bytes follow from where they lie, says "ready", and
// answers until it is killed. Who reads connects, reads a little to be warm, says "begin"
// and waits for a line, so that the bench can note what the other side has spent; then it
// reads, says "end", and a line of JSON, which is a Sum.
//
// The module bench/grpc has the same programs over gRPC.
package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Work is what is read.
type Work struct {
	// Size of a read in bytes, at most a block.
	Size int `json:"size"`
	// InFlight reads at a time.
	InFlight int `json:"in_flight"`
	// Reads in all.
	Reads int `json:"reads"`
	// Connections that a plain program shares the reads out to; Hearth opens them itself.
	Connections int `json:"connections"`
	// Sequential reads go through the blocks in order; others are at random places.
	Sequential bool `json:"sequential,omitempty"`
	// InOrder has gRPC answer all reads of a connection over one stream.
	InOrder bool `json:"in_order,omitempty"`
	// TLS encrypts, mutually authenticated with Ed25519 certificates.
	TLS bool `json:"tls"`
	// Check has every place read once more after the measurement, and compared.
	Check bool `json:"check"`
}

// Sum is what was read.
type Sum struct {
	Seconds float64 `json:"seconds"`
	// CPU seconds of the reader meanwhile, user and system.
	CPU   float64 `json:"cpu"`
	Reads int64   `json:"reads"`
	Bytes int64   `json:"bytes"`
	// Allocs are the reader's allocations for each read.
	Allocs float64 `json:"allocs"`
	// Latencies of a read in microseconds; 0: not taken.
	P50us float64 `json:"p50_us"`
	P99us float64 `json:"p99_us"`
	MaxUs float64 `json:"max_us"`
	// Wrong are bytes of the places that were not right, if they were checked.
	Wrong int64 `json:"wrong_bytes"`
}

// Program is one way to read.
type Program interface {
	// Serve answers what comes over a listener until the context ends.
	Serve(ctx context.Context, l net.Listener, w Work) error
	// Open connects to who serves. Close ends it.
	Open(ctx context.Context, address string, w Work) (Reader, error)
}

// binder is a Program that listens by itself, calls ready with its address, and serves until the context ends.
type binder interface {
	bind(ctx context.Context, address string, ready func(address string) error) error
}

// Reader reads at seeded random places.
type Reader interface {
	// Read makes as many reads as places are given, and notes in took how long each
	// was; a nil took is not filled.
	Read(ctx context.Context, places []Place, took []time.Duration) error
	// Wrong reads the places again and returns the bytes of those where anything was
	// not as it should be.
	Wrong(ctx context.Context, places []Place) (int64, error)
	Close()
}

// Named returns a program: "wire", "nvme", "tcp" or "framing".
func Named(name string) (Program, error) {
	switch name {
	case "wire":
		return wired{}, nil
	case "nvme":
		return nvme{}, nil
	case "tcp":
		return plainTCP{}, nil
	case "framing":
		return framing{}, nil
	}
	return nil, fmt.Errorf("no program %q reads remote blocks", name)
}

// blocks are held: more than the caches of a processor hold, so that each read comes from
// memory.
const blocks = 64

// name of what is held, which its bytes follow from.
const name = "remote"

// Place is where a read begins, in bytes from the first block's beginning.
type Place int64

func (p Place) block() int64 { return int64(p) / hearth.BlockSize }
func (p Place) off() int     { return int(p % hearth.BlockSize) }

// places are seeded, and the same for each program.
func (w Work) places(n int, seed uint64) []Place {
	random := rand.New(rand.NewPCG(seed, 6))
	each := hearth.BlockSize / w.Size
	all := make([]Place, n)
	for i := range all {
		if w.Sequential {
			all[i] = Place(i/each%blocks*hearth.BlockSize + i%each*w.Size)
			continue
		}
		all[i] = Place(random.IntN(blocks)*hearth.BlockSize + random.IntN(each)*w.Size)
	}
	return all
}

// every is each place once.
func (w Work) every() (all []Place) {
	for b := range blocks {
		for off := 0; off+w.Size <= hearth.BlockSize; off += w.Size {
			all = append(all, Place(b*hearth.BlockSize+off))
		}
	}
	return all
}

func right(p []byte, at Place) bool { return hearthtest.Check(p, name, int64(at), 0) == nil }

// check refuses what no program can do.
func (w Work) check() error {
	if w.Size < 1 || w.Size > hearth.BlockSize || w.InFlight < 1 || w.Reads < 1 || w.Connections < 1 || w.Connections > w.InFlight {
		return fmt.Errorf("work %+v: sizes are 1 to %d bytes, and each connection has a read in flight", w, hearth.BlockSize)
	}
	return nil
}

// Serve runs a program's serving side; says is told when it listens.
func Serve(ctx context.Context, p Program, address string, w Work, says io.Writer) error {
	if err := w.check(); err != nil {
		return err
	}
	ready := func(at string) error {
		if _, err := fmt.Fprintln(says, "ready", at); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	}
	if b, own := p.(binder); own {
		return b.bind(ctx, address, ready)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	if err := ready(l.Addr().String()); err != nil {
		return err
	}
	return p.Serve(ctx, l, w)
}

// Read runs a program's reading side, in step with the bench: it says when it begins, and
// waits for a line.
func Read(ctx context.Context, p Program, address string, w Work, bench io.ReadWriter) error {
	if err := w.check(); err != nil {
		return err
	}
	r, err := p.Open(ctx, address, w)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Read(ctx, w.places(max(w.Reads/20, 2*w.InFlight), 1), nil); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	places, took := w.places(w.Reads, 2), make([]time.Duration, w.Reads)
	if _, err := fmt.Fprintln(bench, "begin"); err != nil {
		return err
	}
	if _, err := bufio.NewReader(bench).ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the bench: %w", err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := cpuSeconds(), time.Now()
	if err := r.Read(ctx, places, took); err != nil {
		return err
	}
	s := Sum{Seconds: time.Since(start).Seconds(), CPU: cpuSeconds() - cpu, Reads: int64(w.Reads), Bytes: int64(w.Reads) * int64(w.Size)}
	runtime.ReadMemStats(&after)
	s.Allocs = float64(after.Mallocs-before.Mallocs) / float64(w.Reads)
	if _, err := fmt.Fprintln(bench, "end"); err != nil {
		return err
	}
	s.P50us, s.P99us, s.MaxUs = percentiles(took)
	if w.Check {
		if s.Wrong, err = r.Wrong(ctx, w.every()); err != nil {
			return fmt.Errorf("compare: %w", err)
		}
	}
	return json.NewEncoder(bench).Encode(s)
}

func percentiles(took []time.Duration) (p50, p99, most float64) {
	slices.Sort(took)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	return us(took[len(took)/2]), us(took[len(took)*99/100]), us(took[len(took)-1])
}

// cpuSeconds is this process's CPU time so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
