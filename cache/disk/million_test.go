package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// mostRead is what opening a directory may read for each block, in bytes.
const mostRead = 64

// openSegment is the size of segments at readyBudget. After a kill the one that
// was open is read whole: a million blocks have room for it within their 64 bytes
// each, fewer are allowed it besides.
const openSegment, readyBudget = 16 << 20, 64 << 30

// readyBlocks is how many blocks the test and the benchmark below write:
// HEARTH_BLOCKS, else few. `make bench` takes a million.
func readyBlocks(tb testing.TB) int {
	v := os.Getenv("HEARTH_BLOCKS")
	if v == "" {
		return 20_000
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 8 {
		tb.Fatalf("HEARTH_BLOCKS=%q: a number of blocks, at least 8", v)
	}
	return n
}

// BenchmarkReady publishes for directories that were closed and killed how long
// opening takes, what it reads, and the memory of the index, each per block.
func BenchmarkReady(b *testing.B) {
	for _, end := range []string{"closed", "killed"} {
		b.Run(end, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				dir := b.TempDir()
				n := readyBlocks(b)
				want := fillReady(b, dir, end, n)
				b.StartTimer()
				r := openReady(b, dir, want, besides(end, n))
				b.ReportMetric(r.took.Seconds(), "s/open")
				b.ReportMetric(r.read, "B-read/block")
				b.ReportMetric(r.index, "B-RAM/block")
			}
		})
	}
}

// readiness is what an opening was like.
type readiness struct {
	took        time.Duration
	blocks      int64
	read, index float64 // bytes per block
}

// besides is what may be read beside mostRead for each of n blocks.
func besides(end string, n int) int64 {
	if end == "killed" && n < 1_000_000 {
		return openSegment
	}
	return 0
}

// openReady opens a directory that holds n blocks at least.
func openReady(tb testing.TB, dir string, n int, besides int64) readiness {
	tb.Helper()
	before, start := charsRead(tb), time.Now()
	s, err := Open(Options{Dirs: []DirOptions{{Path: dir, Budget: readyBudget, Floor: -1}}, Pool: hearth.NewPool(512 << 20)})
	if err != nil {
		tb.Fatal(err)
	}
	took, read := time.Since(start), charsRead(tb)-before
	d := s.Stats().Dirs[0]
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	r := readiness{took, d.Blocks, float64(read) / float64(d.Blocks), float64(d.IndexBytes) / float64(d.Blocks)}
	if r.blocks < int64(n) {
		tb.Fatalf("%d blocks of %d after reopening", r.blocks, n)
	}
	if read > mostRead*r.blocks+besides {
		tb.Errorf("opening read %.1f bytes for each of %d blocks: more than %d and %d besides", r.read, r.blocks, mostRead, besides)
	}
	return r
}

// fillReady has a process of its own put n blocks into dir, and end by itself or
// by SIGKILL. It returns how many must be there: all, or those that were flushed.
func fillReady(tb testing.TB, dir, end string, n int) int {
	tb.Helper()
	c, lines := child(tb, dir, readyEnv+"="+strconv.Itoa(n), readyEnd+"="+end)
	flushed := 0
	for lines.Scan() && lines.Text() != "put" {
		if _, err := fmt.Sscanf(lines.Text(), "flushed %d", &flushed); err != nil {
			tb.Fatalf("the child says %q", lines.Text())
		}
	}
	if end == "killed" {
		if err := c.Process.Kill(); err != nil {
			tb.Fatal(err)
		}
	}
	err := c.Wait()
	switch killed := c.ProcessState.ExitCode() == -1; {
	case end == "killed" && killed && flushed > 0:
		return flushed
	case end == "closed" && err == nil:
		return n
	}
	tb.Fatalf("the child that was to be %s, after %d flushed: %v", end, flushed, err)
	return 0
}

// readyEnv tells a child how many blocks to put, readyEnd how it is to end.
const readyEnv, readyEnd = "HEARTH_DISK_READY", "HEARTH_DISK_END"

// beReady is that child: it puts n blocks, of which seven eighths are flushed
// when the last is put.
func beReady(dir string, n int) error {
	ctx, pool := context.Background(), hearth.NewPool(512<<20)
	s, err := Open(Options{Dirs: []DirOptions{{Path: dir, Budget: readyBudget, Floor: -1}}, Pool: pool})
	if err != nil {
		return err
	}
	for i := range n {
		if i == n-n/8 {
			if err := s.Flush(ctx); err != nil {
				return err
			}
			fmt.Println("flushed", i)
		}
		o := hearthtest.NewObject(fmt.Sprint("ready/", i), int64(1024+i%3072), 0)
		v, err := pool.Alloc(ctx, int(o.Size))
		if err != nil {
			return err
		}
		hearthtest.Fill(v.Bytes(), o.Key, 0, 0)
		for err = s.Put(o.Block(0), v); errors.Is(err, errFull); err = s.Put(o.Block(0), v) {
			if err := s.Flush(ctx); err != nil {
				return err
			}
		}
		v.Release()
		if err != nil {
			return err
		}
	}
	fmt.Println("put")
	if os.Getenv(readyEnd) == "killed" {
		select {} // until the kill comes
	}
	return s.Close()
}

// charsRead is what this process has read so far, from cache or device.
func charsRead(b testing.TB) int64 {
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
