package warmup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
)

// fakeChecker checks a fakeKeeper. The keys in bad are not as they were written.
type fakeChecker struct {
	w     *world
	mu    sync.Mutex      // guards bad and told
	bad   map[string]bool // keys; dropped once they were found
	files []string        // damaged
	reads atomic.Int64
	told  func(key string, first int64) // called by each Verify; nil means that nobody asks
}

// Verify is Checker's.
func (f *fakeChecker) Verify(ctx context.Context, o *hearth.Object, first, n int64, pace Pace) (v Verdict) {
	f.mu.Lock()
	told := f.told
	f.mu.Unlock()
	if told != nil {
		told(o.Key, first)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads.Add(n)
	for i := first; i < first+n; i++ {
		b := o.Block(i)
		bytes := int64(b.Len())
		switch {
		case !f.w.keeper.Has(b.ID()):
			v.Missing += bytes
			v.Cause = "not there"
		case f.bad[o.Key]:
			v.Corrupt += bytes
			v.Cause = "rotten"
			f.w.keeper.evict(func(h *fakeHeld) bool { return h.block.ID() == b.ID() })
		default:
			v.Whole += bytes
			v.Read += bytes
		}
		if err := pace(ctx, bytes); err != nil {
			return v
		}
	}
	return v
}

// Files is Checker's.
func (f *fakeChecker) Files(_ context.Context, _ Pace, bad func(file, cause string)) error {
	for _, name := range f.files {
		bad(name, "flipped")
	}
	return nil
}

// Refresh is Checker's.
func (f *fakeChecker) Refresh(ctx context.Context, dir uint64, since int64) error {
	return f.w.tree.Refresh(ctx, dir, since)
}

// Parent is Checker's.
func (f *fakeChecker) Parent(ctx context.Context, target string) (Entry, error) {
	n, err := f.w.tree.Resolve(ctx, path.Dir(target))
	return entry(n), err
}

// Changes is Checker's.
func (f *fakeChecker) Changes(each func(dir uint64, name string, was func() (Entry, error))) (cancel func()) {
	return f.w.tree.Subscribe(func(c namespace.Change) {
		if c.Old == 0 {
			return
		}
		each(c.Dir, c.Name, func() (Entry, error) {
			n, err := f.w.tree.Node(context.Background(), c.Old)
			return entry(n), err
		})
	})
}

// check runs a check to its end.
func (w *world) check(targets ...string) View {
	w.t.Helper()
	r, err := w.engine.Submit(Request{Targets: targets, Check: true}, nil, false, asIs)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.over(r.ID)
}

// found are the findings of a job, as "what path", sorted.
func (w *world) found(id string) (all []string) {
	w.t.Helper()
	in, err := w.engine.Findings(id)
	if err != nil {
		w.t.Fatal(err)
	}
	defer in.Close()
	for d := json.NewDecoder(in); ; {
		var s Sample
		if err := d.Decode(&s); err == io.EOF {
			slices.Sort(all)
			return all
		} else if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, s.What+" "+s.Path)
	}
}

// addsUp checks that whole, missing, corrupt and changed add up to what the bucket has.
func (w *world) addsUp(v View) {
	w.t.Helper()
	c := v.Checked
	sum := Tally{}
	for _, t := range []Tally{c.Whole, c.Missing, c.Corrupt, c.Changed} {
		sum.Add(t)
	}
	if want := w.bucket.total(); sum != want || v.FilesDone != want.Files || v.BytesDone != want.Bytes {
		w.t.Errorf("want %+v: %+v, %+v", want, c, v.Progress)
	}
}

func TestACheckNamesWhatIsNotWhole(t *testing.T) {
	// After a warm-up a check finds everything whole, and lists each directory anew. Then
	// blocks rot and go, and objects are overwritten, deleted and added. Each is named
	// for what it is, nothing is loaded, and the next warm-up mends it.
	w := newWorld(t)
	w.fill()
	w.open()
	w.over(w.start("/"))
	gets, lists := w.bucket.gets, w.bucket.lists
	v := w.check("/")
	dirs := map[string]bool{"": true}
	for key := range w.bucket.objects {
		for i, c := range key {
			if c == '/' {
				dirs[key[:i+1]] = true
			}
		}
	}
	anew := w.bucket.lists - lists // the warm-up itself may have listed one twice
	if v.State != Done || len(w.found(v.ID)) > 0 || v.Checked.Whole != w.bucket.total() || anew < len(dirs) || anew > len(dirs)+2 || w.checker.reads.Load() == 0 {
		t.Fatalf("all is well: %+v, %v; %d listings of %d directories", v, w.found(v.ID), anew, len(dirs))
	}
	w.addsUp(v)
	w.checker.bad["d1/f07"], w.checker.bad["large"] = true, true
	w.checker.files = []string{"/cache/1.segment"}
	w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "d2/f09" })
	w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "d3/large" && h.block.Index == 16 })
	w.bucket.put("d4/f11", "new", 77)
	w.bucket.put("d4/f12", "new", 0)
	w.bucket.remove("d5/f13")
	w.bucket.remove("dots/../up")
	w.bucket.put("d5/new", "e", 5)
	want := []string{"changed /d4/f11", "changed /d4/f12", "corrupt /d1/f07", "corrupt /large", "damaged /cache/1.segment",
		"missing /d2/f09", "missing /d3/large", "missing /d5/new", "vanished /d5/f13", "vanished /dots/"}
	v = w.check("/")
	if got := w.found(v.ID); v.State != Partly || !slices.Equal(got, want) || len(v.Samples) != len(want) || v.Errors != int64(len(want)-1) {
		t.Errorf("found %q\nnot   %q\n%+v", got, want, v)
	}
	w.addsUp(v)
	if c := v.Checked; c.Vanished.Files != 2 || c.Damaged != 1 || c.Missing.Bytes != 9000+1<<20+5 || w.bucket.gets != gets {
		t.Errorf("%+v; %d requests", c, w.bucket.gets-gets)
	}
	loaded := w.engine.List()[2]
	if total := w.engine.Total(); loaded.Check || total.Sum() != loaded.Counters.Sum() {
		t.Errorf("checks count as warm-ups: %+v", total)
	}
	clear(w.checker.bad)
	w.checker.files = nil
	w.over(w.start("/"))
	if v := w.check("/"); v.State != Done {
		t.Errorf("after another warm-up: %+v", v)
	}
}

func TestAFileIsCheckedByAFreshName(t *testing.T) {
	// The targets are files: whole, overwritten, and deleted at the origin.
	w := newWorld(t)
	w.fill()
	w.open()
	w.over(w.start("/"))
	if v := w.check("/d1/f07", "/large"); v.State != Done || v.Checked.Whole != (Tally{Files: 2, Bytes: 7000 + 40<<20 + 5}) {
		t.Errorf("%+v", v)
	}
	w.bucket.put("d1/f08", "new", 8000)
	w.bucket.remove("d1/f09")
	v := w.check("/d1/f07", "/d1/f08", "/d1/f09")
	if got := w.found(v.ID); v.State != Partly || !slices.Equal(got, []string{"changed /d1/f08", "vanished /d1/f09"}) {
		t.Errorf("%q, %+v", got, v)
	}
}

func TestAListThatIsChecked(t *testing.T) {
	// A list has a path twice and one that does not exist. More files in a row are rotten
	// than a job allows a broken origin. All are named.
	w := newWorld(t)
	for i := range 100 {
		w.bucket.put(fmt.Sprintf("f%03d", i), "e", 100)
		w.checker.bad[fmt.Sprintf("f%03d", i)] = true
	}
	w.open()
	w.over(w.start("/"))
	r, err := w.engine.Submit(Request{List: "-", Check: true}, strings.NewReader("/f001\n/nothing\n/f001\n/"), false, asIs)
	if err != nil {
		t.Fatal(err)
	}
	v := w.over(r.ID)
	// The second and third look at f001 find what the first has dropped.
	if c := v.Checked; v.State != Partly || c.Corrupt.Files != 100 || c.Missing.Files != 3 || len(w.found(r.ID)) != 103 || len(v.Samples) != maxSamples+3 {
		t.Errorf("%+v, %d samples", c, len(v.Samples))
	}
}

func TestAnOriginThatCannotBeAskedEndsACheck(t *testing.T) {
	// Names that are known only from before prove nothing.
	w := newWorld(t)
	w.fill()
	w.open()
	w.over(w.start("/"))
	w.bucket.mu.Lock()
	w.bucket.fail = errFakeFull
	w.bucket.mu.Unlock()
	if v := w.check("/"); v.State != Failed || !strings.Contains(v.Error, errFakeFull.Error()) {
		t.Errorf("%+v", v)
	}
}

func TestAKilledCheckGoesOn(t *testing.T) {
	// Processes are killed at any moment of a check. It goes on under its id, the sums
	// hold, and each path is named once.
	random := rand.New(rand.NewPCG(hearthtest.Seed(t), 0))
	for range 3 { // each seed has its own moments
		w := newWorld(t)
		w.every = time.Millisecond
		w.fill()
		for i := range 30 {
			w.bucket.put(fmt.Sprintf("e/g%02d", i), "e", 10)
		}
		w.bucket.put("e/z", "e", 10)
		w.open()
		w.over(w.start("/"))
		want := []string{}
		for d := range 6 {
			rotten, lost := fmt.Sprintf("d%d/f%02d", d, 1+random.IntN(19)), fmt.Sprintf("d%d/f%02d", d, 20+random.IntN(20))
			w.checker.bad[rotten] = true
			w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == lost })
			want = append(want, "missing /"+lost)
		}
		for i := range 30 {
			w.bucket.remove(fmt.Sprintf("e/g%02d", i))
		}
		r, err := w.engine.Submit(Request{Targets: []string{"/"}, Check: true}, nil, false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		// A kill between a listing and the note of what it changed loses that.
		lost := false
		noted := func() bool {
			text, err := os.ReadFile(filepath.Join(w.files.Dir, r.ID+changesSuffix))
			return err == nil && bytes.Contains(text, []byte(`"name":"g`))
		}
		kills := 0
		for n := range 4 {
			killed := make(chan struct{})
			var once sync.Once
			var left atomic.Int64
			left.Store(int64(1 + random.IntN(80)))
			w.checker.mu.Lock()
			w.checker.told = func(key string, _ int64) {
				if n == 1 && key == "e/z" {
					if !noted() {
						lost = true
						once.Do(func() { close(killed) })
					}
					<-killed // behind what vanished
				} else if n != 1 && left.Add(-1) == 0 {
					once.Do(func() { close(killed) })
				}
			}
			w.checker.mu.Unlock()
			if n == 1 {
				w.records.mu.Lock()
				w.records.saved = func() {
					if r := w.records.last[r.ID]; r.Cursor.Gone != "" {
						w.records.dead = true // this was the last word
						once.Do(func() { close(killed) })
					}
				}
				w.records.mu.Unlock()
			}
			if !w.until(r.ID, killed) {
				break
			}
			w.records.mu.Lock()
			w.records.saved = nil
			w.records.mu.Unlock()
			w.kill()
			w.open()
			kills++
		}
		v := w.over(r.ID)
		w.addsUp(v)
		found := w.found(r.ID)
		// A vanished name is reported once, except what was heard in the moment of a
		// kill.
		gone := 0
		found = slices.DeleteFunc(found, func(s string) bool {
			if strings.HasPrefix(s, "vanished /e/g") {
				gone++
				return true
			}
			return false
		})
		if gone == 0 && !lost || gone > 30 || v.Checked.Vanished.Files != int64(gone) {
			t.Errorf("%d kills, %d of 30 vanished: %+v", kills, gone, v.Checked)
		}
		// What a killed process dropped before it was counted is missing for the next
		// one.
		all := slices.DeleteFunc(slices.Clone(found), func(s string) bool { return strings.HasPrefix(s, "corrupt") })
		for _, s := range want {
			if !slices.Contains(all, s) {
				t.Errorf("%s is not named: %q", s, found)
			}
		}
		if v.State != Partly || len(found) != 12 || len(slices.Compact(slices.Clone(found))) != 12 {
			t.Errorf("%d kills: %q, %+v", kills, found, v)
		}
	}
}

func TestTheRateOfACheck(t *testing.T) {
	// A check reads no more than its rate from the device, even in one read of more than
	// the rate lets through at once.
	synctest.Test(t, func(t *testing.T) {
		j := &job{loader: newLoader(&Options{}, hearth.BlockSize)}
		began := time.Now()
		if err := j.pace(t.Context(), 3*hearth.BlockSize+5); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("three blocks at one a second took %v", took)
		}
		j.loader = newLoader(&Options{}, 0)
		if err := j.pace(t.Context(), 1<<40); err != nil {
			t.Error(err)
		}
	})
}
