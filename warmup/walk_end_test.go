package warmup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// ends is Names of one directory that cannot be listed.
type ends struct {
	fakeListing
	list func() error
}

// ReadSince is Names'.
func (n ends) ReadSince(context.Context, uint64, int64, string, func(Entry) bool) error {
	return n.list()
}

// slow is the text of a bug. It comes once all others have gone on as far as they can; of
// two at a time one comes at once.
type slow struct{ waiting *atomic.Bool }

// Error is the text.
func (s slow) Error() string {
	if s.waiting.CompareAndSwap(false, true) {
		synctest.Wait()
		s.waiting.Store(false)
	}
	return "a bug"
}

// looks is a Checker that finds nothing by itself.
type looks struct{ *fakeChecker }

// Refresh is Checker's.
func (looks) Refresh(context.Context, uint64, int64) error { return nil }

// Changes is Checker's.
func (looks) Changes(func(uint64, string, func() (Entry, error))) (cancel func()) { return func() {} }

func TestAWalkThatFailsIsNoEnd(t *testing.T) {
	// The walk of a job that was counted ends with an error, or with a panic whose text
	// takes long. Nobody takes what came before for everything, whatever happens
	// meanwhile: neither a check, which has one walk, nor a job that loads.
	waiting := new(atomic.Bool)
	for name, list := range map[string]func() error{
		"an error": func() error { return errors.New("a bug") },
		"a panic":  func() error { panic(slow{waiting}) },
	} {
		for _, q := range []Request{{Targets: []string{"/"}, Check: true}, {Targets: []string{"/"}}} {
			t.Run(fmt.Sprint(name, " check ", q.Check), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &world{t: t, keeper: &fakeKeeper{}}
					ring := &fakeRing{all: map[string]Record{"x": {ID: "x", Request: q, State: Loading, Plan: Plan{Counted: true}}}}
					none := func() int64 { return 0 }
					e, err := Open(Options{Keeper: w.keeper, Checker: looks{&fakeChecker{}}, Names: ends{list: list}, Records: ring, Files: &Files{Dir: t.TempDir()},
						Readers: none, Throttled: none, Connections: func() int { return 8 }})
					if err != nil {
						t.Fatal(err)
					}
					defer e.Close()
					w.engine = e
					if v := w.over("x"); v.State != Failed || !strings.Contains(v.Error, "a bug") {
						t.Errorf("%s %s", v.State, v.Error)
					}
				})
			})
		}
	}
}
