package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// docPages are the scenarios that do what a page of docs/ has its reader do.
func docPages(is func(string) func(level) string) []scenario {
	return []scenario{
		{name: "quickstart", issue: "warm-up", root: true, from: core, limit: time.Minute, origin: "versitygw behind the fault proxy", size: is("the whole page"), run: quickstart},
		{name: "recipe-slurm", issue: "warm-up", root: true, from: all, limit: time.Minute, origin: "versitygw behind the fault proxy", size: is("9 jobs"), run: slurmRecipe},
		{name: "recipe-kubernetes", issue: "warm-up", root: true, from: all, limit: time.Minute, origin: "versitygw", size: is("1 node, 2 pods"), run: kubernetesRecipe},
	}
}

// passage is what a page has its reader type, and what it says that is printed.
type passage struct {
	commands []string
	prints   string // "": not said
	away     bool   // the origin is taken away before
}

// passages reads a page: each block of sh is commands, a block of text behind it what
// they print. No other block may stand there, since nothing would run it.
func passages(page string) (all []passage, err error) {
	away, fence, block := false, "", ""
	for line := range strings.Lines(page) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case fence == "" && line == "<!-- test: the origin stops -->":
			away = true
		case fence == "" && strings.HasPrefix(line, "```"):
			fence, block = line, ""
		case fence == "" || line != "```":
			block += line + "\n"
		case fence == "```sh":
			all, away, fence = append(all, passage{commands: commandsOf(block), away: away}), false, ""
		case fence == "```text" && len(all) > 0 && all[len(all)-1].prints == "":
			all[len(all)-1].prints, fence = block, ""
		default:
			return nil, fmt.Errorf("a block that begins with %q is neither commands nor what those before it print", fence)
		}
	}
	if fence != "" {
		return nil, fmt.Errorf("the last block, %s, has no end", fence)
	}
	return all, nil
}

// commandsOf are the lines of a block; a backslash at its end joins one to the next.
func commandsOf(block string) (lines []string) {
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// shape is what a page's output looks like: "..." stands for anything, a number, size,
// duration or id for any other, and the width of columns does not matter.
func shape(prints string) *regexp.Regexp {
	token := regexp.MustCompile(`\.\.\.|\b[0-9a-f]{8,}\b|(\d+h)?(\d+m)?\d+(\.\d+)?(h|ms|µs|m|s)\b|\d+(\.\d+)*|\b([KMGT]i)?B\b`)
	var b strings.Builder
	b.WriteString(`(?s)^\s*`)
	for line := range strings.Lines(prints) {
		for _, word := range strings.Fields(line) {
			last := 0
			for _, at := range token.FindAllStringIndex(word, -1) {
				b.WriteString(regexp.QuoteMeta(word[last:at[0]]))
				last = at[1]
				switch t := word[at[0]:at[1]]; {
				case t == "...":
					b.WriteString(`.*`)
				case strings.HasSuffix(t, "B"):
					b.WriteString(`([KMGT]i)?B`)
				case len(t) >= 8 && !strings.Contains(t, "."):
					b.WriteString(`[0-9a-f]+`)
				case strings.ContainsAny(t, "hms"):
					b.WriteString(`[0-9.hmsµ]+`)
				default:
					b.WriteString(`[0-9.]+`)
				}
			}
			b.WriteString(regexp.QuoteMeta(word[last:]) + `\s*`)
		}
	}
	return regexp.MustCompile(b.String() + `$`)
}

func TestShapes(t *testing.T) {
	// Numbers and names that stand for others fit, words that differ do not.
	page := "8c1f03ab done in 0.1s: loaded 40 files, 4.2 MiB\nrow 0.1.0... ...  7\n"
	for text, want := range map[string]bool{
		"00aa11bb done in 1m2s: loaded 3 files, 17 B\nrow 2.0.9-dev x y 0\n":     true,
		"00aa11bb partly in 1m2s: loaded 3 files, 17 B\nrow 2.0.9-dev x y 0\n":   false,
		"00aa11bb done in 1m2s: loaded 3 files, 17 B\n":                          false,
		"00aa11bb done in 1m2s: loaded 3 files, 17 B\nrow 2.0.9-dev x 0\nmore\n": false,
	} {
		if got := shape(page).MatchString(text); got != want {
			t.Errorf("%q fits: %v", text, got)
		}
	}
	for _, wrong := range []string{"```bash\nls\n```\n", "```text\nx\n```\n", "```sh\nls\n"} {
		if all, err := passages(wrong); err == nil {
			t.Errorf("%q is read as %v", wrong, all)
		}
	}
}

// typist is one shell, as somebody types into it who follows a page.
type typist struct {
	*process
	in   io.Writer
	line int
	read int // bytes of the output that belong to earlier commands
}

func (e *env) typist(o *server) *typist {
	e.Helper()
	cmd := exec.Command("bash", "-o", "pipefail")
	cmd.Env = append(e.environ(nil), "PATH="+filepath.Dir(e.hearth)+":"+os.Getenv("PATH"), "HEARTH_JOURNAL_SOCKET="+e.journal())
	in, err := cmd.StdinPipe()
	e.must(err, "make a pipe")
	return &typist{process: e.start(cmd), in: in}
}

// journal is a socket that takes what journald would, and drops it.
func (e *env) journal() string {
	e.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: e.path("journal"), Net: "unixgram"})
	e.must(err, "listen as journald")
	e.Cleanup(func() { _ = conn.Close() })
	return e.path("journal")
}

// types a command and returns what it printed; it must end with 0.
func (t *typist) types(command string) string {
	t.env.Helper()
	t.line++
	end := fmt.Sprintf("\n=end of line %d\n", t.line)
	_, err := fmt.Fprintf(t.in, "%s\nprintf '\\n=code %%d\\n=end of line %d\\n' $?\n", command, t.line)
	t.env.must(err, "type %s", command)
	t.waitFor(end)
	text := t.out.String()[t.read:]
	text = text[:strings.Index(text, end)]
	t.read += len(text) + len(end)
	at := strings.LastIndex(text, "\n=code ")
	if code, err := strconv.Atoi(text[at+len("\n=code "):]); err != nil || code != 0 {
		t.env.Fatalf("%s: exit %d, %v:\n%s", command, code, err, text)
	}
	return text[:at]
}

// quickstart follows docs/quickstart.md to its end on a machine of its own: every
// command in its order, none left out. Our server stands for the reader's bucket.
func quickstart(e *env) {
	text, err := os.ReadFile(filepath.Join(e.repo, "docs", "quickstart.md"))
	e.must(err, "read the page")
	o := e.origin()
	e.load(o, e.few(2, 20)) // the page shows a few files: 20,000 are counted in thousands, and take a line of progress
	p := e.proxy(o)
	page := string(text)
	for placeholder, value := range map[string]string{"ACCESS_KEY ": o.access + " ", "SECRET_KEY ": o.secret + " ", "http://HOST:9000": p.endpoint, "s3://BUCKET/PREFIX": "s3://" + o.bucket + "/d1"} {
		if !strings.Contains(page, placeholder) {
			e.Fatalf("the page has no place for %q", placeholder)
		}
		page = strings.ReplaceAll(page, placeholder, value)
	}
	all, err := passages(page)
	e.must(err, "read the page")
	e.machine()
	typist, gets, compared := e.typist(o), int64(-1), 0
	for _, x := range all {
		if x.away {
			p.Down()
			gets = p.gets()
		}
		printed := ""
		for _, command := range x.commands {
			printed += typist.types(command)
		}
		if x.prints == "" {
			continue
		}
		compared++
		if !shape(x.prints).MatchString(printed) {
			e.Errorf("%q printed\n%s\nwhich is not of the page's shape\n%s", x.commands, printed, x.prints)
		}
	}
	if gets < 0 || p.gets() != gets || compared < 8 {
		e.Errorf("%d outputs compared; objects asked for before and after the origin stopped: %d, %d", compared, gets, p.gets())
	}
	e.detail = fmt.Sprintf("%d commands", typist.line)
	e.eventually("the node's end", func() bool { _, err := os.Stat("/run/hearth/hearth.sock"); return errors.Is(err, os.ErrNotExist) })
	if left := mountsBelow("/mnt/data"); len(left) > 0 {
		e.Errorf("left mounted: %v", left)
	}
}
