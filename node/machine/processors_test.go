package machine

import (
	"runtime"
	"testing"
)

func TestSpareProcessorsAreForWhoReads(t *testing.T) {
	// A node that only serves peers has one processor a core. With a mount it has two a core, and keeps them
	// when another node begins beside it. GOMAXPROCS takes precedence.
	t.Setenv("GOMAXPROCS", "")
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	runtime.SetDefaultGOMAXPROCS()
	own := runtime.GOMAXPROCS(0)
	for i, step := range []struct{ spare, twice bool }{{false, false}, {true, true}, {false, true}, {true, true}} {
		want := own
		if step.twice {
			want *= 2
		}
		if Processors(0, step.spare); runtime.GOMAXPROCS(0) != want {
			t.Errorf("step %d: %d processors, want %d", i, runtime.GOMAXPROCS(0), want)
		}
	}
	t.Setenv("GOMAXPROCS", "1")
	runtime.GOMAXPROCS(1)
	if Processors(0, true); runtime.GOMAXPROCS(0) != 1 {
		t.Errorf("%d processors in spite of GOMAXPROCS", runtime.GOMAXPROCS(0))
	}
}
