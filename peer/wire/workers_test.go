package wire

import (
	"sync"
	"testing"
	"testing/synctest"
)

func TestWorkersStayForTheNextItem(t *testing.T) {
	// There are more items at once than workers may stay. All are done at once, some
	// workers stay for what comes next, and none is left at the end.
	synctest.Test(t, func(t *testing.T) {
		var idle idleWorkers
		w := newWorkers(&idle)
		gate := make(chan struct{})
		var done sync.WaitGroup
		for range 3 * mostIdle {
			done.Add(1)
			w.Do(func() { <-gate; done.Done() })
		}
		synctest.Wait() // each waits at the gate: none waits for another
		close(gate)
		done.Wait()
		synctest.Wait()
		if n := idle.n.Load(); n != mostIdle {
			t.Errorf("%d workers stay, want %d", n, mostIdle)
		}
		done.Add(1)
		w.Do(done.Done)
		done.Wait()
		synctest.Wait()
		if n := idle.n.Load(); n != mostIdle {
			t.Errorf("%d workers after one more item, want %d", n, mostIdle)
		}
		w.End()
		if n := idle.n.Load(); n != 0 {
			t.Errorf("%d workers after the end", n)
		}
	})
}
