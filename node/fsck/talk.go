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

// This file carries what a check of a cache directory tells, from where it runs to a screen: its findings,
// its progress and its end.

// Summary is the result of a check so far. Seconds is how long it took.
type Summary struct {
	Files    int64 `json:"files"`
	Blocks   int64 `json:"blocks"`
	Bytes    int64 `json:"bytes"`
	Bad      int64 `json:"bad"`
	Repaired int64 `json:"repaired"`
	Refused  int64 `json:"refused"`
	// Unindexed counts blocks that were not checked, since there is no memory for their index.
	Unindexed int64   `json:"unindexed,omitempty"`
	Seconds   float64 `json:"seconds"`
}

// Add adds the Summary of another directory.
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

// Rate returns the bytes checked per second.
func (s Summary) Rate() int64 { return int64(float64(s.Bytes) / max(s.Seconds, 1e-3)) }

// Event is one thing that a check tells: a finding, its progress, or its end.
type Event struct {
	Finding  *check.Finding `json:"finding,omitempty"`
	Progress *Summary       `json:"progress,omitempty"`
	// Done ends a complete check, and Error one that broke off.
	Done  *Summary `json:"done,omitempty"`
	Error string   `json:"error,omitempty"`
}

// progressEvery is how often a check tells its progress.
const progressEvery = 500 * time.Millisecond

// Watch runs a check and tells each finding at once, the progress twice a second, and the end. It never
// calls tell twice at the same time.
func Watch(repair bool, do func(r *check.Run) error, tell func(Event)) error {
	began := time.Now()
	var mu sync.Mutex // held during tell
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

// readWithin is how long a client may leave an Event unread. Meanwhile the check holds its cache directory
// open, even one that the node is to close.
const readWithin = 30 * time.Second

// Serve answers with one Event a line. It ends with {"done"} or {"error"}, so that an answer that broke off
// is never taken for a clean cache. The request of a client that reads nothing for 30 s is cancelled.
func Serve(w http.ResponseWriter, repair bool, do func(r *check.Run) error) {
	serve(w, readWithin, repair, do)
}

func serve(w http.ResponseWriter, within time.Duration, repair bool, do func(r *check.Run) error) {
	e, c := json.NewEncoder(w), http.NewResponseController(w)
	tell := func(x Event) {
		_ = c.SetWriteDeadline(time.Now().Add(within))
		_ = e.Encode(x) // an error means that the client went away
		_ = c.Flush()
	}
	if err := Watch(repair, do, tell); err != nil {
		tell(Event{Error: err.Error()})
	}
}

// Receive passes on what Serve answers, until the end.
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
