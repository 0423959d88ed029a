package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/warmup"
)

func TestWhatFitsIsKnownBefore(t *testing.T) {
	// The test measures what a set takes on disk. One percent less room is refused, and one percent more is
	// enough. How many objects of up to 64 KiB share a page depends on how fast they come. So there are so
	// few of these that a page for each is less than half a percent.
	objects := map[string]string{}
	for i := range 300 {
		objects[fmt.Sprintf("d%d/f%04d", i%5, i)] = strings.Repeat(fmt.Sprint(i%10), 100_000)
	}
	for i := range 60 {
		objects[fmt.Sprintf("t%d/f%04d", i%5, i)] = strings.Repeat(fmt.Sprint(i%10), 16<<10)
	}
	for i := range 3 {
		objects[fmt.Sprintf("large%d", i)] = strings.Repeat(fmt.Sprint(i), 8<<20)
	}
	url := bucket(t, objects)
	n := start(t, url, withDisk(filepath.Join(t.TempDir(), "cache"), 200<<20))
	if v := ended(t, client(t, n), warmup.Request{Targets: []string{"/"}}, ""); v.State != warmup.Done {
		t.Fatalf("%+v", v)
	}
	used := n.disk.Stats().Dirs[0].Used
	for spare, state := range map[float64]warmup.State{0.99: warmup.Failed, 1.01: warmup.Done} {
		c := client(t, start(t, url, withDisk(filepath.Join(t.TempDir(), "cache"), int64(spare*float64(used)))))
		v := ended(t, c, warmup.Request{Targets: []string{"/"}}, "")
		if v.State != state {
			t.Errorf("%v of the %d that it took: %s, %s, estimated %d of %d", spare, used, v.State, v.Error, v.Plan.Needs, v.Plan.Room)
		}
	}
}

func TestWhatFitsBesideAPin(t *testing.T) {
	// This also holds beside what is pinned: one percent less than both take is refused, one percent more
	// is enough, and what was pinned first stays.
	objects := map[string]string{}
	for i := range 100 {
		objects[fmt.Sprintf("a/f%03d", i)] = strings.Repeat(fmt.Sprint(i%10), 100_000)
		objects[fmt.Sprintf("b/f%03d", i)] = strings.Repeat(fmt.Sprint(i%10), 100_000)
	}
	url := bucket(t, objects)
	n := start(t, url, withDisk(filepath.Join(t.TempDir(), "cache"), 100<<20))
	c := client(t, n)
	if v := pinned(t, c, "/a", "/b"); v.State != warmup.Done {
		t.Fatalf("%+v", v)
	}
	used := n.disk.Stats().Dirs[0].Used
	for spare, state := range map[float64]warmup.State{0.99: warmup.Failed, 1.01: warmup.Done} {
		c := client(t, start(t, url, withDisk(filepath.Join(t.TempDir(), "cache"), int64(spare*float64(used)))))
		if v := pinned(t, c, "/a"); v.State != warmup.Done {
			t.Fatalf("%+v", v)
		}
		v := pinned(t, c, "/b")
		if all, err := c.Pins(t.Context()); v.State != state || err != nil || all[0].Path != "/a" || all[0].Lacks != "" {
			t.Errorf("%v of the %d that both took: %s, %s, estimated %d of %d; %+v, %v", spare, used, v.State, v.Error, v.Plan.Needs, v.Plan.Room, all, err)
		}
		if again := ended(t, c, warmup.Request{Targets: []string{"/a"}}, ""); again.State != warmup.Done || again.Counters.Present.Files != 100 {
			t.Errorf("what was pinned first: %+v", again)
		}
	}
}

func TestADirectoryOutOfUseHasNoRoom(t *testing.T) {
	// A directory may hold its limit less names and jobs. An ejected one may hold nothing.
	for _, c := range []struct {
		d            disk.DirStats
		beside, want int64
	}{
		{disk.DirStats{Limit: 100, Budget: 200}, 30, 70},
		{disk.DirStats{Limit: 20, Budget: 200}, 30, 0},
		{disk.DirStats{Limit: 100, Budget: 200, Ejected: true}, 30, 0},
	} {
		if got := mayHold(&c.d, c.beside); got != c.want {
			t.Errorf("%+v with %d beside: %d, want %d", c.d, c.beside, got, c.want)
		}
	}
}

func TestOpensAreReaders(t *testing.T) {
	// Of a file that is lent to the kernel, the node sees the open but no read. So the open counts.
	if got := asked(map[string]int64{"read": 1, "lookup": 2, "open": 4, "getattr": 8, "release": 16}); got != 7 {
		t.Errorf("%d requests of readers, want 7", got)
	}
}
