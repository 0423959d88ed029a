package hearth

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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
	// origin is explained has its key there.
	page, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	said := texts(t)
	var keys [][]string
	_, tables, _ := strings.Cut(string(page), "\n## The origin")
	for line := range strings.Lines(tables) {
		columns := strings.Split(line, " | ")
		if len(columns) != 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, key := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[0], -1) {
			var parts []string
			for _, part := range strings.Split(key[1], "...") {
				if part = strings.Trim(part, " ,:;?"); len(part) > 3 {
					parts = append(parts, part)
				}
			}
			if len(parts) == 0 {
				t.Errorf("%q says nothing", key[1])
			}
			keys = append(keys, parts)
			found := false
			for _, text := range said {
				found = found || says(text, parts)
			}
			if !found {
				t.Errorf("nothing says %q any more", key[1])
			}
		}
	}
	if len(keys) < 50 {
		t.Errorf("the page has %d keys", len(keys))
	}
	for file, text := range said {
		if !strings.Contains(file, "testdata/explain/") {
			continue
		}
		known := false
		for _, key := range keys {
			known = known || says(text, key)
		}
		if !known {
			t.Errorf("docs/troubleshooting.md has no key for %s: %s", file, text)
		}
	}
}
