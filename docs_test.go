//go:build !race

package hearth

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pages are what people read, by file: the text with its code taken out, in which
// nothing links.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	fence, code := regexp.MustCompile("(?ms)^ *```.*?^ *```"), regexp.MustCompile("`[^`\n]*`")
	for _, dir := range []string{".", "docs"} {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case dir == "." && d.IsDir() && p != ".":
				return fs.SkipDir
			case d.IsDir() || !strings.HasSuffix(p, ".md"):
				return nil
			}
			text, err := os.ReadFile(p)
			all[p] = fence.ReplaceAllString(string(text), "")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for p, text := range all {
		all[p] = code.ReplaceAllStringFunc(text, func(s string) string {
			if strings.Contains(s, "](") {
				return ""
			}
			return s
		})
	}
	return all
}

// anchors are the places of a page that a link may name: its headings as they are
// shown, in small letters, with hyphens for blanks and without other signs.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^#+ +(.+)$").FindAllStringSubmatch(page, -1) {
		name := strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(m[1], "`", "")), " ", "-")
		all[regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(name, "")] = true
	}
	return all
}

func TestLinksOfPagesAreCurrent(t *testing.T) {
	// Each link of a page leads to a file of the repository, and to a heading where it names one. Each page of docs/ is
	// found from docs/README.md, a decision from their own index, and docs/README.md from README.md.
	all := pages(t)
	links := map[string]bool{}
	for from, text := range all {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, place, _ := strings.Cut(m[1], "#")
			to := from
			if file != "" {
				to = filepath.Join(filepath.Dir(from), file)
			}
			links[from+" "+to] = true
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s: %v", from, m[1], err)
			} else if place != "" && !anchors(all[to])[place] {
				t.Errorf("%s links to %s, and there is no such heading", from, m[1])
			}
		}
	}
	if len(links) < 50 {
		t.Errorf("the pages have %d links", len(links))
	}
	for p := range all {
		index := "docs/README.md"
		switch {
		case p == index:
			index = "README.md"
		case strings.HasPrefix(p, "docs/decisions/") && p != "docs/decisions/README.md":
			index = "docs/decisions/README.md"
		case !strings.HasPrefix(p, "docs/"):
			continue
		}
		if !links[index+" "+p] {
			t.Errorf("%s does not link to %s", index, p)
		}
	}
}

func TestPagesWrapAndAreCurrent(t *testing.T) {
	// Prose is read beside a terminal and compared line by line: no line of it has more than 160 columns. Tables and
	// code have theirs.
	for p, text := range pages(t) {
		if p == "CHANGELOG.md" || p == "FLAKES.md" {
			continue // lists that grow by a line at a time
		}
		for line := range strings.Lines(text) {
			if n := len([]rune(line)); n > 160 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s: a line of %d columns; wrap at 110: %.60s...", p, n, line)
			}
		}
	}
}

func TestScriptsOfRecipesAreCurrent(t *testing.T) {
	// A shell reads the scripts that people are told to install, their page has what they may be told, and shellcheck, where it is, finds nothing in them or in ours.
	scripts, err := filepath.Glob("deploy/slurm/*")
	more, _ := filepath.Glob("scripts/*")
	if err != nil || len(scripts) != 3 || len(more) == 0 {
		t.Fatalf("scripts %v and %v, %v", scripts, more, err)
	}
	page, err := os.ReadFile("docs/recipes/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scripts {
		text, err := os.ReadFile(s)
		for _, m := range regexp.MustCompile(`\$\{(HEARTH_SLURM_\w+):-([^}]*)\}`).FindAllStringSubmatch(string(text), -1) {
			if row := "\n| `" + m[1] + "` | `" + m[2] + "` | "; err != nil || !strings.Contains(string(page), row) {
				t.Errorf("%s takes %s, by default %q, and the page does not say so (%v)", s, m[1], m[2], err)
			}
		}
		if out, err := exec.Command("sh", "-n", s).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", s, err, out)
		}
		if info, err := os.Stat(s); err != nil || info.Mode()&0o111 != 0o111 {
			t.Errorf("%s cannot be run: %v", s, err)
		}
	}
	if _, err := exec.LookPath("shellcheck"); err != nil {
		return // a machine without it
	}
	if out, err := exec.Command("shellcheck", append(scripts, more...)...).CombinedOutput(); err != nil {
		t.Errorf("shellcheck: %v: %s", err, out)
	}
}

func TestPurgingThePackageKeepsWhatWasWritten(t *testing.T) {
	// Purging removes a cache directory and what enables the unit, but not a cache that still has drafts: it says where they are and what
	// to do. What it does not know stays.
	for name, c := range map[string]struct {
		files []string
		stays bool
	}{
		"a cache":                    {[]string{"hearth.json", "segments/1"}, false},
		"one that was written once":  {[]string{"hearth.json", "segments/1", "drafts/"}, false},
		"one with a draft":           {[]string{"hearth.json", "segments/1", "drafts/a.data", "drafts/a.json"}, true},
		"drafts without their label": {[]string{"drafts/a.data"}, true},
		"a directory of others":      {[]string{"file"}, true},
	} {
		root := t.TempDir()
		cache, enabled := filepath.Join(root, "var/cache/hearth"), filepath.Join(root, "etc/systemd/system/multi-user.target.wants/hearth.service")
		made := []string{enabled}
		for _, f := range c.files {
			made = append(made, cache+"/"+f)
		}
		for _, f := range made {
			if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f, "/") {
				continue
			}
			if err := os.WriteFile(f, []byte("text"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "deploy/deb/postrm", "purge")
		cmd.Env = append(os.Environ(), "DPKG_ROOT="+root)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if _, err := os.Lstat(enabled); err == nil {
			t.Errorf("%s: the unit is still enabled", name)
		}
		if _, err := os.Lstat(cache); (err == nil) != c.stays {
			t.Errorf("%s: afterwards the directory: %v", name, err)
		}
		for _, f := range made[1:] {
			if _, err := os.Lstat(f); c.stays && err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		drafts := strings.Contains(strings.Join(c.files, " "), "drafts/a")
		if said := strings.Contains(string(out), cache+"/drafts. Install hearth again"); said != drafts {
			t.Errorf("%s: it says %q", name, out)
		}
	}
}

func TestDesignIsCurrent(t *testing.T) {
	// DESIGN.md is read in half an hour: it has at most 15 KB and 25 terms. Each test that holds one of its ten
	// invariants is in the package that it names, and each file of its paths is where it says.
	text, err := os.ReadFile("DESIGN.md")
	if err != nil || len(text) > 15<<10 {
		t.Errorf("DESIGN.md has %d bytes, %v", len(text), err)
	}
	if terms := regexp.MustCompile(`(?m)^\| \*\*`).FindAll(text, -1); len(terms) == 0 || len(terms) > 25 {
		t.Errorf("the glossary has %d terms", len(terms))
	}
	rows := regexp.MustCompile(`(?m)^\| [0-9]+ \|.*$`).FindAllString(string(text), -1)
	if len(rows) != 10 {
		t.Errorf("%d invariants", len(rows))
	}
	held := regexp.MustCompile("((?:`Test\\w+`(?:, )?)+) \\(([a-z0-9/]+)\\)")
	for _, row := range rows {
		groups := held.FindAllStringSubmatch(row, -1)
		if len(groups) == 0 {
			t.Errorf("no test holds %s", row)
		}
		for _, g := range groups {
			folder := strings.Replace(g[2], "root", ".", 1)
			for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(g[1], -1) {
				if !declares(t, folder, name) {
					t.Errorf("%s has no %s", folder, name)
				}
			}
		}
	}
	files := regexp.MustCompile(`[a-z0-9_]+(?:/[a-z0-9_]+)+\.(?:go|md)`).FindAllString(string(text), -1)
	if len(files) < 30 {
		t.Errorf("it names %d files", len(files))
	}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}

// declares tells whether a test of a folder's package has the name.
func declares(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
