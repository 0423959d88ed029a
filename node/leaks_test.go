package node

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

func TestFindsWhatIsLeft(t *testing.T) {
	// A View, a file and a goroutine that nobody ends are each named. A file elsewhere is not.
	dir := t.TempDir()
	elsewhere, err := os.Create(filepath.Join(t.TempDir(), "elsewhere"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = elsewhere.Close() }()
	none := func() int64 { return 0 }
	count := func(views func() int64, what string) (n int) {
		for _, l := range lookForLeaks(views, []string{dir}) {
			if strings.Contains(l, what) {
				n++
			}
		}
		return n
	}
	// There are those of the tests' runner, and perhaps some of earlier tests, which end just now: then it looks again.
	base, n := 0, 1
	for again := -1; base != again; again = len(otherGoroutines()) {
		base, n = len(otherGoroutines()), count(none, "")
	}
	if n != base {
		t.Errorf("nothing is left, and found are %d more", n-base)
	}
	if n := count(func() int64 { return 3 }, "3 Views"); n != 1 {
		t.Errorf("Views are named %d times", n)
	}
	f, err := os.Create(filepath.Join(dir, "left"))
	if err != nil {
		t.Fatal(err)
	}
	if n := count(none, f.Name()); n != 1 {
		t.Errorf("an open file is named %d times", n)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	stay, started, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go waitLong(stay, started, ended)
	<-started
	if n := count(none, "node.waitLong"); n != 1 {
		t.Errorf("a goroutine is named %d times", n)
	}
	w := httptest.NewRecorder()
	if serveGoroutines(w, nil); !strings.Contains(w.Body.String(), "node.waitLong") {
		t.Errorf("it is not among:\n%s", w.Body)
	}
	close(stay)
	<-ended
}

func waitLong(stay <-chan struct{}, started, ended chan<- struct{}) {
	close(started)
	<-stay
	close(ended)
}

func TestWaitsForWhatIsAboutToEnd(t *testing.T) {
	// Views that are released while findLeaks looks are no leak.
	synctest.Test(t, func(t *testing.T) {
		looked := 0
		left := findLeaks(func() int64 { looked++; return int64(max(0, 3-looked)) }, nil)
		for _, l := range left {
			if strings.Contains(l, "Views") {
				t.Errorf("left: %s", l)
			}
		}
		if looked < 3 {
			t.Errorf("looked %d times", looked)
		}
	})
}
