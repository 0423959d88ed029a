package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
)

func TestPage(t *testing.T) {
	// The objects directly below a prefix come a page at a time, each once, without what lies below
	// directories. A prefix that does not exist has none.
	dir := t.TempDir()
	var want []string
	for i := range 2*pageNames + 100 {
		key := fmt.Sprintf("a/b/%04d", i)
		if i%100 != 0 {
			want = append(want, key)
		} else {
			key += "/below"
		}
		name := filepath.Join(dir, key)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o, err := origin.Open(t.Context(), origin.Config{URL: "file://" + dir, Link: "l"})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := namespace.Open(namespace.Options{Links: []namespace.Link{{Path: "/", Name: "l", Origin: o}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tree.Close() }() // its names are in memory
	var got []string
	pages := 0
	for after := ""; pages == 0 || after != ""; pages++ {
		page, next, err := siblingNames{tree}.Page(t.Context(), "l", "a/b/", after)
		if err != nil || len(page) > pageNames {
			t.Fatalf("%d names, %v", len(page), err)
		}
		for _, o := range page {
			got = append(got, o.Key)
		}
		after = next
	}
	if pages != 3 || !slices.Equal(got, want) {
		t.Errorf("%d objects in %d pages, want %d", len(got), pages, len(want))
	}
	if page, next, err := (siblingNames{tree}).Page(t.Context(), "l", "none/", ""); err == nil || len(page) > 0 || next != "" {
		t.Errorf("of what is not there: %d, %q, %v", len(page), next, err)
	}
}
