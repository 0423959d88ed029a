package fuse

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hearthfs/hearth/internal/waits"
)

// grace is how long a request goes on after an INTERRUPT. A signal does not mean that the reader
// wants to fail: Go's runtime preempts threads by a signal. And EINTR kills a reader of mapped
// memory. A thread in another PID namespace cannot be seen to be killed; after the grace it has
// waited long enough.
const grace = 2 * time.Second

// lookAfter is how long a request waits before a goroutine watches for its INTERRUPT. Most requests
// that wait for another node or a disk are answered sooner. A goroutine for each costs as much as
// the request to that node. lookAfter is part of the grace.
const lookAfter = 20 * time.Millisecond

// request is the context of one kernel request. Nothing is started for it until somebody waits
// (calls Done). So a request that is answered from memory costs one allocation.
type request struct {
	cancel <-chan struct{} // closed at INTERRUPT and when the connection ends
	grace  time.Duration
	news   *news  // told while the request waits
	dir    uint64 // the directory whose lock the kernel holds for the request, or 0

	ledger *waits.Ledger // counts what the thread waits
	thread uint32
	names  string // the subject of a wait for names; unused for bytes
	bytes  piece

	mu     sync.Mutex // guards the rest; held for a few instructions; taken before news.mu, the ledger's and those behind has
	wait   waits.Wait
	holds  bool // this node held the bytes when the READ began
	done   chan struct{}
	look   *time.Timer // begins the watch for an INTERRUPT; set together with done
	over   bool        // finished or given up
	gaveUp bool        // its thread was killed, or its grace has passed
}

var _ context.Context = (*request)(nil)

// Deadline is part of context.Context: a request has none.
func (r *request) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value is part of context.Context: a request has no values.
func (r *request) Value(any) any { return nil }

// Done is closed when the request is finished, or some time after its INTERRUPT.
func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		if r.over {
			close(r.done)
		} else {
			if r.dir != 0 {
				r.news.stall(r.dir)
			}
			r.waitLocked()
			done := r.done
			r.look = time.AfterFunc(lookAfter, func() { r.watch(done) })
		}
	}
	return r.done
}

// take waits for a place of a semaphore. It returns false if the request ended first.
func (r *request) take(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-r.Done():
		return false
	}
}

// hold notes that this node holds the bytes of the READ. Until the READ is answered it waits for a
// disk, which is next to nothing if memory has the bytes.
func (r *request) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.holds = true
		r.wait.Begin(r.ledger, r.thread, waits.Disk, nil)
	}
}

// waitLocked notes that somebody waits on behalf of the request.
func (r *request) waitLocked() {
	switch {
	case r.bytes.object == nil:
		r.wait.Begin(r.ledger, r.thread, waits.List, r.names)
	case !r.holds || !r.bytes.held(): // otherwise a disk fills memory
		r.wait.End()
		r.wait.Begin(r.ledger, r.thread, waits.Origin, r.bytes.object.Version)
	}
}

// Err is part of context.Context.
func (r *request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return context.Canceled
	}
	return nil
}

// watch waits for an INTERRUPT, and ends the request after the grace, or at once if its thread was
// killed. It ends with the request, which every handler finishes.
func (r *request) watch(done <-chan struct{}) {
	grace := r.grace
	select {
	case <-r.cancel: // the INTERRUPT may have come right at the beginning
		grace -= lookAfter
	default:
	}
	select {
	case <-done:
		return
	case <-r.cancel:
	}
	if dying(r.thread) {
		// No grace: the kernel may still send the rest of its read-ahead, one request after another,
		// and each would be waited for.
		r.end(true)
		return
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		r.end(true)
	}
}

// dying reports whether a thread has been killed: the kernel holds SIGKILL pending for
// each thread of a process that ends (signal(7), SigPnd in proc_pid_status(5)).
func dying(thread uint32) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return false
	}
	_, pending, _ := strings.Cut(string(status), "\nSigPnd:\t")
	pending, _, _ = strings.Cut(pending, "\n")
	signals, err := strconv.ParseUint(pending, 16, 64)
	return err == nil && signals&(1<<(syscall.SIGKILL-1)) != 0
}

// finish ends the context. The handler calls it before it replies.
func (r *request) finish() { r.end(false) }

func (r *request) end(gaveUp bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.over, r.gaveUp = true, gaveUp
	r.wait.End()
	if r.done == nil {
		return
	}
	close(r.done)
	r.look.Stop()
	if r.dir != 0 {
		r.news.free(r.dir)
	}
}

// interrupted reports whether the request was given up after an INTERRUPT.
func (r *request) interrupted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gaveUp
}
