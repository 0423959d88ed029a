//go:build !race

package warmup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

func TestAJobIsAsLastSavedAfterAPowerCut(t *testing.T) {
	// Two jobs are begun with a list each and saved as they go on, and the power fails at
	// any moment. Each is as it was saved last, or as it was about to be, with its whole
	// list. No record is damaged.
	states := []State{Queued, Listing, Loading, Done}
	paths := strings.Repeat("a/path/of/the/list\n", 500)
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		f := &Files{Dir: filepath.Join(dir, "jobs")}
		for _, id := range []string{"one", "two"} {
			if err := f.Spool(id, strings.NewReader(paths), false, func(s string) string { return s }); err != nil {
				t.Fatal(err)
			}
			for i, state := range states {
				mark(fmt.Sprint("begin ", id, i))
				if err := f.Save(Record{ID: id, State: state}); err != nil {
					t.Fatal(err)
				}
				mark(fmt.Sprint("end ", id, i))
			}
		}
	})
	tr.Cuts(t, 1, 20, func(t *testing.T, c powercut.Cut) {
		f := &Files{Dir: filepath.Join(c.Dir, "jobs"), Log: func(what string, err error) { t.Errorf("%v: %s: %v", c, what, err) }}
		all, err := f.Load()
		if err != nil {
			t.Fatalf("%v: %v", c, err)
		}
		for _, id := range []string{"one", "two"} {
			var found State
			for _, r := range all {
				if r.ID == id {
					found = r.State
				}
			}
			least, may := State(""), []State{}
			for i, state := range states {
				if c.Passed(fmt.Sprint("end ", id, i)) {
					least, may = state, nil
				} else if c.Passed(fmt.Sprint("begin ", id, i)) {
					may = append(may, state)
				}
			}
			if found != least && (len(may) == 0 || found != may[0]) {
				t.Errorf("%v: job %s is %q, and was saved as %q, then perhaps %q", c, id, found, least, may)
			}
			if text, err := os.ReadFile(f.list(id)); found != "" && string(text) != strings.ReplaceAll(paths, "\n", "\x00") {
				t.Errorf("%v: the list of job %s has %d bytes, %v", c, id, len(text), err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(f.Dir, "*.tmp")); len(left) > 0 {
			t.Errorf("%v: left are %v", c, left)
		}
	})
}
