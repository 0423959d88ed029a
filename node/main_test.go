package node

import (
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) {
	flag.Bool("update", false, "write generated pages anew")
	goleak.VerifyTestMain(m)
}

func TestAClosedNodeLeavesNothing(t *testing.T) {
	// A node that has listed and read a bucket through every tier is closed. None of its Views is alive,
	// and no goroutine serves a connection.
	server := hearthtest.StartFakeS3(t)
	bucket := server.Bucket(t, "bucket")
	want := strings.Repeat("x", 3<<20)
	if _, err := server.PutBytes(t.Context(), bucket, "key", []byte(want)); err != nil {
		t.Fatal(err)
	}
	server.Client.CloseIdleConnections()
	before := goleak.IgnoreCurrent()
	n := start(t, "", func(c *Config) {
		c.Links = []Link{{Path: "/", Origin: Origin{URL: "s3://" + bucket, Endpoint: server.Endpoint, Region: "us-east-1", PathStyle: "on", Anonymous: true}}}
		c.Cache.NoDisk, c.Cache.Disks, c.Cache.FreeFloor = false, []Disk{{Path: filepath.Join(t.TempDir(), "c"), Size: Size{Bytes: 64 << 20}}}, Size{Bytes: 1}
	})
	c := client(t, n)
	for range 2 {
		var got strings.Builder
		if err := c.Cat(t.Context(), "/key", 0, -1, &got); err != nil || got.String() != want {
			t.Fatalf("%d bytes, %v", got.Len(), err)
		}
	}
	c.Close()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if ended := func() bool { return goleak.Find(before) == nil }; !hearthtest.Eventually(t.Context(), time.Minute, ended) {
		t.Error(goleak.Find(before)) // goleak itself waits for less than a second
	}
	if views := n.pool.Stats().Views; views != 0 {
		t.Errorf("%d Views were not released", views)
	}
}

func TestANodeEndsThoughItsCacheIsGone(t *testing.T) {
	// The cache directory is removed, and the node ends before it has noticed. What could not be written is
	// a warning, not an error.
	server, dir := hearthtest.StartFakeS3(t), filepath.Join(t.TempDir(), "c")
	bucket := server.Bucket(t, "bucket")
	for _, key := range []string{"a", "b"} {
		if _, err := server.PutBytes(t.Context(), bucket, key, make([]byte, 100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	n := start(t, "", func(c *Config) {
		c.Links = []Link{{Path: "/", Origin: Origin{URL: "s3://" + bucket, Endpoint: server.Endpoint, Region: "us-east-1", PathStyle: "on", Anonymous: true}}}
		c.Cache.NoDisk, c.Cache.Disks, c.Cache.FreeFloor = false, []Disk{{Path: dir, Size: Size{Bytes: 64 << 20}}}, Size{Bytes: 1}
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	c := client(t, n)
	for _, name := range []string{"/a", "/b"} {
		if err := c.Cat(t.Context(), name, 0, -1, io.Discard); err != nil {
			t.Fatal(err)
		}
		// The first file must exist before the directory is removed. Otherwise there is nothing to flush at
		// the end, and nothing to warn of.
		if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return n.disk.Stats().Dirs[0].PutBytes > 0 }) {
			t.Fatal("the first object does not come to the disk")
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Close(); err != nil || !strings.Contains(log.String(), "queued for the cache") {
		t.Errorf("%v; the log:\n%s", err, &log)
	}
}
