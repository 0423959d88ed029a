package state

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func FuzzOpenModes(f *testing.F) {
	j := OpenOpenModes(f.TempDir())
	if err := j.Put("https://s3.example s3://bucket data/", true); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(j.file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-3])                               // truncated
	f.Add([]byte(`null`))                                     // foreign
	f.Add([]byte(`{"a":true,"b":3}`))                         // half of it ours
	f.Add([]byte(`{"format":2,"modes":{"a":"passthrough"}}`)) // newer
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		// Any bytes are parsed as results or as none. A result can be added and read again.
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "open-modes.json"), text, 0o600); err != nil {
			t.Fatal(err)
		}
		j := OpenOpenModes(dir)
		if err := j.Put("key", true); err != nil {
			t.Fatal(err)
		}
		if again := OpenOpenModes(dir); !maps.Equal(again.large, j.large) || !again.large["key"] {
			t.Fatalf("%q: %v, then %v", text, j.large, again.large)
		}
	})
}

func TestDamagedOpenModesAreJudgedAnew(t *testing.T) {
	// Nothing in a damaged file is believed.
	for _, text := range []string{`null`, `{"a":true,"b":3}`, `{"a":true`, `[]`, ``} {
		if got := parseOpenModes([]byte(text)); got == nil || len(got) != 0 {
			t.Errorf("%q: %v", text, got)
		}
	}
}
