package fsck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/hearthfs/hearth/cache/check"
)

// This file is what a check of a cache directory tells: findings, how far it is
// and its end, from where it runs to a screen.

// Summary is what a check has come to; Seconds are those that it took.
type Summary struct {
	Files    int64 `json:"files"`
	Blocks   int64 `json:"blocks"`
	Bytes    int64 `json:"bytes"`
	Bad      int64 `json:"bad"`
	Repaired int64 `json:"repaired"`
	Refused  int64 `json:"refused"`
	// Unindexed blocks were not looked at: there is no memory for their index.
	Unindexed int64   `json:"unindexed,omitempty"`
	Seconds   float64 `json:"seconds"`
}

// Add adds another directory's.
func (s *Summary) Add(x Summary) {
	s.Files += x.Files
	s.Blocks += x.Blocks
	s.Bytes += x.Bytes
	s.Bad += x.Bad
	s.Repaired += x.Repaired
	s.Refused += x.Refused
	s.Unindexed += x.Unindexed
	s.Seconds += x.Seconds
}

// Rate is the bytes checked per second.
func (s Summary) Rate() int64 { return int64(float64(s.Bytes) / max(s.Seconds, 1e-3)) }

// Event is one thing that a check tells: a finding, how far it is, or its end.
type Event struct {
	Finding  *check.Finding `json:"finding,omitempty"`
	Progress *Summary       `json:"progress,omitempty"`
	// Done ends a whole check; Error one that broke off.
	Done  *Summary `json:"done,omitempty"`
	Error string   `json:"error,omitempty"`
}

// progressEvery is how often a check says how far it is.
const progressEvery = 500 * time.Millisecond

// Watch runs a check and tells of it: each finding at once, how far it is twice a
// second, and its end. Nothing is told two at a time.
func Watch(repair bool, do func(r *check.Run) error, tell func(Event)) error {
	began := time.Now()
	var mu sync.Mutex // of tell
	say := func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		tell(e)
	}
	r := &check.Run{Repair: repair, Found: func(f check.Finding) { say(Event{Finding: &f}) }}
	sum := func() *Summary {
		return &Summary{Files: r.Files.Load(), Blocks: r.Blocks.Load(), Bytes: r.Bytes.Load(), Bad: r.Bad.Load(),
			Repaired: r.Repaired.Load(), Refused: r.Refused.Load(), Unindexed: r.Unindexed.Load(), Seconds: time.Since(began).Seconds()}
	}
	var ticking sync.WaitGroup
	over := make(chan struct{})
	ticking.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				say(Event{Progress: sum()})
			case <-over:
				return
			}
		}
	})
	err := do(r)
	close(over)
	ticking.Wait()
	if err != nil {
		return err
	}
	say(Event{Done: sum()})
	return nil
}

// readWithin is how long an asker may leave an Event unread: a check holds its cache
// directory open meanwhile, also one that is to be let go.
const readWithin = 30 * time.Second

// Serve answers with one Event a line. It ends with {"done"} or {"error"}, so that an
// answer that broke off is never taken for a clean cache. The request of an asker who
// reads nothing for 30 s is cancelled.
func Serve(w http.ResponseWriter, repair bool, do func(r *check.Run) error) {
	serve(w, readWithin, repair, do)
}

func serve(w http.ResponseWriter, within time.Duration, repair bool, do func(r *check.Run) error) {
	e, c := json.NewEncoder(w), http.NewResponseController(w)
	tell := func(x Event) {
		_ = c.SetWriteDeadline(time.Now().Add(within))
		_ = e.Encode(x) // the asker went away
		_ = c.Flush()
	}
	if err := Watch(repair, do, tell); err != nil {
		tell(Event{Error: err.Error()})
	}
}

// Receive passes on what Serve answers until it ends.
func Receive(ctx context.Context, body io.Reader, tell func(Event)) error {
	d := json.NewDecoder(body)
	for {
		var e Event
		switch err := d.Decode(&e); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("check: the node's answer broke off: %w", err)
		case e.Error != "":
			return errors.New(e.Error)
		}
		tell(e)
		if e.Done != nil {
			return nil
		}
	}
}
