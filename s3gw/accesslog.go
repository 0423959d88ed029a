package s3gw

import (
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	// mostLines wait to be written; more are counted and told in one line.
	mostLines = 4096
	// reopenEach is how often it is looked whether the log was moved away.
	reopenEach = time.Second
)

// accessLog writes lines to a file, beside those who answer. A file that was moved away is
// begun anew, as after logrotate.
type accessLog struct {
	name   string
	report func(error)
	lines  chan Line
	quit   chan struct{}
	work   sync.WaitGroup
	file   *os.File // the writer's
	looked time.Time

	mu   sync.Mutex // guards lost
	lost int        // lines since one was written
}

func openAccessLog(name string, report func(error)) (*accessLog, error) {
	a := &accessLog{name: name, report: report, lines: make(chan Line, mostLines), quit: make(chan struct{})}
	if err := a.open(); err != nil {
		return nil, fmt.Errorf("s3.access_log: %w", err)
	}
	a.work.Go(a.run)
	return a, nil
}

func (a *accessLog) open() (err error) {
	a.file, err = os.OpenFile(a.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	return err
}

// take never waits.
func (a *accessLog) take(l Line) {
	select {
	case a.lines <- l:
	default:
		a.mu.Lock()
		a.lost++
		a.mu.Unlock()
	}
}

// run writes until close, and then what still waits.
func (a *accessLog) run() {
	var text []byte
	for {
		var l Line
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
		text = l.Append(text[:0])
		for len(a.lines) > 0 && len(text) < 64<<10 {
			l = <-a.lines
			text = l.Append(text)
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
	if time.Since(a.looked) >= reopenEach {
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

// close writes what waits; lines that come later are lost.
func (a *accessLog) close() {
	close(a.quit)
	a.work.Wait()
}
