package machine

import (
	"os"
	"strings"
	"testing"
)

func TestCacheDir(t *testing.T) {
	// Root's cache is the machine's. A user's cache is where the user's caches are. A user without such a place
	// is told how to name one.
	for _, c := range []struct {
		uid             int
		home, xdg, want string
	}{
		{0, "/root", "/elsewhere", "/var/cache/hearth"},
		{0, "", "", "/var/cache/hearth"},
		{1000, "/home/u", "", "/home/u/.cache/hearth"},
		{1000, "/home/u", "/caches", "/caches/hearth"},
		{1000, "", "/caches", "/caches/hearth"},
	} {
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		if got, err := cacheDir(c.uid); got != c.want || err != nil {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
	for _, xdg := range []string{"", "relative"} {
		t.Setenv("HOME", "")
		t.Setenv("XDG_CACHE_HOME", xdg)
		if got, err := cacheDir(1000); err == nil || !strings.Contains(err.Error(), "set XDG_CACHE_HOME or cache.disks") {
			t.Errorf("no HOME, XDG_CACHE_HOME %q: %q, %v", xdg, got, err)
		}
	}
	t.Setenv("XDG_CACHE_HOME", "/caches")
	got, err := CacheDir()
	if want := map[bool]string{true: "/var/cache/hearth", false: "/caches/hearth"}[os.Geteuid() == 0]; got != want || err != nil {
		t.Errorf("of this process: %q, %v, want %q", got, err, want)
	}
}
