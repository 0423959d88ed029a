package node

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// outage is a bucket behind a proxy that can take it away, and the configuration of
// a node of it that keeps its cache.
func outage(t *testing.T, freshness string) (*hearthtest.Server, *faultproxy.Proxy, Config) {
	t.Helper()
	s := hearthtest.StartS3(t)
	if _, err := s.PutBytes(t.Context(), s.Bucket(t, "data"), "dir/known", []byte("known bytes")); err != nil {
		t.Fatal(err)
	}
	for _, v := range s.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	p, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	disk := Disk{Path: filepath.Join(t.TempDir(), "c"), Size: Size{Bytes: 64 << 20}}
	return s, p, Config{Links: []Link{{Path: "/", Freshness: freshness, Origin: Origin{URL: "s3://data", Endpoint: p.URL()}}},
		Cache: Cache{RAM: Size{Bytes: 32 << 20}, Disks: []Disk{disk}, FreeFloor: Size{Bytes: 1 << 20}}}
}

// with is what start needs to make a node of c.
func (c Config) with(o *Config) { o.Links, o.Cache = c.Links, c.Cache }

func TestANodeStartsDuringAnOutage(t *testing.T) {
	// The origin is away when the node starts again: what it knew goes on, status
	// says so, and once the origin is back, all is well without a restart.
	s, p, c := outage(t, "bounded(100ms)")
	n := start(t, "", c.with)
	cat := func(name string) (string, error) {
		var out strings.Builder
		err := client(t, n).Cat(t.Context(), name, 0, -1, &out)
		return out.String(), err
	}
	names := func() (all string) {
		_, _ = client(t, n).List(t.Context(), "/dir", false, func(e Entry) error { all += e.Path + " "; return nil })
		return all
	}
	if got, err := cat("/dir/known"); got != "known bytes" || names() != "known " {
		t.Fatalf("%q, %v", got, err)
	}
	if err := n.Close(); err != nil { // the disk has all that was read
		t.Fatal(err)
	}
	p.AddRule(faultproxy.Denied(""))
	n = start(t, "", c.with)
	if got, err := cat("/dir/known"); got != "known bytes" || names() != "known " {
		t.Errorf("during the outage: %q, %v, names %s", got, err, names())
	}
	if says := n.Status(t.Context()).Says; !strings.Contains(says, "last known names") {
		t.Errorf("status says %q", says)
	}
	if _, err := s.PutBytes(t.Context(), "data", "dir/new", []byte("new bytes")); err != nil {
		t.Fatal(err)
	}
	p.ClearRules()
	within := time.Now().Add(30 * time.Second)
	for names() != "known new " || n.Status(t.Context()).Says != "ok" {
		if time.Now().After(within) {
			t.Fatalf("after the outage: %s, status says %q", names(), n.Status(t.Context()).Says)
		}
	}
	if got, err := cat("/dir/new"); got != "new bytes" {
		t.Errorf("a new file: %q, %v", got, err)
	}
}

func TestANodeDoesNotStartBlindly(t *testing.T) {
	// An origin that was never seen, a strict link, stale_if_error: false and a
	// definite answer make the start fail as ever.
	gone := faultproxy.Rule{Status: 404, Code: "NoSuchBucket"}
	for name, v := range map[string]struct {
		seen      bool
		freshness string
		failStale bool
		rule      faultproxy.Rule
		want      string
	}{
		"never seen": {false, "immutable", false, faultproxy.Denied(""), "listing is denied"},
		"strict":     {true, "strict", false, faultproxy.Denied(""), "listing is denied"},
		"fail stale": {true, "immutable", true, faultproxy.Denied(""), "listing is denied"},
		"gone":       {true, "immutable", false, gone, "there is no bucket"},
	} {
		_, p, c := outage(t, v.freshness)
		c.Links[0].FailStale = v.failStale
		if v.seen {
			n := start(t, "", c.with)
			if err := client(t, n).Cat(t.Context(), "/dir/known", 0, -1, io.Discard); err != nil {
				t.Fatal(err)
			}
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
		}
		p.AddRule(v.rule)
		c.Admin = Admin{Socket: "-", Listen: "-"}
		n, err := New(t.Context(), c)
		if err == nil {
			n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
