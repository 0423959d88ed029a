package daemon

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

func TestJournal(t *testing.T) {
	// A record is one datagram of fields that journald can search by.
	path := filepath.Join(t.TempDir(), "journal")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	t.Setenv("HEARTH_JOURNAL_SOCKET", path)
	log, err := OpenLog(&settings.Settings{LogLevel: "warn"}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	log.Info("not written")
	log.With("dir", "/c").Warn("cache directory is out of use", "cause", "two\nlines")
	if err := l.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := l.Read(buf)
	want := "HEARTH_DIR=/c\nHEARTH_CAUSE\n\x09\x00\x00\x00\x00\x00\x00\x00two\nlines\nMESSAGE\n"
	if err != nil || !strings.HasPrefix(string(buf[:n]), want) || !strings.Contains(string(buf[:n]), "PRIORITY=4\nSYSLOG_IDENTIFIER=hearth\n") {
		t.Errorf("%q, %v", buf[:n], err)
	}
}

func TestWhereTheLogGoes(t *testing.T) {
	// On standard error the log is shown, and a daemon without journald says that it is lost.
	log, err := OpenLog(&settings.Settings{LogLevel: "warn"}, false)
	if err != nil || !log.Shown {
		t.Errorf("the log on standard error: %+v, %v", log, err)
	}
	t.Setenv("HEARTH_JOURNAL_SOCKET", filepath.Join(t.TempDir(), "none"))
	if log, err = OpenLog(&settings.Settings{}, true); err != nil || log.Shown || !strings.Contains(log.Lost, "no journald here") {
		t.Errorf("a daemon's log without journald: %+v, %v", log, err)
	}
}
