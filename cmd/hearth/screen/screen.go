// Package screen shows a node's status to people, on one screen of a terminal.
//
// What is wrong comes first. Names and texts of strangers are quoted, so that nothing in them
// controls the terminal or breaks a line. Each section is a table or some lines. Unless the output
// is a terminal, everything is printed.
//
// On a terminal no line is wider than the terminal. Problems, which end with their cure, are broken
// between words. All other lines are cut. If not everything fits the height, three things go in
// this order: the empty lines, the spare section, and the last rows of the section that has most.
// The spare section is the last one: opens lent, the process, prefetch and scrub. A cut section
// says how many rows are missing. The longest listings in flight and the last failure at an origin
// always stay.
package screen

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/origin"
)

// Options say how a status is shown.
type Options struct {
	// Width and Height are the terminal's. 0 means that nothing is broken or cut.
	Width, Height int
	// Verbose adds details behind the figures, and cuts no rows.
	Verbose bool
	// Color colours the first line: green if all is well, yellow for a warning, red for a problem.
	Color bool
}

// Print writes a status to w.
func Print(w io.Writer, s *status.Status, o Options) error {
	var b bytes.Buffer
	for _, line := range Lines(s, o) {
		b.WriteString(line + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Lines are the lines of a status.
func Lines(s *status.Status, o Options) []string {
	first := broken(cli.QuoteText(s.Says), o.Width)
	if o.Color {
		colour := "\x1b[32m"
		switch {
		case len(s.Problems) > 0:
			colour = "\x1b[31m"
		case len(s.Warnings) > 0:
			colour = "\x1b[33m"
		}
		first[0] = colour + first[0] + "\x1b[0m"
	}
	top := section{head: first}
	wrong := slices.Concat(s.Problems, s.Warnings)
	for _, p := range wrong[min(1, len(wrong)):] {
		top.head = append(top.head, broken("also: "+cli.QuoteText(p), o.Width)...)
	}
	all := []section{top, reads(s), tiers(s), ring(s.Ring), s3(s.S3), links(s, o.Width), mounts(s), drafts(s.Drafts), jobs(s, o.Width), held(s.Pins), rest(s)}
	if o.Verbose {
		all = append(all, section{head: details(s)})
		o.Height = 0
	}
	lines := fit(all, o.Height)
	for i := range lines {
		if i >= len(first) || !o.Color { // the first lines fit already, and have their colour
			lines[i] = cut(cli.QuoteText(lines[i]), o.Width)
		}
	}
	return lines
}

// table aligns rows whose cells are separated by tabs. The first row is the head.
func table(rows ...string) section {
	lines := cli.Align(rows)
	return section{head: lines[:1], rows: lines[1:]}
}

func reads(s *status.Status) section {
	from, causes := []string{"ram", "disk"}, []string{"origin", "throttled", "disk", "list"}
	if slices.ContainsFunc(s.Tiers, func(t status.Tier) bool { return t.Name == "volume" }) {
		from, causes = append(from, "volume"), slices.Insert(causes, 2, "volume")
	}
	if s.Ring != nil {
		from = append(from, "peers")
	}
	head, avoided := "READS\tCOUNT\tHITS\tBYTES\tHITS", []string{}
	for _, by := range from {
		head += "\t" + strings.ToUpper(by)
		avoided = append(avoided, by+" "+requests(s.Egress.Avoided[by]))
	}
	from = append(from, "origin")
	row := func(name string, w status.Window) string {
		text := fmt.Sprintf("%s\t%s\t%s\t%s\t%s", name, short(w.Reads), percent(w.HitReads), cli.Bytes(w.Bytes), percent(w.HitBytes))
		for _, tier := range from {
			text += "\t" + cli.Bytes(w.From[tier])
		}
		return text
	}
	t := table(head+"\tORIGIN", row("now", s.Reads.Now), row("10 min", s.Reads.TenMinutes), row("all", s.Reads.SinceStart))
	sum, waited := 0.0, []string{}
	for _, cause := range causes {
		sum += s.Waits[cause]
		waited = append(waited, cause+" "+seconds(s.Waits[cause]))
	}
	a := s.Egress.Asked
	asked := fmt.Sprintf("asked    readers %s; warm-up %s; names %s", requests(a["readers"]), requests(a["warm_up"]), requests(a["names"]))
	if s.Ring != nil {
		asked += "; peers " + requests(a["peers"])
	}
	avoided = append(avoided, "joined "+requests(s.Egress.Avoided["joined"]))
	return section{head: append(t.head, t.rows...), rows: []string{"waited   " + seconds(sum) + ": " + strings.Join(waited, ", "), asked, "avoided  " + strings.Join(avoided, "; ")}}
}

func requests(r status.Requests) string {
	return short(r.Requests) + ", " + cli.Bytes(r.Bytes)
}

// seconds writes a time of waiting.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", s)
	}
	return d.Round(time.Second).String()
}

func percent(part *float64) string {
	if part == nil {
		return "-"
	}
	if *part > 0.995 && *part < 1 { // 100% means all, without exception
		return fmt.Sprintf("%.1f%%", math.Floor(1000**part)/10)
	}
	return fmt.Sprintf("%.0f%%", 100**part)
}

func tiers(s *status.Status) section {
	rows := []string{"TIER\tUSED\tBUDGET\tHITS\tHIT BYTES\tERRORS"}
	for _, x := range s.Tiers {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d", x.Name, cli.Bytes(x.Used), cli.Bytes(x.Budget), short(x.Hits), cli.Bytes(x.HitBytes), x.Errors))
	}
	return table(rows...)
}

// mostListings is how many listings are always shown, the longest ones.
const mostListings = 2

// mostLink is how many columns a link's path may take, so that its figures fit beside it.
const mostLink = 14

func links(s *status.Status, width int) section {
	rows, failed, listings := []string{"LINK\tREQUESTS\tBYTES\tFIRST BYTE\tERRORS\tTHROTTLED\tRETRIES\tORIGIN"}, []*origin.Failure{}, []string{}
	for _, l := range s.Links {
		path, o := cli.CutLeft(cli.QuoteName(l.Path), mostLink), l.Origin
		first := "-"
		if f := o.FirstByte; f.WorstMS > 0 {
			first = fmt.Sprintf("%.0f/%.0f/%.0f ms", f.MedianMS, f.P99MS, f.WorstMS)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s", path, short(o.Requests), cli.Bytes(o.Bytes), first, o.Errors, o.Throttled, o.Retries, cli.QuoteName(l.URL)))
		if l.LastError != nil {
			failed = append(failed, l.LastError)
		}
	}
	slices.SortFunc(failed, func(a, b *origin.Failure) int { return b.At.Compare(a.At) })
	t := table(rows...)
	for i, e := range failed {
		line := fmt.Sprintf("last error %v ago: %s", time.Since(e.At).Round(time.Second), e.Says)
		if i == 0 {
			t.foot = append(t.foot, line)
		} else {
			t.rows = append(t.rows, line)
		}
	}
	for _, l := range s.Names.Listings {
		listings = append(listings, listing(&l, width))
	}
	n := min(mostListings, len(listings))
	t.rows, t.foot = append(t.rows, listings[n:]...), append(t.foot, listings[:n]...)
	return t
}

// listing is one line about a listing's progress, cut to a width. The URL is cut, at its left.
func listing(l *status.Listing, width int) string {
	const begin = "listing "
	url, found := cli.QuoteName(l.URL), fmt.Sprintf(": %s in %s", countOf(l.Names, "name"), seconds(l.Seconds))
	if width > 0 {
		url = cli.CutLeft(url, width-len(begin)-len(found))
	}
	return begin + url + found
}

func mounts(s *status.Status) section {
	rows := []string{"MOUNT\tPREFIX\tOPEN\tFRESHNESS\tKERNEL TIMEOUTS\tWHY"}
	for _, m := range s.Mounts {
		open, why := m.Open, m.Why
		if m.Write != "" {
			open += ", " + m.Access()
		}
		switch {
		case m.Detached:
			open, why = "detached", "nothing is mounted there any more; who uses it still may finish"
		case m.At != "":
			open, why = "moved", "it is mounted at "+m.At+" now"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", cli.QuoteName(m.Dir), cli.QuoteName(m.Prefix), open, cli.QuoteText(m.Freshness), m.Timeouts, cli.QuoteText(why)))
	}
	return table(rows...)
}

func jobs(s *status.Status, width int) (x section) {
	for _, j := range s.Jobs {
		begin := "job " + j.Job + ": "
		x.rows = append(x.rows, begin+fitting(j.What, &j.Progress, width-cli.Columns(begin)))
	}
	return x
}

// held has a line for each pin.
func held(all []namespace.PinView) (x section) {
	for _, v := range all {
		x.rows = append(x.rows, fmt.Sprintf("pin %s: %s, %s on disk, %s, %s", cli.QuoteName(cmp.Or(v.As, v.Path)), countOf(v.Files, "file"), cli.Bytes(v.Needs), until(v.Expires), state(&v)))
	}
	return x
}

// state says how a pin is.
func state(v *namespace.PinView) string {
	switch {
	case v.Job != "":
		return "loading: hearth jobs " + v.Job
	case v.Lacks != "":
		return cli.QuoteText(v.Lacks)
	}
	return "held"
}

// until says when a pin ends.
func until(end *time.Time) string {
	if end == nil {
		return "until hearth unpin"
	}
	return "until " + cli.Stamp(*end)
}

// PrintPins writes the table of pins.
func PrintPins(w io.Writer, all []namespace.PinView) error {
	rows := []string{"PIN\tFILES\tBYTES\tON DISK\tENDS\tSTATE"}
	for _, v := range all {
		rows = append(rows, fmt.Sprintf("%s\t%d\t%s\t%s\t%s\t%s", cli.QuoteName(cmp.Or(v.As, v.Path)), v.Files, cli.Bytes(v.Bytes), cli.Bytes(v.Needs), until(v.Expires), state(&v)))
	}
	x := table(rows...)
	_, err := fmt.Fprintln(w, strings.Join(append(x.head, x.rows...), "\n"))
	return err
}

// rest is the spare section, which is cut first. Its last row goes before the others.
func rest(s *status.Status) section {
	x := section{spare: true}
	if n := s.Names.Figures["refused"]; n > 0 {
		x.rows = append(x.rows, cli.Count(n, "key")+" without a name here, not shown: the log names them, hearth ls counts them")
	}
	if n := s.Reads.Lent; n > 0 {
		x.rows = append(x.rows, countOf(n, "open")+" lent to the kernel: what it reads by itself is not seen here")
	}
	x.rows = append(x.rows, fmt.Sprintf("hearth %s, process %d, up %s", s.Version, s.PID, time.Duration(s.UptimeS)*time.Second))
	if k := s.Keeper; k != nil && k.Cause != "" {
		x.rows = append(x.rows, fmt.Sprintf("keeper: started the node %s; the last one %s at %s, and its mounts stood still for %.1fs",
			cli.Count(k.Starts, "time"), k.Cause, cli.Stamp(time.Unix(k.Ended, 0)), k.StalledS))
	}
	if p := s.Prefetch; p.Files > 0 {
		x.rows = append(x.rows, fmt.Sprintf("prefetch: %s brought ahead of readers, %s read, %s wasted, %s may still be read",
			cli.Bytes(p.Bytes), cli.Bytes(p.ReadBytes), cli.Bytes(p.WastedBytes), cli.Bytes(p.UnreadBytes)))
	}
	for _, t := range s.Tiers {
		for _, d := range t.Dirs {
			x.rows = append(x.rows, fmt.Sprintf("scrub of %s: %s", d.Path, d.Scrub.Says(cli.Bytes)))
		}
	}
	return x
}

// details are the lines that -v adds about mounts, directories, memory and names.
func details(s *status.Status) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, m := range s.Mounts {
		for _, lack := range m.Lacks {
			add("%s does without %s", m.Dir, lack)
		}
	}
	for _, l := range s.Links {
		add("link %s: %s, %s", l.Path, l.URL, l.Freshness)
	}
	for _, x := range s.Tiers {
		for _, d := range x.Dirs {
			add("directory %s on %s: %s of %s %s", d.Path, d.FileSystem, cli.Bytes(d.Used), cli.Bytes(d.Budget), d.Ill)
			if d.Note != "" {
				add("%s", d.Note)
			}
		}
		for _, v := range x.Volumes {
			add("volume %s %s: %s of %s, %s here, %d of %s known, %s %s", v.Address, v.Label, cli.Bytes(v.Used), cli.Bytes(v.Size), cli.Count(v.Blocks, "block"),
				v.Learned, cli.Count(int64(v.Segments), "segment"), cmp.Or(v.Away, v.Stopped, "in use"), remote(v.Remote))
		}
	}
	if d := s.Drafts; d != nil {
		add("drafts: %s of what was written put into the cache before it was read, %s not", cli.Bytes(d.Seeded), cli.Bytes(d.Unseeded))
	}
	lines = append(lines, ringDetails(s.Ring)...)
	lines = append(lines, s3Details(s.S3)...)
	add("memory: %s of %s used, %s; names: %s in %s; origin: %s, %s, %d throttled (%s)",
		cli.Bytes(s.Memory.Used), cli.Bytes(s.Memory.Budget), cli.Count(s.Memory.Views, "view"), cli.Counts(s.Names.Figures), s.Names.Where,
		cli.Count(s.Origin.Errors, "error"), cli.Count(s.Origin.Retries, "retry"), s.Origin.Throttled, cli.Counts(s.Origin.Verbs))
	add("this process may use %s of memory%s, its Go heap %s; %d threads run at once%s", cli.Bytes(s.Memory.Limit), by(s.Memory.LimitBy),
		cli.Bytes(s.Memory.Heap), s.Processors.Threads, by(s.Processors.LimitBy))
	return lines
}

// remote is a volume's connection in words.
func remote(r *status.Remote) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf("over %s (%s, %s of %d, %s)", r.Portal, r.Access, cli.Count(int64(r.Queues), "queue"), r.Depth, cli.Count(r.Connections, "connection"))
}

// by names the file from which a limit was read.
func by(file string) string {
	if file == "" {
		return ""
	}
	return " (" + file + ")"
}

// cut shortens a line to a width. 0 means any width.
func cut(line string, width int) string {
	if width <= 0 {
		return line
	}
	return cli.Cut(line, width)
}

// broken breaks a text into lines of at most width columns, between words if possible.
func broken(text string, width int) (lines []string) {
	if width <= 0 {
		return []string{text}
	}
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && cli.Columns(line+" "+word) > width {
			lines, line = append(lines, line), " "
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, cut(line, width))
}
