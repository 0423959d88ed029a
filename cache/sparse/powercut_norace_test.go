//go:build !race

package sparse

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest/powercut"
)

// syncfs does what cache/disk's Flush does.
func syncfs(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		t.Fatal(err)
	}
}

func TestAPowerCutLeavesHolesAndNoWrongByte(t *testing.T) {
	// Objects are put in parts, flushed, punched, unlinked and put again, and the power fails at
	// any moment. What was flushed and not evicted since is there, and each other block is right or
	// a miss. No file is lent before it was verified. What is used is counted, and all can be put
	// again.
	sizes := []int64{2*mib + 70_001, 17*mib + 5, mib}
	var objects []*hearth.Object
	var data [][]byte
	for i, size := range sizes {
		o, d := sample(uint64(i), size)
		objects, data = append(objects, o), append(data, d)
	}
	type block struct {
		object int
		index  int64
	}
	deeds := []struct {
		what   string // put, punch, unlink or flush
		blocks []block
	}{
		{"put", []block{{0, 1}, {1, 0}, {1, 16}}}, {"flush", nil}, {"put", []block{{0, 2}, {0, 0}, {1, 1}}}, {"flush", nil},
		{"punch", []block{{1, 0}, {1, 1}}}, {"put", []block{{1, 1}, {2, 0}}}, {"flush", nil},
		{"unlink", []block{{0, 0}, {0, 1}, {0, 2}}}, {"put", []block{{0, 2}}}, {"put", []block{{0, 0}, {1, 17}, {1, 0}}}, {"flush", nil}, {"put", []block{{0, 1}}},
	}
	tr := powercut.Record(t, func(t *testing.T, dir string, mark func(string)) {
		x := start(t, Options{Dir: dir})
		for i, d := range deeds {
			mark(fmt.Sprint("begin ", i))
			switch d.what {
			case "put":
				for _, b := range d.blocks {
					x.put(objects[b.object], data[b.object], b.index)
				}
			case "punch":
				x.EvictExtent(objects[1].Block(0).ID())
			case "unlink":
				x.EvictObject(objects[0].Version)
			case "flush":
				syncfs(t, dir)
			}
			mark(fmt.Sprint("end ", i))
		}
	})
	t.Logf("%d operations", len(tr.Ops))
	tr.Cuts(t, 2, 4, func(t *testing.T, c powercut.Cut) {
		now, must := map[block]bool{}, map[block]bool{}
		for i, d := range deeds {
			if !c.Passed(fmt.Sprint("begin ", i)) {
				break
			}
			for _, b := range d.blocks {
				if now[b] = d.what == "put"; !now[b] {
					delete(must, b)
				}
			}
			if d.what == "flush" && c.Passed(fmt.Sprint("end ", i)) {
				for b, is := range now {
					must[b] = is
				}
			}
		}
		x := start(t, Options{Dir: c.Dir})
		defer x.stop()
		x.checkUsed()
		for i, o := range objects {
			if x.local(o, data[i]) != nil {
				t.Errorf("%v: object %d is handed out, and nobody verified it", c, i)
			}
			for at := range o.Blocks() {
				if b := (block{i, at}); !x.has(o, data[i], at) && must[b] {
					t.Errorf("%v: block %d of object %d was flushed, and is lost", c, at, i)
				}
			}
		}
		x.checkUsed()
		x.putAll(objects[0], data[0])
		for at := range objects[0].Blocks() {
			if !x.has(objects[0], data[0], at) {
				t.Errorf("%v: block %d cannot be put again", c, at)
			}
		}
		x.checkUsed()
	})
}
