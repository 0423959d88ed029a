package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/manual"
)

// manualPages are those that the packages carry, by file.
func manualPages() map[string]string {
	blank := &cobra.Command{}
	addOutput(blank, addCommon(blank))
	var keys []manual.Key
	for _, p := range params() {
		if p.set != nil && !p.flagOnly {
			keys = append(keys, manual.Key{Name: p.key, Flag: p.flag, Variable: p.env(), Kind: p.kind, Default: p.def, Help: p.help})
		}
	}
	var codes []string
	for _, c := range []struct {
		code    int
		meaning string
	}{
		{exitDone, "done"}, {exitFailed, "failed"}, {exitUsage, "wrong usage or configuration"}, {exitPartly, "partly done"},
		{exitNotFound, "not found"}, {exitUnreachable, "no node answers"}, {exitUnhealthy, "a node that is not well (status)"},
		{exitTimeout, "timed out"}, {exitRefused, "refused"}, {exitInterrupted, "interrupted"},
	} {
		codes = append(codes, fmt.Sprint(c.code, " ", c.meaning))
	}
	return map[string]string{"hearth.1": manual.Command(rootCommand(), blank.Flags(), codes), "hearth.yaml.5": manual.Configuration(keys)}
}

func TestManualPagesAreCurrent(t *testing.T) {
	// The manual pages are what the commands and the table say today, and man(1) sets
	// them without a warning.
	for name, page := range manualPages() {
		file := filepath.Join("..", "..", "deploy", "man", name)
		if updating() {
			if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != page {
			t.Errorf("%s is stale (%v): go test ./cmd/hearth -run Manual -update", file, err)
		}
		if _, err := exec.LookPath("groff"); err != nil {
			continue // a machine without man
		}
		cmd := exec.Command("groff", "-man", "-Tutf8", "-ww", "-z", "-rCHECKSTYLE=10")
		cmd.Stdin = strings.NewReader(page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	whole := manualPages()["hearth.1"]
	for _, c := range commands() {
		if !strings.Contains(whole, ".SS hearth "+c.Name()) {
			t.Errorf("hearth.1 says nothing of %s", c.Name())
		}
	}
}
