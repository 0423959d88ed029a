package disk

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// BenchmarkReady opens a directory of HEARTH_BLOCKS (20,000) real blocks of 1 to 4
// KiB that were written through Put, and publishes how long that takes, what it
// reads, and the memory of the index, each per block. `make bench` does it with a
// million.
func BenchmarkReady(b *testing.B) {
	n := 20_000
	if v := os.Getenv("HEARTH_BLOCKS"); v != "" {
		n, _ = strconv.Atoi(v)
	}
	pool := hearth.NewPool(512 << 20)
	o := Options{Dirs: []DirOptions{{Path: b.TempDir(), Budget: 64 << 30, Floor: -1}}, Pool: pool}
	fillReady(b, o, n)
	b.ResetTimer()
	for range b.N {
		before := charsRead(b)
		start := time.Now()
		s, err := Open(o)
		if err != nil {
			b.Fatal(err)
		}
		took := time.Since(start)
		d := s.Stats().Dirs[0]
		if d.Blocks < int64(n) {
			b.Fatalf("%d blocks of %d after reopening", d.Blocks, n)
		}
		b.ReportMetric(took.Seconds(), "s/open")
		b.ReportMetric(float64(charsRead(b)-before)/float64(n), "B-read/block")
		b.ReportMetric(float64(d.IndexBytes)/float64(n), "B-RAM/block")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func fillReady(b *testing.B, o Options, n int) {
	s, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		object := hearthtest.NewObject(fmt.Sprint("ready/", i), int64(1024+i%3072), 0)
		v := o.Pool.TryAlloc(int(object.Size))
		hearthtest.Fill(v.Bytes(), object.Key, 0, 0)
		for s.Put(object.Block(0), v) != nil { // the queue is full: let it drain
			if err := s.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		v.Release()
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// charsRead is what this process has read so far, from cache or device.
func charsRead(b *testing.B) int64 {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "rchar: "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	b.Fatal("no rchar in /proc/self/io")
	return 0
}
