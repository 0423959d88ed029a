package store

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

func TestADiskThatDoesNotAnswerFailsAtOnceUntilItDoes(t *testing.T) {
	// A disk hangs in a read, in a sync, and in an open. Each fails when its patience is over, twice that
	// for a sync, and everything else fails at once. When the disk answers again it is asked again, and
	// what was opened too late is closed.
	synctest.Test(t, func(t *testing.T) {
		const patience = 40 * time.Millisecond
		var gate atomic.Pointer[chan struct{}]
		mem := vfs.NewMem()
		p := newPatient(errorfs.Wrap(mem, errorfs.InjectorFunc(func(errorfs.Op) error {
			if hang := gate.Load(); hang != nil {
				<-*hang
			}
			return nil
		})), patience)
		go p.guard.LookOut()
		defer p.guard.Close()
		f, err := p.Create("file", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("some")); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			name        string
			op          func() error
			least, most time.Duration
		}{
			{"read", func() error { _, err := f.ReadAt(make([]byte, 4), 0); return err }, patience, patience * 5 / 4},
			{"sync", f.Sync, patience * 7 / 4, 2 * patience},
			{"open", func() error { _, err := p.Open("file"); return err }, patience, patience * 5 / 4},
		} {
			hang := make(chan struct{})
			gate.Store(&hang)
			begun := time.Now()
			if err := c.op(); !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("%s of a disk that hangs: %v", c.name, err)
			}
			if took := time.Since(begun); took < c.least || took > c.most {
				t.Errorf("%s failed after %v, not between %v and %v", c.name, took, c.least, c.most)
			}
			begun = time.Now()
			if _, err := p.Stat("file"); !errors.Is(err, syscall.ETIMEDOUT) || time.Since(begun) > 0 {
				t.Errorf("beside a %s that hangs: %v after %v", c.name, err, time.Since(begun))
			}
			gate.Store(nil)
			close(hang)
			synctest.Wait() // it has come back
			if _, err := p.Stat("file"); err != nil {
				t.Errorf("after the %s has come back: %v", c.name, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}
