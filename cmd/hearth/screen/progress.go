package screen

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/warmup"
)

// This file shows a job of the node to the user who waits for it. One event has three forms. On a
// terminal it is one line that is written again. Elsewhere it is a line every ten seconds. For
// programs it is a line of JSON for each event. A percentage is shown only once the whole is known.

// lineEvery is how often a line is written if there is no terminal.
const lineEvery = 10 * time.Second

// ProgressPrinter shows the progress of a job.
type ProgressPrinter struct {
	// Out takes JSON lines. nil means that none are written.
	Out io.Writer
	// Terminal takes the line that is written again, and Log a line every ten seconds. nil means
	// that the line is not written.
	Terminal, Log io.Writer

	logged time.Time
	shown  bool // a line stands on the terminal
}

// Tell shows one event.
func (p *ProgressPrinter) Tell(v *warmup.View) error {
	if p.Out != nil {
		return json.NewEncoder(p.Out).Encode(v.Progress)
	}
	switch now := time.Now(); {
	case p.Terminal != nil:
		p.shown = true
		width, _ := cli.TerminalSize(p.Terminal)
		_, _ = fmt.Fprintf(p.Terminal, "\r\x1b[K%s", fitting(v.What(), &v.Progress, width-1)) // room for the cursor
	case p.Log != nil && p.logged.IsZero():
		p.logged = now // the first line is due in ten seconds
	case p.Log != nil && now.Sub(p.logged) >= lineEvery:
		p.logged = now
		_, _ = fmt.Fprintln(p.Log, ProgressLine(v.What(), &v.Progress)) // an error of printing ends no job
	}
	return nil
}

// Clear removes the line from the terminal.
func (p *ProgressPrinter) Clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.Terminal, "\r\x1b[K")
		p.shown = false
	}
}

// mostName is how many columns the name of a job may take in its line.
const mostName = 24

// fitting is ProgressLine cut to most columns, if that is more than 0. A line that the terminal
// breaks cannot be written again. The name is cut first, then the bytes go.
func fitting(what string, v *warmup.Progress, most int) string {
	line := ProgressLine(what, v)
	if most <= 0 || cli.Columns(line) <= most {
		return line
	}
	name, rest, _ := strings.Cut(line, "  ")
	if bytes := ofBytes(v.BytesDone, v.BytesTotal) + "  "; cli.Columns(line)-most > cli.Columns(name)-leastName {
		rest = strings.Replace(rest, bytes, "", 1)
	}
	if room := most - cli.Columns("  "+rest); room < cli.Columns(name) {
		name = cli.CutLeft(name, max(leastName, room))
	}
	return cli.Cut(name+"  "+rest, most)
}

// leastName is how many columns of a name stay at least.
const leastName = 10

// ProgressLine is one line about the progress of a job, for people:
//
//	imagenet/train  61%  812k/1.28M files  82.4/134 GiB  2.1 GiB/s  ETA 24s  3 errors
func ProgressLine(what string, v *warmup.Progress) string {
	what = strings.TrimPrefix(what, "check ") // the phase says that it is a check
	what, volumes := strings.CutSuffix(what, warmup.OnVolumes)
	name, dry := strings.CutPrefix(what, "dry run ")
	if name != "/" {
		name = cli.QuoteName(strings.TrimPrefix(name, "/"))
	}
	if name = cli.CutLeft(name, mostName); dry {
		name = "dry run of " + name
	}
	if volumes {
		name += warmup.OnVolumes
	}
	parts := []string{name}
	if !counted(v) {
		if warmup.State(v.Phase).Over() {
			parts = append(parts, v.Phase)
		} else {
			parts = append(parts, fmt.Sprintf("listing... %s found", short(v.Found)))
		}
		if v.FilesDone > 0 {
			parts = append(parts, fmt.Sprintf("%s  %s", countOf(v.FilesDone, "file"), cli.Bytes(v.BytesDone)))
		}
	} else {
		parts = append(parts, fmt.Sprintf("%d%%", int(100*JobShare(v))), fmt.Sprintf("%s/%s", short(v.FilesDone), countOf(v.FilesTotal, "file")),
			ofBytes(v.BytesDone, v.BytesTotal))
	}
	if v.Phase == "verifying" || v.Phase == "checking" {
		parts = append(parts, v.Phase)
	}
	if v.Waits != "" {
		parts = append(parts, "waits: "+cli.QuoteText(v.Waits))
	}
	if v.RateBPS > 0 {
		parts = append(parts, cli.Bytes(v.RateBPS)+"/s")
	}
	if v.ETAS > 0 {
		parts = append(parts, "ETA "+(time.Duration(v.ETAS)*time.Second).String())
	}
	if v.Errors > 0 {
		parts = append(parts, cli.Count(v.Errors, "error"))
	}
	return strings.Join(parts, "  ")
}

// counted reports whether the number of the job's files is known. For a job that ended while it
// listed it never was.
func counted(v *warmup.Progress) bool {
	switch warmup.State(v.Phase) {
	case warmup.Queued, warmup.Listing:
		return false
	case warmup.Failed, warmup.Cancelled:
		return v.FilesTotal > 0
	}
	return true
}

// JobShare is the part of a job that is present, 0 to 1. It is 0 until the whole is known.
func JobShare(v *warmup.Progress) float64 {
	switch {
	case !counted(v):
		return 0
	case v.BytesTotal > 0:
		return min(1, float64(v.BytesDone)/float64(v.BytesTotal))
	case v.FilesTotal > 0:
		return min(1, float64(v.FilesDone)/float64(v.FilesTotal))
	}
	return 1
}

// ofBytes writes a part of a whole in the whole's unit: 82.4/134 GiB.
func ofBytes(part, whole int64) string {
	number, unit, _ := strings.Cut(cli.Bytes(whole), " ")
	scaled := float64(part) / math.Pow(1024, float64(max(0, strings.Index("BKMGTPE", unit[:1]))))
	digits := 1
	if unit == "B" || scaled >= 99.95 {
		digits = 0
	}
	return fmt.Sprintf("%.*f/%s %s", digits, scaled, number, unit)
}

// short writes a count in at most four digits: 999, 1.28k, 812k, 1.28M.
func short(n int64) string {
	const units = "kMGTPE"
	f, unit := float64(n), -1
	for f >= 999.5 && unit+1 < len(units) {
		f /= 1000
		unit++
	}
	switch {
	case unit < 0:
		return fmt.Sprint(n)
	case f < 9.995:
		return fmt.Sprintf("%.2f%c", f, units[unit])
	case f < 99.95:
		return fmt.Sprintf("%.1f%c", f, units[unit])
	}
	return fmt.Sprintf("%.0f%c", f, units[unit])
}

// countOf is a count, as short writes it, with its noun.
func countOf(n int64, word string) string { return short(n) + " " + cli.Plural(n, word) }

// outcome is one line about what became of a job's files, with the categories that have some. ""
// means that there are none.
func outcome(v *warmup.View) string {
	var parts []string
	c := &v.Counters
	for _, x := range []struct {
		name  string
		tally warmup.Tally
	}{{"loaded", c.Done}, {"present before", c.Present}, {"changed meanwhile", c.Changed}, {"vanished", c.Vanished},
		{"not kept", c.NotKept}, {"failed", c.Failed}, {"archived", c.Archived}} {
		if x.tally != (warmup.Tally{}) {
			parts = append(parts, fmt.Sprintf("%s %s, %s", x.name, cli.Count(x.tally.Files, "file"), cli.Bytes(x.tally.Bytes)))
		}
	}
	if v.MetadataOnly {
		parts = []string{"names of " + cli.Count(c.Done.Files, "file")}
		if c.Failed.Files > 0 {
			parts = append(parts, fmt.Sprintf("%d not found", c.Failed.Files))
		}
	}
	if v.Checked != nil {
		parts = checked(v.Checked)
	}
	if v.Reloaded > 0 {
		parts = append(parts, "evicted and loaded again "+cli.Bytes(v.Reloaded))
	}
	if v.Lost > 0 {
		parts = append(parts, "evicted before the end "+cli.Bytes(v.Lost))
	}
	if v.Plan.Hidden > 0 {
		parts = append(parts, cli.Count(v.Plan.Hidden, "key")+" without a name")
	}
	return strings.Join(parts, "; ")
}

// JobState is one line about a job: its outcome, or its progress.
func JobState(v *warmup.View, now time.Time) string {
	outcome, took := outcome(v), JobTook(v)
	switch {
	case !v.State.Over():
		if outcome != "" {
			outcome = ", " + outcome
		}
		return fmt.Sprintf("%s goes on: %d%% present after %v%s; hearth jobs wait %s follows it", v.ID, int(100*JobShare(&v.Progress)), took, outcome, v.ID)
	case v.DryRun && v.State == warmup.Done:
		return fmt.Sprintf("%s done in %v: a dry run, which loads nothing", v.ID, took)
	case outcome == "" && v.State == warmup.Done:
		outcome = "no file is there"
	}
	if outcome != "" {
		outcome = ": " + outcome
	}
	return fmt.Sprintf("%s %s in %v%s%s", v.ID, v.State, took, outcome, pinned(v, now))
}

// checked has the counts of a check, in the categories that have some.
func checked(c *warmup.Checked) (parts []string) {
	for _, x := range []struct {
		name  string
		tally warmup.Tally
	}{{"whole", c.Whole}, {"missing", c.Missing}, {"corrupt", c.Corrupt}, {"changed", c.Changed}, {"vanished", c.Vanished}, {"not looked at", c.Unread}} {
		if x.tally != (warmup.Tally{}) {
			parts = append(parts, fmt.Sprintf("%s %s, %s", x.name, cli.Count(x.tally.Files, "file"), cli.Bytes(x.tally.Bytes)))
		}
	}
	if c.Damaged > 0 {
		parts = append(parts, "damaged "+cli.Count(c.Damaged, "file")+" of the cache")
	}
	return parts
}

// CheckLines has the lines at the end of a check that do not name single paths.
func CheckLines(v *warmup.View) (lines []string) {
	c := v.Checked
	if c == nil {
		return nil
	}
	named := map[string]int64{}
	for _, s := range v.Samples {
		named[s.What]++
	}
	for _, x := range []struct {
		what  string
		files int64
	}{{"missing", c.Missing.Files}, {"corrupt", c.Corrupt.Files}, {"changed", c.Changed.Files}, {"vanished", c.Vanished.Files}, {"unread", c.Unread.Files}, {"damaged", c.Damaged}} {
		if n := x.files - named[x.what]; n > 0 {
			lines = append(lines, fmt.Sprintf("%-8s  ... and %d more; hearth jobs wait %s -o jsonl names all", x.what, n, v.ID))
		}
	}
	if c.Buffered > 0 {
		lines = append(lines, fmt.Sprintf("%s came through the page cache, dropped before: the cache's file system refuses O_DIRECT", cli.Count(c.Buffered, "block")))
	}
	if v.State == warmup.Partly && c.Missing.Files+c.Corrupt.Files+c.Changed.Files > 0 {
		what := []string{"-f LIST"}
		if v.List == "" {
			what = nil
			for _, target := range v.Shown() {
				what = append(what, cli.QuoteName(target))
			}
		}
		if v.ToVolume {
			what = append([]string{"--to-volume"}, what...)
		}
		lines = append(lines, "load what is not there: hearth warmup "+strings.Join(what, " "))
	}
	return lines
}

// pinned says what became of the pins that a job makes, after its outcome. "" means that it makes
// none, or that none is in force yet.
func pinned(v *warmup.View, now time.Time) string {
	end := v.Expires()
	switch {
	case v.PinS == 0 || v.State != warmup.Done && v.State != warmup.Partly:
		return ""
	case end == nil:
		return "; pinned until hearth unpin"
	case v.Ended != nil && !end.After(*v.Ended): // both are by the node's clock
		return fmt.Sprintf("; not pinned: that ended at %s, before the loading did; pin it for longer", cli.Stamp(*end))
	case !end.After(now):
		return "; it was pinned until " + cli.Stamp(*end)
	}
	return "; pinned until " + cli.Stamp(*end)
}

// JobTook is how long a job has worked.
func JobTook(v *warmup.View) time.Duration {
	return time.Duration(v.Worked * float64(time.Second)).Round(100 * time.Millisecond)
}
