package watch

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// sampled is how many seconds of answers are searched for a storm of SlowDown, as many as reads of "now"
	// cover.
	sampled = 10
	// A storm is at least leastSlowed answers in that time, and at least one in slowedShare of all. An origin
	// at its limit asks to slow down now and then. Requests then adapt, and nobody waits for long.
	leastSlowed, slowedShare = 3, 20
)

// Answers counts the answers of an origin since it was opened, and those of them that asked to slow down.
type Answers struct{ All, Slowed int64 }

// Slowed distinguishes an origin that throttles from one that asked to slow down once. It samples what origins
// answered, once a second.
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

// Says returns what to know and do about the origin of a link at url, which has given these answers by now. It
// is empty if the origin does not throttle.
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
