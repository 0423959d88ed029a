package disk

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hearthfs/hearth/cache/check"
)

// This file scrubs a cache directory: it reads the content again, behind the readers, so that
// rotten bytes are found before somebody wants them.
//
// A pass reads each block once, at a rate of bytes per second, and drops what does not verify, as a
// reader would. It gives way: before each megabyte it waits a little for a moment without readers.
// A pass begins ScrubEvery after the last began, or at once if that took longer. The place of a
// pass, and the result of the last whole one, are written down once a minute, so that a restart
// goes on there.
//
// If a directory is out of use, or its device does not answer, the attempt ends, and the pass goes
// on there a while later. So does any other error that says nothing about the content, such as a
// lack of descriptors; such errors are counted and reported.

const (
	// noteEvery is the time between two notes. After a crash, what was checked since the last note
	// is checked again.
	noteEvery = time.Minute
	// againAfter is how long a directory that could not be checked is left alone.
	againAfter = 10 * time.Second
	// burst is more than the largest single read.
	burst = 2 << 20
	// yieldStep and yieldMost bound the wait for a moment without readers before each read: the
	// time between two looks, and the longest wait.
	yieldStep = 5 * time.Millisecond
	yieldMost = 100 * time.Millisecond
)

// scrubPlace is how far a pass has come: segments by number, then objects by version.
type scrubPlace struct {
	// Segment is the first segment that is still to be checked. Objects says that all segments were
	// checked, and that Object is the first object to check.
	Segment uint32
	Objects bool
	Object  [16]byte
}

// scrubTarget is what is scrubbed.
type scrubTarget struct {
	// Check checks everything from a place on, and reports how far it is.
	Check func(ctx context.Context, r *check.Run, from scrubPlace, at func(scrubPlace)) error
	// Busy reports whether somebody reads now.
	Busy func() bool
	// Note keeps the place of a pass over a restart, as well as it can.
	Note func(text []byte)
	// Found is called for each finding. Failed is called with the reason why an attempt ended
	// early, once in a row.
	Found  func(check.Finding)
	Failed func(cause error)
}

// ScrubStats are a directory's figures.
type ScrubStats struct {
	// Rate is the most bytes per second. 0 means that the scrub is off.
	Rate int64 `json:"rate_bps"`
	// Running says that a pass is in progress. Now is its rate in bytes per second.
	Running bool  `json:"running"`
	Now     int64 `json:"now_bps"`
	// Blocks and Bytes count what was checked since the node started. Bad counts the blocks and
	// files that were not what was written, and dropped.
	Blocks int64 `json:"blocks"`
	Bytes  int64 `json:"bytes"`
	Bad    int64 `json:"bad"`
	// Failed counts attempts that ended in an error since then. Cause is the last one's error, ""
	// once the pass went on to its end.
	Failed int64  `json:"failed"`
	Cause  string `json:"cause,omitempty"`
	// Last is the last whole pass, or zero.
	Last ScrubPass `json:"last"`
}

// Says tells in one line what the scrub of a directory does and has done. size formats a number of
// bytes.
func (s ScrubStats) Says(size func(int64) string) string {
	if s.Rate <= 0 {
		return "off"
	}
	last := "no whole pass yet"
	if s.Last.Ended > 0 {
		last = fmt.Sprintf("last whole pass %s, %s, %d bad", time.Unix(s.Last.Ended, 0).Format(time.RFC3339), size(s.Last.Bytes), s.Last.Bad)
	}
	now := "waiting for the next"
	if s.Running {
		now = fmt.Sprintf("now %s/s of %s/s", size(s.Now), size(s.Rate))
	}
	if s.Cause != "" {
		now = fmt.Sprintf("held up: %s (%d times)", s.Cause, s.Failed)
	}
	return fmt.Sprintf("%s; %s; since the start %s checked, %d bad", last, now, size(s.Bytes), s.Bad)
}

// ScrubPass is one pass over a directory. Times are Unix seconds; Ended is 0 until the pass is
// whole.
type ScrubPass struct {
	Begun  int64 `json:"begun"`
	Ended  int64 `json:"ended"`
	Blocks int64 `json:"blocks"`
	Bytes  int64 `json:"bytes"`
	Bad    int64 `json:"bad"`
}

// state is the content of the file.
type state struct {
	Now     ScrubPass `json:"now"`
	Last    ScrubPass `json:"last"`
	Segment uint32    `json:"segment"`
	Objects bool      `json:"objects"`
	Object  string    `json:"object"`
}

// scrub scrubs one directory.
type scrub struct {
	t       scrubTarget
	rate    int64
	every   time.Duration
	limiter *rate.Limiter
	run     check.Run

	mu      sync.Mutex // guards the rest
	state   state
	base    ScrubPass // state.Now at the time when run's figures were 0
	running bool
	noted   time.Time
	marks   [2]mark // bytes at two times, the older first, at least a second apart
	failed  int64   // attempts that failed; cause is the last one's error
	cause   string
}

type mark struct {
	at    time.Time
	bytes int64
}

// newScrub makes the scrub of a directory. It reads up to perSecond bytes a second, and begins a
// pass every so often. noted is the last text that Note got. Run does the work.
func newScrub(t scrubTarget, noted []byte, perSecond int64, every time.Duration) *scrub {
	s := &scrub{t: t, rate: perSecond, every: every, limiter: rate.NewLimiter(rate.Limit(perSecond), burst)}
	s.run.Repair = true
	s.run.Pace = s.pace
	s.run.Found = func(f check.Finding) {
		if t.Found != nil {
			t.Found(f)
		}
	}
	s.state, _ = parseScrub(noted)
	if now := time.Now().Unix(); s.state.Now.Begun > now || s.state.Last.Ended > now {
		s.state = state{} // the clock went back: by these times the next pass might be years away
	}
	s.base = s.state.Now
	return s
}

// ScrubFileWhole reports whether what was noted can be read.
func ScrubFileWhole(text []byte) bool {
	_, ok := parseScrub(text)
	return ok
}

// parseScrub reads what a scrub noted. False means that it is damaged, and that a pass begins anew.
func parseScrub(text []byte) (state, bool) {
	var st state
	if json.Unmarshal(text, &st) != nil {
		return state{}, false
	}
	if at, err := hex.DecodeString(st.Object); err != nil || len(at) != 16 {
		return state{}, false
	}
	return st, true
}

// Run scrubs until ctx ends.
func (s *scrub) Run(ctx context.Context) {
	if s.rate <= 0 {
		return
	}
	defer s.note(true)
	for ctx.Err() == nil {
		wait := s.pass(ctx)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// pass goes on with a pass, or begins the next if it is time. It returns how long there is nothing
// to do.
func (s *scrub) pass(ctx context.Context) (wait time.Duration) {
	from, wait := s.begin(time.Now())
	if wait > 0 {
		return wait
	}
	err := s.t.Check(ctx, &s.run, from, s.at)
	s.mu.Lock()
	s.running = false
	s.countLocked()
	if err == nil {
		s.state.Now.Ended = time.Now().Unix()
		s.state.Last = s.state.Now
		s.cause = ""
	}
	s.mu.Unlock()
	s.note(true)
	if err != nil {
		s.fail(ctx, err)
		return againAfter
	}
	return 0
}

// fail counts an attempt that ended early, and reports it if nobody else does.
func (s *scrub) fail(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, check.ErrLeft) {
		return
	}
	s.mu.Lock()
	again := s.cause == err.Error()
	s.failed++
	s.cause = err.Error()
	s.mu.Unlock()
	if !again && s.t.Failed != nil {
		s.t.Failed(err)
	}
}

// begin returns the place where to go on, or how long to wait.
func (s *scrub) begin(now time.Time) (from scrubPlace, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.state
	if st.Now.Begun == 0 || st.Now.Ended != 0 {
		wait = time.Unix(st.Now.Begun, 0).Add(s.every).Sub(now)
		if st.Now.Begun != 0 && wait > 0 && wait <= s.every { // it is longer only if the clock was set back
			return from, wait
		}
		*st = state{Now: ScrubPass{Begun: now.Unix()}, Last: st.Last, Object: hex.EncodeToString(make([]byte, 16))}
		s.base = st.Now
		s.base.Blocks, s.base.Bytes, s.base.Bad = -s.run.Blocks.Load(), -s.run.Bytes.Load(), -s.run.Bad.Load()
	}
	from = scrubPlace{Segment: st.Segment, Objects: st.Objects}
	object, _ := hex.DecodeString(st.Object)
	copy(from.Object[:], object)
	s.running = true
	s.marks = [2]mark{{now, s.run.Bytes.Load()}, {now, s.run.Bytes.Load()}}
	return from, 0
}

// at notes how far the pass is.
func (s *scrub) at(p scrubPlace) {
	s.mu.Lock()
	s.state.Segment, s.state.Objects, s.state.Object = p.Segment, p.Objects, hex.EncodeToString(p.Object[:])
	s.countLocked()
	s.mu.Unlock()
	s.note(false)
}

func (s *scrub) countLocked() {
	p := &s.state.Now
	p.Blocks, p.Bytes, p.Bad = s.base.Blocks+s.run.Blocks.Load(), s.base.Bytes+s.run.Bytes.Load(), s.base.Bad+s.run.Bad.Load()
}

// note writes the state down, if it is time or if must is set.
func (s *scrub) note(must bool) {
	s.mu.Lock()
	if s.state.Now.Begun == 0 || !must && time.Since(s.noted) < noteEvery { // no pass yet: no place
		s.mu.Unlock()
		return
	}
	s.noted = time.Now()
	text, err := json.Marshal(s.state)
	s.mu.Unlock()
	if err == nil {
		s.t.Note(append(text, '\n'))
	}
}

// pace waits until n bytes may be read.
func (s *scrub) pace(ctx context.Context, n int64) error {
	for waited := time.Duration(0); s.t.Busy() && waited < yieldMost; waited += yieldStep {
		t := time.NewTimer(yieldStep)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		}
	}
	s.mark(time.Now())
	for ; n > 0; n -= burst {
		if err := s.limiter.WaitN(ctx, int(min(n, burst))); err != nil {
			return err
		}
	}
	return nil
}

func (s *scrub) mark(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.marks[1].at) >= time.Second {
		s.marks[0], s.marks[1] = s.marks[1], mark{now, s.run.Bytes.Load()}
	}
}

// Stats returns the present figures.
func (s *scrub) Stats() ScrubStats {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ScrubStats{Rate: s.rate, Running: s.running, Blocks: s.run.Blocks.Load(), Bytes: s.run.Bytes.Load(),
		Bad: s.run.Bad.Load(), Failed: s.failed, Cause: s.cause, Last: s.state.Last}
	if took := now.Sub(s.marks[0].at); s.running && took > 0 {
		st.Now = int64(float64(st.Bytes-s.marks[0].bytes) / took.Seconds())
	}
	return st
}
