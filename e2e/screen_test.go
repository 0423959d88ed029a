package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// terminal is a session of tmux, 80 columns by 24 rows, with a shell in it.
type terminal struct {
	e      *env
	socket string
}

func (e *env) terminal() *terminal {
	e.Helper()
	e.count++
	t := &terminal{e, fmt.Sprintf("/%s/tmux-%d", strings.Trim(e.dir, "/"), e.count)}
	// The server stays in the foreground, so that it ends with the scenario.
	cmd := exec.Command("tmux", "-S", t.socket, "-f", "/dev/null", "-D")
	cmd.Env = append(e.environ(nil), "SHELL=/bin/sh", "PS1=$ ", "ENV=")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	e.start(cmd)
	e.eventually("tmux", func() bool {
		_, code := e.run("tmux", "-S", t.socket, "new-session", "-d", "-x", "80", "-y", "24", "/bin/sh")
		return code == 0
	})
	return t
}

func (t *terminal) tmux(args ...string) string {
	t.e.Helper()
	out, code := t.e.run("tmux", append([]string{"-S", t.socket}, args...)...)
	if code != 0 {
		t.e.Fatalf("tmux %v: exit %d, %s", args, code, out)
	}
	return out
}

// typedFirst begins each line that is typed; the line itself may be longer than the terminal
// is wide, and is gone once it is obeyed.
const typedFirst = "clear; "

// typed types a line.
func (t *terminal) typed(line string) {
	t.e.Helper()
	t.tmux("send-keys", "-l", typedFirst+line)
	t.tmux("send-keys", "Enter")
}

// screen is what stands on it. Lines that the terminal broke come as one (-J).
func (t *terminal) screen() []string {
	t.e.Helper()
	return strings.Split(strings.TrimRight(t.tmux("capture-pane", "-p", "-J"), "\n "), "\n")
}

// shows waits until the screen holds a text, looks whether a line was broken, and
// returns it.
func (t *terminal) shows(text string) []string {
	t.e.Helper()
	var lines []string
	t.e.eventually(text+" on the terminal", func() bool {
		lines = t.screen()
		return strings.Contains(strings.Join(lines, "\n"), text)
	})
	for _, l := range lines {
		if utf8.RuneCountInString(strings.TrimRight(l, " ")) > 80 && !strings.Contains(l, typedFirst) {
			t.e.Errorf("the terminal had to break: %s", l)
		}
	}
	return lines
}

// screens: status, --watch and a warm-up's progress on a terminal of 80x24, and where
// there is none; then with as much on it as fits.
func screens(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(5, 100))
	p := e.proxy(o)
	p.SetFirstByte(20 * time.Millisecond)
	h := e.mount(o, settings{endpoint: p.endpoint})
	node := " --node unix://" + h.socket()
	t := e.terminal()

	t.typed(e.hearth + " status" + node + "; echo exit=$?")
	lines := t.shows("exit=0")
	if lines[0] != "ok" || len(lines) > 24 {
		e.Errorf("status on a terminal, %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	for _, want := range []string{"READS ", "waited ", "TIER ", "LINK ", "MOUNT ", h.dir} {
		if !strings.Contains(strings.Join(lines, "\n"), want) {
			e.Errorf("status on a terminal has no %s:\n%s", want, strings.Join(lines, "\n"))
		}
	}

	t.typed(e.hearth + " status --watch=200ms" + node)
	t.shows("MOUNT ")
	rule := faultproxy.Rule{Verb: faultproxy.Get, Status: 403, Code: "AccessDenied"}
	p.AddRule(rule)
	if out, code := h.ask("cat", list[0].Path); code == 0 {
		e.Errorf("hearth cat of what is denied: %s", out)
	}
	lines = t.shows("an origin cannot be read")
	if !strings.HasPrefix(lines[0], "an origin cannot be read") || len(lines) > 24 {
		e.Errorf("--watch did not begin again at the top, %d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	if whole := strings.Join(strings.Fields(strings.Join(lines, " ")), " "); !strings.Contains(whole, "s3:GetObject") {
		e.Errorf("the cure is not on the screen:\n%s", strings.Join(lines, "\n"))
	}
	p.ClearRules()
	t.tmux("send-keys", "C-c")

	t.typed(e.hearth + " warmup --rate 15MiB/s /" + node + "; echo exit=$?")
	t.shows("%  ")
	lines = t.shows("exit=")
	if end := slices.Index(lines, "exit=0"); end < 1 || !strings.Contains(lines[end-1], " done in ") {
		e.Errorf("a warm-up on a terminal does not end with how it ended:\n%s", strings.Join(lines, "\n"))
	}
	if a := h.status().Egress.Asked; a["warm_up"].Bytes < sum(list) || a["readers"].Bytes != 0 {
		e.Errorf("the ledger after a warm-up of %d bytes: %+v", sum(list), a)
	}
	t.evicts(h, node, len(list))
	h.jsonLines(int64(len(list)))
	h.screensElsewhere()
	h.quit()
	t.crowded(o, p)
}

// crowded: two links, a pin and a warm-up of a directory whose listing does not come to its
// end stand on 80x24, and how far the listing is; the warm-up says what it found, and no
// percentage before it knows of what.
func (t *terminal) crowded(o *server, p *proxied) {
	e := t.e
	e.Helper()
	wide := hearthtest.DataSet{Name: "wide", Groups: []hearthtest.Group{{Dir: "a", Dirs: 1, Files: 20, Min: 1, Max: 1}, {Dir: "z", Dirs: 1, Files: 1500, Min: 1, Max: 1}}}
	second := o.Bucket(e.T, "second")
	e.must(o.Load(e.ctx, second, wide, hearthtest.LoadOptions{}), "load the second link's bucket")
	h := e.mount(o, settings{endpoint: p.endpoint, path: "/first", tree: "/", links: fmt.Sprintf("- {path: /second, origin: {url: %q, endpoint: %q}}\n", "s3://"+second, p.endpoint)})
	if out, code := h.ask("pin", "--for", "0", "/first/d1/class0000"); code != 0 {
		e.Errorf("pin: exit %d, %s", code, out)
	}
	p.AddRule(faultproxy.Rule{Verb: faultproxy.List, Match: "continuation-token", Delay: faultproxy.Duration(8 * time.Second)})
	watch, node := e.terminal(), " --node unix://"+h.socket()
	watch.typed(e.hearth + " status --watch=200ms" + node)
	watch.shows("pin /first/d1/class0000: ")
	t.typed(e.hearth + " warmup /second" + node + "; echo exit=$?")
	lines := watch.shows("listing s3://" + second + "/z/: 1.00k names in ")
	text := strings.Join(lines, "\n")
	for _, want := range []string{"/first ", "/second ", h.dir, "\njob ", "second  listing... ", "\npin ", "\nwaited ", "\nasked "} {
		if !strings.Contains(text, want) {
			e.Errorf("while a listing runs, status has no %q:\n%s", want, text)
		}
	}
	if lines[0] != "ok" || len(lines) > 24 {
		e.Errorf("while a listing runs, status has %d lines:\n%s", len(lines), text)
	}
	if text := strings.Join(t.shows("second  listing... "), "\n"); strings.Contains(text, "%") {
		e.Errorf("a warm-up whose listing has not ended says:\n%s", text)
	}
	p.ClearRules()
	t.shows("exit=0")
	watch.tmux("send-keys", "C-c")
	h.quit()
}

// evicts answers the question of hearth evict with no, and nothing is dropped, and with yes.
func (t *terminal) evicts(h *hearth, node string, files int) {
	e := t.e
	e.Helper()
	for _, x := range []struct {
		key  string
		ends string
		left int
	}{{"n", "exit=8", files}, {"y", "exit=0", 0}} {
		t.typed(e.hearth + " evict /" + node + "; echo exit=$?")
		question := fmt.Sprintf("drop %d files, ", files)
		e.eventually("the question", func() bool { // the one before it may still be on the screen
			lines := t.screen()
			last := lines[len(lines)-1]
			return strings.HasPrefix(last, question) && strings.HasSuffix(last, "[y/N]")
		})
		t.tmux("send-keys", "-l", x.key)
		t.tmux("send-keys", "Enter")
		lines := strings.Join(t.shows("exit="), "\n")
		if !strings.Contains(lines, x.ends) || strings.Contains(lines, "nothing was dropped") != (x.key == "n") || strings.Contains(lines, fmt.Sprintf("dropped %d files", files)) != (x.key == "y") {
			e.Errorf("hearth evict, answered %s:\n%s", x.key, lines)
		}
		if out, code := h.ask("evict", "--dry-run", "/"); code != 0 || !strings.HasPrefix(out, fmt.Sprintf("would drop %d files, ", x.left)) {
			e.Errorf("held after %s: exit %d, %s", x.key, code, out)
		}
	}
}

// jsonLines: a warm-up for a program is lines of JSON with the keys that scripts read, the
// last of which says that all is done.
func (h *hearth) jsonLines(files int64) {
	e := h.e
	e.Helper()
	want := []string{"bytes_done", "bytes_total", "errors", "eta_s", "files_done", "files_found", "files_total", "job", "phase", "rate_bps"}
	out, code := h.ask("warmup", "/", "--rate", "40MiB/s", "-o", "jsonl")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var last struct {
		Phase      string
		FilesDone  int64 `json:"files_done"`
		FilesTotal int64 `json:"files_total"`
	}
	for _, line := range lines {
		doc := map[string]any{}
		if err := errors.Join(json.Unmarshal([]byte(line), &doc), json.Unmarshal([]byte(line), &last)); err != nil || !slices.Equal(slices.Sorted(maps.Keys(doc)), want) {
			e.Errorf("a line of warmup -o jsonl: %v, %s", err, line)
		}
	}
	if code != 0 || len(lines) < 2 || last.Phase != "done" || last.FilesDone != files || last.FilesTotal != files {
		e.Errorf("warmup -o jsonl of %d files: exit %d, %s", files, code, out)
	}
}

// screensElsewhere: in a pipe --watch prints one block below the other, without a word
// to a terminal.
func (h *hearth) screensElsewhere() {
	h.e.Helper()
	w := h.e.start(exec.Command(h.e.hearth, "status", "--watch=200ms", "--node", "unix://"+h.socket()))
	h.e.eventually("three blocks", func() bool { return strings.Count(w.out.String(), "MOUNT ") >= 3 })
	if code := w.terminate(syscall.SIGINT); code != 0 && code != 130 {
		h.e.Errorf("--watch ended with %d", code)
	}
	if text := w.out.String(); strings.ContainsRune(text, 0x1b) || strings.Count(text, "\n\nok\n") < 2 {
		h.e.Errorf("--watch in a pipe: %q", text)
	}
	for _, flag := range []string{"--watch=1ms", "--watch=-1s"} {
		if out, code := h.ask("status", flag); code != 2 || !strings.Contains(out, "--watch") {
			h.e.Errorf("status %s: exit %d, %s", flag, code, out)
		}
	}
}
