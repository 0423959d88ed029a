package screen

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/warmup"
)

func TestLinesForPeople(t *testing.T) {
	// No percentage before the listing has ended; the line of the manual after it.
	listing := warmup.Progress{Phase: "listing", Found: 812_000}
	if got := ProgressLine("/imagenet/train", &listing); got != "imagenet/train  listing... 812k found" {
		t.Errorf("%q", got)
	}
	if got := ProgressLine("/", &listing); !strings.HasPrefix(got, "/  listing") {
		t.Errorf("%q", got)
	}
	loading := warmup.Progress{Phase: "loading", FilesDone: 812_000, FilesTotal: 1_280_000, BytesDone: 824 << 30 / 10, BytesTotal: 134 << 30,
		RateBPS: 2 << 30, ETAS: 24, Errors: 3}
	if got := ProgressLine("/imagenet/train", &loading); got != "imagenet/train  61%  812k/1.28M files  82.4/134 GiB  2.0 GiB/s  ETA 24s  3 errors" {
		t.Errorf("%q", got)
	}
	for columns, want := range map[int]string{
		0: "imagenet/train  61%  812k/1.28M files  82.4/134 GiB  2.0 GiB/s  ETA 24s  3 errors", 79: "...net/train  61%  812k/1.28M files  82.4/134 GiB  2.0 GiB/s  ETA 24s  3 errors",
		66: "...enet/train  61%  812k/1.28M files  2.0 GiB/s  ETA 24s  3 errors", 20: "...t/train  61%  ...",
	} {
		if got := fitting("/imagenet/train", &loading, columns); got != want {
			t.Errorf("%d columns: %q", columns, got)
		}
	}
	odd := ProgressLine("/"+strings.Repeat("x", 100)+"\x1b[31m", &listing)
	if strings.ContainsRune(odd, 0x1b) || len(odd) > 80 {
		t.Errorf("%q", odd)
	}
	for want, of := range map[string][2]int64{"0/0 B": {}, "512/1023 B": {512, 1023}, "0.5/1.0 KiB": {512, 1024}, "1.0/1.5 MiB": {1 << 20, 3 << 19},
		"0.0/2.0 TiB": {1 << 30, 2 << 40}, "100/134 GiB": {100 << 30, 134 << 30}, "134/134 GiB": {134 << 30, 134 << 30}} {
		if got := ofBytes(of[0], of[1]); got != want {
			t.Errorf("%v: %s, want %s", of, got, want)
		}
	}
	for phase, want := range map[string]string{"failed": "x  failed  10.2k files  1.0 GiB", "cancelled": "x  cancelled  10.2k files  1.0 GiB"} {
		over := warmup.Progress{Phase: phase, Found: 20_000, FilesDone: 10_200, BytesDone: 1 << 30}
		if got := ProgressLine("/x", &over); got != want || JobShare(&over) != 0 {
			t.Errorf("%q, want %q: it never knew of how many", got, want)
		}
	}
	if JobShare(&listing) != 0 || JobShare(&warmup.Progress{Phase: "done"}) != 1 || JobShare(&warmup.Progress{Phase: "done", FilesTotal: 4, FilesDone: 1}) != 0.25 {
		t.Error("wrong shares")
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1.00k", 9_995: "10.0k", 99_949: "99.9k", 999_499: "999k", 999_500: "1.00M", 1_280_000: "1.28M"} {
		if got := short(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestHowAJobIs(t *testing.T) {
	// A job that goes on is not said to be over, one that did nothing does not say that of itself, and a dry run has loaded nothing.
	loaded := warmup.Counters{Done: warmup.Tally{Files: 2, Bytes: 128 << 20}}
	for want, v := range map[string]*warmup.View{
		"1 goes on: 50% present after 10s, loaded 2 files, 128 MiB; hearth jobs wait 1 follows it": {Record: warmup.Record{ID: "1", State: warmup.Loading, Times: warmup.Times{Worked: 10}, Counters: loaded},
			Progress: warmup.Progress{Phase: "loading", BytesDone: 128 << 20, BytesTotal: 256 << 20}},
		"1 done in 10s: loaded 2 files, 128 MiB":       {Record: warmup.Record{ID: "1", State: warmup.Done, Times: warmup.Times{Worked: 10}, Counters: loaded}},
		"1 failed in 0s":                               {Record: warmup.Record{ID: "1", State: warmup.Failed}},
		"1 cancelled in 0s":                            {Record: warmup.Record{ID: "1", State: warmup.Cancelled}},
		"1 done in 0s: no file is there":               {Record: warmup.Record{ID: "1", State: warmup.Done}},
		"1 done in 0s: a dry run, which loads nothing": {Record: warmup.Record{ID: "1", State: warmup.Done, Request: warmup.Request{DryRun: true}}},
	} {
		if got := JobState(v, time.Now()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := ProgressLine("dry run /a b", &warmup.Progress{Phase: "listing", Found: 7}); got != "dry run of 'a b'  listing... 7 found" {
		t.Errorf("%q", got)
	}
}

func TestWideNamesFit(t *testing.T) {
	// With a name whose characters take two columns, or none, the line is at most as wide as the
	// terminal, and the name keeps whole characters.
	loading := warmup.Progress{Phase: "loading", FilesDone: 812_000, FilesTotal: 1_280_000, BytesDone: 824 << 30 / 10, BytesTotal: 134 << 30, RateBPS: 2 << 30, ETAS: 24}
	for name, want := range map[string]string{
		"/データセット/学習用画像/第一部": "...ト/学習用画像/第一部  61%", "/" + strings.Repeat("👍🏽", 30): "..." + strings.Repeat("👍🏽", 10) + "  61%", "/" + strings.Repeat("e\u0301", 20): strings.Repeat("e\u0301", 20) + "  61%",
	} {
		for most := 1; most < 120; most++ {
			line := fitting(name, &loading, most)
			if cli.Columns(line) > max(3, most) || most > 100 && !strings.HasPrefix(line, want) {
				t.Errorf("%d of %d columns: %q", cli.Columns(line), most, line)
			}
		}
	}
}

func TestLinesForPrograms(t *testing.T) {
	// The keys of the JSON lines are those that scripts read.
	var out bytes.Buffer
	p := ProgressPrinter{Out: &out}
	if err := p.Tell(&warmup.View{Record: warmup.Record{ID: "x"}, Progress: warmup.Progress{Job: "x", Phase: "loading", ETAS: -1}}); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"job", "phase", "files_done", "files_total", "bytes_done", "bytes_total", "rate_bps", "eta_s", "errors"} {
		if _, ok := doc[key]; !ok {
			t.Errorf("no %s in %s", key, &out)
		}
	}
}

func TestWhatHasBecomeOfAPin(t *testing.T) {
	// A pin that ended before its loading did, or later, is not said to be in force.
	created := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		seconds int64
		state   warmup.State
		took    time.Duration
		since   time.Duration // its creation
		says    string
	}{
		"in force":      {3600, warmup.Done, time.Minute, 2 * time.Minute, "; pinned until 2026-01-02T04:00:00Z"},
		"partly":        {3600, warmup.Partly, time.Minute, 2 * time.Minute, "; pinned until 2026-01-02T04:00:00Z"},
		"for ever":      {warmup.Forever, warmup.Done, time.Minute, time.Hour, "; pinned until hearth unpin"},
		"ended since":   {3600, warmup.Done, time.Minute, time.Hour, "; it was pinned until 2026-01-02T04:00:00Z"},
		"ended before":  {3600, warmup.Done, time.Hour, time.Hour, "; not pinned: that ended at 2026-01-02T04:00:00Z, before the loading did; pin it for longer"},
		"another clock": {3600, warmup.Done, 2 * time.Hour, 0, "; not pinned: that ended at 2026-01-02T04:00:00Z, before the loading did; pin it for longer"},
		"failed":        {3600, warmup.Failed, time.Minute, time.Minute, ""},
		"at work":       {3600, warmup.Loading, 0, time.Minute, ""},
		"no pin":        {0, warmup.Done, time.Minute, time.Minute, ""},
	} {
		v := &warmup.View{Record: warmup.Record{Request: warmup.Request{PinS: c.seconds}, State: c.state, Times: warmup.Times{Created: created}}}
		if ended := created.Add(c.took); c.took > 0 {
			v.Ended = &ended
		}
		if says := pinned(v, created.Add(c.since)); says != c.says {
			t.Errorf("%s: %q, not %q", name, says, c.says)
		}
	}
}

func TestALineEachTenSeconds(t *testing.T) {
	// Where no terminal is, a job that tells of itself each 100 ms for a minute is six lines, the
	// first after ten seconds; who wants to be left alone gets none.
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p, quiet := ProgressPrinter{Log: &log}, ProgressPrinter{}
		v := &warmup.View{Record: warmup.Record{Request: warmup.Request{Targets: []string{"/d"}}}, Progress: warmup.Progress{Phase: "loading", FilesTotal: 1000}}
		for v.FilesDone = range int64(601) {
			if err := errors.Join(p.Tell(v), quiet.Tell(v)); err != nil {
				t.Fatal(err)
			}
			if lines, seconds := strings.Count(log.String(), "\n"), int(v.FilesDone)/10; lines != seconds/10 {
				t.Fatalf("%d lines after %d s:\n%s", lines, seconds, &log)
			}
			time.Sleep(100 * time.Millisecond)
		}
		p.Clear()
		if want := "d  10%  100/1.00k files  0/0 B\n"; !strings.HasPrefix(log.String(), want) || strings.ContainsAny(log.String(), "\r\x1b") {
			t.Errorf("%q does not begin with %q", &log, want)
		}
	})
}

func TestWhatWasEvictedIsSaid(t *testing.T) {
	// What was evicted while the job ran is told, whether all of it is there again or not.
	v := &warmup.View{Record: warmup.Record{State: warmup.Done, Counters: warmup.Counters{Done: warmup.Tally{Files: 3, Bytes: 3 << 20}}, Reloaded: 2 << 20}}
	if got := outcome(v); got != "loaded 3 files, 3.0 MiB; evicted and loaded again 2.0 MiB" {
		t.Errorf("%q", got)
	}
	v.State, v.Lost = warmup.Partly, 1<<20
	if got := outcome(v); got != "loaded 3 files, 3.0 MiB; evicted and loaded again 2.0 MiB; evicted before the end 1.0 MiB" {
		t.Errorf("%q", got)
	}
}

func TestWhatIsArchivedIsSaid(t *testing.T) {
	// Archived files are a category of their own, and no part of what is to be loaded in the estimate.
	v := &warmup.View{Record: warmup.Record{State: warmup.Partly, Counters: warmup.Counters{Done: warmup.Tally{Files: 3, Bytes: 3 << 20}, Archived: warmup.Tally{Files: 70, Bytes: 1 << 30}}}}
	if got := outcome(v); got != "loaded 3 files, 3.0 MiB; archived 70 files, 1.0 GiB" {
		t.Errorf("%q", got)
	}
	p := &warmup.Plan{Total: warmup.Tally{Files: 2, Bytes: 1<<40 + 10<<20}, Archived: warmup.Tally{Files: 1, Bytes: 1 << 40}}
	if e := EstimateOf(p, 1<<20, nil); e.Took != 10*time.Second {
		t.Errorf("%+v", e)
	}
}

func TestWhatACheckHasFound(t *testing.T) {
	// The non-empty categories are printed, how many files are not named, and the cure.
	c := &warmup.Checked{Whole: warmup.Tally{Files: 9, Bytes: 9 << 20}, Missing: warmup.Tally{Files: 3, Bytes: 3 << 20},
		Vanished: warmup.Tally{Files: 1}, Damaged: 1, Buffered: 7}
	v := &warmup.View{Record: warmup.Record{ID: "x", State: warmup.Partly, Checked: c, Request: warmup.Request{Check: true, Targets: []string{"/a b", "/c"}},
		Samples: []warmup.Sample{{Path: "/c/1", What: "missing"}, {Path: "/c/2", What: "vanished"}, {Path: "/cache/1", What: "damaged"}}}}
	if got := outcome(v); got != "whole 9 files, 9.0 MiB; missing 3 files, 3.0 MiB; vanished 1 file, 0 B; damaged 1 file of the cache" {
		t.Errorf("%q", got)
	}
	more := strings.Join(CheckLines(v), "\n")
	for _, part := range []string{"missing   ... and 2 more; hearth jobs wait x -o jsonl", "7 blocks came through the page cache", "hearth warmup '/a b' /c"} {
		if !strings.Contains(more, part) {
			t.Errorf("no %q in %q", part, more)
		}
	}
	if strings.Contains(more, "vanished") || strings.Contains(more, "damaged") {
		t.Errorf("%q", more)
	}
	v.State, v.Checked = warmup.Done, &warmup.Checked{Whole: c.Whole}
	if more := CheckLines(v); len(more) > 0 {
		t.Errorf("of all that is whole: %q", more)
	}
	if line := ProgressLine(v.What(), &warmup.Progress{Phase: "checking", FilesDone: 1, FilesTotal: 2, BytesDone: 1, BytesTotal: 2}); !strings.HasPrefix(line, "'a b /c'  50%") || !strings.Contains(line, "checking") {
		t.Errorf("%q", line)
	}
}
