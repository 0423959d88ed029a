package warmup

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
)

func TestWhatWasAnsweredIsSaved(t *testing.T) {
	// The process is killed right after a cancel and a retry were answered: the next
	// process knows both. A job that was refused because the engine ends does not begin.
	w := newWorld(t)
	w.fill()
	w.open()
	release := make(chan struct{})
	w.bucket.onGet = func(n int, _ string) {
		if n > 20 {
			<-release
		}
	}
	id := w.start("/")
	if err := w.engine.Cancel(&waits{Context: t.Context(), told: release}, id); err != nil {
		t.Fatal(err)
	}
	w.kill()
	w.bucket.onGet = nil
	w.open()
	if v, _, err := w.engine.Get(id); err != nil || v.State != Cancelled {
		t.Fatalf("after a cancel and a kill: %s, %v", v.State, err)
	}
	clear(w.records.last) // a retry begins anew
	if err := w.engine.Retry(id); err != nil {
		t.Fatal(err)
	}
	w.kill()
	clear(w.records.last)
	w.open()
	if v := w.over(id); v.State != Done {
		t.Errorf("after a retry and a kill: %s", v.State)
	}
	w.engine.Close()
	if _, err := w.engine.Submit(Request{Targets: []string{"/"}}, nil, false, asIs); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
	if all, err := w.files.Load(); err != nil || len(all) != 1 {
		t.Errorf("%d records, %v", len(all), err)
	}
}

// noPins are durable pins that refuse all.
type noPins struct{}

// Begin is Durable's.
func (noPins) Begin(*Record) error { return Refusal("there is no room for a pin") }

// End is Durable's.
func (noPins) End(*Record) {}

func TestARefusedPinsJobDoesNotBeginLater(t *testing.T) {
	// A job whose pin is refused is gone. If the store of records cannot drop a record,
	// the job has ended there, and the next engine does not begin it.
	for _, ring := range []bool{false, true} {
		w := newWorld(t)
		w.fill()
		if ring {
			w.records.Records = &fakeRing{all: map[string]Record{}}
		}
		w.open()
		w.engine.o.Durable = noPins{}
		if r, err := w.engine.Submit(Request{Targets: []string{"/"}, PinS: 60}, nil, false, asIs); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("ring %v: %+v, %v", ring, r, err)
		}
		if all := w.engine.List(); len(all) != 0 {
			t.Errorf("ring %v: %+v", ring, all)
		}
		w.kill()
		w.open()
		all := w.engine.List()
		if ring && (len(all) != 1 || all[0].State != Failed || all[0].Kind != kindRefused || !strings.Contains(all[0].Error, "no room for a pin")) || !ring && len(all) != 0 {
			t.Errorf("ring %v, the next engine: %+v", ring, all)
		}
	}
}

func TestACancelThatComesWhileTheEndIsSaved(t *testing.T) {
	// A job is done, and nobody can see that yet. A cancel waits until that can be seen,
	// and returns how the job ended.
	w := newWorld(t)
	w.bucket.put("f", "e", 10)
	answer := make(chan error, 1)
	w.records.saved = func() {
		for id, r := range w.records.last {
			if r.State == Done {
				waiting := &waits{Context: t.Context(), told: make(chan struct{})}
				ended := make(chan struct{})
				go func() {
					answer <- w.engine.Cancel(waiting, id)
					close(ended)
				}()
				select {
				case <-waiting.told:
				case <-ended:
				}
			}
		}
	}
	w.open()
	id := w.start("/")
	if err := <-answer; !errors.Is(err, fs.ErrPermission) || !strings.HasSuffix(err.Error(), "is over: done") {
		t.Errorf("cancelled at its end: %v", err)
	}
	if v := w.over(id); v.State != Done {
		t.Errorf("%+v", v)
	}
}

func TestACancelThatCannotBeSaved(t *testing.T) {
	// The disk takes no record any more. The job ends, and the cancel says that it goes
	// on after a restart. A cancel that does not wait for that says so, too.
	w := newWorld(t)
	w.fill()
	w.open()
	asked, release := make(chan struct{}), make(chan struct{})
	began := sync.OnceFunc(func() { close(asked) })
	w.bucket.onGet = func(int, string) {
		began()
		<-release
	}
	id := w.start("/")
	<-asked // a job that is cancelled before it asks for anything is over at once
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.engine.Cancel(gone, id); !errors.Is(err, context.Canceled) {
		t.Errorf("who went away: %v", err)
	}
	w.records.mu.Lock()
	w.records.dead = true
	w.records.mu.Unlock()
	if err := w.engine.Cancel(&waits{Context: t.Context(), told: release}, id); err == nil || !strings.Contains(err.Error(), "goes on after a restart") {
		t.Errorf("a cancel that is not saved: %v", err)
	}
}

// waits is a context that closes told when somebody waits for it.
type waits struct {
	context.Context
	once sync.Once
	told chan struct{}
}

// Done is context.Context's.
func (w *waits) Done() <-chan struct{} {
	w.once.Do(func() { close(w.told) })
	return w.Context.Done()
}
