package disk

import (
	"fmt"
	"time"

	"github.com/hearthfs/hearth/cache/disk/pulse"
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
	var writer pulse.Watch
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

func (d *directory) lookOnce(writer *pulse.Watch) (under int) {
	under, longest := d.guard.lookAround()
	still := writer.Look(&d.Pulse)
	if longest < looks && 2*longest >= looks || still < writerPatience*looks && 2*still >= writerPatience*looks {
		d.lag.Note(time.Now(), time.Duration(max(longest, still))*d.opt.Patience/looks)
	}
	if still >= writerPatience*looks && d.readable() {
		d.hangs("the writer", writerPatience*d.opt.Patience)
	}
	return under
}

// await waits for the writer's end, unless it hangs: a node must end although its
// disk does not.
func (d *directory) await() error {
	defer d.guard.close()
	tick := time.NewTicker(d.opt.Patience / looks)
	defer tick.Stop()
	var writer pulse.Watch
	for {
		select {
		case <-d.stopped:
			return d.closeErr
		case <-tick.C:
		}
		if writer.Look(&d.Pulse) >= closePatience*looks {
			return fmt.Errorf("close cache directory %s: its device does not answer", d.path)
		}
	}
}
