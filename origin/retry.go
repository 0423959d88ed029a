package origin

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hearthfs/hearth/internal/waits"
)

// Retry is the budget for retries of one request.
type Retry struct {
	// Attempts bounds the attempts, the first included; 0: 8.
	Attempts int
	// Within is the time from the first failure in which another attempt may begin, twice that for an
	// origin that throttles. 0: Config.Timeout, so that a request is given up within three times that:
	// 30 s unless configured.
	Within time.Duration
	// First is the longest wait before the second attempt. It doubles for each later one; 0: 100 ms. No
	// wait is longer than 64 times this, except for a Retry-After.
	First time.Duration
}

func (r Retry) withDefaults(timeout time.Duration) Retry {
	if r.Attempts == 0 {
		r.Attempts = 8
	}
	if r.Within == 0 {
		r.Within = timeout
	}
	if r.First == 0 {
		r.First = 100 * time.Millisecond
	}
	return r
}

// budget is what is left of a Retry for one request. Its time limit is set at the first failure, so
// that a request that succeeds reads no clock.
type budget struct {
	Retry
	used  int
	until time.Time
}

// spend waits before the next attempt. When the budget does not cover err, it returns the error to give
// up with: err itself.
func (b *budget) spend(ctx context.Context, err error) error {
	kind := classify(err)
	b.used++
	if b.until.IsZero() {
		b.until = time.Now().Add(b.Within)
		if kind == throttled { // the origin answers, and asks to wait
			b.until = b.until.Add(b.Within)
		}
	}
	if kind == final || b.used >= b.Attempts || kind == unreached && b.used > 2 {
		return err
	}
	// Full jitter: clients that failed together retry at different times.
	pause := rand.N(b.First << min(b.used-1, 6))
	var e *Error
	if errors.As(err, &e) && e.after > 0 {
		pause = e.after + rand.N(b.First)
	}
	if time.Now().Add(pause).After(b.until) {
		return err
	}
	if kind == throttled {
		defer waits.SlowDown(ctx)()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
