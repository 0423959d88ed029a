package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOwnPlacesAreNotMountedOver(t *testing.T) {
	// A directory that is the node's own, lies in one or holds one is distinguished from one beside it,
	// whatever name it is given by.
	root := resolved(t.TempDir())
	at := func(name string) string { return filepath.Join(root, name) }
	for _, dir := range []string{"cache/segments", "cache2", "run", "etc", "mnt"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(at("cache"), at("link")); err != nil {
		t.Fatal(err)
	}
	own := NewOwn([]string{at("link")}, at("run/sock"), "", at("etc/hearth.yaml"))
	for dir, want := range map[string]string{
		at("cache"): at("cache"), at("cache/segments"): at("cache"), at("link"): at("cache"), at("link/segments"): at("cache"),
		at("run"): at("run/sock"), at("etc"): at("etc/hearth.yaml"), root: at("cache"), "/": at("cache"),
		at("cache2"): "", at("mnt"): "", at("run/below"): "",
	} {
		if got := own.Hidden(dir); got != want {
			t.Errorf("%s: hides %q, want %q", dir, got, want)
		}
	}
}
