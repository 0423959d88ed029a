package status

import (
	"context"
	"sync"
	"time"
)

// This file keeps what readers got over the last ten minutes, as a ring buffer of samples of counters, one
// every five seconds. A window of time is the difference of two samples. So nothing is counted twice, and a
// read pays nothing.

const (
	every  = 5 * time.Second
	recent = 10 * time.Second // the window "now": long enough to hold some reads
	long   = 10 * time.Minute
	// samples is the number of samples in the longest window, and the one from before it.
	samples = int(long/every) + 2
)

// HistorySample has counters since the start of the node.
type HistorySample struct {
	// Reads counts reads of mounts, and Missed those of bytes that the node did not hold. Bytes are in the
	// answers. Lent counts opens by passthrough.
	Reads, Missed, Bytes, Lent int64
	// RAM, Disk and Volume are bytes that the tiers answered. Origin and Peers are bytes that origins and other
	// nodes sent for readers.
	RAM, Disk, Volume, Origin, Peers int64
}

// Mount adds the counters of one mount.
func (s *HistorySample) Mount(ops map[string]int64) {
	s.Reads += ops["read"]
	s.Missed += ops["read_misses"]
	s.Bytes += ops["read_bytes"]
	s.Lent += ops["lent"]
}

// History holds the last samples, in a ring buffer.
type History struct {
	take    func() HistorySample
	started time.Time

	mu   sync.Mutex // guards the rest
	all  [samples]stamped
	next int // the index of the next sample, where the oldest lies
}

type stamped struct {
	HistorySample
	at time.Time // zero if there is no sample yet
}

// NewHistory returns a History of samples from take. Its first sample is now, with zeros.
func NewHistory(take func() HistorySample) *History {
	r := &History{take: take, started: time.Now()}
	r.all[0], r.next = stamped{at: r.started}, 1
	return r
}

// Run takes samples until the context ends.
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

// Reads returns the windows that end now.
func (r *History) Reads() Reads {
	now := stamped{r.take(), time.Now()}
	return Reads{Now: window(r.before(now.at.Add(-recent)), now), TenMinutes: window(r.before(now.at.Add(-long)), now),
		SinceStart: window(stamped{at: r.started}, now), Lent: now.Lent}
}

// before returns the last sample from before a time, or the first sample if that is later.
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

// window returns what happened between two samples.
func window(a, b stamped) Window {
	w := Window{Seconds: b.at.Sub(a.at).Seconds(), Reads: b.Reads - a.Reads, Bytes: b.Bytes - a.Bytes}
	// The counters are not read at the same moment, so differences are kept within bounds.
	w.Held = min(w.Reads, max(0, w.Reads-(b.Missed-a.Missed)))
	origin := min(w.Bytes, b.Origin-a.Origin)
	peers := min(w.Bytes-origin, b.Peers-a.Peers)
	held := w.Bytes - origin - peers
	ram, disk, volume := b.RAM-a.RAM, b.Disk-a.Disk, max(0, b.Volume-a.Volume) // a detached volume takes its counters along
	if all := ram + disk + volume; all > 0 {
		ram = int64(float64(held) * float64(ram) / float64(all))
		volume = int64(float64(held) * float64(volume) / float64(all))
	}
	if disk = held - ram - volume; disk < 0 {
		ram, disk, volume = held, 0, 0
	}
	w.From = map[string]int64{"ram": ram, "disk": disk, "origin": origin}
	if b.Volume > 0 {
		w.From["volume"] = volume
	}
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
