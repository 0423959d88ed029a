//go:build !race

package warmup

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

func TestFindingsAreThereBeforeARecordSpeaksOfThem(t *testing.T) {
	// Findings are added and flushed, and a record has their size. The power fails at any
	// moment after that: the file has as many bytes, and each line is whole.
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		f, err := openFindings(filepath.Join(dir, "findings"), 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 6 {
			f.Add(fmt.Sprint("path ", i))
			size, err := f.Flush()
			if err != nil {
				t.Fatal(err)
			}
			mark(fmt.Sprint(size))
		}
	})
	tr.Cuts(t, 1, 10, func(t *testing.T, c powercut.Cut) {
		if len(c.Marks) == 0 {
			return
		}
		var size int64
		_, _ = fmt.Sscan(c.Marks[len(c.Marks)-1], &size)
		name := filepath.Join(c.Dir, "findings")
		again, err := openFindings(name, size)
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		defer hearthtest.Close(t, again)
		in, err := ReadFindings(name, size)
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		defer in.Close()
		text, _ := io.ReadAll(in)
		lines := bytes.Split(bytes.TrimSuffix(text, []byte{'\n'}), []byte{'\n'})
		if len(lines) != len(c.Marks) {
			t.Errorf("%v: %d findings, %d were flushed", c, len(lines), len(c.Marks))
		}
		for i, line := range lines {
			var path string
			if err := json.Unmarshal(line, &path); err != nil || path != fmt.Sprint("path ", i) {
				t.Errorf("%v: finding %d is %q, %v", c, i, line, err)
			}
		}
	})
}
