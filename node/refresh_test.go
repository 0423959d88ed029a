package node

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
)

func TestRefreshAsksAgain(t *testing.T) {
	// Names are believed for long, so what changed, came and went in the bucket is not seen. A refresh of a
	// name, or of a directory with what is known below it, shows the change. It does not list what nobody
	// asked for. If the origin cannot be asked, it says so.
	for _, freshness := range []string{"bounded(1h)", "immutable"} {
		s := hearthtest.StartS3(t)
		b := s.Bucket(t, "data")
		fill(t, s, b, map[string]string{"a": "1", "d/x": "1", "d/e/y": "1", "d/unknown/z": "1", "gone": "1"})
		proxy, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(proxy.Close)
		t.Setenv("AWS_ENDPOINT_URL", proxy.URL())
		c := client(t, start(t, "s3://data", func(c *Config) { c.Links[0].Freshness = freshness }))
		size := func(path string) int64 {
			t.Helper()
			x, err := c.Stat(t.Context(), path)
			if admin.KindOf(err) == admin.KindNotFound {
				return -1
			} else if err != nil {
				t.Fatal(err)
			}
			return x.Size
		}
		for _, path := range []string{"/", "/d", "/d/e"} {
			if _, err := c.List(t.Context(), path, false, func(admin.Entry) error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		for path, want := range map[string]int64{"/a": 1, "/d/e/y": 1, "/gone": 1, "/new": -1, "/d/e/new": -1} {
			if got := size(path); got != want {
				t.Fatalf("%s %s: size %d, want %d", freshness, path, got, want)
			}
		}
		fill(t, s, b, map[string]string{"a": "22", "d/x": "22", "d/e/y": "22", "new": "22", "d/e/new": "22", "other/new": "22"})
		if err := s.Delete(t.Context(), b, "gone"); err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_ENDPOINT_URL", proxy.URL())
		for path, want := range map[string]int64{"/a": 1, "/d/e/y": 1, "/gone": 1} {
			if got := size(path); got != want {
				t.Errorf("%s %s before: size %d, want %d", freshness, path, got, want)
			}
		}
		if r, err := c.Refresh(t.Context(), "/a"); err != nil || r.Dir || r.Names != 1 || size("/a") != 2 || size("/d/x") != 1 {
			t.Errorf("%s: a file: %+v, %v, %d", freshness, r, err, size("/a"))
		}
		if r, err := c.Refresh(t.Context(), "s3://data/new"); err != nil || r.Names != 1 || size("/new") != 2 {
			t.Errorf("%s: what was not there: %+v, %v", freshness, r, err)
		}
		if _, err := c.Refresh(t.Context(), "/other/new"); err != nil || size("/other/new") != 2 {
			t.Errorf("%s: what was not there, in a directory that was not: %v", freshness, err)
		}
		if _, err := c.Refresh(t.Context(), "/gone"); admin.KindOf(err) != admin.KindNotFound || size("/gone") != -1 {
			t.Errorf("%s: what is gone: %v", freshness, err)
		}
		lists := proxy.Stats().List.Requests
		r, err := c.Refresh(t.Context(), "/d")
		if err != nil || !r.Dir || r.Listed != 2 || r.Names != 5 || size("/d/x") != 2 || size("/d/e/y") != 2 || size("/d/e/new") != 2 {
			t.Errorf("%s: a directory: %+v, %v", freshness, r, err)
		}
		if n := proxy.Stats().List.Requests - lists; n < 2 || n > 4 { // and perhaps one key of d, which was asked for as a name
			t.Errorf("%s: %d listings for two directories", freshness, n)
		}
		if _, err := c.Refresh(t.Context(), "/d/nothing/at/all"); admin.KindOf(err) != admin.KindNotFound {
			t.Errorf("%s: nothing: %v", freshness, err)
		}
		proxy.AddRule(faultproxy.Rule{Status: 403})
		for _, path := range []string{"/a", "/d"} {
			if _, err := c.Refresh(t.Context(), path); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "denied") {
				t.Errorf("%s: %s of an origin that denies all: %v", freshness, path, err)
			}
		}
	}
}
