package members

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// spoken are the lines that wait for a logger.
func spoken(j *journal) string {
	var b strings.Builder
	for len(j.lines) > 0 {
		l := <-j.lines
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

func TestOfMemberlistsLinesFewAreSaid(t *testing.T) {
	// What a user can act on is logged once, in plain words. The rest is logged at debug
	// only.
	id := testMember(1).ID
	for _, c := range []struct{ line, says string }{
		{"[WARN] memberlist: Was able to connect to " + id.String() + " over TCP but UDP probes failed, network may be misconfigured", "let UDP through"},
		{"[WARN] memberlist: Refuting a suspect message (from: x)", "did not hear this one"},
		{"[WARN] memberlist: Refuting a dead message (from: x)", "did not hear this one"},
		{"[WARN] memberlist: handler queue full, dropping message (4) from=10.0.0.1:7", "overloaded"},
		{"[ERR] memberlist: failed to receive: no installed keys could decrypt the message from=10.0.0.1:34567", "refused a node at 10.0.0.1: it has another cluster key or another cluster.name"},
		{"[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=[fd00::1]:7946", "refused a node at fd00::1:"},
		{"[ERR] memberlist: failed to receive: encryption is configured but remote state is not encrypted from=10.0.0.1:3", "same key"},
		{"[ERR] memberlist: Push/Pull with x failed: EOF", ""},
		{"[INFO] memberlist: Marking x as failed, suspect timeout reached (0 peer confirmations)", ""},
		{"[INFO] memberlist: Suspect x has failed, no acks received", ""},
		{"[DEBUG] memberlist: Stream connection from=10.0.0.1:5", ""},
		{"[INFO] memberlist: Suspect", ""},
		{"", ""},
	} {
		cfg, _ := config(t, "a")
		m := &Members{cfg: cfg, table: newTable(cfg.ID, time.Hour), log: newJournal(cfg.Log)}
		for range 3 {
			if n, err := (heard{m}).Write([]byte(c.line + "\n")); n != len(c.line)+1 || err != nil {
				t.Errorf("%q: %d, %v", c.line, n, err)
			}
		}
		got := spoken(m.log)
		if c.says == "" && got != "" || c.says != "" && (!strings.Contains(got, c.says) || strings.Count(got, "\n") != 1) {
			t.Errorf("%q: said %q", c.line, got)
		}
		m.cfg.Log = slog.New(slog.NewTextHandler(&said{wrote: make(chan struct{})}, &slog.HandlerOptions{Level: slog.LevelDebug}))
		if _, err := (heard{m}).Write([]byte(c.line + "\n")); err != nil {
			t.Error(err)
		}
		if got := spoken(m.log); got != c.line+"\n" {
			t.Errorf("at debug %q: %q", c.line, got)
		}
	}
}

func TestASlowLoggerHoldsNobodyUp(t *testing.T) {
	// Nothing is taken from the journal. Its callers go on, and what is lost is counted.
	// What it remembers as logged is bounded.
	j := newJournal(slog.Default())
	for i := range 1000 {
		j.once(testMember(i).Name, levelWarn, "line")
	}
	if len(j.lines) != maxLines || j.dropped != 1000-maxLines || len(j.said) != maxSaid {
		t.Errorf("%d wait, %d were dropped, %d are remembered", len(j.lines), j.dropped, len(j.said))
	}
	j = newJournal(slog.Default())
	j.once("again", levelWarn, "x")
	j.once("again", levelWarn, "x")
	j.forget("again")
	j.once("again", levelWarn, "x")
	if got := spoken(j); got != "x\nx\n" {
		t.Errorf("said %q", got)
	}
}
