package node

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
)

// outage is a bucket behind a proxy that can take it away, with the configuration of a node that keeps its
// cache.
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

// with returns what start needs to make a node of c.
func (c Config) with(o *Config) { o.Links, o.Cache = c.Links, c.Cache }

func TestANodeStartsDuringAnOutage(t *testing.T) {
	// The origin is away when the node starts again. What the node knew goes on, and status says so. Once
	// the origin is back, all is well without a restart.
	s, p, c := outage(t, "bounded(100ms)")
	n := start(t, "", c.with)
	cat := func(name string) (string, error) {
		var out strings.Builder
		err := client(t, n).Cat(t.Context(), name, 0, -1, &out)
		return out.String(), err
	}
	names := func() (all string) {
		_, _ = client(t, n).List(t.Context(), "/dir", false, func(e admin.Entry) error { all += e.Path + " "; return nil })
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
	// An origin that was never seen, a strict link, stale_if_error: false and a definite answer all make
	// the start fail as before.
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
			_ = n.Close()
		}
		if err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFailureEndsThoughNobodyReads(t *testing.T) {
	// A read fails once, and all else is cached: status is well again by itself. One denied key is a
	// warning while others can be read. If none can, it is a problem.
	s, p, c := outage(t, "immutable")
	if _, err := s.PutBytes(t.Context(), "data", "dir/other", []byte("other bytes")); err != nil {
		t.Fatal(err)
	}
	n := start(t, "", c.with)
	n.links.list()[0].health.Pause = time.Millisecond
	read := func(path string, well bool) {
		t.Helper()
		if err := client(t, n).Cat(t.Context(), path, 0, -1, io.Discard); (err == nil) != well {
			t.Fatalf("%s: %v", path, err)
		}
	}
	says := func(problems, warnings string) {
		t.Helper()
		var is *status.Status
		if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool {
			is = n.Status(t.Context())
			return strings.HasPrefix(strings.Join(is.Problems, "\n"), problems) && strings.HasPrefix(strings.Join(is.Warnings, "\n"), warnings) &&
				len(is.Problems) == min(1, len(problems)) && len(is.Warnings) == min(1, len(warnings))
		}) {
			t.Errorf("problems %q, warnings %q; want %q and %q", is.Problems, is.Warnings, problems, warnings)
		}
	}
	const cause = "s3://data/dir/other: reading is denied; grant s3:GetObject on arn:aws:s3:::data/* to these credentials"
	const problem, warning = "an origin cannot be read, what is cached goes on (tried 0 min ago): ", "an object cannot be read, others of its bucket can (tried 0 min ago): " + cause
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "/dir/other", Status: 400, Code: "Odd", Times: 1})
	read("/dir/other", false)
	says("", "")
	if got := p.Stats().Get.Requests; got < 2 {
		t.Errorf("%d requests", got)
	}
	read("/dir/known", true)
	p.AddRule(faultproxy.Denied(faultproxy.Get))
	read("/dir/other", false)
	says(problem+cause, "")
	p.ClearRules()
	says("", "")
	p.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "/dir/other", Status: 403, Code: "AccessDenied"})
	read("/dir/other", false)
	says("", warning)
	gets := p.Stats().Get.Requests
	read("/dir/other", false)
	says("", warning)
	read("/dir/known", true) // cached, so it says nothing
	says("", warning)
	if got := p.Stats().Get.Requests; got == gets {
		t.Error("a denied key was not asked for")
	}
	p.ClearRules()
	read("/dir/other", true)
	says("", "")
}

func TestUnaskedNamesAreAskedThoughNobodyLooks(t *testing.T) {
	// A listing fails, and nobody lists again. Once the origin can be asked, status is well by itself.
	_, p, c := outage(t, "bounded(100ms)")
	n := start(t, "", c.with)
	n.links.list()[0].names.Pause = time.Millisecond
	list := func() error {
		_, err := client(t, n).List(t.Context(), "/dir", false, func(admin.Entry) error { return nil })
		return err
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}
	p.AddRule(faultproxy.Denied(""))
	stale := func() bool { return strings.Contains(n.Status(t.Context()).Says, "the last known names are shown") }
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return list() == nil && stale() }) {
		t.Fatalf("while the origin is away status says %q", n.Status(t.Context()).Says)
	}
	asked := p.Stats().List.Requests
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return p.Stats().List.Requests > asked+1 }) || !stale() {
		t.Errorf("the origin is away, and status says %q", n.Status(t.Context()).Says)
	}
	p.ClearRules()
	if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { return n.Status(t.Context()).Says == "ok" }) {
		t.Errorf("the origin is back, nobody looks, and status says %q", n.Status(t.Context()).Says)
	}
}

func TestObjectsThatCannotBeReadAreNoProblemOfTheirLink(t *testing.T) {
	// The first object of a bucket is archived, or is answered in a way that nobody asked for. The bucket
	// is shown, with a warning that names the object and its cure. A reader of the archived object gets an
	// error. Status then has a warning, and no problem, though nothing else was read. Others can be read.
	for name, rule := range map[string]faultproxy.Rule{
		"archived": {Verb: faultproxy.Get, Match: "/dir/first", Status: 403, Code: "InvalidObjectState"},
		"odd":      {Verb: faultproxy.Get, Match: "/dir/first", Whole: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, p, c := outage(t, "immutable")
			if _, err := s.PutBytes(t.Context(), "data", "dir/first", []byte("first bytes")); err != nil {
				t.Fatal(err)
			}
			p.AddRule(rule)
			n := start(t, "", c.with)
			l := n.links.list()[0]
			if warns := l.warning(); !strings.HasPrefix(warns, "not every object can be read: s3://data/dir/first: ") || !strings.Contains(warns, "; ") {
				t.Errorf("the mount's warning is %q", warns)
			}
			l.health.Pause = time.Millisecond
			cat := func(path string) (string, error) {
				var out strings.Builder
				err := client(t, n).Cat(t.Context(), path, 0, -1, &out)
				return out.String(), err
			}
			// An answer of the whole object is complete. Only a part of it, as the probe reads, cannot be
			// had.
			if _, err := cat("/dir/first"); (err == nil) != (name == "odd") || err != nil && !strings.Contains(err.Error(), "it is archived; restore it") {
				t.Error(err)
			}
			is := n.Status(t.Context())
			if len(is.Problems) > 0 || name == "archived" && (len(is.Warnings) != 1 || !strings.HasPrefix(is.Warnings[0], "an object cannot be read, others of its bucket can") || is.Links[0].LastError != nil) {
				t.Errorf("problems %q, warnings %q, %+v", is.Problems, is.Warnings, is.Links[0])
			}
			if got, err := cat("/dir/known"); got != "known bytes" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
