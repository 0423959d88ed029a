//go:build !race

package device

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

func TestAPowerCutLeavesTheOldFileOrTheNewOne(t *testing.T) {
	// A small file is written durably, twice, and the power fails at any moment. The file is as one
	// of the writes left it, and a write that was answered is not lost.
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		for _, text := range []string{"first", "second, and longer"} {
			if err := WriteDurably(filepath.Join(dir, "file"), []byte(text)); err != nil {
				t.Fatal(err)
			}
			mark(text)
		}
	})
	tr.Every(t, 10_000, func(t *testing.T, c powercut.Cut) {
		text, err := os.ReadFile(filepath.Join(c.Dir, "file"))
		got := string(text)
		switch {
		case err != nil && len(c.Marks) == 0:
		case got == "first" && len(c.Marks) < 2:
		case got == "second, and longer" && len(c.Marks) > 0:
		default:
			t.Errorf("%v, behind %q: the file holds %q, %v", c, c.Marks, got, err)
		}
	})
}
