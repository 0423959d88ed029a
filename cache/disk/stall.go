package disk

import (
	"fmt"
	"time"
)

// hangs ejects a directory whose device does not answer.
func (d *directory) hangs(what string, since time.Duration) {
	if d.eject(fmt.Errorf("stalled: %s has not come back for %v", what, since), true) {
		d.errors.Add(1)
		d.stalls.Add(1)
	}
}

// lookOut looks for what hangs: the writer, and what readers wait for. It ends
// with the guard and the last of these.
func (d *directory) lookOut() {
	tick := time.NewTicker(d.opt.Patience / looks)
	defer tick.Stop()
	var writer watch
	quit := d.guard.quit
	for under := 1; quit != nil || under > 0; {
		select {
		case <-quit:
			quit = nil // ready for ever: it was seen
		case <-tick.C:
		}
		under = d.lookOnce(&writer)
	}
}

func (d *directory) lookOnce(writer *watch) (under int) {
	under, longest := d.guard.lookAround()
	still := writer.look(&d.pulse)
	if longest < looks && 2*longest >= looks || still < writerPatience*looks && 2*still >= writerPatience*looks {
		d.slowAt(time.Now(), time.Duration(max(longest, still))*d.opt.Patience/looks)
	}
	if still >= writerPatience*looks && d.readable() {
		d.hangs("the writer", writerPatience*d.opt.Patience)
	}
	return under
}

const (
	// slowLooks within slowWithin that find an operation which has waited for half of its
	// patience tell a slow device: a read that hangs is found so twice, then the device is
	// out of use.
	slowLooks  = 3
	slowWithin = 10 * time.Second
)

// waited are the last looks that found the device slow, the last one first, and how long
// an operation had waited at the most.
type waited struct {
	at   [slowLooks]time.Time
	most time.Duration
}

// slowAt notes a look that found the device slow; only the lookout does.
func (d *directory) slowAt(now time.Time, wait time.Duration) {
	w := waited{most: wait}
	if old := d.waited.Load(); old != nil {
		copy(w.at[1:], old.at[:])
		if now.Sub(old.at[0]) < slowWithin {
			w.most = max(wait, old.most)
		}
	}
	w.at[0] = now
	d.waited.Store(&w)
}

// waitedLately is how long operations wait for the device; 0: not for long.
func (d *directory) waitedLately(now time.Time) time.Duration {
	if w := d.waited.Load(); w != nil && now.Sub(w.at[slowLooks-1]) < slowWithin {
		return w.most
	}
	return 0
}

// await waits for the writer's end, unless it hangs: a node must end although its
// disk does not.
func (d *directory) await() error {
	defer d.guard.close()
	tick := time.NewTicker(d.opt.Patience / looks)
	defer tick.Stop()
	var writer watch
	for {
		select {
		case <-d.stopped:
			return d.closeErr
		case <-tick.C:
		}
		if writer.look(&d.pulse) >= closePatience*looks {
			return fmt.Errorf("close cache directory %s: its device does not answer", d.path)
		}
	}
}
