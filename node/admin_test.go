package node

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
	"github.com/hearthfs/hearth/warmup"
)

// start makes a node of a bucket without a disk tier, and closes it at the end of the test.
func start(t *testing.T, url string, change func(*Config)) *Node {
	t.Helper()
	c := Config{
		Links: []Link{{Path: "/", Origin: Origin{URL: url}}},
		Cache: Cache{RAM: Size{Bytes: 32 << 20}, NoDisk: true},
		Admin: Admin{Socket: filepath.Join(t.TempDir(), "run", "s"), Listen: "127.0.0.1:0"},
		Log:   slog.New(slog.DiscardHandler), Version: "test",
	}
	if change != nil {
		change(&c)
	}
	n, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func client(t *testing.T, n *Node) *admin.Client {
	t.Helper()
	c, err := admin.Dial("unix://" + n.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// bucket starts a real S3 server for the test, with objects in one bucket. It sets the environment so that
// nodes find the server.
func bucket(t *testing.T, objects map[string]string) (url string) {
	t.Helper()
	s := hearthtest.StartS3(t)
	fill(t, s, s.Bucket(t, "data"), objects)
	return "s3://data"
}

func fill(t *testing.T, s *hearthtest.Server, bucket string, objects map[string]string) {
	t.Helper()
	for _, v := range s.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	for key, text := range objects {
		if _, err := s.PutBytes(t.Context(), bucket, key, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPathsWithASecondLink(t *testing.T) {
	// A node is configured with two links. A path that names neither leads nowhere, and the message names
	// both links. A path that names one gets no such hint.
	url := bucket(t, map[string]string{"sub/b": "below"})
	one := Link{Path: "/x", Origin: Origin{URL: url}}
	two := Link{Path: "/y", Origin: Origin{URL: url}}
	if _, err := client(t, start(t, url, func(c *Config) { c.Links = []Link{one} })).Stat(t.Context(), "/sub/b"); err != nil {
		t.Errorf("with one link: %v", err)
	}
	c := client(t, start(t, url, func(c *Config) { c.Links = []Link{one, two} }))
	for path, want := range map[string]string{
		"/sub/b":     "/sub/b: no such file or directory; a path begins with one of this node's links: /x, /y",
		"/x/nothing": "/x/nothing: no such file or directory",
	} {
		if _, err := c.Stat(t.Context(), path); err == nil || err.Error() != want || admin.KindOf(err) != admin.KindNotFound {
			t.Errorf("with two links: %v, want %s", err, want)
		}
	}
	if s, err := c.Stat(t.Context(), "/y/sub/b"); err != nil || s.Size != 5 {
		t.Errorf("through the second link: %+v, %v", s, err)
	}
}

func TestPathsMeanTheSameAfterASecondMount(t *testing.T) {
	// A path within the first link means the same after a second origin was mounted, for each verb. It is
	// shown as it was typed. If it leads nowhere, all links are named.
	s := hearthtest.StartS3(t)
	fill(t, s, s.Bucket(t, "data"), map[string]string{"models/a": "hello"})
	fill(t, s, s.Bucket(t, "other"), map[string]string{"models/b": "12", "sets/c": "1"})
	dir, at := t.TempDir(), t.TempDir()
	n := start(t, "s3://data", func(c *Config) { c.Links = nil; withDisk(dir, 64<<20)(c) })
	c := client(t, n)
	for _, url := range []string{"s3://data", "s3://other"} { // as mounts of these make them
		l, _, err := n.linkTo(t.Context(), admin.MountRequest{Origin: &Origin{URL: url}})
		if err != nil {
			t.Fatal(err)
		}
		if x, err := c.Stat(t.Context(), "/models/a"); err != nil || x.Size != 5 {
			t.Errorf("with %s: %+v, %v", l.Path, x, err)
		}
	}
	if x, err := c.Stat(t.Context(), "/s3:other/models/b"); err != nil || x.Size != 2 {
		t.Errorf("of the second link: %+v, %v", x, err)
	}
	for path, want := range map[string]string{
		"/sets/c":       "/sets/c: no such file or directory in /s3:data; a path begins with one of this node's links: /s3:data, /s3:other",
		"sets":          "sets: no such file or directory in /s3:data; a path begins with one of this node's links: /s3:data, /s3:other",
		"/s3:other/no":  "/s3:other/no: no such file or directory",
		"/s3:data/sets": "/s3:data/sets: no such file or directory",
	} {
		_, err := c.Stat(t.Context(), path)
		_, err2 := c.Jobs().Submit(t.Context(), warmup.Request{Targets: []string{path}}, nil, false)
		if err == nil || err.Error() != want || err2 == nil || err2.Error() != want {
			t.Errorf("%v\n%v, want\n%s", err, err2, want)
		}
	}
	v := ended(t, c, warmup.Request{Targets: []string{"/models", "/s3:other/sets"}}, "")
	if v.State != warmup.Done || v.What() != "/models /s3:other/sets" || v.Targets[0] != "/s3:data/models" || v.Typed("/s3:data/models/a") != "/models/a" || v.Typed("/s3:data/modelsx") != "/s3:data/modelsx" {
		t.Errorf("%+v", v)
	}
	pinned(t, c, "/models")
	all, err := c.Pins(t.Context())
	if err != nil || len(all) != 1 || all[0].Path != "/s3:data/models" || all[0].As != "/models" {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := n.links.forMount(n.links.within("/models")); err != nil {
		t.Errorf("a mount of it: %v", err)
	}
	if _, err := n.Mount(t.Context(), admin.MountRequest{Mount: Mount{Dir: at, Prefix: "/nope"}}); admin.KindOf(err) != admin.KindNotFound || !strings.Contains(err.Error(), "mount /nope: no such directory in the tree") {
		t.Errorf("a mount of nothing: %v", err)
	}
	if _, err := n.Mount(t.Context(), admin.MountRequest{Mount: Mount{Dir: at, Prefix: "/models/a"}}); admin.KindOf(err) != admin.KindUsage || !strings.Contains(err.Error(), "it is a file") {
		t.Errorf("a mount of a file: %v", err)
	}
	if ended, err := c.Unpin(t.Context(), []string{"/models"}); err != nil || len(ended) != 1 {
		t.Errorf("%q, %v", ended, err)
	}
}

func TestCommandsThroughTheSocket(t *testing.T) {
	// What ls, stat, cat and du ask over the socket is answered as the origin has it.
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	big := strings.Repeat("0123456789abcdef", 200_000)
	url := bucket(t, map[string]string{"a": "hello", "sub/b": big, "sub/deep/c": ""})
	n := start(t, url, nil)
	c := client(t, n)
	ctx := t.Context()
	for _, v := range []struct {
		path      string
		recursive bool
		want      string
	}{{"/", false, "a sub"}, {"/", true, "a sub sub/b sub/deep sub/deep/c"}, {"/sub", true, "b deep deep/c"}, {"/a", false, "a"},
		{url + "/sub", false, "b deep"}} {
		var names []string
		if _, err := c.List(ctx, v.path, v.recursive, func(e admin.Entry) error {
			names = append(names, e.Path)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != v.want {
			t.Errorf("ls %s: %q, want %q", v.path, got, v.want)
		}
	}
	for _, v := range []struct{ off, n int64 }{{0, -1}, {1 << 20, 5}, {1<<20 - 3, 7}, {3_199_990, 100}, {9_999_999, 3}} {
		var out strings.Builder
		if err := c.Cat(ctx, "/sub/b", v.off, v.n, &out); err != nil {
			t.Fatal(err)
		}
		from := min(v.off, int64(len(big)))
		to := int64(len(big))
		if v.n >= 0 {
			to = min(to, from+v.n)
		}
		if out.String() != big[from:to] {
			t.Errorf("cat %+v gave %d bytes, want %d", v, out.Len(), to-from)
		}
	}
	if u, err := c.Usage(ctx, "/"); err != nil || u.Files != 3 || u.Dirs != 2 || u.Bytes != int64(5+len(big)) {
		t.Errorf("du: %+v, %v", u, err)
	}
	s, err := c.Stat(ctx, "/sub/b")
	if err != nil || s.Size != int64(len(big)) || s.Blocks != 4 || s.Version == "" {
		t.Errorf("stat: %+v, %v", s, err)
	}
	for path, kind := range map[string]admin.Kind{"/nothing": admin.KindNotFound, "s3://other/x": admin.KindNoLink} {
		if _, err := c.Stat(ctx, path); admin.KindOf(err) != kind {
			t.Errorf("stat %s: %v (%s), want %s", path, err, admin.KindOf(err), kind)
		}
	}
	if err := c.Cat(ctx, "/sub", 0, -1, io.Discard); admin.KindOf(err) != admin.KindUsage {
		t.Errorf("cat of a directory: %v", err)
	}
}

func TestStatusKeysAreStable(t *testing.T) {
	// Scripts read these keys. None may vanish or change its meaning.
	n := start(t, bucket(t, map[string]string{"a": "hello"}), func(c *Config) {
		c.Cache.NoDisk, c.Cache.Disks = false, []Disk{{Path: filepath.Join(t.TempDir(), "c"), Size: Size{Bytes: 64 << 20}}}
		c.Cache.FreeFloor = Size{Bytes: 1 << 20}
	})
	if err := client(t, n).Cat(t.Context(), "/a", 0, -1, io.Discard); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(n.Status(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Says     string
		Problems []string
		Origin   map[string]any
		Tiers    []map[string]any
		Mounts   []map[string]any
	}
	if err := json.Unmarshal(text, &s); err != nil || s.Says != "ok" || s.Problems == nil || s.Mounts == nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, key := range []string{"requests", "bytes", "errors"} {
		if s.Origin[key] == nil {
			t.Errorf("origin.%s is missing", key)
		}
	}
	if s.Origin["bytes"].(float64) < 5 { // listings count
		t.Errorf("origin.bytes is %v after reading 5 bytes", s.Origin["bytes"])
	}
	if len(s.Tiers) != 2 || s.Tiers[0]["name"] != "ram" || s.Tiers[1]["name"] != "disk" {
		t.Fatalf("tiers %v", s.Tiers)
	}
	for _, tier := range s.Tiers {
		for _, key := range []string{"name", "used", "budget", "hits", "hit_bytes"} {
			if tier[key] == nil {
				t.Errorf("tiers[%v].%s is missing", tier["name"], key)
			}
		}
	}
	var m map[string]any
	if text, err = json.Marshal(status.Mount{}); err != nil || json.Unmarshal(text, &m) != nil || m["dir"] == nil || m["open"] == nil || m["timeouts"] == nil {
		t.Errorf("mounts[] lacks dir, open or timeouts: %s", text)
	}
}

func TestMetricsDoorShowsNothingElse(t *testing.T) {
	// The plain TCP address serves /metrics and /healthz, and not the admin API.
	n := start(t, bucket(t, nil), nil)
	base := "http://" + n.doors.Metrics.Addr().String()
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/v1/status": 404, "/v1/cat?path=/a": 404, "/": 404} {
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %d, %v", path, resp.StatusCode, err)
		}
		if path == "/metrics" && !strings.Contains(string(text), `hearth_tier_budget_bytes{tier="ram"}`) {
			t.Errorf("no tiers in the metrics:\n%s", text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestLivenessAndReadiness(t *testing.T) {
	// A node whose origin cannot be read is not healthy, but alive: /healthz answers 503 with the reason,
	// and /metrics goes on.
	n := start(t, bucket(t, nil), nil)
	get := func(path string) (int, string) {
		resp, err := http.Get("http://" + n.doors.Metrics.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if code, text := get("/healthz"); code != 200 {
		t.Errorf("/healthz of a well node: %d %s", code, text)
	}
	cause := "\x1b]0;it is away\a\n"
	n.links.list()[0].health.Failed(watch.Failure{Says: cause, Block: (&hearth.Object{Key: "k"}).Block(0)}, time.Now())
	if code, text := get("/healthz"); code != 503 || !strings.HasSuffix(text, ":  ]0;it is away  \n") {
		t.Errorf("/healthz while the origin is away: %d %s", code, text)
	}
	if code, _ := get("/metrics"); code != 200 {
		t.Errorf("/metrics while the origin is away: %d", code)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestTheRootIsTheTableOfLinks(t *testing.T) {
	// On a node whose one link stands at /x, / is the tree's root, and other paths are taken within the
	// link. A URL is a key. Keys without a name are counted.
	server := hearthtest.StartFakeS3(t)
	fill(t, server, server.Bucket(t, "data"), map[string]string{"a": "hello", "sub/b": "12", "100%25": "", "%41": "1", "sub/bad\xff": "1"})
	n := start(t, "s3://data", func(c *Config) { c.Links[0].Path = "/deep/x" })
	c := client(t, n)
	for _, v := range []struct {
		path      string
		recursive bool
		want      string
		hidden    int64
	}{{"/", false, "deep", 0}, {"/deep", false, "x", 0}, {"/deep/x", false, "%2541 100%2525 a sub", 0}, {"/sub", false, "b", 1},
		{"/", true, "deep deep/x deep/x/%2541 deep/x/100%2525 deep/x/a deep/x/sub deep/x/sub/b", 1},
		{"s3://data", true, "%41 100%25 a sub sub/b", 1}, {"s3://data/%41", false, "%41", 0}, {"s3://data/sub/", false, "b", 1}} {
		var names []string
		hidden, err := c.List(t.Context(), v.path, v.recursive, func(e admin.Entry) error {
			names = append(names, e.Path)
			return nil
		})
		slices.Sort(names)
		if got := strings.Join(names, " "); err != nil || got != v.want || hidden != v.hidden {
			t.Errorf("ls %s: %q, %d hidden, %v; want %q, %d", v.path, got, hidden, err, v.want, v.hidden)
		}
	}
	u, err := c.Usage(t.Context(), "s3://data")
	if err != nil || u.Files != 4 || u.Dirs != 1 || u.Bytes != 8 || u.Hidden != 1 {
		t.Errorf("du: %+v, %v", u, err)
	}
	if refused := n.Status(t.Context()).Names.Figures["refused"]; refused != 1 {
		t.Errorf("status counts %d keys without a name", refused)
	}
}

func TestWhatCannotBeReadIsAnErrorAndNoContent(t *testing.T) {
	// The file has gone since its name was listed: cat says so, and gives no byte.
	s := hearthtest.StartS3(t)
	data := s.Bucket(t, "data")
	fill(t, s, data, map[string]string{"gone": "hello"})
	c := client(t, start(t, "s3://data", nil))
	if _, err := c.Stat(t.Context(), "/gone"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), data, "gone"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := c.Cat(t.Context(), "/gone", 0, -1, &out); err == nil || out.Len() > 0 {
		t.Errorf("%v, and %q", err, out.String())
	}
}
