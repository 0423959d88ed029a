package hearthtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Unpack makes a tree of files, recorded on another machine, below root. It returns by name what
// the tree's head wants. Some names in it, such as those with a colon, cannot be names of files in
// a Go module.
func Unpack(t *testing.T, tree, root string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(tree)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^want (\S+) (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		want[m[1]] = m[2]
	}
	marks := regexp.MustCompile(`(?m)^-- (.+) --\n`).FindAllStringSubmatchIndex(string(text), -1)
	for i, m := range marks {
		end := len(text)
		if i+1 < len(marks) {
			end = marks[i+1][0]
		}
		p := filepath.Join(root, string(text[m[2]:m[3]]))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, text[m[1]:end], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if len(want) == 0 || len(marks) < 2 {
		t.Fatalf("%s: wants %v, %d files", tree, want, len(marks))
	}
	return want
}
