package state

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func FuzzNodeIDs(f *testing.F) {
	whole := formatReserved(3 << 20)
	f.Add(whole)
	f.Add([]byte("1048576"))                              // as the first version wrote it
	f.Add(whole[:len(whole)-3])                           // truncated
	f.Add(whole[:20])                                     // in the middle of the number
	f.Add([]byte("hearth node-ids 2 3145728 0badcafe\n")) // newer
	f.Add([]byte(`{"format":1}`))                         // foreign
	f.Add([]byte("9223372036854775807"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		// Any bytes are either damage or a number that leaves room for the next reservations. What is read is
		// written as something that reads the same.
		upTo, ok := parseReserved(text)
		if !ok {
			return
		}
		if upTo > math.MaxInt64/2 {
			t.Fatalf("%q: %d", text, upTo)
		}
		if again, ok := parseReserved(formatReserved(upTo)); !ok || again != upTo {
			t.Fatalf("%q: %d, then %d, %v", text, upTo, again, ok)
		}
	})
}

func TestADamagedNoteOfNodeIDsGivesNoIDTwice(t *testing.T) {
	// The note is cut off, changed, foreign or newer. The next id is then above all that can have been given
	// out.
	whole := formatReserved(3 << 20)
	dir := t.TempDir()
	for i := range whole {
		changed := append([]byte(nil), whole...)
		changed[i] ^= 1
		for _, text := range [][]byte{whole[:i], changed} {
			if err := os.WriteFile(filepath.Join(dir, NodeIDsFile), text, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := FirstNodeID([]string{dir}); got <= 3<<20 {
				t.Fatalf("%q: the next id is %d", text, got)
			}
		}
	}
	later := time.Now().Add(24 * time.Hour)
	if err := os.Chtimes(filepath.Join(dir, NodeIDsFile), later, later); err != nil {
		t.Fatal(err)
	}
	if got, want := FirstNodeID([]string{dir}), idsOf(later); got < want {
		t.Errorf("the clock was set back by a day since the note was written: the next id is %d, below %d", got, want)
	}
	if got := idsOf(time.Unix(0, 0)); got != 0 {
		t.Errorf("in 1970 ids begin at %d", got)
	}
	if got := idsOf(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)); got > math.MaxInt64/2 {
		t.Errorf("in 2100 ids begin at %d", got)
	}
}
