// Grpcreads reads blocks from another process's memory over gRPC, for the bench to compare
// Hearth's block protocol with. It is a module of its own, so that Hearth does not depend
// on gRPC, and it knows nothing of Hearth: it takes the same work and gives the same
// sum as bench/remote, in JSON.
//
//	grpcreads serve|read ADDRESS WORK
//
// Each read in flight has a stream of its own and a goroutine at each end, as readers of a
// node have, so that none waits for another's block. In order, all of a connection share
// one stream and one goroutine at each end: the most that gRPC can do, and of use only to
// who never has to fetch what it is asked for.
//
// It is made as fast as gRPC allows: a codec that hands on the bytes as they are, fixed
// flow-control windows wider than what is in flight, no checksums.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

const (
	blockSize = 1 << 20
	// blocks that are held, as many as bench/remote's.
	blocks = 64
)

// work is bench/remote's.
type work struct {
	Size        int  `json:"size"`
	InFlight    int  `json:"in_flight"`
	Reads       int  `json:"reads"`
	Connections int  `json:"connections"`
	TLS         bool `json:"tls"`
	InOrder     bool `json:"in_order"`
}

// sum is bench/remote's.
type sum struct {
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
	Reads   int64   `json:"reads"`
	Bytes   int64   `json:"bytes"`
	P50us   float64 `json:"p50_us"`
	P99us   float64 `json:"p99_us"`
	MaxUs   float64 `json:"max_us"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "grpcreads:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var w work
	if len(args) != 3 {
		return fmt.Errorf("usage: grpcreads serve|read ADDRESS WORK")
	}
	if err := json.Unmarshal([]byte(args[2]), &w); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	if w.Size < 1 || w.Size > blockSize || w.Connections < 1 || w.InFlight < w.Connections || w.Reads < 1 {
		return fmt.Errorf("work %+v: sizes are 1 to %d bytes, and each connection has a read in flight", w, blockSize)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch args[0] {
	case "serve":
		return serve(ctx, args[1], w)
	case "read":
		return read(ctx, args[1], w)
	}
	return fmt.Errorf("cannot %s: serve or read", args[0])
}

// read is in step with the bench, as bench/remote's Read.
func read(ctx context.Context, address string, w work) error {
	r, err := open(ctx, address, w)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.read(w.places(max(w.Reads/20, 2*w.InFlight), 1), nil); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	places, took := w.places(w.Reads, 2), make([]time.Duration, w.Reads)
	fmt.Println("begin")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil && err != io.EOF {
		return fmt.Errorf("wait for the bench: %w", err)
	}
	cpu, start := cpuSeconds(), time.Now()
	if err := r.read(places, took); err != nil {
		return err
	}
	s := sum{Seconds: time.Since(start).Seconds(), CPU: cpuSeconds() - cpu, Reads: int64(w.Reads), Bytes: int64(w.Reads) * int64(w.Size)}
	fmt.Println("end")
	slices.Sort(took)
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	s.P50us, s.P99us, s.MaxUs = us(took[len(took)/2]), us(took[len(took)*99/100]), us(took[len(took)-1])
	return json.NewEncoder(os.Stdout).Encode(s)
}

// places are seeded, as bench/remote's.
func (w work) places(n int, seed uint64) []int64 {
	random := rand.New(rand.NewPCG(seed, 6))
	each := blockSize / w.Size
	all := make([]int64, n)
	for i := range all {
		all[i] = int64(random.IntN(blocks)*blockSize + random.IntN(each)*w.Size)
	}
	return all
}

// cpuSeconds is this process's CPU time so far.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
