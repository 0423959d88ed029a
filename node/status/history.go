package status

import (
	"context"
	"sync"
	"time"
)

// This file keeps what readers got over the last ten minutes: a ring of samples of
// counters, one each five seconds. A window of time is the difference of two samples, so
// nothing is counted twice and nothing costs a read anything.

const (
	every  = 5 * time.Second
	recent = 10 * time.Second // what "now" is: long enough to hold some reads
	long   = 10 * time.Minute
	// samples are those of the longest window, and the one before it began.
	samples = int(long/every) + 2
)

// HistorySample are counters since the start of the node.
type HistorySample struct {
	// Reads of mounts, Missed those of bytes that the node did not hold; Bytes of their
	// answers; Lent opens by passthrough.
	Reads, Missed, Bytes, Lent int64
	// RAM and Disk are bytes that the tiers answered, Origin those that origins sent for
	// readers, Peers those that other nodes did.
	RAM, Disk, Origin, Peers int64
}

// Mount adds what a mount's own counters say.
func (s *HistorySample) Mount(ops map[string]int64) {
	s.Reads += ops["read"]
	s.Missed += ops["read_misses"]
	s.Bytes += ops["read_bytes"]
	s.Lent += ops["lent"]
}

// History are the last ones, in a ring buffer.
type History struct {
	take    func() HistorySample
	started time.Time

	mu   sync.Mutex // guards the rest
	all  [samples]stamped
	next int // where the next goes; what lies there is the oldest
}

type stamped struct {
	HistorySample
	at time.Time // zero: none yet
}

// NewHistory returns Samples of what take gives, which has begun with zeros now.
func NewHistory(take func() HistorySample) *History {
	r := &History{take: take, started: time.Now()}
	r.all[0], r.next = stamped{at: r.started}, 1
	return r
}

// Run samples until the context ends.
func (r *History) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.sample()
		}
	}
}

func (r *History) sample() {
	s := stamped{r.take(), time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[r.next] = s
	r.next = (r.next + 1) % samples
}

// Reads are the windows that end now.
func (r *History) Reads() Reads {
	now := stamped{r.take(), time.Now()}
	return Reads{Now: window(r.before(now.at.Add(-recent)), now), TenMinutes: window(r.before(now.at.Add(-long)), now),
		SinceStart: window(stamped{at: r.started}, now), Lent: now.Lent}
}

// before is the last sample that was taken by then; the first, if that is later.
func (r *History) before(then time.Time) stamped {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found stamped
	for i := range samples {
		s := r.all[(r.next+i)%samples]
		if s.at.IsZero() {
			continue
		}
		if found.at.IsZero() || !s.at.After(then) {
			found = s
		}
	}
	return found
}

// window is what happened between two samples.
func window(a, b stamped) Window {
	w := Window{Seconds: b.at.Sub(a.at).Seconds(), Reads: b.Reads - a.Reads, Bytes: b.Bytes - a.Bytes}
	// The counters are not read at one moment.
	w.Held = min(w.Reads, max(0, w.Reads-(b.Missed-a.Missed)))
	origin := min(w.Bytes, b.Origin-a.Origin)
	ram, disk := b.RAM-a.RAM, b.Disk-a.Disk
	peers := min(w.Bytes-origin, b.Peers-a.Peers)
	held := w.Bytes - origin - peers
	if ram+disk > 0 {
		ram = int64(float64(held) * float64(ram) / float64(ram+disk))
	}
	if disk = held - ram; disk < 0 {
		ram, disk = held, 0
	}
	w.From = map[string]int64{"ram": ram, "disk": disk, "origin": origin}
	if b.Peers > 0 {
		w.From["peers"] = peers
	}
	w.HitReads, w.HitBytes = ratio(w.Held, w.Reads), ratio(held+peers, w.Bytes)
	return w
}

func ratio(part, all int64) *float64 {
	if all <= 0 {
		return nil
	}
	f := float64(part) / float64(all)
	return &f
}
