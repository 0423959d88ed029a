package s3gw

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// mostLines wait to be written; more are counted and told in one line.
	mostLines = 4096
	// mostWaiting bytes of them are kept, of the Pool's: with requests as long as they may be
	// the lines alone would be 64 MiB.
	mostWaiting = 4 << 20
	// lineCost is what a line takes in bytes beside its texts: its fields, and one text of its own.
	lineCost = 400
	// logEndsWithin is how long the disk is waited for at the end.
	logEndsWithin = 5 * time.Second
	// reopenEach is how often it is looked whether the log was moved away.
	reopenEach = time.Second
)

// accessLog writes lines to a file, beside those who answer. A file that was moved away is
// begun anew, as after logrotate.
type accessLog struct {
	name   string
	report func(error)
	pool   *hearth.Pool
	lines  chan AccessLine
	quit   chan struct{}
	done   chan struct{} // closed when all is written
	within time.Duration // that the disk is waited for at the end
	file   *os.File      // the writer's
	looked time.Time

	moved   atomic.Bool  // the log may have been moved away just now
	waiting atomic.Int64 // bytes of lines

	mu   sync.Mutex // guards lost
	lost int        // lines since one was written
}

// openAccessLog begins to write to a file, or goes on at its end. What waits to be written counts as the
// Pool's; report hears of what went wrong with the disk, as often as it does.
func openAccessLog(name string, pool *hearth.Pool, report func(error)) (*accessLog, error) {
	a := &accessLog{name: name, report: report, pool: pool, lines: make(chan AccessLine, mostLines), quit: make(chan struct{}), done: make(chan struct{}), within: logEndsWithin}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("s3.access_log: %w", err)
	}
	go a.run() // Close waits for it
	return a, nil
}

func (a *accessLog) open() (err error) {
	a.file, err = os.OpenFile(a.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	return err
}

// Take has a line written, and never waits: one that there is no room for is counted.
func (a *accessLog) Take(l AccessLine) {
	cost := l.cost()
	if a.waiting.Add(cost) <= mostWaiting && a.pool.Reserve(cost) {
		select {
		case a.lines <- l:
			return
		default:
			a.pool.Unreserve(cost)
		}
	}
	a.waiting.Add(-cost)
	a.mu.Lock()
	a.lost++
	a.mu.Unlock()
}

// cost is what a line that waits takes of memory, in bytes.
func (l *AccessLine) cost() (n int64) {
	for _, s := range []string{l.Remote, l.Access, l.ID, l.Operation, l.Bucket, l.Key, l.Request, l.Code, l.Agent, l.Referer, l.Host} {
		n += int64(len(s))
	}
	return n + lineCost
}

// add writes a line behind text, which is no part of what waits.
func (a *accessLog) add(text []byte, l AccessLine) []byte {
	cost := l.cost()
	a.waiting.Add(-cost)
	a.pool.Unreserve(cost)
	return l.Append(text)
}

// run writes until Close, and then what still waits.
func (a *accessLog) run() {
	defer close(a.done)
	var text []byte
	for {
		var l AccessLine
		select {
		case l = <-a.lines:
		case <-a.quit:
			select {
			case l = <-a.lines:
			default:
				_ = a.file.Close() // each line was written
				return
			}
		}
		text = a.add(text[:0], l)
		for len(a.lines) > 0 && len(text) < 64<<10 {
			l = <-a.lines
			text = a.add(text, l)
		}
		if err := a.write(a.told(text)); err != nil {
			a.report(fmt.Errorf("s3.access_log: %w", err))
		}
	}
}

// told adds how many lines are missing.
func (a *accessLog) told(text []byte) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost > 0 {
		text = fmt.Appendf(text, "# %d lines are missing here: the disk did not take them in time\n", a.lost)
		a.lost = 0
	}
	return text
}

func (a *accessLog) write(text []byte) error {
	if a.moved.Swap(false) || time.Since(a.looked) >= reopenEach {
		a.looked = time.Now()
		there, err := os.Stat(a.name)
		mine, mineErr := a.file.Stat()
		if err != nil || mineErr != nil || !os.SameFile(there, mine) {
			old := a.file
			if err := a.open(); err != nil {
				a.file = old
				return err
			}
			_ = old.Close() // it was moved away
		}
	}
	_, err := a.file.Write(text)
	return err
}

// Reopen has the next line look whether the log was moved away.
func (a *accessLog) Reopen() { a.moved.Store(true) }

// Close writes what waits; lines that come later are lost. A disk that stands still is waited for
// no longer than requests under way are: a write to it cannot be ended, and goes on behind.
func (a *accessLog) Close() {
	close(a.quit)
	late := time.NewTimer(a.within)
	defer late.Stop()
	select {
	case <-a.done:
	case <-late.C:
		a.report(errors.New("s3.access_log: the disk does not take the last lines"))
	}
}
