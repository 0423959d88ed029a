package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/manual"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

// manualPages are, by file, the pages that the packages carry, and the same text for readers of the
// repository.
func manualPages() map[string]string {
	blank := &cobra.Command{}
	cli.AddOutput(blank, cli.AddCommon(blank))
	var keys []manual.Key
	for _, p := range settings.Params() {
		if !p.FlagOnly {
			keys = append(keys, manual.Key{Name: p.Key, Flag: p.Flag, Variable: p.Variable(), Kind: p.Kind, Default: p.Default, Help: p.Help})
		}
	}
	var codes []string
	for _, c := range []struct {
		code    int
		meaning string
	}{
		{cli.ExitDone, "done"}, {cli.ExitFailed, "failed"}, {cli.ExitUsage, "wrong usage or configuration"}, {cli.ExitPartly, "partly done"},
		{cli.ExitNotFound, "not found"}, {cli.ExitUnreachable, "no node answers"}, {cli.ExitUnhealthy, "a node that is not well (status), a machine or origin that will not do (doctor), a volume that is damaged (volume check)"},
		{cli.ExitTimeout, "timed out"}, {cli.ExitRefused, "refused"}, {cli.ExitInterrupted, "interrupted"},
	} {
		codes = append(codes, fmt.Sprint(c.code, " ", c.meaning))
	}
	return map[string]string{
		"deploy/man/hearth.1":      manual.Command(rootCommand(), blank.Flags(), codes),
		"deploy/man/hearth.yaml.5": manual.Configuration(keys),
		"docs/cli.md":              manual.Markdown(rootCommand(), blank.Flags(), codes),
	}
}

func TestManualPagesAreCurrent(t *testing.T) {
	// The manual pages are what the commands and the table say today, and man(1) sets
	// them without a warning.
	for name, page := range manualPages() {
		file := filepath.Join("..", "..", name)
		if updating() {
			if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != page {
			t.Errorf("%s is stale (%v): go test ./cmd/hearth -run Manual -update", file, err)
		}
		if _, err := exec.LookPath("groff"); err != nil || strings.HasSuffix(name, ".md") {
			continue // a machine without man, or no page of man's
		}
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", "-rCHECKSTYLE=10")
		cmd.Stdin = strings.NewReader(page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	pages := manualPages()
	for _, c := range commands() {
		if !strings.Contains(pages["deploy/man/hearth.1"], ".SS hearth "+c.Name()) || !strings.Contains(pages["docs/cli.md"], "\n## hearth "+c.Name()+"\n") {
			t.Errorf("hearth.1 or docs/cli.md says nothing of %s", c.Name())
		}
	}
}
