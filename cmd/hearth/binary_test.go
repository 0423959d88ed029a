package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// built is the binary, made once for all tests in builtIn, a directory of its own. The test binary
// has the race detector and takes three times as long to start, and tests start hundreds of
// processes.
var builtIn string

var built = sync.OnceValues(func() (bin string, err error) {
	if builtIn, err = os.MkdirTemp("", "hearth-"); err != nil {
		return "", err
	}
	bin = filepath.Join(builtIn, "hearth")
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return bin, fmt.Errorf("build it: %w\n%s", err, out)
	}
	return bin, nil
})

// hearth runs the binary in a home of its own.
type hearth struct {
	bin  string
	home string
	env  []string
	dir  string               // where it runs; "" means here
	attr *syscall.SysProcAttr // how it is started; nil means as usual
}

func newHearth(t *testing.T) *hearth {
	home := t.TempDir()
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return &hearth{bin: bin, home: home, env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_CACHE_HOME=" + home,
		"HEARTH_CONFIG=" + writeFile(t, filepath.Join(home, "hearth.yaml"), ""),
		"HEARTH_ADMIN_SOCKET=" + filepath.Join(home, "s"), "HEARTH_ADMIN_LISTEN=-",
		"HEARTH_CACHE_DISKS=" + filepath.Join(home, "cache") + "=64MiB", "HEARTH_CACHE_RAM=32MiB", "HEARTH_CACHE_FREE_FLOOR=1MiB",
		"AWS_EC2_METADATA_DISABLED=true"}}
}

// bucket starts a real S3 server for the test, with objects in one bucket. hearth's environment
// names it from now on.
func (h *hearth) bucket(t *testing.T, objects map[string]string) (url string) {
	t.Helper()
	s := hearthtest.StartS3(t)
	data := s.Bucket(t, "data")
	for key, text := range objects {
		if _, err := s.PutBytes(t.Context(), data, key, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	h.env = append(h.env, s.Env()...)
	return "s3://" + data
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func (h *hearth) run(args ...string) (stdout, stderr string, code int) {
	var out, problems bytes.Buffer
	cmd := exec.Command(h.bin, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = h.env, h.dir, &out, &problems, h.attr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		code = -1
	}
	for line := range strings.Lines(problems.String()) {
		if !strings.HasPrefix(line, "hearth: still waiting for ") { // which a busy machine has a verb say
			stderr += line
		}
	}
	return out.String(), stderr, code
}

func TestExitCodes(t *testing.T) {
	// The binary says what is wrong in one line and ends with the manual's code.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello", "sub/b": "below"})
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "cache")
	writeFile(t, filepath.Join(dir, "a"), "no directory")
	if err := os.MkdirAll(filepath.Join(cache, "segments"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"version", 0, ""},
		{"cat " + url + "/a", 0, ""},
		{"ls " + url + "/nothing", 4, "no such file"},
		{"ls /", 5, "hearth up"},
		{"status", 5, "hearth up"},
		{"warmup /x", 5, "hearth up"},
		{"warmup /x -f -", 2, "either paths or a list"},
		{"warmup --wait=200% /x", 2, "not a percentage"},
		{"warmup --rate fast /x", 2, "not a rate"},
		{"warmup --pin=soon /x", 2, "--pin: \"soon\" is not a time"},
		{"warmup --pin --metadata-only /x", 2, "exclude each other"},
		{"warmup --pin -f -", 2, "name the paths"},
		{"pin /x --for -1h", 2, "--for:"},
		{"pin", 5, "hearth up"},
		{"unpin", 2, "either paths or --all"},
		{"evict", 2, "PATH is missing"},
		{"drafts", 5, "hearth up"},
		{"drafts ls", 5, "hearth up"},
		{"drafts publish", 2, "either paths or --all"},
		{"drafts publish --all /x", 2, "either paths or --all"},
		{"drafts publish --all", 5, "hearth up"},
		{"drafts drop", 2, "PATH is missing"},
		{"drafts drop /x", 5, "hearth up"},
		{"drafts pubish /x", 2, "the nearest is publish"},
		{"refresh", 2, "PATH is missing"},
		{"refresh /x", 5, "hearth up"},
		{"warmup --check /x", 5, "hearth up"},
		{"warmup --check --pin /x", 2, "--check and --pin exclude each other"},
		{"warmup --check --dry-run /x", 2, "--check and --dry-run exclude each other"},
		{"warmup --check --wait=50% /x", 2, "--check and --wait exclude each other"},
		{"warmup --check --metadata-only /x", 2, "--check and --metadata-only exclude each other"},
		{"warmup --detach --dry-run /x", 2, "detach"},
		{"jobs wait", 2, "ID is missing"},
		{"jobs a b", 2, "one argument too many"},
		{"explain /x", 5, "hearth up"},
		{"trace --anything", 2, "not in this version"},
		{"lss", 2, "the nearest is ls"},
		{"stauts", 2, "the nearest is status"},
		{"jobs wiat latest", 2, "the nearest is wait"},
		{"ls --recursiv /", 2, "unknown flag: --recursiv; the nearest is --recursive (see"},
		{"status --wacth", 2, "the nearest is --watch"},
		{"status -watch", 2, "the nearest is --watch"},
		{"status --frobnicate", 2, "unknown flag: --frobnicate (see"},
		{"status --watch 1s", 5, "hearth up"},
		{"status --watch 1", 2, "missing unit"},
		{"status --watch soon", 2, "one argument too many"},
		{"warmup --wait 200% /x", 2, "not a percentage"},
		{"warmup --wait 50 /x", 2, `--wait: "50" is not a percentage`},
		{"warmup --pin 2h --wait 50% /x", 5, "hearth up"},
		{"warmup --wait 50%", 2, "either paths or a list"},
		{"mount s3://b", 2, "DIR is missing"},
		{"stat a b", 2, "one argument too many"},
		{"ls -o xml /", 2, "not one of table, json, jsonl"},
		{"up --cache-ram lots", 2, "--cache-ram"},
		{"up --config /does/not/exist", 2, "configuration"},
		{"up nonsense", 2, "neither s3://"},
		{"mount " + url + " " + dir + "/absent", 4, "does not exist"},
		{"mount -o open=none,freshness=strict " + url + " " + dir, 2, "strict"},
		{"mount --allow-other --no-allow-other " + url + " " + dir, 2, "exclude each other"},
		{"up --connections 0 s3://b", 2, "at least 1"},
		{"up --bandwidth 5 s3://b", 2, "below 64KiB/s"},
		{"up --path-style maybe s3://b", 2, "none of auto, true and false"},
		{"up s3://Bad_Name!", 2, "lower-case letters"},
		{"up --cache-disks " + dir + "/a/cache=64MiB " + url, 1, "choose another with --cache-disks"},
		{"up --cache-disks /proc/x=64MiB " + url, 1, "choose another with --cache-disks"},
		{"mount --cache-disks " + cache + "=64MiB " + url + " " + cache, 8, "the node works with " + cache},
		{"mount --cache-disks " + cache + "=64MiB " + url + " " + cache + "/segments", 8, "choose a directory apart"},
		{"mount s3:/bkt/pre " + dir, 2, "did you mean s3://bkt/pre?"},
		{"mount " + dir + " " + url, 2, "the origin comes first, hearth mount " + url + " " + dir},
		{"mount " + dir + " s3:/bkt", 2, "the origin comes first"},
		{"mount " + dir + " " + cache, 2, "the directory of this machine is file://" + dir},
		{"mount file:/dir " + dir, 2, "did you mean file:///dir?"},
		{"mount -o foo " + url + " " + dir, 2, "unknown option (see hearth mount --help)"},
		{"mount --freshness 60 " + url + " " + dir, 2, `hearth: --freshness: "60" is none of immutable`},
		{"mnt", 2, "the nearest is mount"},
		{"xyz", 2, "(see hearth --help)"},
		{"cat " + url + "/sub", 2, "is a prefix, not an object (ls lists it)"},
		{"cat " + url + "/sub/", 2, "is a prefix, not an object (ls lists it)"},
		{"umount --all", 0, ""},
		{"umount --all --node unix://" + dir + "/s", 5, "hearth up"},
		{"umount " + dir, 4, "nothing is mounted"},
		{"umount /proc", 8, "not ours"},
		{"cat --range 5 " + url + "/a", 2, "--range"},
		{"up --node http://x", 0, ""},
	} {
		if strings.HasPrefix(c.args, "up --node") {
			continue
		}
		stdout, stderr, code := h.run(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("hearth %s: exit code %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
		if code != 0 && strings.Count(stderr, "\n") != 1 {
			t.Errorf("hearth %s: not one line:\n%s", c.args, stderr)
		}
	}
}

func TestAFullStandardOutputIsNamed(t *testing.T) {
	// An error of writing to standard output is not reported as an error of reading.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello"})
	for _, verb := range []string{"cat", "ls", "stat"} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		var problems bytes.Buffer
		cmd := exec.Command(h.bin, verb, url+"/a")
		cmd.Env, cmd.Stdout, cmd.Stderr = h.env, full, &problems
		err = cmd.Run()
		_ = full.Close()
		if want := "hearth: standard output cannot be written: no space left on device\n"; err == nil || problems.String() != want {
			t.Errorf("%s: %v, %q", verb, err, &problems)
		}
	}
}

func TestNamesOnATerminal(t *testing.T) {
	// Control characters in names are quoted, so that a shell reads the same bytes back.
	for _, name := range []string{"plain.txt", "caf\u00e9", "new\nline", "\x1b[31mred", "it's", "\n", "a\xffb\xfe", "two words", "'\t'", "-rf", "\u2028"} {
		q := cli.QuoteName(name)
		if strings.IndexFunc(q, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x2028 }) >= 0 {
			t.Errorf("%q is quoted as %q", name, q)
		}
		if back, err := exec.Command("bash", "-c", "printf %s "+strings.Replace(q, "-rf", "./-rf", 1)).Output(); err != nil ||
			strings.TrimPrefix(string(back), "./") != name {
			t.Errorf("%q is quoted as %s, which bash reads as %q, %v", name, q, back, err)
		}
	}
	if q := cli.QuoteName("plain.txt"); q != "plain.txt" {
		t.Errorf("a plain name is quoted as %s", q)
	}
}

func TestReadingWithoutANode(t *testing.T) {
	// ls, stat, cat and du of a URL work where no node runs, and leave nothing behind.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello", "sub/b": strings.Repeat("x", 3<<20)})
	for args, want := range map[string]string{
		"--version":                       "(commit ",
		"ls " + url:                       "a\nsub/\n",
		"ls -R " + url + "/":              "a\nsub/\nsub/b\n",
		"cat --range 1-3 " + url + "/a":   "ell",
		"cat --range -2 " + url + "/a":    "lo",
		"cat " + url + "/a " + url + "/a": "hellohello",
		"du -o jsonl " + url:              `{"path":"` + url + `","files":2,"dirs":1,"bytes":3145733}` + "\n",
		"ls -o jsonl " + url + "/a":       `"size":5`,
		"stat -v " + url + "/sub/b":       "blocks",
	} {
		stdout, stderr, code := h.run(strings.Fields(args)...)
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("hearth %s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(h.home, "cache")); err == nil {
		t.Error("a cache directory was made")
	}
}

// up starts a node and returns when it answers; the test's end stops it.
func (h *hearth) up(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(h.bin, append([]string{"up"}, args...)...)
	cmd.Env = h.env
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() }) // a killed one would leave its node, which starts another keeper
	var said strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(said.String(), "serving at") {
		n, err := out.Read(buf)
		said.Write(buf[:n])
		if err != nil {
			t.Fatalf("hearth up ended: %s%s", said.String(), problems.String())
		}
	}
	if first, _, _ := strings.Cut(said.String(), "\n"); !strings.Contains(first, "cache: ") || !strings.Contains(first, "RAM up to 32.0 MiB") ||
		!strings.Contains(first, "--cache-disks") {
		t.Errorf("the first line does not say where the cache is: %s", first)
	}
	return cmd
}

func TestNodeAnswersCommands(t *testing.T) {
	// A node answers ls, cat and status until SIGTERM, and then leaves no socket.
	h := newHearth(t)
	url := h.bucket(t, map[string]string{"a": "hello"})
	cmd := h.up(t, url)
	for _, c := range [][2]string{
		{"ls", "a\n"}, // from here on the name is known, which evict does not ask for
		{"stat /", "path      /\n"},
		{"cat /a", "hello"},
		{"cat " + url + "/a", "hello"},
		{"status", "ok\n"},

		{"warmup --metadata-only /", "done in"},
		{"jobs", "STATE"},
		{"explain /a@2", "a read at 2  "},
		{"refresh /a", "/a: asked for again: 1 name\n"},
		{"refresh -q /", ""},
		{"refresh /", "/: asked for again: 1 directory listed, 1 name\n"},
		{"pin", "PIN  FILES"},
		{"evict --dry-run /a", "would drop "},
		{"drafts", "DRAFT  SIZE"},
		{"drafts ls -o json", "[]"},
		{"drafts publish --all", "nothing waits"},
	} {
		args, want := c[0], c[1]
		if stdout, stderr, code := h.run(strings.Fields(args)...); code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("hearth %s: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
	// What a shell makes of * may be more than a request's line may hold.
	many := slices.Repeat([]string{strings.Repeat("/.", 20) + "/a"}, 2_000)
	if stdout, stderr, code := h.run(append([]string{"warmup", "--metadata-only"}, many...)...); code != 0 || !strings.Contains(stdout, "done in") {
		t.Errorf("hearth warmup of %d paths: exit code %d\n%s%s", len(many), code, stdout, stderr)
	}
	if stdout, _, code := h.run("jobs", "latest"); code != 0 || !strings.Contains(stdout, "list arguments") {
		t.Errorf("hearth jobs latest: exit code %d\n%s", code, stdout)
	}
	stdout, _, _ := h.run("status", "-o", "json")
	var status map[string]any
	if err := json.Unmarshal([]byte(stdout), &status); err != nil || status["origin"].(map[string]any)["requests"] == nil {
		t.Errorf("status -o json: %v\n%s", err, stdout)
	}
	if _, stderr, code := h.run("up", url); code != cli.ExitRefused || !strings.Contains(stderr, "another node") {
		t.Errorf("a second node: exit code %d, %s", code, stderr)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
	if _, _, code := h.run("status"); code != cli.ExitUnreachable {
		t.Errorf("after its end: exit code %d", code)
	}
}

func TestExamplesRun(t *testing.T) {
	// The two examples of each help run as they stand, as far as a unit test may run
	// them; the scenario "examples" of e2e runs all.
	h := newHearth(t)
	h.env = append(h.env, "PAGER=cat")
	path := t.TempDir()
	if err := os.Symlink(h.bin, filepath.Join(path, "hearth")); err != nil {
		t.Fatal(err)
	}
	verbs := commands()
	for _, c := range verbs {
		verbs = append(verbs, slices.DeleteFunc(c.Commands(), func(c *cobra.Command) bool { return c.Hidden })...)
	}
	for _, c := range verbs {
		lines := strings.Split(c.Example, "\n")
		if len(lines) != 2 {
			t.Errorf("%s has %d examples", c.CommandPath(), len(lines))
		}
		for _, line := range lines {
			args := strings.Fields(line)[1:]
			apart := []string{"demo", "fsck", "up", "keep", "upgrade", "mount", "umount", "status", "explain", "warmup", "pin", "unpin", "evict", "refresh", "jobs", "wait", "cancel", "retry"}
			if slices.Contains(apart, c.Name()) || strings.HasPrefix(line, "  hearth ring") && c.Name() != "key" || strings.HasPrefix(line, "  hearth volume") || strings.HasPrefix(line, "  hearth drafts") || strings.Contains(line, "s3://") {
				// They need a mount point, a cache, a node or a network: only their flags are tried.
				found, rest, err := rootCommand().Find(args)
				if err != nil || found.ParseFlags(rest) != nil {
					t.Errorf("%s: does not parse", line)
				}
				continue
			}
			cmd := exec.Command("sh", "-c", line)
			cmd.Env = append(h.env, "PATH="+path+":"+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
	}
}

func TestWarnings(t *testing.T) {
	// Where the log tells a cause on the same terminal, the warning does not tell it again.
	text := "the origin cannot be asked: the secret key does not fit: cure it"
	for logged, want := range map[bool]string{false: text, true: "the origin cannot be asked"} {
		if got := warning(text, logged); got != want {
			t.Errorf("logged %v: %q", logged, got)
		}
	}
}

func TestHelpHidesWhatIsNotBuilt(t *testing.T) {
	// The help lists the verbs of this version and none of a later one.
	var out bytes.Buffer
	root := rootCommand()
	root.SetOut(&out)
	root.SetArgs([]string{"--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "help.txt")
	if updating() {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(golden, out.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(golden); err != nil || string(want) != out.String() {
		t.Errorf("the help changed (%v), see -update:\n%s", err, out.String())
	}
	for _, later := range laterVerbs() {
		if strings.Contains(out.String(), "  "+later+" ") {
			t.Errorf("the help lists %s", later)
		}
	}
}
