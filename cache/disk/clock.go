package disk

import (
	"math"
	"time"
)

// clock counts seconds since its start, for package evict. It is monotonic: after a wall clock was
// set back, the busiest blocks would go first. Its times do not outlive the process: blocks found
// on disk count as new at the start.
type clock struct{ began time.Time }

// never is later than every second of a clock.
const never = math.MaxInt64

func (c clock) seconds() uint32 { return uint32(c.at(time.Now())) }

// at is the second of a time that was read in this process. It may lie before the start of the
// clock.
func (c clock) at(t time.Time) int64 { return int64(math.Floor(t.Sub(c.began).Seconds())) }
