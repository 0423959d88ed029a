package disk

import (
	"math"
	"time"
)

// clock counts the seconds since it began, for package evict: by the monotonic clock,
// since one that is set back would have the busiest blocks go first. Nothing of it
// outlives the process: what is found on disk is new at the start.
type clock struct{ began time.Time }

// never is behind every second of a clock.
const never = math.MaxInt64

func (c clock) seconds() uint32 { return uint32(c.at(time.Now())) }

// at is the second of a time that was read in this process, also of one before the clock began.
func (c clock) at(t time.Time) int64 { return int64(math.Floor(t.Sub(c.began).Seconds())) }
