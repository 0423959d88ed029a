package node

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/warmup"
)

// withDisk adds a cache directory to a node's configuration.
func withDisk(dir string, size int64) func(*Config) {
	return func(c *Config) {
		c.Cache.NoDisk, c.Cache.FreeFloor = false, Size{Bytes: 1}
		c.Cache.Disks = []Disk{{Path: dir, Size: Size{Bytes: size}}}
	}
}

// ended submits a job and returns it as it ended.
func ended(t *testing.T, c *admin.Client, q warmup.Request, list string) warmup.View {
	t.Helper()
	v, err := c.Jobs().Submit(t.Context(), q, strings.NewReader(list), false)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Jobs().Watch(t.Context(), v.ID, func(now warmup.View) bool { *v = now; return true })
	if err != nil || !v.State.Over() {
		t.Fatalf("%+v, %v", v, err)
	}
	return *v
}

func TestWarmUpByTheAPI(t *testing.T) {
	// A job loads small and large objects into the disk tier. It is in status and metrics, is listed, and
	// is kept over a restart. What it loaded is read without an origin.
	server := hearthtest.StartS3(t)
	data := server.Bucket(t, "data")
	objects := map[string]string{"large": strings.Repeat("0123456789abcdef", 20<<20/16)}
	sum := int64(len(objects["large"]))
	for i := range 100 {
		key := fmt.Sprintf("d%d/f%02d", i%3, i)
		objects[key] = strings.Repeat(key, i*50)
		sum += int64(len(objects[key]))
	}
	fill(t, server, data, objects)
	dir := filepath.Join(t.TempDir(), "cache")
	n := start(t, "s3://data", withDisk(dir, 64<<20))
	c := client(t, n)
	v := ended(t, c, warmup.Request{Targets: []string{"s3://data"}}, "")
	if v.State != warmup.Done || v.Counters.Sum() != (warmup.Tally{Files: 101, Bytes: sum}) || v.Counters.Done.Files != 100 || v.BytesDone != sum {
		t.Fatalf("%+v", v)
	}
	if got := n.Status(t.Context()).Origin.Bytes; got > sum+sum/50+200<<10 { // listings count
		t.Errorf("%d bytes from the origin for %d", got, sum)
	}
	if left := ended(t, c, warmup.Request{List: "-"}, "/d1\n/large\nnothing\n"); left.State != warmup.Partly || left.Counters.Failed.Files != 1 ||
		left.Counters.Present.Files != 34 || left.Samples[0].Path != "/nothing" {
		t.Errorf("a list: %+v", left)
	}
	resp, err := http.Get("http://" + n.doors.Metrics.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text := new(strings.Builder)
	if err := resp.Write(text); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	for _, want := range []string{`hearth_warmup_files_total{outcome="done"} 100`, "hearth_warmup_running_jobs 0"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	n = start(t, "s3://data", withDisk(dir, 64<<20))
	c = client(t, n)
	if all, err := c.Jobs().List(t.Context()); err != nil || len(all) != 2 || all[1].ID != v.ID || all[1].Counters != v.Counters {
		t.Errorf("after a restart: %+v, %v", all, err)
	}
	for key, want := range objects {
		var out strings.Builder
		if err := c.Cat(t.Context(), "/"+key, 0, -1, &out); err != nil || out.String() != want {
			t.Errorf("%s without an origin: %d bytes, %v", key, out.Len(), err)
		}
	}
}

func TestWarmUpThatIsRefused(t *testing.T) {
	// What does not exist, cannot be kept or does not fit is reported at once, each with its kind. A
	// warm-up of names alone needs no disk.
	url := bucket(t, map[string]string{"a": strings.Repeat("x", 12<<20), "b/c": strings.Repeat("y", 6<<20)})
	c := client(t, start(t, url, nil))
	for _, q := range []struct {
		asked string
		kind  admin.Kind
	}{{"/nothing", admin.KindNotFound}, {"s3://other/x", admin.KindNoLink}, {"/b", admin.KindRefused}} {
		if _, err := c.Jobs().Submit(t.Context(), warmup.Request{Targets: []string{q.asked}}, nil, false); admin.KindOf(err) != q.kind {
			t.Errorf("%s: %v", q.asked, err)
		}
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/"}, MetadataOnly: true}, ""); v.State != warmup.Done || v.Counters.Done.Files != 2 {
		t.Errorf("names alone: %+v", v)
	}
	dir := filepath.Join(t.TempDir(), "cache")
	n := start(t, url, withDisk(dir, 16<<20))
	c = client(t, n)
	v := ended(t, c, warmup.Request{Targets: []string{"/"}}, "")
	if v.State != warmup.Failed || v.Kind != string(admin.KindRefused) || !strings.Contains(v.Error, "--cache-disks") {
		t.Errorf("18 MiB into 16: %+v", v)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "jobs")); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/b"}}, ""); v.State != warmup.Done {
		t.Errorf("6 MiB into 16: %+v", v)
	}
	if _, err := c.Jobs().Get(t.Context(), "none"); admin.KindOf(err) != admin.KindNotFound {
		t.Errorf("a job that there is not: %v", err)
	}
}

func TestWarmUpIntoAFullCache(t *testing.T) {
	// The cache is full of what was read often. A set that fits, of small and large objects, takes its
	// place and stays.
	objects := map[string]string{}
	for i := range 60 {
		objects[fmt.Sprintf("old/f%02d", i)] = strings.Repeat(fmt.Sprint(i%10), 900<<10)
	}
	for i := range 80 {
		objects[fmt.Sprintf("new/f%02d", i)] = strings.Repeat(fmt.Sprint(i%10), 200<<10)
	}
	for i := range 2 {
		objects[fmt.Sprintf("new/large%d", i)] = strings.Repeat(fmt.Sprint(i), 6<<20)
	}
	c := client(t, start(t, bucket(t, objects), withDisk(filepath.Join(t.TempDir(), "cache"), 36<<20)))
	for range 3 {
		for key := range objects {
			if strings.HasPrefix(key, "old/") {
				if err := c.Cat(t.Context(), "/"+key, 0, -1, io.Discard); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if v := ended(t, c, warmup.Request{Targets: []string{"/new"}}, ""); v.State != warmup.Done || v.Counters.Done.Files != 82 {
		t.Errorf("%+v", v)
	}
}
