package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"

	"pgregory.net/rapid"
)

func TestWideCharacters(t *testing.T) {
	// CJK and emoji take two columns, combining characters take none, and no character that people
	// see is cut in two.
	for _, c := range []struct {
		text           string
		of             int
		cut, cutLeft   string
		columns, after int
	}{
		{"plain.txt", 9, "plain...", "...n.txt", 8, 8},
		{"日本語データ", 12, "日本...", "...ータ", 8, 7},
		{"日本語データ", 12, "日本語...", "...データ", 9, 9},
		{"cafe\u0301.txt", 8, "cafe\u0301...", "....txt", 7, 7},
		{"n\u0303n\u0303n\u0303n\u0303n\u0303", 5, "n\u0303...", "...n\u0303", 4, 4},
		{"👍🏽👍🏽👍🏽", 6, "👍🏽...", "...👍🏽", 5, 5},
		{"한국어", 6, "한...", "...어", 5, 5},
		{"short", 5, "short", "short", 5, 5},
		{"long", 4, "...", "...", 3, 3},
	} {
		cut, left := Cut(c.text, c.columns), CutLeft(c.text, c.columns)
		if Columns(c.text) != c.of || cut != c.cut || left != c.cutLeft || Columns(cut) > c.columns || Columns(left) != c.after {
			t.Errorf("%q of %d columns in %d: %q, %q of %d", c.text, Columns(c.text), c.columns, cut, left, Columns(left))
		}
	}
}

func TestTablesStayAligned(t *testing.T) {
	// Cells below each other begin in the same column, whatever stands before them.
	lines := Align([]string{"NAME\tSIZE\tWHAT", "日本語データ\t1 B\tx", "e\u0301\t12 KiB\ty", "👍\t3 B\tz"})
	for i, want := range []string{"NAME          SIZE    WHAT", "日本語データ  1 B     x", "e\u0301             12 KiB  y", "👍            3 B     z"} {
		if lines[i] != want {
			t.Errorf("%q, want %q", lines[i], want)
		}
	}
}

func TestTablesAreTabwritersOtherwise(t *testing.T) {
	// For narrow characters a table is the same as text/tabwriter's, ragged lines and empty cells
	// included.
	cell := rapid.StringMatching(`[a-z ]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		var ours, theirs bytes.Buffer
		a, b := NewTable(&ours), tabwriter.NewWriter(&theirs, 0, 0, gap, ' ', 0)
		for _, cells := range rapid.SliceOfN(rapid.SliceOfN(cell, 1, 4), 1, 6).Draw(t, "lines") {
			_, _ = fmt.Fprintln(a, strings.Join(cells, "\t"))
			fmt.Fprintln(b, strings.Join(cells, "\t"))
		}
		if a.Flush() != nil || b.Flush() != nil || ours.String() != theirs.String() {
			t.Fatalf("%q\n%q", &ours, &theirs)
		}
	})
}
