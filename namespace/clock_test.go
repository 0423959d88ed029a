package namespace

import (
	"testing"
	"time"
)

func TestNothingFromBeforeIsTrustedOnceTheClockWentBack(t *testing.T) {
	// Once the clock went back, no time that was written before is trusted, whether it lies before the
	// present time or after it. Times from now on are.
	for back, trusted := range map[time.Duration]bool{50 * time.Hour: false, 0: true} {
		var c clock
		start := time.Now().Add(-back).Round(0)
		now := start
		c.Start(func() time.Time { return now })
		written := start.Add(back).UnixMilli()
		c.Distrust(written)
		for _, at := range []int64{written - 1, written - 60_000} {
			if got := c.Trusted(at) == at; got != trusted {
				t.Errorf("back by %v: %d, now %d, is trusted: %v", back, at, c.Now(), got)
			}
		}
		now = now.Add(time.Second)
		if at := c.Now(); c.Trusted(at) != at {
			t.Errorf("back by %v: the present is not trusted", back)
		}
	}
}

func TestNanoIsNeverTheSameTwice(t *testing.T) {
	// Of two questions that began in the same moment, or around a jump of the clock, the later one is
	// known.
	var c clock
	now := time.Now().Round(0)
	c.Start(func() time.Time { return now })
	last := c.Nano()
	for _, jump := range []time.Duration{0, 0, time.Hour, -2 * time.Hour, 0, time.Millisecond} {
		now = now.Add(jump)
		next := c.Nano()
		if next <= last || next/1e6 < c.Now() {
			t.Errorf("%d after %d, now %d", next, last, c.Now())
		}
		last = next
	}
}
