package check

import (
	"errors"
	"testing"
)

func TestAStepThatIsLeftReleasesOnce(t *testing.T) {
	// A step ends; it is left in the device and ends later; it is never begun; it is left before it begins: what it was given is released exactly once each time.
	var late []func()
	for name, step := range map[string]func(op func()) bool{
		"ended":       func(op func()) bool { op(); return true },
		"left":        func(op func()) bool { late = append(late, op); op(); return false },
		"never begun": func(func()) bool { return false },
		"given up":    func(op func()) bool { late = append(late, op); return false },
	} {
		late = nil
		released := 0
		release := func() { released++ }
		r := &Run{Step: step}
		err := r.Do(release, release)
		for _, op := range late { // a worker that comes to it after all
			op()
		}
		if released != 1 || (err == nil) != (name == "ended") || err != nil && !errors.Is(err, ErrLeft) {
			t.Errorf("%s: released %d times, %v", name, released, err)
		}
	}
	ran := false
	if err := (&Run{}).Do(func() { ran = true }, nil); err != nil || !ran {
		t.Errorf("on the caller's thread: %v", err)
	}
}
