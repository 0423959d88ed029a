package warmup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
)

// archive is a source with archived objects, some of which were restored.
type archive struct {
	*fakeBucket
	restored func(key string) bool
}

// GetMany is hearth.Source's.
func (a archive) GetMany(ctx context.Context, first hearth.Block, n int, each func(hearth.Block, *hearth.View, error) bool) {
	if o := first.Object; o.Archived() && !a.restored(o.Key) {
		a.mu.Lock()
		a.gets++
		a.mu.Unlock()
		each(first, nil, fmt.Errorf("get %s: %w", o.Key, hearth.ErrArchived))
		return
	}
	a.fakeBucket.GetMany(ctx, first, n, each)
}

// putClass is put for an object of a storage class.
func (b *fakeBucket) putClass(key, class string, size int64) {
	b.put(key, "e", size)
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.objects[key]
	o.Class = class
	b.objects[key] = o
}

func TestArchivedFilesAreAClassOfTheirOwn(t *testing.T) {
	// Two hundred archived files in a row stand before two that can be read, one of which
	// was restored, and these two are loaded. One of the archived is larger than an
	// extent. The others are asked for once and counted as archived, and the job ends in
	// part. A retry after they were restored loads them.
	w := newWorld(t)
	for i := range 200 {
		w.bucket.putClass(fmt.Sprintf("d/a%03d", i), "GLACIER", 100)
	}
	w.bucket.putClass("d/b", "DEEP_ARCHIVE", 20<<20)
	w.bucket.putClass("d/restored", "GLACIER", 50)
	w.bucket.putClass("d/z", "", 7)
	all := false
	w.source = kept{archive{w.bucket, func(key string) bool { return all || key == "d/restored" }}, w.keeper}
	w.open()
	v := w.over(w.start("/d"))
	c := v.Counters
	want := Counters{Done: Tally{Files: 2, Bytes: 57}, Archived: Tally{Files: 201, Bytes: 200*100 + 20<<20}}
	if v.State != Partly || c != want || v.Errors != 0 || v.FilesDone != 2 || v.BytesDone != 57 || v.Lost != 0 || v.Error != "" {
		t.Errorf("%+v", v)
	}
	if len(v.Samples) != maxSamples || slices.ContainsFunc(v.Samples, func(s Sample) bool { return !strings.Contains(s.Cause, "archived") }) {
		t.Errorf("%+v", v.Samples)
	}
	if n := w.bucket.gets - 202; n != 1 && n != 2 { // the large one has two steps, which may begin together
		t.Errorf("%d requests", w.bucket.gets)
	}
	all = true
	v = w.over(w.start("/d"))
	if v.State != Done || v.Counters.Sum() != w.bucket.total() || v.Counters.Archived != (Tally{}) || v.Counters.Present.Files != 2 {
		t.Errorf("%+v", v)
	}
}

func TestADryRunCountsWhatIsArchived(t *testing.T) {
	// A dry run counts what is archived by its storage class, unless it is held. It
	// counts neither requests nor room for it: terabytes of archive beside a set that
	// fits are no reason to refuse the set. Nor are they asked for piece by piece.
	w := newWorld(t)
	w.bucket.putClass("d/archived", "DEEP_ARCHIVE", 20<<20)
	w.bucket.putClass("d/huge", "GLACIER", 1<<38)
	w.bucket.putClass("d/instant", "GLACIER_IR", 10)
	w.bucket.putClass("d/held", "GLACIER", 30)
	w.bucket.putClass("d/z", "STANDARD_IA", 7)
	w.source = kept{archive{w.bucket, func(key string) bool { return key == "d/held" }}, w.keeper}
	w.room = fakeRoom(1 << 20)
	w.open()
	w.over(w.start("/d/held"))
	w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key != "d/held" })
	r, err := w.engine.Submit(Request{Targets: []string{"/d"}, DryRun: true}, nil, false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	p := w.over(r.ID).Plan
	if p.Archived != (Tally{Files: 2, Bytes: 20<<20 + 1<<38}) || p.Held != (Tally{Files: 1, Bytes: 30}) || p.Requests != 2 || p.Total.Files != 5 || p.Needs != 17 || p.Lacks != "" {
		t.Errorf("%+v", p)
	}
	w.bucket.gets = 0
	if v := w.over(w.start("/d")); v.State != Partly || v.Counters.Archived != p.Archived || v.Counters.Done.Files != 2 {
		t.Errorf("%+v", v)
	}
	if w.bucket.gets > 1000 { // of 16,386 steps: those that began before the first of their file had ended
		t.Errorf("%d requests", w.bucket.gets)
	}
}
