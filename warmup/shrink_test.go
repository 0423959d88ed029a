package warmup

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// behind is a source that has no block from some index on until release is closed.
type behind struct {
	*fakeBucket
	from    int64
	reached chan struct{}
	once    *sync.Once
	release chan struct{}
}

// GetMany is hearth.Source's.
func (b behind) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	if first.Index >= b.from {
		b.once.Do(func() { close(b.reached) })
		<-b.release
	}
	b.fakeBucket.GetMany(ctx, first, n, each)
}

// reaches waits until so many bytes of a job are there, and checks that they never fall.
func (w *world) reaches(id string, bytes int64) {
	w.t.Helper()
	for most := int64(0); ; {
		v, changed, err := w.engine.Get(id)
		if err != nil {
			w.t.Fatal(err)
		}
		if v.BytesDone < most && !v.State.Over() {
			w.t.Errorf("bytes done fell from %d to %d", most, v.BytesDone)
		}
		if most = v.BytesDone; most >= bytes || v.State.Over() {
			return
		}
		<-changed
	}
}

func TestALargeObjectIsReplacedByASmallerOne(t *testing.T) {
	// Two of three extents were counted and shown. Then the object is replaced by a
	// smaller one or a larger one, or is removed, with and without a kill in between. At
	// the end the categories are those of a listing, and until then nothing falls.
	const counted, old = 2 * hearth.ExtentBlocks * hearth.BlockSize, 40 << 20
	for _, size := range []int64{5 << 20, 0, 50 << 20, -1} {
		for _, kill := range []bool{false, true} {
			for _, check := range []bool{false, true} {
				if check && !kill { // it has the version of its listing
					continue
				}
				t.Run(fmt.Sprint(size, " kill ", kill, " check ", check), func(t *testing.T) { replaceLarge(t, counted, old, size, kill, check) })
			}
		}
	}
}

func replaceLarge(t *testing.T, counted, old, size int64, kill, check bool) {
	w := newWorld(t)
	w.every = time.Millisecond
	w.bucket.put("d/a", "e", 10)
	w.bucket.put("d/large", "e", old)
	w.bucket.put("d/z", "e", 30)
	src := behind{w.bucket, 2 * hearth.ExtentBlocks, make(chan struct{}), new(sync.Once), make(chan struct{})}
	if check {
		w.open()
		w.over(w.start("/"))
		var once sync.Once
		w.checker.told = func(key string, first int64) {
			if key == "d/large" && first >= src.from {
				once.Do(func() { close(src.reached) })
				<-src.release
			}
		}
	} else {
		w.source = kept{src, w.keeper}
		w.open()
	}
	r, err := w.engine.Submit(Request{Targets: []string{"/"}, Check: check}, nil, false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	<-src.reached
	w.reaches(r.ID, counted)
	if kill {
		w.records.mu.Lock()
		w.records.dead = true
		w.records.mu.Unlock()
		close(src.release)
		w.kill()
	}
	if size < 0 {
		w.bucket.remove("d/large")
	} else {
		w.bucket.put("d/large", "new", size)
	}
	if check { // else it has listed the directory
		n, err := w.tree.Resolve(t.Context(), "/d")
		if err == nil {
			err = w.tree.Refresh(t.Context(), n.ID, time.Now().UnixMilli()+1000)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if kill {
		w.open()
		v, _, err := w.engine.Get(r.ID)
		if err != nil || v.BytesDone < counted {
			t.Errorf("after a kill: %+v, %v", v, err)
		}
	} else {
		close(src.release)
	}
	w.reaches(r.ID, 1<<62)
	v := w.over(r.ID)
	total := w.bucket.total()
	c := v.Counters
	switch {
	case size < 0:
		if check && c.Vanished.Files+c.NotKept.Files != 1 || !check && c.Vanished.Files != 1 || c.Done.Bytes+c.Present.Bytes != total.Bytes || v.BytesDone != total.Bytes {
			t.Errorf("%+v", v)
		}
	case c.Changed != (Tally{Files: 1, Bytes: size}) || c.Sum() != total || v.BytesDone != total.Bytes || !check && v.State != Done:
		t.Errorf("%s, want a sum of %+v: %+v", v.State, total, v)
	}
	if !check {
		w.holds()
	}
}
