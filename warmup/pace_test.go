package warmup

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOnlyTheTimeOfRequestsCounts(t *testing.T) {
	// Two requests that overlap take as long as both together. A rest between requests
	// takes nothing. A request that fails adds its time alone. Earlier measurements go
	// on.
	synctest.Test(t, func(t *testing.T) {
		var m meter
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

func TestNoRateBeforeTwoSeconds(t *testing.T) {
	// What a counter grew by in its first moments is no rate, however often it was noted.
	// Later it is.
	var p growth
	begin := time.Unix(1e9, 0)
	for i, want := range []int64{0, 0, 0, 0, 100, 100} {
		p.Note(begin.Add(time.Duration(i)*500*time.Millisecond), int64(i*50))
		if p.Rate() != want {
			t.Errorf("after %d notes: %d B/s, want %d", i+1, p.Rate(), want)
		}
	}
}
