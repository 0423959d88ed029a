package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

// updating is a function, since a package has no state but errors.
func updating() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write golden files anew")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(builtIn)
		os.Exit(code)
	}))
}

func TestReferencePageIsCurrent(t *testing.T) {
	// The page in docs/ is what the table says today.
	page := filepath.Join("..", "..", "docs", "configuration.md")
	if updating() {
		if err := os.WriteFile(page, []byte(settings.Reference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(page); err != nil || string(have) != settings.Reference() {
		t.Errorf("%s is stale (%v): go test ./cmd/hearth -run Reference -update", page, err)
	}
}

func TestMountHelper(t *testing.T) {
	// mount(8) calls mount.hearth with its own habits.
	args, err := mountHelperArgs(strings.Fields("s3://b/p /mnt/d -s -n -o rw,config=/e.yaml,open=none -t fuse.hearth"), "")
	if err != nil || strings.Join(args, " ") != "mount --daemon --by-mount8 --sloppy --config /e.yaml -o rw,open=none -- s3://b/p /mnt/d" {
		t.Errorf("%q, %v", args, err)
	}
	if _, err := mountHelperArgs([]string{"s3://b"}, ""); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("without a directory: %v", err)
	}
}

func TestALineOfFstabThatSaysRW(t *testing.T) {
	// mount(8) hands rw on whether a line says it or not. Only a line for that very directory that says it itself, and no ro after
	// it, makes the mount writable.
	for fstab, want := range map[string]bool{
		"": false,
		"s3://b /mnt/d\\040x hearth rw,_netdev 0 0\n":                                            true,
		"# a comment\n\ns3://b /mnt/d\\040x/ hearth _netdev,rw\n":                                true,
		"s3://b /mnt/d\\040x hearth defaults 0 0\n":                                              false,
		"s3://b /mnt/d\\040x hearth rw,ro 0 0\n":                                                 false,
		"s3://b /mnt/other hearth rw 0 0\ns3://b /mnt/d\\040x hearth defaults,uid=1 0 0\nbroken": false,
		"# s3://b /mnt/d\\040x rw rw\n#s3://b /mnt/d\\040x hearth rw 0 0\n":                      false,
	} {
		args, err := mountHelperArgs([]string{"s3://b", "/mnt/d x", "-o", "rw"}, fstab)
		if got := slices.Contains(args, "write=through"); err != nil || got != want {
			t.Errorf("%q: %q, %v", fstab, args, err)
		}
	}
}

func TestRanges(t *testing.T) {
	// Ranges are read as in HTTP, and nothing else is.
	for in, want := range map[string]span{"": {0, -1}, "0-15": {0, 15}, "7-": {7, -1}, "-9": {-1, 9}} {
		if got, err := parseRange(in); err != nil || got != want {
			t.Errorf("range %q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"-", "5", "9-3", "a-b", "--1"} {
		if _, err := parseRange(in); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("range %q: %v", in, err)
		}
	}
}

func TestOffsets(t *testing.T) {
	// The text after the last @ is an offset if it is a size, otherwise a part of the name.
	for arg, want := range map[string]string{"/a": "/a 0", "/a@5": "/a 5", "/a@4KiB": "/a 4096", "/a@b": "/a@b 0", "/a@1@0": "/a@1 0", "/a@": "/a@ 0", "s3://b/k@7": "s3://b/k 7"} {
		if path, offset := atOffset(arg); fmt.Sprint(path, " ", offset) != want {
			t.Errorf("%s: %s at %d, want %s", arg, path, offset, want)
		}
	}
}
