package node

import (
	"log/slog"
	"sync"
	"time"
)

// This file limits the log: each kind of trouble is logged at most once a minute. A store that fails on every
// read is one line, not a million.

// troubleLog logs what goes wrong inside the tiers.
type troubleLog struct {
	*slog.Logger
	mu sync.Mutex // guards last; held for a look-up only
	// last holds when each kind of trouble was logged, and how often it has happened since.
	last map[string]*trouble
}

type trouble struct {
	logged time.Time
	since  int64
}

const (
	// logEvery is how often one kind of trouble is logged.
	logEvery = time.Minute
	// mostKinds bounds the memory. Kinds must not contain object names.
	mostKinds = 256
)

// newTroubles returns a troubleLog that writes to log. nil means slog.Default().
func newTroubles(log *slog.Logger) *troubleLog {
	if log == nil {
		log = slog.Default()
	}
	return &troubleLog{Logger: log, last: map[string]*trouble{}}
}

// Trouble logs a warning, unless the same kind was logged less than a minute ago. Such repeats are counted.
func (e *troubleLog) Trouble(kind, message string, args ...any) {
	if n, ok := e.allow(kind, time.Now()); ok {
		if n > 0 {
			args = append(args, "also_since_last", n)
		}
		e.Warn(message, args...)
	}
}

func (e *troubleLog) allow(kind string, now time.Time) (int64, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.last[kind]
	if t == nil {
		if len(e.last) >= mostKinds {
			clear(e.last)
		}
		t = &trouble{}
		e.last[kind] = t
	}
	if !t.logged.IsZero() && now.Sub(t.logged) < logEvery {
		t.since++
		return 0, false
	}
	n := t.since
	t.logged, t.since = now, 0
	return n, true
}
