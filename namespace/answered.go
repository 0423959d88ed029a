package namespace

import "sync"

// answered remembers, of the names asked for last, when the newest question that was answered had
// begun. An answer to a question that began earlier comes late: others have been told something newer.
// The zero value is ready.
type answered struct {
	mu sync.Mutex // guards at
	at map[absence]int64
}

// maxAnswered is how many names are remembered, about 200 bytes each: many more than there are
// questions in flight.
const maxAnswered = 4096

// Newest notes an answer to a question that began at that time, as Clock.Nano tells it. False means
// that the answer comes late.
func (a *answered) Newest(x absence, began int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, known := a.at[x]
	if known && last > began {
		return false
	}
	if a.at == nil {
		a.at = map[absence]int64{}
	}
	if !known && len(a.at) >= maxAnswered {
		for old := range a.at {
			delete(a.at, old)
			break
		}
	}
	a.at[x] = began
	return true
}
