package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
)

// Out is where results go. Tests replace it.
func Out(cmd *cobra.Command) io.Writer {
	if f, ok := cmd.OutOrStdout().(*os.File); ok {
		return stdout{f}
	}
	return cmd.OutOrStdout()
}

// stdout is standard output. Its errors say that they are of standard output.
type stdout struct{ *os.File }

func (s stdout) Write(p []byte) (int, error) { return s.wrote(s.File.Write(p)) }

// WriteString is Write without a copy.
func (s stdout) WriteString(text string) (int, error) { return s.wrote(s.File.WriteString(text)) }

func (stdout) wrote(n int, err error) (int, error) {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	if err != nil {
		err = fmt.Errorf("standard output cannot be written: %w", err)
	}
	return n, err
}

// Printer prints lines of progress to w, none with --quiet.
func (c *Common) Printer(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) {
		if !c.Quiet {
			_, _ = fmt.Fprintf(w, format+"\n", args...) // an error of progress lines ends nothing
		}
	}
}

// CheckOutput refuses a format that no verb has.
func (c *Common) CheckOutput() error {
	if _, err := Choice(c.Output, "table", "json", "jsonl"); err != nil {
		return Usagef("-o: %v", err)
	}
	return nil
}

// PrintJSON writes one document, indented for people with -o json.
func (c *Common) PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if c.Output == "json" {
		e.SetIndent("", "  ")
	}
	return e.Encode(v)
}

// PrintList writes a list as one document, or with -o jsonl a line for each element.
func PrintList[T any](c *Common, w io.Writer, all []T) error {
	if c.Output == "json" {
		return c.PrintJSON(w, all)
	}
	for _, v := range all {
		if err := c.PrintJSON(w, v); err != nil {
			return err
		}
	}
	return nil
}

// Bytes is a number of bytes for people.
func Bytes(n int64) string {
	if n < 0 {
		return "-" + humanize.IBytes(uint64(-n))
	}
	return humanize.IBytes(uint64(n))
}

// Count is a number with its noun: 1 file, 2 files, 0 directories.
func Count[N int | int64](n N, word string) string { return fmt.Sprintf("%d %s", n, Plural(n, word)) }

// Plural is the noun for n things.
func Plural[N int | int64](n N, word string) string {
	switch {
	case n == 1:
		return word
	case strings.HasSuffix(word, "y") && !strings.HasSuffix(word, "ey"):
		return strings.TrimSuffix(word, "y") + "ies"
	}
	return word + "s"
}

// Stamp formats a time in UTC, for people and programs. The zero time is "-".
func Stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

// Counts prints a map in the order of its names.
func Counts(m map[string]int64) string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, m[name])
	}
	return strings.Join(names, ", ")
}
