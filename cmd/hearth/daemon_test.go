package main

import (
	"net"
	"os"
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
	log, err := openLog(&settings.Settings{LogLevel: "warn"}, true)
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
	log, err := openLog(&settings.Settings{LogLevel: "warn"}, false)
	if err != nil || !log.Shown {
		t.Errorf("the log on standard error: %+v, %v", log, err)
	}
	t.Setenv("HEARTH_JOURNAL_SOCKET", filepath.Join(t.TempDir(), "none"))
	if log, err = openLog(&settings.Settings{}, true); err != nil || log.Shown || !strings.Contains(log.Lost, "no journald here") {
		t.Errorf("a daemon's log without journald: %+v, %v", log, err)
	}
}

func TestTheLogIsBegunAnew(t *testing.T) {
	// A log that was moved away is written on until it is reopened at its path, also from another
	// directory than it was named from. If that fails, the old file goes on.
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("logs", 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := openLog(&settings.Settings{LogFile: "logs/log"}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	has := func(name string, words ...string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || strings.Count(string(text), "\n") != len(words) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		for _, w := range words {
			if !strings.Contains(string(text), "msg="+w+"\n") {
				t.Errorf("%s lacks %s: %q", name, w, text)
			}
		}
	}
	t.Chdir("/")
	log.Info("first")
	if err := os.Rename(filepath.Join(dir, "logs"), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if err := log.Reopen(); err == nil {
		t.Error("it is begun anew in no directory")
	}
	log.Info("second")
	has("away/log", "first", "second")
	if err := os.Mkdir(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := log.Reopen(); err != nil {
		t.Error(err)
	}
	log.Info("third")
	has("away/log", "first", "second")
	has("logs/log", "third")
}
