//go:build !race

package fakenvmet

import (
	"encoding/binary"
	"io"
	"testing"
)

// pipeline keeps depth reads of size bytes in flight, by one write and one read for all.
func pipeline(tb testing.TB, target *Target, depth, size int) (round func(), bytes int) {
	q := connect(tb, target, how{sqsize: depth, noFlow: true}).io[0]
	var burst []byte
	for i := range depth {
		burst = append(burst, q.capsule(q.rw(2, i*size/4096, size/4096, size, 0x5A), nil)...)
	}
	answers := make([]byte, depth*(24+size+24))
	return func() {
		for at := 0; at < len(burst); at += 72 {
			binary.LittleEndian.PutUint16(burst[at+10:], uint16(at))
		}
		if _, err := q.conn.Write(burst); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.ReadFull(q.conn, answers); err != nil {
			tb.Fatal(err)
		}
	}, depth * size
}

func TestNoAllocations(t *testing.T) {
	// A command costs no allocation, neither a read nor a write, in the capsule or by R2T.
	target := start(t, Options{})
	read, _ := pipeline(t, target, 32, 4096)
	large, _ := pipeline(t, target, 2, 1<<20)
	q := connect(t, target, how{noFlow: true}).io[0]
	capsule := q.write4()
	asks := q.capsule(q.rw(1, 0, 16, 65536, 0x5A), nil)
	data := q.dataPDU(u16Of(asks, 10), 0, 0, make([]byte, 65536), true)
	answer := make([]byte, 24)
	exchange := func(b []byte) {
		if _, err := q.conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(q.conn, answer); err != nil {
			t.Fatal(err)
		}
	}
	for name, round := range map[string]func(){"read": read, "large": large,
		"write": func() { exchange(capsule) },
		"R2T": func() {
			exchange(asks)
			copy(data[10:12], answer[10:12])
			exchange(data)
		}} {
		round()
		if n := testing.AllocsPerRun(50, round); n > 0 {
			t.Errorf("%s: %v allocations a round", name, n)
		}
	}
	clean(t, target)
}

func u16Of(b []byte, at int) uint16 { return binary.LittleEndian.Uint16(b[at:]) }

func benchmark(b *testing.B, depth, size int) {
	round, bytes := pipeline(b, start(b, Options{}), depth, size)
	b.SetBytes(int64(bytes))
	for b.Loop() {
		round()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*depth), "ns/command")
}

func BenchmarkRead4K32(b *testing.B) { benchmark(b, 32, 4096) }
func BenchmarkRead1M(b *testing.B)   { benchmark(b, 2, 1<<20) }
