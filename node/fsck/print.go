package fsck

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hearthfs/hearth/cache/check"
)

// Printer prints what a check tells: a line for each finding, and a last line with the sum.
type Printer struct {
	// Out takes the lines, and Terminal the progress. A nil Terminal means that nobody sees the progress.
	Out, Terminal io.Writer
	// Form is table, json (one document at the end) or jsonl.
	Form string
	// Size turns a number of bytes into text. Name makes a text fit to be shown.
	Size func(int64) string
	Name func(string) string

	sum      Summary
	findings []check.Finding
	shown    bool // a line of progress stands on the terminal
	err      error
}

// Tell prints one Event.
func (p *Printer) Tell(e Event) {
	switch {
	case e.Finding != nil && p.Form == "json":
		p.findings = append(p.findings, *e.Finding)
	case e.Finding != nil && p.Form == "jsonl":
		p.err = errors.Join(p.err, json.NewEncoder(p.Out).Encode(e))
	case e.Finding != nil:
		p.Clear()
		_, err := fmt.Fprintln(p.Out, p.Name(e.Finding.String()))
		p.err = errors.Join(p.err, err)
	case e.Progress != nil && p.Terminal != nil:
		now := p.sum
		now.Add(*e.Progress)
		p.shown = true
		_, _ = fmt.Fprintf(p.Terminal, "\r\x1b[K%s", p.says(now)) // a failed write of progress does not end the check
	case e.Done != nil:
		p.sum.Add(*e.Done)
	}
}

// Clear removes the progress from the terminal.
func (p *Printer) Clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.Terminal, "\r\x1b[K") // as above
		p.shown = false
	}
}

func (p *Printer) says(s Summary) string {
	text := fmt.Sprintf("%s, %s, %s checked, %d bad, %d repaired, %s/s",
		count(s.Files, "file"), count(s.Blocks, "block"), p.Size(s.Bytes), s.Bad, s.Repaired, p.Size(s.Rate()))
	if s.Refused > 0 {
		text += fmt.Sprintf(", %d refused", s.Refused)
	}
	if s.Unindexed > 0 {
		text += fmt.Sprintf(", %s not looked at (no memory to index: raise cache.ram)", count(s.Unindexed, "block"))
	}
	return text
}

// count returns a number with its noun in the singular or plural.
func count(n int64, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

// End prints the sum of all directories, and returns it.
func (p *Printer) End() (Summary, error) {
	p.Clear()
	var err error
	if p.Form == "table" {
		_, err = fmt.Fprintln(p.Out, p.says(p.sum))
	} else {
		e := json.NewEncoder(p.Out)
		if p.Form == "json" {
			e.SetIndent("", "  ")
		}
		var doc any = struct {
			Findings []check.Finding `json:"findings"`
			Summary  Summary         `json:"summary"`
		}{append([]check.Finding{}, p.findings...), p.sum}
		if p.Form == "jsonl" {
			doc = Event{Done: &p.sum}
		}
		err = e.Encode(doc)
	}
	return p.sum, errors.Join(p.err, err)
}
