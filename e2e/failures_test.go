package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testNames are the test functions of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	all, function := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != ".." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(p)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			all[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFailuresPageIsCurrent(t *testing.T) {
	// Each row of docs/failures.md names a test in its last cell, each paragraph of more than a line at least one; and what the page
	// names is a scenario, or a family's without its "-none", or a test function.
	text, err := os.ReadFile("../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	for _, sc := range scenarios() {
		tests[sc.name], tests[strings.TrimSuffix(sc.name, "-none")] = true, true
	}
	head, body, _ := strings.Cut(string(text), "\n## ")
	if !strings.Contains(head, "HEARTH_E2E=full") {
		t.Error("the head does not say how to run what only the level full has")
	}
	code, called := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`^(Test\w+|[a-z]+(-[a-z0-9]+)+)$`)
	rows, paragraphs := 0, 0
	for block := range strings.SplitSeq(body, "\n\n") {
		named := 0
		for line := range strings.Lines(block) {
			cells, row := strings.Split(strings.TrimSpace(line), "|"), strings.HasPrefix(line, "| ")
			last := ""
			if row = row && !strings.HasSuffix(strings.TrimSpace(line), "| test |"); row {
				rows++
				last = cells[len(cells)-2]
			}
			found := 0
			for _, m := range code.FindAllStringSubmatch(line, -1) {
				mine := row && strings.Contains(last, m[0])
				switch {
				case tests[m[1]]:
					named++
					if mine {
						found++
					}
				case mine || called.MatchString(m[1]):
					t.Errorf("there is no test %s: %s", m[1], line)
				}
			}
			if row && found == 0 {
				t.Errorf("no test is named: %s", line)
			}
		}
		if paragraph := strings.TrimSpace(block); named == 0 && strings.Contains(paragraph, "\n") && !strings.HasPrefix(paragraph, "|") {
			t.Errorf("no test is named in: %s", paragraph)
		}
		paragraphs++
	}
	if rows < 50 || paragraphs < 15 {
		t.Errorf("the page has %d rows, %d paragraphs", rows, paragraphs)
	}
}
