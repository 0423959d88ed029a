package screen

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/status"
)

// DraftState is the state of a draft for people.
func DraftState(state string) string { return strings.ReplaceAll(state, "_", " ") }

// drafts is the line about files that were written.
func drafts(s *status.Drafts) (x section) {
	if s == nil {
		return x
	}
	var parts []string
	bytes := int64(0)
	add := func(state string, sum status.DraftSum) {
		if bytes += sum.Bytes; sum.Files > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", short(sum.Files), DraftState(state)))
		}
	}
	add(status.DraftFailed, s.States.Failed)
	add(status.DraftWaiting, s.States.Waiting)
	add(status.DraftAside, s.States.Aside)
	add(status.DraftPublishing, s.States.Publishing)
	add(status.DraftStaged, s.States.Staged)
	add(status.DraftOpen, s.States.Open)
	text := "none"
	if len(parts) > 0 {
		text = strings.Join(parts, ", ") + ", " + cli.Bytes(bytes)
	}
	text = fmt.Sprintf("drafts  %s; %s published since the start", text, short(s.Published))
	if s.Why != "" {
		text += fmt.Sprintf("; the oldest for %v: %s", time.Duration(s.OldestS)*time.Second, cli.QuoteText(s.Why))
	}
	x.head = []string{text}
	return x
}

// PrintDrafts writes the table of drafts.
func PrintDrafts(w io.Writer, all []status.Draft) error {
	rows := []string{"DRAFT\tSIZE\tSTATE\tSINCE\tWHY"}
	for _, d := range all {
		why := "-"
		if d.Why != "" {
			why = cli.QuoteText(d.Why)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s", cli.QuoteName(d.Name), cli.Bytes(d.Size), DraftState(d.State), cli.Stamp(d.Since), why))
	}
	x := table(rows...)
	_, err := fmt.Fprintln(w, strings.Join(append(x.head, x.rows...), "\n"))
	return err
}
