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
	// mostLines bounds the lines that wait to be written; further ones are counted, and one line
	// tells the count.
	mostLines = 4096
	// mostWaiting bounds their bytes, which are reserved in the Pool. With the longest requests the
	// lines alone would take 64 MiB.
	mostWaiting = 4 << 20
	// lineCost is the memory of a line in bytes beside its texts: its fields, and one text of its
	// own.
	lineCost = 400
	// logEndsWithin bounds the wait for the disk at the end.
	logEndsWithin = 5 * time.Second
	// reopenEach is how often we check whether the log was moved away.
	reopenEach = time.Second
)

// accessLog writes lines to a file, in the background of the answers. A file that was moved away,
// as by logrotate, is begun anew.
type accessLog struct {
	name   string
	report func(error)
	pool   *hearth.Pool
	lines  chan AccessLine
	quit   chan struct{}
	done   chan struct{} // closed when all is written
	within time.Duration // how long to wait for the disk at the end
	file   *os.File      // of the writer
	looked time.Time

	moved   atomic.Bool  // the log may have been moved away just now
	waiting atomic.Int64 // bytes of lines

	mu   sync.Mutex // guards lost
	lost int        // lines since one was written
}

// openAccessLog opens a file, at its end if it exists, and starts the writer. Lines that wait are
// reserved in the Pool. report gets each error of the disk.
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

// Take has a line written and never waits. A line that finds no room is counted.
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

// cost returns the memory of a waiting line, in bytes.
func (l *AccessLine) cost() (n int64) {
	for _, s := range []string{l.Remote, l.Access, l.ID, l.Operation, l.Bucket, l.Key, l.Request, l.Code, l.Agent, l.Referer, l.Host} {
		n += int64(len(s))
	}
	return n + lineCost
}

// add appends a line to text, and takes it out of what waits.
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

// told adds a line that counts the missing lines.
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

// Reopen has the next write check whether the log was moved away.
func (a *accessLog) Reopen() { a.moved.Store(true) }

// Close writes what waits; later lines are lost. It waits for a stuck disk no longer than for
// requests under way. A write to the disk cannot be aborted, and goes on in the background.
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
