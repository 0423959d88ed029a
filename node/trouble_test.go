package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestEachTroubleIsLoggedOnceInAWhile(t *testing.T) {
	// A store that fails a thousand times is one line of the log, and a second line a minute later.
	var out bytes.Buffer
	e := newTroubles(slog.New(slog.NewTextHandler(&out, nil)))
	for range 1000 {
		e.Trouble("disk a", "cannot write", "dir", "/a")
	}
	e.Trouble("disk b", "cannot write", "dir", "/b")
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
	if n, ok := e.allow("disk a", time.Now().Add(2*logEvery)); !ok || n != 999 {
		t.Errorf("a minute later: %v, %d left out", ok, n)
	}
}
