package node

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
)

func TestExplain(t *testing.T) {
	// A real node explains a small and a large object: before anything is read, while a block is fetched,
	// and when it is there. To explain asks and counts nothing.
	s := hearthtest.StartS3(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	fill(t, s, s.Bucket(t, "data"), map[string]string{"small": "hello", "sub/big": string(big)})
	proxy, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	dir := filepath.Join(t.TempDir(), "c")
	t.Setenv("AWS_ENDPOINT_URL", proxy.URL())
	n := start(t, "s3://data", func(c *Config) {
		c.Links[0].Freshness = "bounded(1h)"
		c.Cache.NoDisk, c.Cache.Disks, c.Cache.FreeFloor = false, []Disk{{Path: dir, Size: Size{Bytes: 64 << 20}}}, Size{Bytes: 1}
	})
	c := client(t, n)
	ctx := t.Context()
	e, err := c.Explain(ctx, "/small", 0)
	if err != nil || e.Name.Known || !strings.Contains(e.Name.Says, "asked for just now") {
		t.Fatalf("a name that nobody asked for: %+v, %v", e, err)
	}
	if e.Read.By != "origin" || e.Read.GetN != 5 || e.Read.Kept != dir || len(e.Held) != 1 || e.Held[0].Disk != "" || e.Held[0].RAM {
		t.Errorf("before it was read: %+v %+v", e.Held, e.Read)
	}
	if _, err := c.Stat(ctx, "/sub/big"); err != nil {
		t.Fatal(err)
	}
	proxy.AddRule(faultproxy.Rule{Verb: faultproxy.Get, Match: "big", Body: faultproxy.Stall})
	reading, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.Cat(reading, "/sub/big", 1<<20, 10, io.Discard) }()
	for e, err = c.Explain(ctx, "/sub/big", 1<<20); err == nil && e.Read.By == "origin"; e, err = c.Explain(ctx, "/sub/big", 1<<20) {
		select {
		case err := <-ended:
			t.Fatalf("the read ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err != nil || e.Read.By != "coalesced" || !e.Name.Known || e.Name.BelievedMS < 50*60*1000 {
		t.Errorf("while it is on its way: %+v %+v, %v", e.Name, e.Read, err)
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("a read that was stopped has its bytes")
	}
	proxy.ClearRules()
	for _, path := range []string{"/small", "/sub/big"} {
		if err := c.Cat(ctx, path, 0, 100, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.disk.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	before, asked := n.disk.Stats().Dirs[0], proxy.Stats().Requests()
	small, err := c.Explain(ctx, "/small", 3)
	large, err2 := c.Explain(ctx, "s3://data/sub/big", 3<<20)
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if small.Read.By != "disk" || small.Held[0].Kind != "segment" || small.Held[0].Disk != dir || small.Key != "small" || small.Link != "/" || small.Origin != "s3://data" || small.Version == "" {
		t.Errorf("a small object that was read: %+v %+v", small.Held, small.Read)
	}
	if h := large.Held; len(h) != 2 || h[0].Kind != "sparse" || h[0].To != 1<<20 || h[1].To != int64(len(big)) || large.Read.By != "origin" ||
		large.Read.GetN != int64(len(big))-3<<20 {
		t.Errorf("a large object, one block of which was read: %+v %+v", h, large.Read)
	}
	after := n.disk.Stats().Dirs[0]
	if got := proxy.Stats().Requests(); got != asked || after.Hits != before.Hits || after.PutBytes != before.PutBytes {
		t.Errorf("explaining asked %d times; %+v, then %+v", got-asked, before, after)
	}
	for path, kind := range map[string]admin.Kind{"/nothing": admin.KindNotFound, "s3://other/x": admin.KindNoLink} {
		if _, err := c.Explain(ctx, path, 0); admin.KindOf(err) != kind {
			t.Errorf("%s: %v", path, err)
		}
	}
	if e, err := c.Explain(ctx, "/sub", 0); err != nil || !e.Dir || e.Read != nil {
		t.Errorf("a directory: %+v, %v", e, err)
	}
	if _, err := c.Explain(ctx, "/small", -1); admin.KindOf(err) != admin.KindUsage {
		t.Errorf("a negative offset: %v", err)
	}
}

func TestExplainOfNamesThatAreOld(t *testing.T) {
	// A strict link's name is never believed. An expired name is explained without a question to the
	// origin. Without a disk a read is kept in memory, and then served from there.
	url := bucket(t, map[string]string{"a": "hello"})
	for freshness, says := range map[string]string{"strict": "never believed", "bounded(1ms)": "not believed any more", "immutable": "for ever"} {
		n := start(t, url, func(c *Config) { c.Links[0].Freshness = freshness })
		c := client(t, n)
		if err := c.Cat(t.Context(), "/a", 0, -1, io.Discard); err != nil {
			t.Fatal(err)
		}
		e, err := c.Explain(t.Context(), "/a", 0)
		for ; err == nil && e.Name.BelievedMS > 0 && freshness == "bounded(1ms)"; e, err = c.Explain(t.Context(), "/a", 0) {
		}
		if err != nil || !e.Name.Known || !strings.Contains(e.Name.Says, says) || e.Read.By != "ram" {
			t.Errorf("%s: %+v, %v", freshness, e, err)
		}
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { // what the read has begun beside it may still be sent
			requests := n.Status(t.Context()).Origin.Requests
			_, err := c.Explain(t.Context(), "/a", 0)
			return err == nil && n.Status(t.Context()).Origin.Requests == requests
		}) {
			t.Errorf("%s: explaining sends requests", freshness)
		}
	}
}
