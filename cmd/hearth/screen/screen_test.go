package screen

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/warmup"
	"github.com/hearthfs/hearth/warmup/prefetch"
)

func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the example of docs/operations.md")
	os.Exit(m.Run())
}

func window(seconds float64, reads, held, bytes, origin int64) status.Window {
	w := status.Window{Seconds: seconds, Reads: reads, Held: held, Bytes: bytes, From: map[string]int64{"ram": bytes / 16, "disk": bytes - bytes/16 - origin, "origin": origin}}
	if reads > 0 {
		r, b := float64(held)/float64(reads), float64(bytes-origin)/float64(bytes)
		w.HitReads, w.HitBytes = &r, &b
	}
	return w
}

// usual is a node with two links, two tiers, two mounts and two jobs.
func usual() *status.Status {
	first := status.FirstByte{MedianMS: 21.4, P99MS: 38, WorstMS: 120}
	return &status.Status{
		Says: "ok", Version: "0.2.0", PID: 2476, UptimeS: 4330,
		Reads: status.Reads{Now: window(11, 8120, 7990, 812<<20, 13<<20), TenMinutes: window(600, 402_000, 380_000, 40<<30, 2<<30),
			SinceStart: window(4330, 1_280_000, 980_000, 128<<30, 31<<30)},
		Waits: map[string]float64{"origin": 301.2, "throttled": 12.4, "disk": 40.7, "list": 3.1},
		Egress: status.Egress{Asked: map[string]status.Requests{"readers": {Requests: 300_400, Bytes: 31 << 30}, "warm_up": {Requests: 8100, Bytes: 30 << 30}, "names": {Requests: 218, Bytes: 41 << 20}},
			Avoided: map[string]status.Requests{"ram": {Requests: 81_200, Bytes: 8 << 30}, "disk": {Requests: 899_000, Bytes: 89 << 30}, "joined": {Requests: 1204, Bytes: 120 << 20}}},
		Tiers: []status.Tier{{Name: "ram", Used: 3 << 30, Budget: 4 << 30, Hits: 81_200, HitBytes: 8 << 30},
			{Name: "disk", Used: 700 << 30, Budget: 1 << 40, Hits: 899_000, HitBytes: 89 << 30, Dirs: []status.Dir{{Path: "/nvme0/hearth", Scrub: disk.ScrubStats{Rate: 8 << 20}}}}},
		Links: []status.Link{{Path: "/imagenet", URL: "s3://datasets/imagenet", Origin: status.Origin{Requests: 301_000, Bytes: 50 << 30, Errors: 4, Retries: 4, Throttled: 4, FirstByte: first},
			LastError: &origin.Failure{At: time.Now().Add(-12 * time.Second), Says: "get s3://datasets/imagenet/train/n01440764/n01440764_10026.JPEG: 503 SlowDown: Reduce your request rate."}},
			{Path: "/s3:checkpoints:llama", URL: "s3://checkpoints/llama", Origin: status.Origin{Requests: 8300, Bytes: 11 << 30, FirstByte: first}}},
		Names: status.Names{Listings: []status.Listing{{URL: "s3://datasets/imagenet/train/", Names: 81_000, Seconds: 12.2}}},
		Mounts: []status.Mount{{Dir: "/mnt/imagenet", Prefix: "/imagenet", Open: "none", Freshness: "immutable", Timeouts: "names 1h0m0s, absent names 0s", Why: "most bytes lie in objects smaller than 64 MiB"},
			{Dir: "/mnt/llama", Prefix: "/s3:checkpoints:llama", Open: "passthrough", Freshness: "bounded(1m)", Timeouts: "names 1m0s, absent names 0s", Why: "asked for"}},
		Jobs: []warmup.Line{{What: "/imagenet/train", Progress: warmup.Progress{Job: "1a2b3c4d", Phase: "loading", FilesDone: 812_000, FilesTotal: 1_280_000, BytesDone: 82 << 30, BytesTotal: 134 << 30, RateBPS: 2 << 30, ETAS: 24, Errors: 3}},
			{What: "/s3:checkpoints:llama", Progress: warmup.Progress{Job: "5e6f7a8b", Phase: "listing", Found: 1200}}},
	}
}

// wide fails if a line is wider than the terminal, or if there are too many lines.
func wide(t *testing.T, lines []string, width, height int) {
	t.Helper()
	for _, l := range lines {
		if cli.Columns(l) > width {
			t.Errorf("%d columns: %s", cli.Columns(l), l)
		}
	}
	if len(lines) >= height {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
}

func has(t *testing.T, lines []string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, want) }) {
			t.Errorf("no %q in:\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

func TestUsualNodeFitsOneScreen(t *testing.T) {
	// Two links, tiers, mounts and jobs, an error and a listing fit 80x24, and nothing is
	// left out but ends of lines.
	lines := Lines(usual(), Options{Width: 80, Height: 24})
	wide(t, lines, 80, 24)
	has(t, lines, "READS", "10 min", "98%", "throttled 12.4s", "5m57s", "names 218, 41 MiB", "joined 1.20k, 120 MiB", "ram ", "disk ", "21/38/120 ms", "last error 12s ago",
		"listing s3://datasets/imagenet/train/: 81.0k names in 12.2s", "/mnt/imagenet", "/mnt/llama", "3 errors", "listing... 1.20k found", "scrub of /nvme0")
	if lines[0] != "ok" || strings.Contains(strings.Join(lines, "\n"), "more (-o json)") {
		t.Errorf("the first line is %q in:\n%s", lines[0], strings.Join(lines, "\n"))
	}
	empty := Lines(&status.Status{Says: "ok"}, Options{Width: 80, Height: 24})
	wide(t, empty, 80, 24)
}

func TestPinsAreShown(t *testing.T) {
	// The screen has a line for each pin: when it ends, and what is wrong with it.
	end := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	lines := Lines(&status.Status{Says: "ok", Pins: []namespace.PinView{
		{Pin: namespace.Pin{Path: "/a", Expires: &end}, Files: 7, Bytes: 1 << 20, Needs: 2 << 20},
		{Pin: namespace.Pin{Path: "/b", Job: "1234abcd"}},
		{Pin: namespace.Pin{Path: "/c"}, Lacks: "something is missing"},
	}}, Options{})
	has(t, lines, "pin /a: 7 files, 2.0 MiB on disk, until "+cli.Stamp(end)+", held", "pin /b: 0 files, 0 B on disk, until hearth unpin, loading: hearth jobs 1234abcd", "unpin, something is missing")
}

func TestPinsAreListed(t *testing.T) {
	// hearth pin has a row for each pin: when it ends, and what is wrong with it.
	end := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	var b strings.Builder
	if err := PrintPins(&b, []namespace.PinView{
		{Pin: namespace.Pin{Path: "/a", Expires: &end}, Files: 7, Bytes: 1 << 20, Needs: 2 << 20},
		{Pin: namespace.Pin{Path: "/b", Job: "1234abcd"}},
		{Pin: namespace.Pin{Path: "/c"}, Lacks: "something is missing"},
	}); err != nil {
		t.Fatal(err)
	}
	has(t, strings.Split(b.String(), "\n"), "PIN ", "/a   7      1.0 MiB  2.0 MiB  until "+cli.Stamp(end), "loading: hearth jobs 1234abcd", "until hearth unpin  ", "something is missing")
}

func TestAListingIsNeverCut(t *testing.T) {
	// A node shows more than 80x24 holds: two links, tiers, mounts and jobs, a pin, opens lent to
	// the kernel, an error and prefetched bytes. The spare section goes. The progress of listings,
	// the last failure, the mounts, the jobs and the pin stay. So does a listing beside forty
	// others, forty links and forty pins, with its figures in the line however long its name is.
	s := usual()
	s.Reads.Lent, s.Prefetch = 1200, prefetch.Stats{Files: 7, Bytes: 1 << 20}
	s.Pins = []namespace.PinView{{Pin: namespace.Pin{Path: "/imagenet/val"}, Files: 50_000, Needs: 6 << 30}}
	kept := []string{"last error 12s ago", "listing s3://datasets/imagenet/train/: 81.0k names in 12.2s", "3 errors", "listing... 1.20k found"}
	usually := append(kept, "avoided  ram", "10 min", "/imagenet ", "oints:llama ", "/mnt/imagenet", "/mnt/llama", "pin /imagenet/val: 50.0k files, 6.0 GiB on disk, until hearth unpin, held", "... and 4 more (-o json)")
	lines := Lines(s, Options{Width: 80, Height: 24})
	wide(t, lines, 80, 24)
	has(t, lines, usually...)
	if text := strings.Join(lines, "\n"); lines[0] != "ok" || strings.Count(text, "more (") != 1 || strings.Contains(text, "scrub") {
		t.Errorf("the first line is %q in:\n%s", lines[0], text)
	}
	has(t, Lines(s, Options{Width: 80, Height: 60}), "1.20k opens lent", "prefetch: 1.0 MiB", "scrub of /nvme0", "process 2476")
	for i := range 40 {
		s.Links = append(s.Links, status.Link{Path: fmt.Sprintf("/l%d", i), LastError: &origin.Failure{At: time.Now().Add(-time.Hour), Says: "old"}})
		s.Names.Listings = append(s.Names.Listings, status.Listing{URL: "s3://" + strings.Repeat("x", 100) + "/", Names: 8_100, Seconds: 9})
		s.Pins = append(s.Pins, s.Pins[0])
	}
	lines = Lines(s, Options{Width: 80, Height: 24})
	wide(t, lines, 80, 24)
	has(t, lines, append(kept, "xxx/: 8.10k names in 9.0s")...)
}

func TestWideNamesStayInTheirColumns(t *testing.T) {
	// Links, mounts, listings, pins and jobs of Chinese, Japanese and Korean names and emoji: columns stand below each other, and no line is wider than the terminal.
	s := usual()
	for i, name := range []string{"/データセット/学習用画像", "/👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽👍🏽"} {
		s.Links[i].Path, s.Links[i].URL, s.Mounts[i].Dir, s.Jobs[i].What = name, "s3://b"+name, "/mnt"+name, name
	}
	s.Names.Listings[0].URL = "s3://b/" + strings.Repeat("한국어", 30)
	s.Pins = []namespace.PinView{{Pin: namespace.Pin{Path: "/データ"}}}
	s.Problems, s.Says = []string{strings.Repeat("日本語 ", 60)}, strings.Repeat("日本語 ", 60)
	for width := 40; width < 130; width++ {
		wide(t, Lines(s, Options{Width: width, Height: 60}), width, 60)
	}
	lines := Lines(s, Options{})
	has(t, lines, ".../学習用画像  301k ", "/mnt/データセット/学習用画像  /imagenet ", "/mnt/"+strings.Repeat("👍🏽", 9)+"       /s3:")
	var b strings.Builder
	if err := PrintPins(&b, append(s.Pins, namespace.PinView{Pin: namespace.Pin{Path: "/abc"}})); err != nil {
		t.Fatal(err)
	}
	has(t, strings.Split(b.String(), "\n"), "/データ  0  ", "/abc     0  ")
}

func TestAShareIsNotRoundedToAll(t *testing.T) {
	// All hits are 100%; one miss of a million is less, whichever way it would round.
	share := func(f float64) *float64 { return &f }
	for part, want := range map[*float64]string{nil: "-", share(0): "0%", share(0.774): "77%", share(0.994): "99%", share(0.9951): "99.5%", share(0.999_999): "99.9%", share(1): "100%"} {
		if got := percent(part); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestLongPartsAreCut(t *testing.T) {
	// Forty mounts, a problem longer than the line, and a link of a hundred letters: the cure stays
	// whole, and the screen says how much was left out. Without a terminal nothing is left out.
	s := usual()
	for i := range 40 {
		s.Mounts = append(s.Mounts, status.Mount{Dir: fmt.Sprintf("/mnt/%d", i)})
	}
	s.Links[1].Path = "/" + strings.Repeat("x", 100)
	s.Problems = []string{"an origin cannot be read, what is cached goes on: s3://data/" + strings.Repeat("k", 40) + ": the secret key does not fit; check AWS_SECRET_ACCESS_KEY, or the profile in use", "the second"}
	s.Says = s.Problems[0]
	lines := Lines(s, Options{Width: 80, Height: 24, Color: true})
	if !strings.HasPrefix(lines[0], "\x1b[31man origin") || !strings.HasSuffix(lines[0], "\x1b[0m") {
		t.Errorf("%q", lines[0])
	}
	lines[0] = strings.TrimSuffix(strings.TrimPrefix(lines[0], "\x1b[31m"), "\x1b[0m")
	wide(t, lines, 80, 24)
	whole := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	if !strings.Contains(whole, "check AWS_SECRET_ACCESS_KEY, or the profile in use also: the second") || !strings.Contains(whole, " more (-o json)") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
	has(t, lines, "/mnt/imagenet", "disk ", "3 errors")
	wide(t, Lines(s, Options{Width: 40, Height: 12}), 40, 12)
	all := Lines(s, Options{})
	has(t, all, "/mnt/39", s.Links[0].LastError.Says, s.Says, s.Mounts[0].Why, "hearth 0.2.0, process 2476, up 1h12m10s")
	has(t, Lines(s, Options{Verbose: true, Height: 24, Width: 200}), "/mnt/39", "this process may use", "link /imagenet: s3://datasets/imagenet")
}

func TestHiddenKeysAreTold(t *testing.T) {
	// Keys without a name, if there are any, are a line of the default screen.
	for refused, want := range map[int64]bool{0: false, 3: true} {
		lines := Lines(&status.Status{Says: "ok", Names: status.Names{Figures: map[string]int64{"refused": refused}}}, Options{})
		if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "3 keys without a name here") }) != want {
			t.Errorf("%d refused: %q", refused, lines)
		}
	}
}

func TestExampleIsCurrent(t *testing.T) {
	// docs/operations.md shows the screen as it is.
	page := filepath.Join("..", "..", "..", "docs", "operations.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), "```\nok\n")
	_, after, found := strings.Cut(rest, "```\n")
	want := before + "```\n" + strings.Join(Lines(usual(), Options{Width: 120}), "\n") + "\n```\n" + after
	if updating() && found {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !found || want != string(text) {
		t.Errorf("%s is stale: go test ./cmd/hearth/screen -run Example -update", page)
	}
}

func TestWarningsStandBehindProblems(t *testing.T) {
	// The first line is the first problem, otherwise the first warning. All others follow it. Its
	// colour says which it is.
	for _, c := range []struct {
		problems, warnings, want []string
		colour                   string
	}{
		{nil, nil, []string{"ok"}, "32"},
		{nil, []string{"w1", "w2"}, []string{"w1", "also: w2"}, "33"},
		{[]string{"p1", "p2"}, []string{"w1"}, []string{"p1", "also: p2", "also: w1"}, "31"},
	} {
		s := usual()
		s.Problems, s.Warnings = c.problems, c.warnings
		s.Says = strings.TrimPrefix(c.want[0], "also: ")
		lines := Lines(s, Options{})
		if !slices.Equal(lines[:len(c.want)], c.want) || strings.HasPrefix(lines[len(c.want)], "also: ") {
			t.Errorf("%q", lines[:len(c.want)+1])
		}
		if first := Lines(s, Options{Color: true, Width: 80})[0]; first != "\x1b["+c.colour+"m"+c.want[0]+"\x1b[0m" {
			t.Errorf("%q", first)
		}
	}
}

func TestNothingOfStrangersIsObeyed(t *testing.T) {
	// Keys, URLs, directories and causes with control characters, line ends and tabs are shown
	// quoted, each on its line.
	const bad = "\x1b]0;x\a\n\t\u009b"
	s := usual()
	want := len(Lines(s, Options{Verbose: true})) + len([]string{"also", "listing", "", "pin"})
	for i := range s.Links {
		l := &s.Links[i]
		l.Path, l.URL, l.Freshness = "/"+bad, "s3://b/"+bad, bad
	}
	s.Links[0].LastError.Says += bad
	s.Names = status.Names{Where: bad, Listings: []status.Listing{{URL: bad}, {URL: bad}}}
	for i := range s.Mounts {
		m := &s.Mounts[i]
		m.Dir, m.Prefix, m.Why, m.Freshness = "/mnt/"+bad, bad, bad, bad
	}
	s.Jobs[0].What = "/" + bad
	s.Pins = []namespace.PinView{{Pin: namespace.Pin{Path: bad}, Lacks: bad}}
	s.Tiers[1].Dirs[0].Path, s.Problems, s.Warnings, s.Says = bad, []string{"a problem" + bad}, []string{bad}, "a problem"+bad
	for _, o := range []Options{{Verbose: true}, {Width: 80, Height: 24}, {Width: 200, Height: 60, Color: true}} {
		lines := Lines(s, o)
		lines[0] = strings.TrimSuffix(strings.TrimPrefix(lines[0], "\x1b[31m"), "\x1b[0m")
		for _, l := range lines {
			if strings.ContainsFunc(l, unicode.IsControl) || o.Width > 0 && cli.Columns(l) > o.Width {
				t.Errorf("%q", l)
			}
		}
		has(t, lines, `a problem\x1b]0;x\a`, `'/mnt/'$'\033'']0;x'$'\007`)
		if o.Verbose && len(lines) != want {
			t.Errorf("%d lines, want %d:\n%s", len(lines), want, strings.Join(lines, "\n"))
		}
	}
	var b strings.Builder
	if err := PrintPins(&b, s.Pins); err != nil || strings.Count(b.String(), "\n") != 2 || strings.ContainsFunc(strings.ReplaceAll(b.String(), "\n", ""), unicode.IsControl) {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestDraftsAreShown(t *testing.T) {
	// The screen has a line about files that were written: how many there are by state, and why the oldest is not in its bucket.
	// A writable mount says so. A node without drafts has no line.
	s := usual()
	s.Mounts[1].Write = "through"
	s.Drafts = &status.Drafts{OldestS: 300, Why: "/ckpt/a: writing is denied\x1b; grant it", Published: 1200,
		States: status.DraftStates{Open: status.DraftSum{Files: 2, Bytes: 1 << 20}, Failed: status.DraftSum{Files: 1, Bytes: 1 << 20}, Aside: status.DraftSum{Files: 1}}}
	lines := Lines(s, Options{})
	has(t, lines, "drafts  1 failed, 1 set aside, 2 open, 2.0 MiB; 1.20k published since the start; the oldest for 5m0s: /ckpt/a: writing is denied\\x1b; grant it", "passthrough, writable")
	s.Drafts = &status.Drafts{}
	has(t, Lines(s, Options{}), "drafts  none; 0 published since the start")
	wide(t, Lines(s, Options{Width: 80, Height: 24}), 80, 24)
	s.Drafts = &status.Drafts{Seeded: 1 << 30, Unseeded: 5}
	has(t, Lines(s, Options{Verbose: true}), "drafts: 1.0 GiB of what was written put into the cache before it was read, 5 B not")
	s.Drafts = nil
	if text := strings.Join(Lines(s, Options{}), "\n"); strings.Contains(text, "drafts") {
		t.Error(text)
	}
}

func TestDraftsAreListed(t *testing.T) {
	// hearth drafts has a row for each: its name, quoted, its state and since when, and what is wrong with it.
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	var b strings.Builder
	if err := PrintDrafts(&b, []status.Draft{
		{Name: "/a b", State: status.DraftOpen, Size: 1 << 20, Since: at},
		{Name: "/c/x.data.aside", State: status.DraftAside, Since: at, Why: "damaged\n; cure"},
	}); err != nil {
		t.Fatal(err)
	}
	has(t, strings.Split(b.String(), "\n"), "'/a b'           1.0 MiB  open       "+cli.Stamp(at)+"  -", "/c/x.data.aside  0 B      set aside  "+cli.Stamp(at)+`  damaged\n; cure`)
}
