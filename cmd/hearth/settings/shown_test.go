package settings

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

// ofCommand are the settings of a command with all flags, given as args, and a file.
func ofCommand(t *testing.T, file string, args ...string) *Settings {
	t.Helper()
	for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	name := filepath.Join(t.TempDir(), "hearth.yaml")
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{}
	cli.AddCommon(cmd)
	AddFlags(cmd, Groups()...)
	if err := cmd.ParseFlags(append(args, "--config", name)); err != nil {
		t.Fatal(err)
	}
	s, err := Load(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// says is the value of a key as it is shown, "KEY SOURCE WHERE VALUE", without the file's
// directory. "" means that it is not shown.
func says(s *Settings, key string) string {
	for _, v := range s.Values(map[string]string{"cache.ram": "6 GiB"}) {
		if v.Key == key {
			return fmt.Sprintf("%s %s %s", v.Source, filepath.Base(v.Where), v.Value)
		}
	}
	return ""
}

func TestValuesHaveTheirSource(t *testing.T) {
	// Each value is shown as it was written, with its flag, variable or line. A later source wins.
	t.Setenv("HEARTH_CACHE_SCRUB", "1MiB/s")
	t.Setenv("HEARTH_ORIGIN_CONNECTIONS", "7")
	s := ofCommand(t, `origin: {url: s3://data, connections: 5, endpoint: "https://me:secret@host:9000/x"}
links:
- path: /a
  origin: s3://a
- {path: /b, origin: {url: s3://b, region: eu-1}, freshness: immutable}
cache: {scrub: 2MiB/s, disks: [{path: /d1, size: 1TB}, {path: /d2}]}
`, "--connections", "9", "--verbose")
	for key, want := range map[string]string{
		"origin":                  "file hearth.yaml:1 s3://data",
		"origin.endpoint":         "file hearth.yaml:1 https://(hidden)@host:9000/x",
		"origin.connections":      "flag --connections 9",
		"origin.url":              "",
		"cache.ram":               "default . 6 GiB",
		"cache.scrub":             "env HEARTH_CACHE_SCRUB 1MiB/s",
		"cache.free_floor":        "default . 10%",
		"cache.disks":             "",
		"cache.disks[0].size":     "file hearth.yaml:6 1TB",
		"cache.disks[1].path":     "file hearth.yaml:6 /d2",
		"cache.disks[1].size":     "default . 10%",
		"links[0].path":           "file hearth.yaml:3 /a",
		"links[0].origin":         "file hearth.yaml:4 s3://a",
		"links[0].freshness":      "default . bounded(60s)",
		"links[1].origin.region":  "file hearth.yaml:5 eu-1",
		"links[1].freshness":      "file hearth.yaml:5 immutable",
		"mounts":                  "default . none",
		"log.level":               "flag --verbose debug",
		"links[1].origin.timeout": "default . 10s",
	} {
		if got := says(s, key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	for _, v := range s.Values(nil) {
		if strings.Contains(v.Value, "secret") {
			t.Errorf("a secret is shown: %+v", v)
		}
	}
	s = ofCommand(t, "cache: {disks: [{path: /d1, size: 1TB}, {path: /d2}]}\n", "--cache-disks", "/d3=1GiB")
	if got := says(s, "cache.disks"); got != "flag --cache-disks /d3=1GiB" || says(s, "cache.disks[0].path") != "" {
		t.Errorf("disks of a flag: %q, %q", got, says(s, "cache.disks[0].path"))
	}
}

func TestValuesOfAWS(t *testing.T) {
	// Values of an S3 origin from the AWS variables and the profile are shown with that source. A
	// local directory has none of them.
	s := ofCommand(t, "origin: s3://a\nlinks: [{path: /d, origin: 'file:///d'}, {path: /e, origin: {url: s3://e, endpoint: 'http://e'}}]\n")
	t.Setenv("AWS_ENDPOINT_URL", "http://host:9000")
	profile := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(profile, []byte("[default]\nregion = eu-7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_CONFIG_FILE", profile)
	for key, want := range map[string]string{
		"origin.endpoint":          "env AWS_ENDPOINT_URL http://host:9000",
		"origin.region":            "file the AWS profile eu-7",
		"links[0].origin.endpoint": "default . AWS",
		"links[1].origin.endpoint": "file hearth.yaml:2 http://e",
	} {
		if got := says(s, key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

func TestEveryKeyIsShown(t *testing.T) {
	// With an element in each list no key of the table is left out.
	s := ofCommand(t, "origin: s3://a\nlinks: [{path: /b, origin: s3://b}]\nmounts: [{path: /m}]\ncache: {disks: [{path: /d}]}\nvolumes: [/dev/nvme1n1]\n")
	values := s.Values(nil)
	for _, p := range Params() {
		key := strings.Replace(p.Key, "[]", "[0]", 1)
		if strings.HasSuffix(key, "origin.url") || flagged(key) {
			continue
		}
		if n := len(slices.DeleteFunc(slices.Clone(values), func(v Value) bool { return v.Key != key })); n != 1 {
			t.Errorf("%s is shown %d times", key, n)
		}
	}
}

func TestCheckGoesOn(t *testing.T) {
	// A check names every error of a file with its line, in the file's order, and what it could read.
	name := filepath.Join(t.TempDir(), "hearth.yaml")
	text := "origin: s3://a\norgin: s3://b\ncache:\n  ram: lots\n  disks: [{path: /a, size: 5%}, {pth: /b}]\nvolumes: {copies: many}\nmounts: {}\nlinks: 5\nlog: {level: loud}\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, problems, err := Check(name)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range problems {
		what, _, _ := strings.Cut(strings.TrimPrefix(p.In(name), name+":"), ";")
		lines = append(lines, what)
	}
	want := []string{"2: unknown key orgin", `4: cache.ram: "lots" is not a size such as 512MiB, 1.5TB or 20%`, "5: unknown key cache.disks[].pth",
		`6: volumes.copies: "many" is not a number`, "7: mounts has no keys below it", "8: links is not a single value", `9: log.level: "loud" is not one of debug, info, warn, error`}
	if !slices.Equal(lines, want) {
		t.Errorf("problems %q\nwant %q", lines, want)
	}
	if s.Root.Origin.URL != "s3://a" || s.Line("cache.disks[1].size") != 5 || s.Line("links[4].path") != 8 || s.Line("nothing") != 0 {
		t.Errorf("understood %+v, lines %v", s, s.lines)
	}
	if err := os.WriteFile(name, []byte("origin: s3://a\ncache: {ram\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, problems, err := Check(name); err != nil || len(problems) != 1 || problems[0].Line == 0 || !strings.Contains(problems[0].Message, "no YAML: ") {
		t.Errorf("what is no YAML: %+v, %v", problems, err)
	}
}

func TestSummary(t *testing.T) {
	// The summary has the values as they were written.
	s := ofCommand(t, "origin: s3://a\nlinks: [{path: /b, origin: s3://b}]\nmounts: [{path: /m}]\ncache: {ram: 20%, disks: [{path: /d, size: 1TB}, {path: /e}]}\n")
	if got := s.Summary(); got != "keys: 8; links: / s3://a, /b s3://b; cache: ram 20%, disks /d 1TB, /e 10%; mounts: /m" {
		t.Error(got)
	}
	if got := ofCommand(t, "").Summary(); got != "keys: 0; links: none; cache: ram default, disks default; mounts: none" {
		t.Error(got)
	}
}

func TestExamplesAreTaken(t *testing.T) {
	// Every key has an example, and a file or a command that has it in it is understood.
	for _, p := range Params() {
		e := p.explained()
		if p.FlagOnly {
			if err := p.set(&Settings{}, p.sample()); err != nil || !strings.Contains(e.Example, e.Flag) {
				t.Errorf("%s: %s: %v", p.Key, e.Example, err)
			}
			continue
		}
		s := &Settings{}
		if problems := s.readYAML([]byte(e.Example)); len(problems) > 0 || len(s.given) != 1 {
			t.Errorf("%s: %s: %v, %v", p.Key, e.Example, problems, s.given)
		}
		if p.unit() == "" && slices.Contains([]string{"size", "rate", "duration", "mode"}, p.Kind) {
			t.Errorf("%s has no unit", p.Key)
		}
	}
}

func TestExplainFindsKeys(t *testing.T) {
	// A key is found by each of its names, a group stands for its keys, and a wrong name is answered with the nearest.
	for _, name := range []string{"cache.ram", "HEARTH_CACHE_RAM", "cache-ram"} {
		if all, err := Explain(name); err != nil || len(all) != 1 || all[0].Key != "cache.ram" || all[0].Flag != "--cache-ram" || !all[0].Restart {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
	}
	if all, err := Explain("links[3].path"); err != nil || len(all) != 1 || all[0].Key != "links[].path" {
		t.Errorf("an element: %+v, %v", all, err)
	}
	if all, err := Explain("admin"); err != nil || len(all) != 2 {
		t.Errorf("a group: %+v, %v", all, err)
	}
	for name, want := range map[string]string{
		"cache.rma":     "the nearest is cache.ram",
		"orign":         "the nearest is origin",
		"bandwidth":     "",
		"scrub_every":   "there is: cache.scrub_every",
		"volumes.copys": "the nearest is volumes.copies",
		"zzzzzzzzzzzz":  "hearth config show lists all",
	} {
		all, err := Explain(name)
		if want == "" && (err != nil || len(all) != 1) || want != "" && (cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
}
