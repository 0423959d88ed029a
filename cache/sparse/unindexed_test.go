package sparse

import (
	"errors"
	"os"
	"testing"

	"github.com/hearthfs/hearth"
)

// few leaves the Pool memory for so many objects; more releases the rest.
func few(t *testing.T, pool *hearth.Pool, objects int64) (more func()) {
	t.Helper()
	taken := int64(0)
	for n := pool.Stats().Budget; n > 0; n /= 2 {
		for pool.Claim(n) {
			taken += n
		}
	}
	pool.Unclaim(objects * objectBytes)
	taken -= objects * objectBytes
	return func() { pool.Unclaim(taken) }
}

// ten writes ten objects of about 5,000 bytes, and closes the files.
func ten(t *testing.T) (x *fixture, objects []*hearth.Object, all [][]byte) {
	x = start(t, Options{})
	for i := range uint64(10) {
		o, data := sample(i, 5000+int64(i))
		x.putAll(o, data)
		objects, all = append(objects, o), append(all, data)
	}
	x.stop()
	return x, objects, all
}

// known returns the objects that are indexed.
func (x *fixture) known(objects []*hearth.Object) (all []int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, o := range objects {
		if x.objects[o.Version] != nil {
			all = append(all, i)
		}
	}
	return all
}

func TestObjectsBeyondMemoryStay(t *testing.T) {
	// The RAM budget was made smaller: the Pool has memory for four of ten objects. The others
	// stay, count, and are there when there is memory again, with a restart or without.
	x, objects, all := ten(t)
	for _, recall := range []bool{false, true} {
		more := few(t, x.opt.Pool, 4)
		x.reopen()
		x.checkUsed()
		if s := x.Stats(); s.Objects != 4 || s.Unindexed != 6 || s.UnindexedBytes == 0 || s.Evicted != 0 || s.IndexBytes != 4*objectBytes {
			t.Fatalf("stats %+v", s)
		}
		if err := x.Recall(); err != nil || x.Stats().Unindexed != 6 {
			t.Fatalf("recalled without memory: %v", err)
		}
		o, data := sample(11, 5000)
		if err := x.Put(o, 0, data); !errors.Is(err, ErrMemory) {
			t.Fatalf("put without memory: %v", err)
		}
		more()
		if recall {
			if err := x.Recall(); err != nil {
				t.Fatal(err)
			}
		} else {
			x.reopen()
		}
		if s := x.Stats(); s.Objects != 10 || s.Unindexed != 0 || s.UnindexedBytes != 0 {
			t.Fatalf("stats %+v", s)
		}
		x.checkUsed()
		for i, o := range objects {
			if !x.has(o, all[i], 0) {
				t.Fatalf("object %d is missing", i)
			}
		}
		x.stop()
	}
}

func TestAnUnindexedObjectIsPutAgain(t *testing.T) {
	// An unindexed object is fetched again, and its files are in the way. Without memory it is
	// declined. With memory it is adopted as it is, and the rest of it can be put.
	x := start(t, Options{})
	o, data := sample(1, 3*mib)
	x.put(o, data, 0, 1)
	x.stop()
	more := few(t, x.opt.Pool, 0)
	x.reopen()
	if err := x.Put(o, 2, blockOf(o, data, 2)); !errors.Is(err, ErrMemory) {
		t.Fatalf("put without memory: %v", err)
	}
	if x.Has(o.Block(0).ID()) {
		t.Fatal("what is unindexed is held")
	}
	more()
	x.put(o, data, 2)
	for i := range o.Blocks() {
		if !x.has(o, data, i) {
			t.Errorf("block %d is missing", i)
		}
	}
	if s := x.Stats(); s.Objects != 1 || s.Unindexed != 0 {
		t.Errorf("stats %+v", s)
	}
	x.checkUsed()
}

func TestUnindexedObjectsThatSomebodyRemoved(t *testing.T) {
	// Unindexed objects are removed by hand. They no longer count once there is memory, and puts of
	// others find nothing foreign.
	x, objects, _ := ten(t)
	more := few(t, x.opt.Pool, 0)
	x.reopen()
	for _, o := range objects[:4] {
		if err := errors.Join(os.Remove(x.dataFile(o)), os.Remove(x.sumsFile(o))); err != nil {
			t.Fatal(err)
		}
	}
	more()
	o, data := sample(77, 5000)
	x.putAll(o, data)
	if err := x.Recall(); err != nil {
		t.Fatal(err)
	}
	if s := x.Stats(); s.Objects != 7 || s.Unindexed != 0 || s.UnindexedBytes != 0 || s.Foreign != 0 {
		t.Errorf("stats %+v", s)
	}
	x.checkUsed()
}

func TestUnindexedObjectsGoButForThePinned(t *testing.T) {
	// Room is needed. Unindexed objects are evicted one by one, except pinned ones, and indexed
	// objects are not touched.
	x, objects, all := ten(t)
	more := few(t, x.opt.Pool, 3)
	x.reopen()
	indexed := x.known(objects)
	pins := map[hearth.ID]bool{}
	for i := range objects {
		pins[objects[i].Block(0).ID()] = i%2 == 0
	}
	pinned := func(id hearth.ID) bool { return pins[id] }
	for used := x.Used(); x.Shed(pinned) > 0; used = x.Used() {
		if x.Used() >= used {
			t.Error("an object went and its room did not come back")
		}
		x.checkUsed()
	}
	more()
	x.reopen()
	want := map[int]bool{}
	for _, i := range indexed {
		want[i] = true
	}
	for i, o := range objects {
		if got := x.has(o, all[i], 0); got != (want[i] || i%2 == 0) {
			t.Errorf("object %d, indexed %v, is held: %v", i, want[i], got)
		}
	}
	x.stop()
	more = few(t, x.opt.Pool, 0)
	x.reopen()
	for x.Shed(nil) > 0 {
	}
	if s := x.Stats(); s.Unindexed != 0 || s.Used != 0 || x.onDevice() != 0 {
		t.Errorf("stats %+v, on the device are %d", s, x.onDevice())
	}
	more()
}

func TestUnindexedObjectsGoByTheirVersion(t *testing.T) {
	// An unindexed object that is replaced or dropped is evicted, too. Otherwise it would be back
	// with the memory.
	x, objects, all := ten(t)
	more := few(t, x.opt.Pool, 4)
	x.reopen()
	for _, o := range objects {
		if x.EvictObject(o.Version) == 0 {
			t.Error("nothing was freed")
		}
	}
	if s := x.Stats(); s.Unindexed != 0 || x.Used() != 0 || x.onDevice() != 0 {
		t.Errorf("%d used, %d on the device: %+v", x.Used(), x.onDevice(), s)
	}
	more()
	x.reopen()
	for i, o := range objects {
		if x.has(o, all[i], 0) {
			t.Errorf("object %d is back", i)
		}
	}
}
