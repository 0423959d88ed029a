package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

// golden compares what was printed with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if updating() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != got {
		t.Errorf("%s is not what is printed (%v), see -update:\n%s", file, err, got)
	}
}

// wrongFile has an error of every kind, most of them in a line of their own.
const wrongFile = `origin: s3://Bad Bucket
cahce: {ram: lots}
cache:
  ram: 1MiB
  disks: [{path: /a, size: 120%}, {size: 10%}]
links:
- {path: /x, origin: s3://a, freshness: soon}
- {path: /x, origin: nonsense}
mounts:
- path: relative
- {path: /m, prefix: x, freshness: strict}
- {path: /m}
- {path: /n, open: often}
cluster: {name: x}
s3: {listen: ":9000"}
fuse: {without: [wings]}
`

func TestConfigGoldenOutputs(t *testing.T) {
	// The verbs print a table for people, documents for programs, and every error of a file with its
	// line.
	h := newHearth(t)
	home := h.home
	h.dir = home // names without a directory are as long on every machine
	writeFile(t, filepath.Join(home, "good.yaml"), "origin: s3://data\ncache:\n  free_floor: 5%\nmounts:\n- {path: /mnt/data, freshness: bounded(60s)}\n")
	writeFile(t, filepath.Join(home, "wrong.yaml"), wrongFile)
	h.env = slices.DeleteFunc(h.env, func(v string) bool { return strings.HasPrefix(v, "HEARTH_CACHE_FREE_FLOOR") })
	for name, c := range map[string]struct {
		args string
		code int
	}{
		"config_show.txt":           {"config show --timeout 1m --connections 9 --config good.yaml", 0},
		"config_show.jsonl":         {"config show -o jsonl --region eu-1 --config good.yaml", 0},
		"config_explain.txt":        {"config explain cache.disks", 0},
		"config_explain_group.txt":  {"config explain mounts", 0},
		"config_explain.json":       {"config explain -o json HEARTH_MOUNT_OPEN", 0},
		"config_validate.txt":       {"config validate good.yaml", 0},
		"config_validate_wrong.txt": {"config validate wrong.yaml", 2},
		"config_validate.json":      {"config validate -o json --config wrong.yaml", 2},
	} {
		stdout, stderr, code := h.run(strings.Fields(c.args)...)
		if code != c.code {
			t.Errorf("hearth %s: exit code %d, want %d", c.args, code, c.code)
		}
		golden(t, name, strings.ReplaceAll(stdout+stderr, home, "HOME"))
	}
}

func TestConfigInit(t *testing.T) {
	// The configuration that init writes for this machine is valid, begins with the two lines that a
	// node needs, and never overwrites a file.
	h := newHearth(t)
	file := filepath.Join(t.TempDir(), "new", "hearth.yaml")
	stdout, stderr, code := h.run("config", "init", "s3://mine/of mine", "--write", file)
	if code != 0 || !strings.Contains(stdout, "hearth config validate "+file) {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	text, err := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	if err != nil || !strings.HasPrefix(lines[0], "origin: ") || !strings.HasPrefix(lines[1], "cache: {ram: ") {
		t.Fatalf("%v:\n%s", err, text)
	}
	for _, l := range lines[2:] {
		if l != "" && !strings.HasPrefix(l, "#") {
			t.Errorf("a third line: %s", l)
		}
	}
	if stdout, stderr, code := h.run("config", "validate", file); code != 0 || !strings.Contains(stdout, "links: / s3://mine/of mine; cache: ram ") {
		t.Errorf("validate: exit code %d: %s%s", code, stdout, stderr)
	}
	// What is free may have changed since, and so may a share of it.
	if printed, _, code := h.run("config", "init", "s3://mine/of mine"); code != 0 || !strings.HasPrefix(printed, lines[0]+"\ncache: {ram: ") || strings.Count(printed, "\n") != len(lines)-1 {
		t.Errorf("printed: exit code %d:\n%s", code, printed)
	}
	if _, stderr, code := h.run("config", "init", "--write", file); code != 8 || !strings.Contains(stderr, "is not overwritten") {
		t.Errorf("over a file: exit code %d: %s", code, stderr)
	}
	if again, err := os.ReadFile(file); err != nil || string(again) != string(text) {
		t.Errorf("the file was changed: %v\n%s", err, again)
	}
	// Each commented line that holds a setting is one, too.
	for _, l := range lines[2:] {
		if setting, ok := strings.CutPrefix(l, "#"); ok && !strings.HasPrefix(setting, " ") && setting != "" {
			if err := settings.ReadYAML(&settings.Settings{}, "a comment", []byte(setting)); err != nil {
				t.Errorf("%s: %v", l, err)
			}
		}
	}
}

func TestAVolumeWithoutAnAddressIsOneProblem(t *testing.T) {
	// A device whose url stands under a wrong name has one line, which names the right one. Others have theirs.
	h := newHearth(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "hearth.yaml"), "origin: s3://a\nvolumes:\n  copies: 4\n  devices:\n  - {path: /srv/volume}\n  - {url: /b, secret_file: /c}\n")
	_, stderr, code := h.run("config", "validate", file)
	for _, want := range []string{":3: volumes.copies: 4 copies of each block", ":5: unknown key volumes.devices[].path; here may stand: secret_file, url",
		":6: secret_file is for a namespace"} {
		if !strings.Contains(stderr, file+want) {
			t.Errorf("no %q in\n%s", want, stderr)
		}
	}
	if code != 2 || strings.Count(stderr, "\n") != 3 {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

func TestConfigRefusals(t *testing.T) {
	// A refusal ends with the manual's code and one line that names the cure.
	h := newHearth(t)
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"config shwo":                       {2, "the nearest is show"},
		"config zzzzz":                      {2, "see hearth config --help"},
		"config explain":                    {2, "KEY is missing: hearth config explain KEY"},
		"config explain cache.rma":          {2, "the nearest is cache.ram"},
		"config explain volumes.copis":      {2, "the nearest is volumes.copies"},
		"config validate /does/not/exist":   {4, "/does/not/exist"},
		"config show --config /not/there":   {2, "read the configuration"},
		"config show -o xml":                {2, "not one of table, json, jsonl"},
		"config init nonsense":              {2, "neither s3://"},
		"config init --write /dev/null/a":   {1, "make the directory of the configuration"},
		"config init --write /dev/full":     {8, "is not overwritten"},
		"config show --cache-ram lots":      {2, "--cache-ram"},
		"config explain -o json cache.nope": {2, "no key cache.nope"},
	} {
		if stdout, stderr, code := h.run(strings.Fields(args)...); code != want.code || !strings.Contains(stderr, want.text) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("hearth %s: exit code %d, want %d, %q\n%s%s", args, code, want.code, want.text, stdout, stderr)
		}
	}
}

func TestConfigShowReadsWhatANodeReads(t *testing.T) {
	// The documents of show have the keys and sources that programs may rely on.
	h := newHearth(t)
	stdout, stderr, code := h.run("config", "show", "-o", "json")
	var values []settings.Value
	if err := json.Unmarshal([]byte(stdout), &values); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	i := slices.IndexFunc(values, func(v settings.Value) bool { return v.Key == "cache.ram" })
	if i < 0 || values[i] != (settings.Value{Key: "cache.ram", Value: "32MiB", Source: settings.FromEnv, Where: "HEARTH_CACHE_RAM"}) {
		t.Errorf("cache.ram among %v", values)
	}
}

func TestCompletion(t *testing.T) {
	// A shell completes verbs, the verbs below them, flags, the words that a flag takes, and keys of the configuration.
	h := newHearth(t)
	for args, want := range map[string][]string{
		"m":                      {"mount"},
		"confi":                  {"config"},
		"config ":                {"explain", "init", "show", "validate"},
		"config explain cache.s": {"cache.scrub", "cache.scrub_every"},
		"mount --cache-sc":       {"--cache-scrub", "--cache-scrub-every"},
		"status -o ":             {"json", "jsonl", "table"},
		"mount --open p":         {"passthrough"},
		"completion z":           {"zsh"},
		"trac":                   nil, // not in this version
	} {
		fields := append(strings.Fields(args), "")
		if !strings.HasSuffix(args, " ") {
			fields = fields[:len(fields)-1]
		}
		stdout, _, _ := h.run(append([]string{"__complete"}, fields...)...)
		var got []string
		for line := range strings.Lines(stdout) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			if word != "" && !strings.HasPrefix(word, ":") {
				got = append(got, word)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("hearth %s<TAB>: %q, want %q", args, got, want)
		}
	}
}

func TestCompletionInBash(t *testing.T) {
	// The script that bash reads asks the binary and offers what it says.
	h := newHearth(t)
	path := t.TempDir()
	if err := os.Symlink(h.bin, filepath.Join(path, "hearth")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "--norc", "-c", `
		_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; } # of the package bash-completion
		source <(hearth completion bash) || exit 1
		COMP_WORDS=(hearth config explain cache.f) COMP_CWORD=3 COMP_LINE="hearth config explain cache.f" COMP_POINT=29
		__start_hearth hearth cache.f explain
		printf '%s\n' "${COMPREPLY[@]}"`)
	cmd.Env = append(h.env, "PATH="+path+":"+os.Getenv("PATH"))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Logf("bash said: %s", exit.Stderr)
	}
	if strings.TrimSpace(string(out)) != "cache.free_floor" {
		t.Errorf("bash offers %q, %v", out, err)
	}
}
