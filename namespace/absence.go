package namespace

import (
	"io/fs"
	"sync"
	"time"
)

// absence is a sort name that was asked for and not found.
type absence struct {
	Dir  [16]byte
	Sort string
}

const maxAbsences = 4096 // per shard; about 10 MiB in all at worst

// absences is the negative cache: it remembers, in memory, when the origin last said that there is no
// such name. When it is full, some are forgotten; each costs a request.
type absences struct {
	shards [16]struct {
		mu sync.Mutex // guards at
		at map[absence]int64
	}
}

// Start begins with none.
func (a *absences) Start() {
	for i := range a.shards {
		a.shards[i].at = map[absence]int64{}
	}
}

// Add notes that a name was not found, at a time in Unix milliseconds.
func (a *absences) Add(x absence, now int64) {
	s := &a.shards[x.Dir[0]%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.at) >= maxAbsences {
		n := 0
		for old := range s.at {
			delete(s.at, old)
			if n++; n == maxAbsences/16 {
				break
			}
		}
	}
	s.at[x] = now
}

// Remove notes that a name is there.
func (a *absences) Remove(x absence) {
	s := &a.shards[x.Dir[0]%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.at) > 0 {
		delete(s.at, x)
	}
}

// Since is when the name was last not found, in Unix ms, or 0.
func (a *absences) Since(x absence) int64 {
	s := &a.shards[x.Dir[0]%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.at) == 0 {
		return 0
	}
	return s.at[x]
}

// Any reports whether any name of a directory was not found.
func (a *absences) Any(dir [16]byte) bool {
	s := &a.shards[dir[0]%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.at {
		if x.Dir == dir {
			return true
		}
	}
	return false
}

// Absent says that there is no such name: it is fs.ErrNotExist.
type Absent struct {
	// TTL is how long that may be believed from now on.
	TTL time.Duration
}

// Error is the text of fs.ErrNotExist.
func (*Absent) Error() string { return fs.ErrNotExist.Error() }

// Unwrap makes it fs.ErrNotExist.
func (*Absent) Unwrap() error { return fs.ErrNotExist }
