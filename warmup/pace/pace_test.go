package pace

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOnlyTheTimeOfRequestsCounts(t *testing.T) {
	// Two requests that overlap take as long as both together, a rest between requests takes
	// nothing, one that fails takes its time alone; what was measured before goes on.
	synctest.Test(t, func(t *testing.T) {
		var m Meter
		m.Start(Measure{Bytes: 1000, Requests: 10, Seconds: 100})
		time.Sleep(time.Hour) // all is present
		m.Begin()
		time.Sleep(2 * time.Second)
		m.Begin()
		time.Sleep(time.Second)
		m.End(5)
		if got, want := m.Sum(), (Measure{1005, 11, 103}); got != want {
			t.Errorf("with one under way: %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		m.End(7)
		time.Sleep(time.Hour)
		m.Begin()
		time.Sleep(time.Second)
		m.End(0)
		if got, want := m.Sum(), (Measure{1012, 12, 105}); got != want {
			t.Errorf("at the end: %+v, want %+v", got, want)
		}
	})
}
