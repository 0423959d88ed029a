package hearth

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// texts are what Hearth says: its sources without tests, what is held by golden
// files, and the kernel's errors, by file.
func texts(t *testing.T) map[string]string {
	all := map[string]string{}
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		golden := strings.Contains(p, "testdata/explain/")
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && strings.HasPrefix(d.Name(), "."), d.IsDir() && d.Name() == "e2e", d.IsDir() && d.Name() == "internal":
			return fs.SkipDir
		case d.IsDir() || !golden && (!strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go")):
			return nil
		}
		text, err := os.ReadFile(p)
		all[p] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for no := syscall.Errno(1); no < 134; no++ {
		text := no.Error()
		all["errno "+text] = strings.ToUpper(text[:1]) + text[1:]
	}
	return all
}

// says reports whether a text has the parts of a key between its "...", in any order
// in a source, where a line is put together.
func says(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

func TestTroubleshootingIsCurrent(t *testing.T) {
	// Each text that the page is keyed by is still said, and each line with which an
	// origin is explained, a warm-up refused, broken off or warned of, a pin refused or found
	// lacking, a job for which there is no room, or of which status complains, has its key there.
	said, keys := texts(t), keysOf(t, "docs/troubleshooting.md", "\n## The origin", 3)
	for _, parts := range keys {
		found := false
		for _, text := range said {
			found = found || says(text, parts)
		}
		if !found {
			t.Errorf("nothing says %q any more", parts)
		}
	}
	if len(keys) < 50 {
		t.Errorf("the page has %d keys", len(keys))
	}
	for file, text := range said {
		lines := []string{text}
		switch {
		case strings.HasPrefix(file, "warmup/"):
			lines = warnings(text)
		case strings.HasPrefix(file, "node/pins/"), file == "node/status.go", file == "node/watch/slowed.go", file == "node/room/room.go", file == "node/jobs/waiting.go", file == "node/ring/view/view.go":
			lines = complaints(text)
		case !strings.Contains(file, "testdata/explain/"):
			continue
		}
		for _, line := range lines {
			if !slices.ContainsFunc(keys, func(key []string) bool { return says(line, key) || len(key) == 1 && strings.HasPrefix(key[0], line) }) {
				t.Errorf("docs/troubleshooting.md has no key for %s: %s", file, line)
			}
		}
	}
}

// warnings are what a package of jobs says to its user of what it did not do: refusals,
// causes, and lines for the log, each as its first literal.
func warnings(source string) (all []string) {
	for _, m := range regexp.MustCompile(`(?:\b(?:Refusal|Unknown|told|Sprintf)\(|sample\(.*, |failure\{kind\w+, |\bcause\w*\s+= |errors\.New\()"([^"]{10,})"`).FindAllStringSubmatch(source, -1) {
		all = append(all, strings.TrimSpace(m[1]))
	}
	return all
}

func TestProblemLinesAreCurrent(t *testing.T) {
	// Each line of status that is a problem or a warning has its row in docs/operations.md.
	source, err := os.ReadFile("node/status.go")
	ring, unread := os.ReadFile("node/ring/view/view.go")
	keys := keysOf(t, "docs/operations.md", "\n| problem line", 2)
	lines := append(complaints(string(source)), complaints(string(ring))...)
	if err := errors.Join(err, unread); err != nil || len(keys) < 8 || len(lines) < 6 {
		t.Fatalf("%d rows, %d lines, %v", len(keys), len(lines), err)
	}
	for _, line := range lines {
		if !slices.ContainsFunc(keys, func(key []string) bool { return says(line, key) }) {
			t.Errorf("docs/operations.md has no row for %s", line)
		}
	}
}

// complaints are what a package of the node says of what is wrong, or was refused: each
// as all its literals, in order.
func complaints(source string) (all []string) {
	_, lack, _ := strings.Cut(source, ") Lack() string") // what comes before it in node/room is no complaint
	if lack != "" {
		source = lack
	}
	for _, m := range regexp.MustCompile(`(?m)(?:append\(all, |return fmt\.Sprintf\(|\b(?:Refusal|Unknown|Log)\(|\blacks\w+\s+= )(.*)$`).FindAllStringSubmatch(source, -1) {
		line := ""
		for _, literal := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(m[1], -1) {
			line += literal[1] + " "
		}
		if line = strings.TrimSpace(line); len(line) >= 10 {
			all = append(all, line)
		}
	}
	return all
}

// keysOf are the texts that the tables of a page are keyed by which come after some
// words and have so many columns, each key as the parts between its "...".
func keysOf(t *testing.T, file, after string, columns int) (keys [][]string) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(page), after)
	for line := range strings.Lines(tables) {
		cells := strings.Split(line, " | ")
		if len(cells) != columns || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[0], -1) {
			var parts []string
			for _, part := range strings.Split(key[1], "...") {
				if part = strings.Trim(part, " ,:;?"); len(part) > 3 {
					parts = append(parts, part)
				}
			}
			if len(parts) == 0 {
				t.Errorf("%q says nothing", key[1])
				continue
			}
			keys = append(keys, parts)
		}
	}
	return keys
}

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
	// Each link of a page leads to a file of the repository, and to a heading where it names one; and each page of docs/ is found from docs/README.md, and that from README.md.
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
		case !strings.HasPrefix(p, "docs/"):
			continue
		}
		if !links[index+" "+p] {
			t.Errorf("%s does not link to %s", index, p)
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
