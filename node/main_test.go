package node

import (
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAClosedNodeLeavesNothing(t *testing.T) {
	// A node that listed and read a bucket through every tier is closed: no View of it
	// lives, and no goroutine serves a connection.
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
	goleak.VerifyNone(t, before)
	if views := n.pool.Stats().Views; views != 0 {
		t.Errorf("%d Views were not released", views)
	}
}
