package faultfs

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestFaults(t *testing.T) {
	// Reads and writes meet each fault, until the next one is set. The e2e scenarios of disks mount
	// it.
	f := &FS{change: make(chan struct{})}
	for _, c := range []struct {
		fault       Fault
		read, write syscall.Errno
	}{
		{None, 0, 0}, {IOError, syscall.EIO, syscall.EIO}, {NoSpace, 0, syscall.ENOSPC}, {ReadOnly, 0, syscall.EROFS}, {None, 0, 0},
	} {
		if err := f.Set(c.fault); err != nil {
			t.Fatal(err)
		}
		if r, w := f.meet(false), f.meet(true); r != c.read || w != c.write {
			t.Errorf("%s: a read meets %v, a write %v", c.fault, r, w)
		}
	}
	if err := f.Set("fire"); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown fault: %v", err)
	}
}

func TestSlowReads(t *testing.T) {
	// A read takes its time, and a write does not.
	synctest.Test(t, func(t *testing.T) {
		f := &FS{change: make(chan struct{})}
		if err := f.Set(Slow); err != nil {
			t.Fatal(err)
		}
		for write, want := range map[bool]time.Duration{false: slowRead, true: 0} {
			if begun, got := time.Now(), f.meet(write); got != 0 || time.Since(begun) != want {
				t.Errorf("write %v: %v after %v", write, got, time.Since(begun))
			}
		}
	})
}

func TestStallEnds(t *testing.T) {
	// A stalled request gets no answer until another fault is set, or the watchdog ends it.
	synctest.Test(t, func(t *testing.T) {
		f := &FS{change: make(chan struct{}), watchdog: time.Minute}
		answers := make(chan syscall.Errno, 1)
		for _, end := range []struct {
			by     func()
			answer syscall.Errno
			after  time.Duration
		}{
			{func() { _ = f.Set(IOError) }, syscall.EIO, 0},
			{func() {}, 0, time.Minute},
		} {
			if err := f.Set(Stall); err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			go func() { answers <- f.meet(false) }()
			synctest.Wait()
			if f.Stalled() != 1 || len(answers) != 0 {
				t.Fatalf("%d stalled, %d answers", f.Stalled(), len(answers))
			}
			end.by()
			if got := <-answers; got != end.answer || time.Since(begun) != end.after || f.Stalled() != 0 {
				t.Errorf("answer %v after %v, expected %v after %v", got, time.Since(begun), end.answer, end.after)
			}
		}
	})
}
