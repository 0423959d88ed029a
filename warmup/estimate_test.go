package warmup

import (
	"fmt"
	"testing"
	"time"

	"github.com/hearthfs/hearth/namespace"
)

func TestADryRunTellsTheRequestsOfTheLoad(t *testing.T) {
	// A dry run predicts the requests of the loading, which are smaller under a rate. It
	// also predicts the listings of a walk over names that are not known.
	for rate, runs := range map[int64]int64{0: 4, 1 << 30: 4, 12 << 20: 3, 8 << 20: 2, 4 << 20: 1, 1000: 1} {
		w := newWorld(t)
		for i := range 1001 {
			w.bucket.put(fmt.Sprintf("many/%04d", i), "e", 100)
		}
		w.bucket.put("a/large", "e", 21<<20) // an extent and five blocks
		w.bucket.put("a/b/empty", "e", 0)
		w.open()
		r, err := w.engine.Submit(Request{Targets: []string{"/"}, DryRun: true, Rate: rate}, nil, false, asIs)
		if err != nil {
			t.Fatal(err)
		}
		plan := w.over(r.ID).Plan
		if plan.Lists != int64(w.bucket.lists) || plan.Lists != 5 { // the root, a, a/b, and two of many
			t.Errorf("%d listings, there were %d", plan.Lists, w.bucket.lists)
		}
		l := newLoader(&w.engine.o, rate)
		l.rate = nil // without the waiting
		pass, err := NewGate().Join().Enter(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		root, err := w.tree.Root(t.Context(), "/")
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.tree.Below(t.Context(), root.ID, func(_ string, x namespace.Node) error {
			if o := x.Object; !x.Dir {
				for first := int64(0); first < o.Blocks(); first += 16 {
					l.load(t.Context(), pass, outcome{object: &o, first: first, n: min(16, o.Blocks()-first)}, nil)
				}
			}
			return nil
		})
		if want := 1001 + (16+runs-1)/runs + (5+runs-1)/runs; err != nil || plan.Requests != int64(w.bucket.gets) || plan.Requests != want {
			t.Errorf("at %d B/s %d requests are told, %d wanted, loading made %d, %v", rate, plan.Requests, want, w.bucket.gets, err)
		}
	}
}

func TestWhatIsMeasuredOfAJob(t *testing.T) {
	// A job measures what it loaded and the time of the loading alone, over a restart,
	// too. A job that finds all but one file present has measured that file.
	w := newWorld(t)
	w.fill()
	w.open()
	v := w.over(w.start("/"))
	if m := v.Measured; m.Bytes != v.Counters.Done.Bytes || m.Requests != int64(w.bucket.gets) || m.Seconds <= 0 || m.Seconds > v.Worked {
		t.Errorf("%+v, of %+v by %d requests in %v s", m, v.Counters.Done, w.bucket.gets, v.Worked)
	}
	w.kill()
	w.keeper.evict(func(h *fakeHeld) bool { return h.block.Object.Key == "d0/f05" })
	before := Measure{Bytes: 1 << 40, Requests: 1000, Seconds: 100}
	if err := w.files.Save(Record{ID: "0badcafe", Request: Request{Targets: []string{"/"}}, State: Queued, Times: Times{Created: time.Now(), Worked: 200}, Measured: before}); err != nil {
		t.Fatal(err)
	}
	w.open()
	v = w.over("0badcafe")
	if m := v.Measured; m.Bytes != before.Bytes+5000 || m.Requests != 1001 || m.Seconds < 100 || v.Counters.Done.Files != 1 {
		t.Errorf("one file later: %+v, %+v", m, v.Counters)
	}
}

func TestNoEndIsToldBeforeThereIsARate(t *testing.T) {
	// A small object came while the first large one is under way: nobody is told that the
	// rest takes years. A hundredth of the bytes, or a large amount, is enough for an
	// estimate. What a check has read counts, too.
	for name, c := range map[string]struct {
		total, brought int64
		check          bool
		eta            int64
	}{
		"a small object":      {400 << 20, 70, false, -1},
		"a hundredth":         {400 << 20, 4 << 20, false, 396},
		"of a large set":      {1 << 40, 64 << 20, false, 65_532},
		"of a large set less": {1 << 40, 63 << 20, false, -1},
		"a check":             {400 << 20, 4 << 20, true, 396},
		"a check that began":  {400 << 20, 70, true, -1},
	} {
		s := &shown{record: Record{ID: "1", State: Loading}}
		s.record.Check = c.check
		s.record.Plan.Counted, s.record.Plan.Total = true, Tally{Files: 100, Bytes: c.total}
		if s.record.Counters.Done.Bytes = c.brought; c.check {
			s.record.Checked = &Checked{Whole: Tally{Bytes: c.brought}}
		}
		began, rate := time.Unix(1e9, 0), int64(1<<20)
		if c.total == 1<<40 {
			rate = 16 << 20
		}
		s.pace.Note(began, 0)
		s.pace.Note(began.Add(4*time.Second), 4*rate)
		if v := s.view(); v.ETAS != c.eta || v.RateBPS != rate {
			t.Errorf("%s: ETA %d s at %d B/s, want %d", name, v.ETAS, v.RateBPS, c.eta)
		}
	}
}
