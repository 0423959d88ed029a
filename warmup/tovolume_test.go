package warmup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/hearthfs/hearth"
)

// fakeVolumes are the volumes of a node, of which nothing is known before known is closed.
type fakeVolumes struct {
	fakeKeeper
	known chan struct{}
	none  error // why none can be used
}

// withVolumes gives a world volumes whose indexes have been read, and room for so many bytes.
func (w *world) withVolumes(room Room) *fakeVolumes {
	v := &fakeVolumes{fakeKeeper: fakeKeeper{blocks: map[hearth.ID]*fakeHeld{}}, known: make(chan struct{})}
	close(v.known)
	w.volumes = &Volumes{Source: kept{w.bucket, &v.fakeKeeper}, Keeper: v, Room: room, Pins: &Pins{}, Known: v.Known, Waits: v.waits, Checker: &fakeChecker{w: w, bad: map[string]bool{}}}
	return v
}

func (v *fakeVolumes) Known(ctx context.Context) error {
	select {
	case <-v.known:
		return v.none
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (v *fakeVolumes) waits() string {
	select {
	case <-v.known:
		return ""
	default:
		return "volume x is being read"
	}
}

// Has is hearth.Store's: a volume that is not known yet misses what it has.
func (v *fakeVolumes) Has(id hearth.ID) bool { return v.waits() == "" && v.fakeKeeper.Has(id) }

// volume begins a job on volumes.
func (w *world) volume(q Request) string {
	w.t.Helper()
	q.Targets, q.ToVolume = []string{"/"}, true
	r, err := w.engine.Submit(q, nil, false, asIs)
	if err != nil {
		w.t.Fatal(err)
	}
	return r.ID
}

func TestJobsOnVolumesLeaveTheDiskAlone(t *testing.T) {
	// A job on volumes is killed in the midst, and the next process goes on with it. In the end all is on the volumes,
	// nothing on the disk, and what was flushed was loaded once. The disk's room says nothing about it, and what it
	// has claimed takes nothing of the disk's.
	w := newWorld(t)
	w.fill()
	w.room = fakeRoom(1)
	v := w.withVolumes(fakeRoom(1 << 30))
	w.open()
	event, once := make(chan struct{}), sync.Once{}
	w.records.saved = func() {
		for _, r := range w.records.last {
			if r.Counters.Done.Bytes > 0 {
				once.Do(func() { close(event) })
			}
		}
	}
	id := w.volume(Request{Rate: 64 << 20})
	if !w.until(id, event) {
		t.Fatal("the job was over before it was killed")
	}
	w.kill()
	v.crash()
	saved := w.records.last[id].Counters.Done.Bytes
	w.open()
	total := w.bucket.total()
	x := w.over(id)
	if x.State != Done || x.Counters.Held() != total || !strings.HasSuffix(x.What(), OnVolumes) {
		t.Fatalf("%s %s: %+v", x.State, x.Error, x.Counters)
	}
	if len(w.keeper.blocks) != 0 {
		t.Errorf("%d blocks are on the disk", len(w.keeper.blocks))
	}
	if w.bucket.bytes > 2*total.Bytes-saved {
		t.Errorf("%d bytes were fetched of %d, where %d were saved before the kill", w.bucket.bytes, total.Bytes, saved)
	}
	if x := w.over(w.volume(Request{})); x.Counters.Present != total {
		t.Errorf("again: %+v", x.Counters)
	}
	if x := w.over(w.start("/")); x.State != Failed || x.Kind != kindRefused || !strings.Contains(x.Error, "a cache directory") {
		t.Errorf("to the disk: %s %s", x.State, x.Error)
	}
}

func TestAJobWaitsUntilVolumesAreKnown(t *testing.T) {
	// A volume has all of a set, and its indexes are being read when a job for that set begins. The job says that it
	// waits, fetches nothing, and then finds all of it present. One that is cancelled while it waits is over.
	w := newWorld(t)
	w.fill()
	v := w.withVolumes(fakeRoom(1 << 30))
	w.open()
	if x := w.over(w.volume(Request{})); x.State != Done {
		t.Fatalf("%s %s", x.State, x.Error)
	}
	gets := w.bucket.gets
	v.known = make(chan struct{})
	id := w.volume(Request{})
	for {
		x, changed, err := w.engine.Get(id)
		if err != nil || x.Waits != "volume x is being read" {
			t.Fatalf("%+v, %v", x.Progress, err)
		}
		if x.State == Listing {
			break
		}
		<-changed
	}
	given := w.volume(Request{})
	if err := w.engine.Cancel(t.Context(), given); err != nil {
		t.Error(err)
	}
	close(v.known)
	if x := w.over(id); x.State != Done || x.Counters.Present != w.bucket.total() || x.Waits != "" {
		t.Errorf("%s %s: %+v", x.State, x.Error, x.Counters)
	}
	if w.bucket.gets != gets {
		t.Errorf("%d requests for what a volume has", w.bucket.gets-gets)
	}
	if x, _, err := w.engine.Get(given); err != nil || x.State != Cancelled {
		t.Errorf("%+v, %v", x, err)
	}
}

func TestAVolumeForgetsWhatItCannotFlush(t *testing.T) {
	// A volume drops what it could not flush. Where it fails once, that is loaded again. Where it fails each time, it
	// is not kept, and the job says that it is for the flush.
	for _, fails := range []int{1, 1 << 30} {
		w := newWorld(t)
		w.bucket.put("a", "e", 3<<20)
		w.bucket.put("b", "e", 1000)
		v := w.withVolumes(fakeRoom(1 << 30))
		broken := errors.New("the device is ill")
		v.flush = func() error { // under the lock
			if fails--; fails < 0 {
				return nil
			}
			for id, h := range v.blocks {
				if !h.flushed {
					delete(v.blocks, id)
				}
			}
			return broken
		}
		once := fails == 1
		w.open()
		x := w.over(w.volume(Request{}))
		if once && (x.State != Done || x.Counters.Held() != w.bucket.total()) {
			t.Errorf("once: %s %s, %+v", x.State, x.Error, x.Counters)
		}
		if !once && (x.State != Partly || x.Counters.NotKept != w.bucket.total() || !strings.HasPrefix(x.Samples[0].Cause, "it could not be flushed to its volume: the device is ill")) {
			t.Errorf("always: %s %s, %+v, %+v", x.State, x.Error, x.Counters, x.Samples)
		}
	}
}

func TestWhatVolumesDoNotTake(t *testing.T) {
	// A set that does not fit leaves the volumes as they were. Jobs that cannot do anything are refused: without
	// volumes, with a pin, and where no volume can be used.
	w := newWorld(t)
	w.open()
	refused := func(q Request) {
		t.Helper()
		q.Targets, q.ToVolume = []string{"/"}, true
		if _, err := w.engine.Submit(q, nil, false, asIs); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "hearth volume attach") {
			t.Errorf("%+v: %v", q, err)
		}
	}
	refused(Request{})
	w.engine.Close()
	w.fill()
	v := w.withVolumes(noFree{fakeRoom(30 << 20)})
	w.open()
	refused(Request{PinS: Forever})
	if x := w.over(w.volume(Request{})); x.State != Failed || x.Kind != kindRefused || len(v.blocks) != 0 {
		t.Errorf("%s %s, %d blocks", x.State, x.Error, len(v.blocks))
	}
	if x := w.over(w.volume(Request{DryRun: true})); x.State != Done || x.Plan.Lacks == "" || x.Plan.Room != 30<<20 {
		t.Errorf("%s: %+v", x.State, x.Plan)
	}
	v.none = errors.New("volume x is away")
	if x := w.over(w.volume(Request{})); x.State != Failed || x.Kind != kindRefused || !strings.Contains(x.Error, "volume x is away") {
		t.Errorf("%s %s", x.State, x.Error)
	}
}

// unread is a Checker that cannot look at some blocks.
type unread struct {
	fakeChecker
	which func(key string, block int64) bool
}

func (u *unread) Verify(ctx context.Context, o *hearth.Object, first, n int64, pace Pace) (v Verdict) {
	for i := first; i < first+n; i++ {
		if u.which(o.Key, i) {
			v.Unread += int64(o.Block(i).Len())
			v.Unable = "volume x is out of use"
			continue
		}
		seen := u.fakeChecker.Verify(ctx, o, i, 1, pace)
		v.Whole, v.Missing, v.Corrupt, v.Read = v.Whole+seen.Whole, v.Missing+seen.Missing, v.Corrupt+seen.Corrupt, v.Read+seen.Read
		v.Cause = cmp.Or(v.Cause, seen.Cause)
	}
	return v
}

func TestACheckThatCannotLook(t *testing.T) {
	// A file that a check could not look at is neither missing nor corrupt: it is a category of its own, with the
	// reason, and the check does not end well. Where it cannot look again and again it ends, with the reason.
	w := newWorld(t)
	for i := range 200 {
		w.bucket.put(fmt.Sprintf("f%03d", i), "e", 1000)
	}
	v := w.withVolumes(fakeRoom(1 << 30))
	checker := &unread{fakeChecker: fakeChecker{w: w, bad: map[string]bool{}}, which: func(key string, _ int64) bool { return key == "f007" }}
	w.volumes.Checker = checker
	w.open()
	if x := w.over(w.volume(Request{})); x.State != Done {
		t.Fatalf("%s %s", x.State, x.Error)
	}
	w.keeper.blocks = v.blocks // which the fake checker looks at
	x := w.over(w.volume(Request{Check: true}))
	want := Sample{Path: "/f007", What: isUnread, Cause: "volume x is out of use"}
	if c := x.Checked; x.State != Partly || c.Unread != (Tally{Files: 1, Bytes: 1000}) || c.Whole.Files != 199 || c.Missing.Files+c.Corrupt.Files != 0 || len(x.Samples) != 1 || x.Samples[0] != want {
		t.Errorf("%s %s: %+v, %+v", x.State, x.Error, x.Checked, x.Samples)
	}
	checker.which = func(string, int64) bool { return true }
	x = w.over(w.volume(Request{Check: true}))
	if c := x.Checked; x.State != Failed || !strings.HasSuffix(x.Error, "could not look: volume x is out of use") || c.Missing.Files+c.Corrupt.Files != 0 {
		t.Errorf("%s %s: %+v", x.State, x.Error, x.Checked)
	}
}

func TestACheckThatCannotLookAtAPart(t *testing.T) {
	// A file of which a check could not look at a part counts by the worst that it found in the rest, wherever that
	// part lies: as corrupt or missing, and as unread only if the rest is whole.
	for _, last := range []bool{false, true} {
		w := newWorld(t)
		v := w.withVolumes(fakeRoom(1 << 30))
		for _, key := range []string{"corrupt", "missing", "whole"} {
			w.bucket.put(key, "e", 100<<20)
		}
		blind := int64(0)
		if last {
			blind = (100<<20)/hearth.BlockSize - 1
		}
		w.volumes.Checker = &unread{
			fakeChecker: fakeChecker{w: w, bad: map[string]bool{"corrupt": true}},
			which:       func(_ string, block int64) bool { return block == blind },
		}
		w.open()
		if x := w.over(w.volume(Request{})); x.State != Done {
			t.Fatalf("%s %s", x.State, x.Error)
		}
		w.keeper.blocks = v.blocks // which the fake checker looks at
		w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "missing" })
		x := w.over(w.volume(Request{Check: true}))
		c := x.Checked
		if c.Corrupt.Files != 1 || c.Missing.Files != 1 || c.Unread.Files != 1 || c.Whole.Files != 0 {
			t.Errorf("the last block is unread, %v: %s %s: %+v, %+v", last, x.State, x.Error, c, x.Samples)
		}
		if c.Unread.Bytes != 3*hearth.BlockSize || c.Whole.Bytes != 100<<20-hearth.BlockSize {
			t.Errorf("the last block is unread, %v: %+v", last, c)
		}
		said := map[string]string{}
		for _, s := range x.Samples {
			said[s.Path] = s.What // the last one is the worst
		}
		if said["/corrupt"] != isCorrupt || said["/missing"] != isMissing || said["/whole"] != isUnread {
			t.Errorf("the last block is unread, %v: %+v", last, x.Samples)
		}
	}
}

// noFree is a fakeRoom that takes nothing without an eviction.
type noFree struct{ fakeRoom }

func (noFree) Free() []int64 { return []int64{0} }
