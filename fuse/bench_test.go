package fuse

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkEpoch opens, reads and closes 10,000 files of 100 KiB in random order
// with 8 threads, from a Source in memory: cold has no page of them in the
// kernel, hot has all. With HEARTH_FUSE_PROFILE the daemon's CPU profile of the
// cold rounds goes to that file.
func BenchmarkEpoch(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("mounting needs root")
	}
	for _, open := range []string{"none", "plain"} {
		b.Run(open, func(b *testing.B) {
			dir := b.TempDir()
			m := mount(b, setup{Dir: dir, Open: open, Many: 10_000, ManySize: 100 << 10, ManyDirs: 100, TTL: 3600e9})
			b.ResetTimer()
			for range b.N {
				if profile := os.Getenv("HEARTH_FUSE_PROFILE"); profile != "" {
					if _, err := m.try(command{Do: "profile", Key: profile + "." + open}); err != nil {
						b.Fatal(err)
					}
				}
				cold, err := m.reader("epoch", dir, "8", "3", "drop")
				if _, err := m.try(command{Do: "profiled"}); err != nil {
					b.Fatal(err)
				}
				if err != nil {
					b.Fatal(err)
				}
				hot, err := m.reader("epoch", dir, "8", "4")
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(best(cold), "us/cold")
				b.ReportMetric(best(hot), "us/hot")
			}
		})
	}
}

func best(rounds string) float64 {
	least := 1e9
	for text := range strings.FieldsSeq(rounds) {
		if us, err := strconv.ParseFloat(text, 64); err == nil {
			least = min(least, us)
		}
	}
	return least
}
