package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/cache/check"
)

// fake is a directory of so many segments of a megabyte, of which one may be bad.
type fake struct {
	segments, bad uint32
	busy          bool

	mu    sync.Mutex // guards the rest
	from  []uint32   // where each check began
	noted []byte
	error error // of each check, at segment 5
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.error = err
}

func (f *fake) begun() []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.from)
}

func (f *fake) last() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.noted
}

func (f *fake) target() scrubTarget {
	note := func(text []byte) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.noted = text
	}
	return scrubTarget{Busy: func() bool { return f.busy }, Note: note,
		Check: func(ctx context.Context, r *check.Run, from scrubPlace, at func(scrubPlace)) error {
			f.mu.Lock()
			f.from = append(f.from, from.Segment)
			failing := f.error
			f.mu.Unlock()
			for i := from.Segment; i < f.segments; i++ {
				if err := r.Read(ctx, 1<<20); err != nil {
					return err
				}
				if failing != nil && i == 5 {
					return failing
				}
				r.Bytes.Add(1 << 20)
				r.Blocks.Add(1)
				if i == f.bad {
					r.Tell(check.InFile(check.Damaged, "x", 0, "bad"))
				}
				at(scrubPlace{Segment: i + 1})
			}
			return nil
		}}
}

func TestPassesArePacedAndApart(t *testing.T) {
	// 100 MiB at 1 MiB/s take 98 s after the burst; the next pass begins an hour after the first did, and what a pass found is counted.
	synctest.Test(t, func(t *testing.T) {
		f := &fake{segments: 100, bad: 7}
		s := newScrub(f.target(), nil, 1<<20, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		go s.Run(ctx)
		time.Sleep(97 * time.Second)
		synctest.Wait()
		if st := s.Stats(); !st.Running || st.Last.Ended != 0 || st.Now < 1<<19 || st.Now > 2<<20 {
			t.Errorf("before its end: %+v", st)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := s.Stats(); st.Running || st.Last.Ended == 0 || st.Last.Bytes != 100<<20 || st.Last.Bad != 1 || st.Bad != 1 {
			t.Errorf("after it: %+v", st)
		}
		time.Sleep(58 * time.Minute)
		synctest.Wait()
		if len(f.begun()) != 1 {
			t.Errorf("passes before the hour is over: %v", f.begun())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.begun()) != 2 {
			t.Errorf("passes after an hour: %v", f.begun())
		}
		cancel()
		synctest.Wait()
	})
}

func TestAClockThatIsSetBackPutsNoPassOff(t *testing.T) {
	// A pass is over, and the clock is set back by a year: the next one waits no longer than it ever does.
	now := time.Now()
	for back, wait := range map[time.Duration]time.Duration{0: time.Hour, time.Minute: 0, 365 * 24 * time.Hour: 0, -time.Minute: 59 * time.Minute, -time.Hour: 0} {
		s := newScrub((&fake{segments: 1}).target(), nil, 1<<20, time.Hour)
		s.state.Now = ScrubPass{Begun: now.Unix(), Ended: now.Unix() + 1}
		if _, got := s.begin(time.Unix(now.Unix(), 0).Add(-back)); got != wait {
			t.Errorf("back by %v: the next pass is %v away, want %v", back, got, wait)
		}
	}
}

func TestAPassGoesOnAfterARestart(t *testing.T) {
	// The process ends in the middle of a pass: the next goes on there, with the figures of before.
	synctest.Test(t, func(t *testing.T) {
		f := &fake{segments: 100, bad: 7}
		ctx, cancel := context.WithCancel(t.Context())
		go newScrub(f.target(), nil, 1<<20, time.Hour).Run(ctx)
		time.Sleep(50 * time.Second)
		cancel()
		synctest.Wait()
		if !ScrubFileWhole(f.last()) {
			t.Fatalf("noted: %s", f.last())
		}
		s := newScrub(f.target(), f.last(), 1<<20, time.Hour)
		ctx, cancel = context.WithCancel(t.Context())
		go s.Run(ctx)
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.Stats(); f.begun()[1] < 45 || f.begun()[1] > 55 || st.Last.Bytes != 100<<20 || st.Last.Bad != 1 || st.Bad != 0 {
			t.Errorf("from %v: %+v", f.begun(), st)
		}
		cancel()
		synctest.Wait()
	})
}

func TestReadersGoFirst(t *testing.T) {
	// While somebody reads, each megabyte waits a tenth of a second more; 0 bytes a second is off.
	synctest.Test(t, func(t *testing.T) {
		f := &fake{segments: 20, bad: 99, busy: true}
		s := newScrub(f.target(), nil, 1<<40, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		time.Sleep(1900 * time.Millisecond)
		synctest.Wait()
		if st := s.Stats(); !st.Running {
			t.Errorf("it did not wait: %+v", st)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if st := s.Stats(); st.Running {
			t.Errorf("it waits for ever: %+v", st)
		}
		newScrub(f.target(), nil, 0, time.Hour).Run(ctx)
		cancel()
		synctest.Wait()
	})
}

func TestDamagedNotesBeginAnew(t *testing.T) {
	// What cannot be read is no place to go on. Nor is what speaks of the future, since the clock went back: but that is whole.
	for _, text := range []string{"", "{", `{"object":"zz"}`} {
		if ScrubFileWhole([]byte(text)) {
			t.Errorf("%q is believed", text)
		}
	}
	later := []byte(`{"now":{"begun":99999999999},"segment":7,"object":"00000000000000000000000000000000"}`)
	if s := newScrub((&fake{}).target(), later, 1, time.Hour); !ScrubFileWhole(later) || s.state.Segment != 0 {
		t.Errorf("after the clock went back: whole %v, %+v", ScrubFileWhole(later), s.state)
	}
}

func TestAPassThatFailsIsTold(t *testing.T) {
	// Each attempt ends in the same error: all are counted, the cause is told once and shown; one without it goes on to the end. A device that does not answer is told by others.
	synctest.Test(t, func(t *testing.T) {
		f := &fake{segments: 20, bad: 99, error: errors.New("no descriptor")}
		var told []string
		target := f.target()
		target.Failed = func(cause error) { told = append(told, cause.Error()) }
		s := newScrub(target, nil, 1<<40, time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		time.Sleep(35 * time.Second)
		synctest.Wait()
		size := func(n int64) string { return fmt.Sprint(n) }
		if st := s.Stats(); st.Failed != 4 || len(told) != 1 || !strings.Contains(st.Says(size), "no descriptor (4 times)") {
			t.Errorf("%v; %s", told, st.Says(size))
		}
		f.fail(check.ErrLeft)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		f.fail(nil)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if st := s.Stats(); st.Failed != 4 || len(told) != 1 || st.Cause != "" || st.Last.Ended == 0 {
			t.Errorf("%v; %s", told, st.Says(size))
		}
		cancel()
		synctest.Wait()
	})
}

func TestWhatHasNotBegunIsNotNoted(t *testing.T) {
	// The node ends before the first pass: nothing is written down that a check would take for damage.
	f := &fake{segments: 1}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	newScrub(f.target(), nil, 1<<20, time.Hour).Run(ctx)
	if f.last() != nil {
		t.Errorf("noted: %s", f.last())
	}
}
