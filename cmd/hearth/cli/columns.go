package cli

import (
	"io"
	"strings"

	"github.com/rivo/uniseg"
)

// This file sets text in the columns of a terminal. A character of Chinese, Japanese or Korean and
// most emoji take two columns. A character that combines with another takes none.
//
// Text is cut between characters as people see them (grapheme clusters), never within one. A table
// aligns cells that are separated by tabs. It does so as text/tabwriter does, but that counts
// runes. A column lasts for as many lines in a row as have it. It is as wide as its widest cell and
// two spaces. The last cell of a line belongs to no column.

// Columns is how many columns a text takes.
func Columns(text string) int { return uniseg.StringWidth(text) }

// Cut shortens text to n columns: a longer text ends in "...".
func Cut(text string, n int) string {
	if Columns(text) <= n {
		return text
	}
	at, room := 0, n-Columns(ellipsis)
	for g := uniseg.NewGraphemes(text); g.Next(); {
		if room -= g.Width(); room < 0 {
			break
		}
		_, at = g.Positions()
	}
	return text[:at] + ellipsis
}

// CutLeft shortens text to n columns at its left, since paths differ at their end.
func CutLeft(text string, n int) string {
	over := Columns(text) - n
	if over <= 0 {
		return text
	}
	over += Columns(ellipsis)
	for g := uniseg.NewGraphemes(text); over > 0 && g.Next(); {
		over -= g.Width()
		_, at := g.Positions()
		if over <= 0 {
			return ellipsis + text[at:]
		}
	}
	return ellipsis
}

// ellipsis stands for the text that was cut.
const ellipsis = "..."

// gap is the number of spaces between columns.
const gap = 2

// Table collects lines of cells, and writes them once it knows all of them.
type Table struct {
	out  io.Writer
	text strings.Builder
}

// NewTable returns a Table that is written to out.
func NewTable(out io.Writer) *Table { return &Table{out: out} }

// Write takes lines, whose cells are separated by tabs.
func (t *Table) Write(p []byte) (int, error) { return t.text.Write(p) }

// Flush writes the lines.
func (t *Table) Flush() error {
	var aligned strings.Builder
	for _, line := range Align(strings.Split(strings.TrimSuffix(t.text.String(), "\n"), "\n")) {
		aligned.WriteString(line + "\n")
	}
	if t.text.Len() == 0 {
		return nil
	}
	t.text.Reset()
	_, err := io.WriteString(t.out, aligned.String())
	return err // the writer names itself
}

// Align aligns the cells of lines in columns.
func Align(lines []string) []string {
	cells := make([][]string, len(lines))
	aligned := make([]strings.Builder, len(lines))
	most := 0
	for i, line := range lines {
		cells[i] = strings.Split(line, "\t")
		most = max(most, len(cells[i]))
	}
	for c := range most {
		for i := 0; i < len(lines); i++ {
			widest, end := 0, i
			for ; end < len(lines) && c < len(cells[end])-1; end++ {
				widest = max(widest, Columns(cells[end][c]))
			}
			for ; i < end; i++ {
				cell := cells[i][c]
				aligned[i].WriteString(cell + strings.Repeat(" ", widest+gap-Columns(cell)))
			}
			if i < len(lines) && c == len(cells[i])-1 {
				aligned[i].WriteString(cells[i][c])
			}
		}
	}
	all := make([]string, len(lines))
	for i := range aligned {
		all[i] = aligned[i].String()
	}
	return all
}
