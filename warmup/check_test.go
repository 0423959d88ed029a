package warmup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestChangesOutliveAKill(t *testing.T) {
	// The first meaning of a name is kept, over a restart and behind a line that a kill
	// cut off. A name whose meaning nobody can tell is left out.
	name := filepath.Join(t.TempDir(), "x.changes")
	was := func(n byte) func() (Was, error) {
		return func() (Was, error) { return Was{Bytes: int64(n), Version: [16]byte{n}}, nil }
	}
	for round := range 3 {
		c, err := openChanges(name)
		if err != nil {
			t.Fatal(err)
		}
		c.Heard(7, "b", was(1+byte(round)))
		c.Heard(7, "a\n", was(9))
		c.Heard(8, "c", func() (Was, error) { return Was{}, errors.New("forgotten") })
		if err := c.Settle(); err != nil {
			t.Fatal(err)
		}
		if got, ok := c.Was(7, "b"); !ok || got.Bytes != 1 || got.Version != [16]byte{1} {
			t.Errorf("round %d: %+v, %v", round, got, ok)
		}
		if _, ok := c.Was(8, "c"); ok || !slices.Equal(c.In(7, ""), []string{"a\n", "b"}) || !slices.Equal(c.In(7, "a\n"), []string{"b"}) {
			t.Errorf("round %d: %q", round, c.In(7, ""))
		}
		c.Close()
		c.Heard(7, "late", was(1)) // of a listing that goes on
		text, err := os.ReadFile(name)
		if err == nil && round == 1 {
			err = os.WriteFile(name, text[:len(text)-3], 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestChangesAreBounded(t *testing.T) {
	// Changes beyond the bound are counted.
	c, err := openChanges(filepath.Join(t.TempDir(), "x.changes"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range mostChanges + 5 {
		c.Heard(uint64(i), "x", func() (Was, error) { return Was{}, nil })
	}
	c.Heard(1, "", func() (Was, error) { return Was{}, nil }) // "the directory changed"
	if c.Lost() != 6 {
		t.Errorf("%d lost", c.Lost())
	}
}

func TestFindingsGoOnWhereTheRecordStands(t *testing.T) {
	// What was added behind the last record is cut off by the next process. The file
	// takes no more findings than it may hold.
	name := filepath.Join(t.TempDir(), "x.found")
	f, err := openFindings(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Add("one")
	size, err := f.Flush()
	if err != nil {
		t.Fatal(err)
	}
	f.Add("not counted")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if f, err = openFindings(name, size); err != nil {
		t.Fatal(err)
	}
	f.most = size + 10
	if !f.Add("two") || f.Add(strings.Repeat("x", 20)) {
		t.Error("the bound does not hold")
	}
	size, err = f.Flush()
	if err != nil {
		t.Fatal(err)
	}
	f.Add("3")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	in, err := ReadFindings(name, size)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if text, err := io.ReadAll(in); err != nil || string(text) != "\"one\"\n\"two\"\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := removeFiles(name, name); err != nil {
		t.Error(err)
	}
	if _, err := ReadFindings(name, size); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
