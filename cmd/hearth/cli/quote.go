package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// This file shows names and texts to people, and these may hold any bytes.

// QuoteFor returns a name as it is written to w, as GNU ls does. On a terminal a name that cannot
// be shown as it is is quoted. Elsewhere the name's own bytes are written.
func QuoteFor(w io.Writer, name string) string {
	if IsTerminal(w) {
		return QuoteName(name)
	}
	return name
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// TerminalSize is the number of columns and rows of a terminal. 0 means that w is no terminal, or
// does not say.
func TerminalSize(w io.Writer) (columns, rows int) {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0, 0
	}
	s, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(s.Col), int(s.Row)
}

// QuoteName quotes a name so that a shell reads it back byte for byte, and so that nothing in it
// controls a terminal. Harmless names stay as they are. A name with a line feed becomes:
//
//	'new'$'\n''line'
func QuoteName(name string) string {
	if name != "" && strings.IndexFunc(name, special) < 0 && utf8.ValidString(name) {
		return name
	}
	var b strings.Builder
	plain := true // inside '...', else inside $'...'
	b.WriteByte('\'')
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		hidden := !unicode.IsPrint(r) || r == utf8.RuneError && n == 1
		if hidden == plain {
			b.WriteString(map[bool]string{true: "'$'", false: "''"}[hidden])
			plain = !hidden
		}
		switch {
		case hidden:
			for _, c := range []byte(name[i : i+n]) {
				b.WriteString(escaped(c))
			}
		case r == '\'':
			b.WriteString(`'\''`)
		default:
			b.WriteString(name[i : i+n])
		}
		i += n
	}
	b.WriteByte('\'')
	return strings.TrimPrefix(b.String(), "''")
}

// special reports whether a rune means more to a shell or a terminal than a part of a word.
func special(r rune) bool {
	return !unicode.IsPrint(r) || strings.ContainsRune(" !\"#$&'()*;<=>?[\\]^`{|}~", r)
}

func escaped(c byte) string {
	switch c {
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	return fmt.Sprintf(`\%03o`, c)
}

// QuoteText is an error's text without control characters that a terminal would obey. Names in it
// may hold anything.
func QuoteText(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if unicode.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[i : i+n])
		} else {
			q := strconv.Quote(s[i : i+n])
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}
