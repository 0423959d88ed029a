package node

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// pinned begins a warm-up that pins, and returns its job as it ended.
func pinned(t *testing.T, c *admin.Client, paths ...string) warmup.View {
	t.Helper()
	return ended(t, c, warmup.Request{Targets: paths, PinS: 3600}, "")
}

// until waits until something is true of the pins.
func untilPins(t *testing.T, c *admin.Client, what string, fact func([]namespace.PinView) bool) {
	t.Helper()
	var last []namespace.PinView
	for range 3000 {
		all, err := c.Pins(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if fact(all) {
			return
		}
		last = all
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s: %+v", what, last)
}

func TestPinnedFilesStay(t *testing.T) {
	// Small and large files are pinned. Then sets that fill the rest of the cache are loaded one after the
	// other, five times the budget in all, before and after a restart. The pinned files are read without an
	// origin. Without the pin they would not all be there.
	const budget = 16 << 20
	server := hearthtest.StartS3(t)
	data := server.Bucket(t, "data")
	objects := map[string]string{"keep/large": strings.Repeat("0123456789abcdef", 3<<20/16)}
	for i := range 20 {
		objects[fmt.Sprintf("keep/d%d/f%02d", i%3, i)] = strings.Repeat(fmt.Sprint(i%10), 100_000)
	}
	for i := range 10 {
		for j := range 8 { // leaves room for what the names need on a busy machine
			objects[fmt.Sprintf("other%d/f%d", i, j)] = strings.Repeat(fmt.Sprint(j), 1<<20)
		}
	}
	fill(t, server, data, objects)
	dir := filepath.Join(t.TempDir(), "cache")
	n := start(t, "s3://data", withDisk(dir, budget))
	c := client(t, n)
	if v := pinned(t, c, "/keep"); v.State != warmup.Done || v.PinS != 3600 {
		t.Fatalf("%+v", v)
	}
	all, err := c.Pins(t.Context())
	if err != nil || len(all) != 1 || all[0].Path != "/keep" || all[0].Files != 21 || all[0].Bytes != 3<<20+20*100_000 ||
		all[0].Needs < all[0].Bytes || all[0].Lacks != "" || all[0].Job != "" || all[0].Expires == nil {
		t.Fatalf("%+v, %v", all, err)
	}
	push := func(c *admin.Client, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if v := ended(t, c, warmup.Request{Targets: []string{fmt.Sprintf("/other%d", i)}}, ""); v.State != warmup.Done {
				t.Errorf("set %d beside the pin: %+v", i, v)
			}
		}
	}
	push(c, 0, 5)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = start(t, "s3://data", withDisk(dir, budget))
	c = client(t, n)
	push(c, 5, 10)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	n = start(t, "s3://data", withDisk(dir, budget))
	c = client(t, n)
	for key, want := range objects {
		if !strings.HasPrefix(key, "keep/") {
			continue
		}
		var out strings.Builder
		if err := c.Cat(t.Context(), "/"+key, 0, -1, &out); err != nil || out.String() != want {
			t.Errorf("%s: %d bytes, %v", key, out.Len(), err)
		}
	}
}

func TestPinsThatAreRefused(t *testing.T) {
	// A set that does not fit beside what is pinned is refused with the numbers, and pins nothing. So is
	// what is no path. The error of a path that is not pinned names the nearest pin. What is pinned is not
	// evicted.
	objects := map[string]string{}
	for i := range 6 {
		objects[fmt.Sprintf("a/f%d", i)] = strings.Repeat("a", 1<<20)
		objects[fmt.Sprintf("b/f%d", i)] = strings.Repeat("b", 1<<20)
		objects[fmt.Sprintf("c/f%d", i)] = strings.Repeat("c", 1<<20)
	}
	url := bucket(t, objects)
	n := start(t, url, withDisk(filepath.Join(t.TempDir(), "cache"), 16<<20))
	c := client(t, n)
	if v := pinned(t, c, "s3://data/a"); v.State != warmup.Done || v.Targets[0] != "/a" {
		t.Fatalf("%+v", v)
	}
	if v := pinned(t, c, "/a/f0", "/b"); v.State != warmup.Done { // a file below a pin costs nothing more
		t.Fatalf("%+v", v)
	}
	v := pinned(t, c, "/c")
	if v.State != warmup.Failed || v.Kind != string(admin.KindRefused) || !strings.Contains(v.Error, "what is pinned") || v.Plan.Needs <= v.Plan.Room {
		t.Errorf("18 MiB pinned in 16: %+v", v)
	}
	if v := pinned(t, c, "/"); v.State != warmup.Failed { // the pins below it do not make it smaller
		t.Errorf("all of it in 16: %+v", v)
	}
	if v := pinned(t, c, "/a"); v.State != warmup.Done {
		t.Errorf("pinned again: %+v", v)
	}
	all, err := c.Pins(t.Context())
	if err != nil || len(all) != 3 || all[0].Path != "/a" || all[1].Path != "/a/f0" || all[2].Path != "/b" {
		t.Errorf("%+v, %v", all, err)
	}
	if s := n.Status(t.Context()); len(s.Pins) != 3 || len(s.Problems) != 0 {
		t.Errorf("%+v, %q", s.Pins, s.Problems)
	}
	for _, q := range []warmup.Request{{Targets: []string{"/a"}, PinS: 5, MetadataOnly: true}, {Targets: []string{"/a"}, PinS: -2}, {List: "x", PinS: 5}} {
		if _, err := c.Jobs().Submit(t.Context(), q, strings.NewReader("/a"), false); admin.KindOf(err) != admin.KindUsage {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := c.Unpin(t.Context(), []string{"/a/f1"}); admin.KindOf(err) != admin.KindNotFound || !strings.Contains(err.Error(), "/a/f1 is not pinned; the nearest: /a/f0, /a, /b") {
		t.Errorf("%v", err)
	}
	for _, path := range []string{"/", "/a", "/a/f1"} {
		if _, err := c.Evict(t.Context(), []string{path}, true); admin.KindOf(err) != admin.KindRefused || !strings.Contains(err.Error(), "/a is pinned") {
			t.Errorf("evict %s: %v", path, err)
		}
	}
	for asked, want := range map[string]string{"/a": "/a is not evicted: /a is pinned (hearth unpin /a ends that)", "s3://data/a": "s3://data/a is not evicted: s3://data/a is pinned"} {
		if _, err := c.Evict(t.Context(), []string{asked}, true); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("evict %s, as it was asked for: %v", asked, err)
		}
	}
	if ended, err := c.Unpin(t.Context(), []string{"/a", "s3://data/a/f0"}); err != nil || strings.Join(ended, " ") != "/a s3://data/a/f0" {
		t.Errorf("%v, %v", ended, err)
	}
	for _, dry := range []bool{true, false} {
		if got, err := c.Evict(t.Context(), []string{"/a"}, dry); err != nil || got != (warmup.Tally{Files: 6, Bytes: 6 << 20}) {
			t.Errorf("evict, dry %v: %+v, %v", dry, got, err)
		}
	}
	if got, err := c.Evict(t.Context(), []string{"s3://data/a"}, false); err != nil || got != (warmup.Tally{}) {
		t.Errorf("after that: %+v, %v", got, err)
	}
	if v := pinned(t, c, "/c"); v.State != warmup.Done {
		t.Errorf("once there is room: %+v", v)
	}
}

func TestPinsFollowTheirPath(t *testing.T) {
	// Files below a pin are overwritten, made and removed. Once the node has seen that, it loads the new
	// versions by itself. The old ones are no longer pinned, and a pinned file that is gone is reported.
	server := hearthtest.StartS3(t)
	data := server.Bucket(t, "data")
	fill(t, server, data, map[string]string{"keep/a": "old", "keep/b": "gone soon", "keep/sub/c": strings.Repeat("c", 3<<20), "alone": "x"})
	n := start(t, "s3://data", func(c *Config) {
		withDisk(filepath.Join(t.TempDir(), "cache"), 32<<20)(c)
		c.Links[0].Freshness = "strict"
	})
	c := client(t, n)
	if v := pinned(t, c, "/keep", "/alone"); v.State != warmup.Done {
		t.Fatalf("%+v", v)
	}
	stat := func(path string) *admin.Stat {
		t.Helper()
		s, err := c.Stat(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	has := func(s *admin.Stat) bool {
		v, err := hex.DecodeString(s.Version)
		if err != nil {
			t.Fatal(err)
		}
		return n.jobs.pins.Has([16]byte(v))
	}
	old := stat("/keep/a")
	if !has(old) {
		t.Fatal("what was pinned is not")
	}
	fill(t, server, data, map[string]string{"keep/a": "newer", "keep/sub/c": strings.Repeat("d", 2<<20), "keep/more/d": "d"})
	if err := server.Delete(t.Context(), data, "keep/b"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.List(t.Context(), "/keep", true, func(admin.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	untilPins(t, c, "the new versions", func(all []namespace.PinView) bool {
		return len(all) == 2 && all[1].Files == 3 && all[1].Bytes == 5+2<<20+1
	})
	for path, blocks := range map[string]int64{"/keep/a": 1, "/keep/sub/c": 2, "/keep/more/d": 1} {
		if s := stat(path); s.Held["disk"] != blocks || !has(s) {
			t.Errorf("%s: %+v", path, s)
		}
	}
	if has(old) {
		t.Error("the old version is still pinned")
	}
	if err := server.Delete(t.Context(), data, "alone"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stat(t.Context(), "/alone"); admin.KindOf(err) != admin.KindNotFound {
		t.Fatal(err)
	}
	untilPins(t, c, "word of the file that is gone", func(all []namespace.PinView) bool {
		return all[0].Path == "/alone" && all[0].Files == 0 && strings.Contains(all[0].Lacks, "gone from the origin")
	})
	if ended, err := c.Unpin(t.Context(), []string{"/alone"}); err != nil || len(ended) != 1 {
		t.Errorf("unpin what is gone: %v, %v", ended, err)
	}
}
