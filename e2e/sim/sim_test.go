//go:build !race

package sim

// Arithmetic of one goroutine: the race detector finds nothing in it and makes it take ten times as long.

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write docs/eviction.md's table anew")
	goleak.VerifyTestMain(m)
}

const (
	page       = "../../docs/eviction.md"
	begin, end = "<!-- table: go test ./e2e/sim -run Current -update -->\n", "<!-- end of table -->\n"
)

func TestTableIsCurrent(t *testing.T) {
	// docs/eviction.md shows what the simulator says today; what no seed fixes is as it was when the page was made.
	update := flag.Lookup("update").Value.String() == "true"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", page)
	}
	was := cells(old)
	lines := []string{Header()}
	for _, r := range Rows() {
		shown := make([]string, 0, len(Contenders()))
		for i, c := range Contenders() {
			if known := was[r.Name]; c.Loose && !update && i < len(known) {
				shown = append(shown, known[i])
				continue
			}
			shown = append(shown, r.Do(c).String())
		}
		lines = append(lines, Line(r.Name, shown))
	}
	now := strings.Join(lines, "\n") + "\n"
	if now == old {
		return
	}
	if !update {
		t.Fatalf("the table of %s is stale: go test ./e2e/sim -run Current -update\n%s", page, now)
	}
	if err := os.WriteFile(page, []byte(before+begin+now+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cells are the table's, by the name of the row.
func cells(table string) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.Lines(table) {
		f := strings.Split(strings.Trim(line, "| \n"), " | ")
		rows[f[0]] = f[1:]
	}
	return rows
}

// epochsOf runs our policy over four epochs, a scan of twice the cache, one epoch
// more, and four of another set, at half the set's size.
func epochsOf(seed uint64, n int, sizes Sizes) *Outcome {
	load := NewLoad(seed, sizes).Epochs(0, n, 4).Scan(1<<20, n).Epochs(0, n, 1).Epochs(1<<21, n, 4).Requests
	return Run(Ours(share(50, sizes, uint32(n))(nil), load), load)
}

func TestEpochsScanAndChange(t *testing.T) {
	// At half the set's size: 44 % of the fourth epoch hit, a scan of twice the cache takes nothing of that, another set has it by its third epoch, and no byte is written 1.5 times.
	for seed := range uint64(6) {
		for _, n := range []int{2000, 4000} {
			o := epochsOf(seed, n, variable())
			fourth, after, change := o.Share(3, 4), o.Share(5, 6), o.Share(8, 9)
			if fourth < 0.44 || after < fourth-0.02 || change < 0.44 {
				t.Errorf("seed %d, %d keys: %.3f in epoch 4, %.3f after the scan, %.3f in the new set's third", seed, n, fourth, after, change)
			}
			if w := float64(o.Written) / float64(o.Unique); w > 1.5 {
				t.Errorf("seed %d, %d keys: %.2f bytes written per unique byte", seed, n, w)
			}
		}
	}
}

func TestZipfIsLevel(t *testing.T) {
	// On Zipf loads ours is at most 3 points below the better of LRU and S3-FIFO.
	for _, r := range Rows() {
		if !strings.HasPrefix(r.Name, "Zipf") {
			continue
		}
		ours, best := r.Do(Contender{Make: Ours}).Hits, max(r.Do(Contender{Make: LRU}).Hits, r.Do(Contender{Make: S3FIFO}).Hits)
		if ours < best-3 {
			t.Errorf("%s: %.1f, the better of LRU and S3-FIFO has %.1f", r.Name, ours, best)
		}
	}
}

func TestSeedFixesEverything(t *testing.T) {
	// The same seed gives the same load and the same hits, another one others; only ristretto is its own.
	for _, c := range Contenders() {
		if c.Loose {
			continue
		}
		run := func(seed uint64) *Outcome {
			load := NewLoad(seed, Models).Zipf(500, 5000, 0.9).TwoJobs(300, 2).Requests
			return Run(c.Make(share(20, Models, 500)(nil), load), load)
		}
		a, b, other := run(1), run(1), run(2)
		if !slices.Equal(a.Hits, b.Hits) || a.Written != b.Written {
			t.Errorf("%s: %v and %v from one seed", c.Name, a, b)
		}
		if slices.Equal(a.Hits, other.Hits) {
			t.Errorf("%s: %v from two seeds", c.Name, a)
		}
	}
}

func TestNobodyBeatsBelady(t *testing.T) {
	// With one size for all nobody hits more often than who knows the future, nor holds more than the capacity.
	load := NewLoad(3, Fixed(fixed)).Zipf(1000, 10_000, 0.9).Epochs(0, 500, 2).Requests
	capacity := int64(100 * fixed)
	best := Run(Belady(capacity, load), load).Share(0, 3)
	for _, c := range Contenders() {
		cache := c.Make(capacity, load)
		got := Run(cache, load).Share(0, 3)
		if closer, ok := cache.(interface{ Close() }); ok {
			closer.Close()
		}
		if got > best+1e-9 {
			t.Errorf("%s hits %.4f, Belady %.4f", c.Name, got, best)
		}
	}
}

func TestLRUAndS3FIFO(t *testing.T) {
	// Each does what its name says on a load that can be followed by hand.
	ask := func(c Cache, keys ...uint32) string {
		var b strings.Builder
		for _, k := range keys {
			b.WriteString(strconv.Itoa(map[bool]int{true: 1}[c.Use(Request{Key: k, Size: 1})]))
		}
		return b.String()
	}
	if got := ask(LRU(2, nil), 1, 2, 1, 3, 1, 2); got != "001010" {
		t.Errorf("LRU: %s", got)
	}
	// Ten blocks used twice move on and outlive a scan of once used ones.
	keys := []uint32{}
	for range 3 {
		for k := range uint32(10) {
			keys = append(keys, k)
		}
	}
	for k := range uint32(100) {
		keys = append(keys, 1000+k)
	}
	for k := range uint32(10) {
		keys = append(keys, k)
	}
	if got := ask(S3FIFO(20, nil), keys...); !regexp.MustCompile(`^0{10}1{20}0{100}1{10}$`).MatchString(got) {
		t.Errorf("S3-FIFO: %s", got)
	}
}
