package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

// journalSocket is where journald takes datagrams. HEARTH_JOURNAL_SOCKET names another socket.
const journalSocket = "/run/systemd/journal/socket"

// nodeLog is a node's log. Its owner calls Close at the end.
type nodeLog struct {
	*slog.Logger
	// Close ends the log, and closes its file or socket.
	Close func()
	// Reopen opens the log's file again after it was moved away (log rotation). Without a file it
	// does nothing.
	Reopen func() error
	// Shown says that warnings of the log go to standard error.
	Shown bool
	// Lost says why nobody will read the log. It is printed after the node's first line.
	Lost string
}

// openLog opens the log: a named file, for a daemon journald, otherwise standard error.
func openLog(s *settings.Settings, daemon bool) (*nodeLog, error) {
	level := slog.LevelInfo
	if err := level.UnmarshalText([]byte(s.LogLevel)); s.LogLevel != "" && err != nil {
		return nil, cli.Usagef("log.level: %v", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if s.LogFile != "" {
		f, err := openFile(s.LogFile)
		if err != nil {
			return nil, cli.Usagef("%v", err)
		}
		return &nodeLog{Logger: slog.New(slog.NewTextHandler(f, options)), Close: f.close, Reopen: f.reopen}, nil
	}
	none := func() error { return nil }
	if !daemon {
		return &nodeLog{Logger: slog.New(slog.NewTextHandler(os.Stderr, options)), Close: func() {}, Reopen: none, Shown: level <= slog.LevelWarn}, nil
	}
	path := os.Getenv(settings.JournalVariable)
	if path == "" {
		path = journalSocket
	}
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		return &nodeLog{Logger: slog.New(slog.DiscardHandler), Close: func() {}, Reopen: none,
			Lost: "no journald here, the log is dropped; --log-file names a file for it"}, nil
	}
	return &nodeLog{Logger: slog.New(newJournal(conn, level)), Close: func() { conn.Close() }, Reopen: none}, nil
}

// journal is a slog.Handler that writes journald's native protocol: one datagram per record,
// KEY=value lines. So every attribute can be searched for as HEARTH_NAME.
type journal struct {
	conn   io.Writer
	level  slog.Level
	prefix string
	attrs  []slog.Attr
}

func newJournal(conn io.Writer, level slog.Level) *journal { return &journal{conn: conn, level: level} }

// Enabled reports whether a record of the level is written.
func (j *journal) Enabled(_ context.Context, l slog.Level) bool { return l >= j.level }

// WithAttrs returns a handler that adds the attributes to every record.
func (j *journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *j
	more.attrs = append(append([]slog.Attr{}, j.attrs...), attrs...)
	return &more
}

// WithGroup returns a handler that puts name before the attributes' names.
func (j *journal) WithGroup(name string) slog.Handler {
	more := *j
	more.prefix += name + "_"
	return &more
}

// Handle writes one record as one datagram.
func (j *journal) Handle(_ context.Context, r slog.Record) error {
	var fields bytes.Buffer
	message := r.Message
	add := func(a slog.Attr) bool {
		value := a.Value.Resolve().String()
		message += " " + j.prefix + a.Key + "=" + value
		field(&fields, "HEARTH_"+fieldName(j.prefix+a.Key), value)
		return true
	}
	for _, a := range j.attrs {
		add(a)
	}
	r.Attrs(add)
	field(&fields, "MESSAGE", message)
	field(&fields, "PRIORITY", priority(r.Level))
	field(&fields, "SYSLOG_IDENTIFIER", "hearth")
	_, err := j.conn.Write(fields.Bytes())
	return err
}

// field writes one field. A value of several lines comes after its length.
func field(b *bytes.Buffer, name, value string) {
	b.WriteString(name)
	if !strings.Contains(value, "\n") {
		b.WriteString("=" + value + "\n")
		return
	}
	b.WriteByte('\n')
	_ = binary.Write(b, binary.LittleEndian, uint64(len(value)))
	b.WriteString(value + "\n")
}

// fieldName keeps what journald allows: A-Z, 0-9 and _.
func fieldName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(s))
}

// priority is syslog's number of a level.
func priority(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "3"
	case l >= slog.LevelWarn:
		return "4"
	case l >= slog.LevelInfo:
		return "6"
	}
	return "7"
}
