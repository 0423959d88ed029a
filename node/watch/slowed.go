package watch

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// sampled are the seconds that a storm is looked for in, as reads of "now" are.
	sampled = 10
	// leastSlowed answers in that time, and of all one in slowedShare, are a storm. An
	// origin at its limit says so now and then, requests adapt, and nobody waits for long.
	leastSlowed, slowedShare = 3, 20
)

// Answers are those that an origin gave since it was opened, and those of them that asked
// to slow down.
type Answers struct{ All, Slowed int64 }

// Slowed tells an origin that throttles from one that did so once: it has samples of what
// origins answered, one a second.
type Slowed struct {
	mu      sync.Mutex // guards the rest
	samples [sampled + 1]map[string]Answers
	oldest  int
}

// Run samples the answers of each link until the context ends.
func (s *Slowed) Run(ctx context.Context, take func() map[string]Answers) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.add(take())
		}
	}
}

func (s *Slowed) add(sample map[string]Answers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples[s.oldest] = sample
	s.oldest = (s.oldest + 1) % len(s.samples)
}

// Says is what to know and do about a link's origin at url that has answered so by now; "":
// it does not throttle.
func (s *Slowed) Says(link, url string, now Answers) string {
	s.mu.Lock()
	then := s.samples[s.oldest][link]
	s.mu.Unlock()
	all, slowed := now.All-then.All, now.Slowed-then.Slowed
	if slowed < leastSlowed || slowed*slowedShare < all {
		return ""
	}
	return fmt.Sprintf("the origin %s asks to slow down: %d of %d answers in the last %d s; fewer nodes at once, a lower origin.connections, or warmup --rate",
		url, slowed, all, sampled)
}
