package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAVerdictIsWhereMostRoundsLie(t *testing.T) {
	// A slow minute tells nothing, nor do few rounds; a fall that the noise may hide is unclear, not none.
	times := func(n int, x float64) []float64 { return slices.Repeat([]float64{x}, n) }
	for name, c := range map[string]struct {
		ratios []float64
		want   verdict
	}{
		"as fast in each":                     {times(6, 1), noFall},
		"slower in each of six":               {times(6, 0.7), unclear},
		"slower in one of six":                {append(times(5, 1), 0.2), unclear},
		"slower in each of eight":             {times(8, 0.7), fell},
		"slower in eleven of twelve":          {append(times(11, 0.7), 3), fell},
		"slower in ten of twelve":             {append(times(10, 0.7), 3, 3), unclear},
		"slower by less than counts":          {times(12, 0.95), noFall},
		"faster in each":                      {times(12, 1.3), rose},
		"faster in each of six":               {times(6, 1.3), noFall},
		"one slow minute of many":             {append(times(11, 1), 0.2), noFall},
		"two slow minutes of twelve":          {append(times(10, 1), 0.2, 0.2), unclear},
		"on both sides":                       {[]float64{0.5, 1.5, 0.6, 1.4, 0.7, 1.3, 0.8, 1.2}, unclear},
		"slower in most, its median is close": {append(times(7, 0.93), times(5, 0.7)...), unclear},
	} {
		slices.Reverse(c.ratios) // the order tells nothing
		if got := judge(c.ratios, 0.1); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// against is a bench of two builds, with what it prints and the raw lines it keeps.
func against(t *testing.T) (*bench, *strings.Builder) {
	var raw strings.Builder
	b := &bench{scale: 0.1, rounds: 6, tolerance: 0.1, raw: json.NewEncoder(&raw)}
	b.old, b.hearth = &build{bench: b, Name: "old", SHA256: "a"}, &build{bench: b, Name: "new", SHA256: "b"}
	b.common = map[string]any{"builds": b.builds()}
	return b, &raw
}

func TestTwoBuildsTakeTurns(t *testing.T) {
	// Each round has both, with the same number, and who begins changes. A slower build is looked at
	// twice before it has fallen; one that is as fast is not. Each round is a raw line.
	for _, c := range []struct {
		slower float64
		asked  int
		rounds int
		want   error
	}{{1, 6, 6, nil}, {1.5, 6, 12, errFell}, {1.5, 10, 20, errFell}, {0.5, 10, 10, nil}} {
		b, raw := against(t)
		b.rounds = c.asked
		order := ""
		ours := func(h *build, r round) (side, error) {
			if r.number%2 == 0 {
				order += h.Name[:1]
			} else {
				order += strings.ToUpper(h.Name[:1])
			}
			s := side{Seconds: 1 + float64(r.number), ReaderCPU: 1}
			if h == b.hearth {
				s.Seconds *= c.slower
			}
			return s, nil
		}
		baseline := baseline{run: func(round) (side, error) { return side{}, errors.New("a baseline ran") }}
		if err := b.compare(figure{name: "W1"}, ours, baseline); err != nil {
			t.Fatal(err)
		}
		if want := strings.Repeat("onNO", c.rounds/2); order != want {
			t.Errorf("in the order %s, want %s", order, want)
		}
		lines, sums := strings.Count(raw.String(), `"first":`), strings.Count(raw.String(), `"sha256":"a"`)
		if lines != c.rounds || sums != c.rounds+1 {
			t.Errorf("%d raw rounds of %d: %s", lines, c.rounds, raw)
		}
		var out strings.Builder
		err := b.verdicts(&out, time.Minute)
		if !errors.Is(err, c.want) || strings.Contains(out.String(), "no figure fell") != (c.want == nil) {
			t.Errorf("%v: %s", err, &out)
		}
	}
}

func TestWrongBytesAreAFall(t *testing.T) {
	// A build that is as fast and gives wrong bytes has fallen.
	b, _ := against(t)
	ours := func(h *build, r round) (side, error) {
		s := side{Seconds: 1, ReaderCPU: 1}
		if h == b.hearth && r.last {
			s.Wrong = 1
		}
		return s, nil
	}
	var out strings.Builder
	if err := b.compare(figure{name: "W1"}, ours); err != nil {
		t.Fatal(err)
	}
	if err := b.verdicts(&out, time.Minute); !errors.Is(err, errFell) {
		t.Errorf("%v: %s", err, &out)
	}
}

func TestABinaryIsLookedAtFirst(t *testing.T) {
	// One that is not there, and one that does not run, end the comparison before anything is made.
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("#!/bin/sh\necho no such libc; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	for path, want := range map[string]string{none: "make compare", dir: "old", broken: "no such libc"} {
		if _, err := (&bench{}).identify("old", path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
