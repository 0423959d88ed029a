package faultproxy

import (
	"encoding/json"
	"math/bits"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// Counts are the requests that passed under one verb.
type Counts struct {
	// Requests is the number of requests that were read, and Bytes that of the bytes of their
	// answers' bodies.
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`
}

// Bucket of the histogram of first-byte times.
type Bucket struct {
	// Below is the bucket's upper bound, a power of two of microseconds.
	Below Duration `json:"below"`
	// Count of answers.
	Count int64 `json:"count"`
}

// Stats are a proxy's figures since its start or the last Reset.
type Stats struct {
	Get   Counts `json:"get"`
	Head  Counts `json:"head"`
	List  Counts `json:"list"`
	Other Counts `json:"other"`
	// InFlight is the number of requests in flight, Most the largest such number.
	InFlight int64 `json:"in_flight"`
	Most     int64 `json:"most"`
	// Received is the number of bytes of the requests' bodies.
	Received int64 `json:"received"`
	// FirstByte is the histogram of times from a request to its answer's first byte, without the
	// empty buckets at its ends.
	FirstByte []Bucket `json:"first_byte"`
}

// Requests is the sum over the verbs that read.
func (s Stats) Requests() int64 { return s.Get.Requests + s.Head.Requests + s.List.Requests }

type counters struct {
	requests, bytes [4]atomic.Int64
	inFlight, most  atomic.Int64
	received        atomic.Int64
	first           [40]atomic.Int64
}

// caller has the counts of the clients of one address.
type caller struct{ requests, bytes atomic.Int64 }

func (c *caller) add(verb string, bytes int64) {
	if verb == Get {
		c.requests.Add(1)
		c.bytes.Add(bytes)
	}
}

// Gets are the GETs by clients of an address since the start. They count once their answers have
// ended. Reset leaves them.
func (p *Proxy) Gets(from netip.Addr) Counts {
	c := p.caller(from)
	return Counts{Requests: c.requests.Load(), Bytes: c.bytes.Load()}
}

// caller returns the counts of an address.
func (p *Proxy) caller(from netip.Addr) *caller {
	p.mu.Lock()
	defer p.mu.Unlock()
	from = from.Unmap()
	if p.callers[from] == nil {
		p.callers[from] = &caller{}
	}
	return p.callers[from]
}

func place(verb string) int {
	switch verb {
	case Get:
		return 0
	case Head:
		return 1
	case List:
		return 2
	}
	return 3
}

func (c *counters) begin(verb string) {
	c.requests[place(verb)].Add(1)
	n := c.inFlight.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
}

func (c *counters) end(verb string, bytes int64) {
	c.bytes[place(verb)].Add(bytes)
	c.inFlight.Add(-1)
}

func (c *counters) firstByte(d time.Duration) {
	c.first[min(bits.Len64(uint64(d.Microseconds())), len(c.first)-1)].Add(1)
}

// Stats returns the figures. A request counts once it was read, its bytes once its answer has
// ended.
func (p *Proxy) Stats() Stats {
	c := &p.counts
	of := func(verb string) Counts {
		return Counts{Requests: c.requests[place(verb)].Load(), Bytes: c.bytes[place(verb)].Load()}
	}
	s := Stats{Get: of(Get), Head: of(Head), List: of(List), Other: of(Other), InFlight: c.inFlight.Load(), Most: c.most.Load(), Received: c.received.Load()}
	for i := range c.first {
		if n := c.first[i].Load(); n > 0 || len(s.FirstByte) > 0 {
			s.FirstByte = append(s.FirstByte, Bucket{Below: Duration(time.Microsecond << i), Count: n})
		}
	}
	for len(s.FirstByte) > 0 && s.FirstByte[len(s.FirstByte)-1].Count == 0 {
		s.FirstByte = s.FirstByte[:len(s.FirstByte)-1]
	}
	return s
}

// Reset sets the counters to 0, except for requests in flight.
func (p *Proxy) Reset() {
	c := &p.counts
	for i := range c.requests {
		c.requests[i].Store(0)
		c.bytes[i].Store(0)
	}
	for i := range c.first {
		c.first[i].Store(0)
	}
	c.received.Store(0)
	c.most.Store(c.inFlight.Load())
}

// Control answers, in JSON:
//
//	GET    /stats        the figures; POST /reset sets them to 0
//	POST   /rules        arms the rule in the body; DELETE /rules disarms all
//	POST   /first-byte   {"delay": "20ms"}
//	POST   /black-hole   {"on": true} drops every packet to the proxy
//	POST   /down, /up    closes and opens the port
func (p *Proxy) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.Stats()) // the client went away
	})
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) { p.Reset() })
	mux.HandleFunc("POST /rules", func(w http.ResponseWriter, r *http.Request) {
		var rule Rule
		if decode(w, r, &rule) {
			p.AddRule(rule)
		}
	})
	mux.HandleFunc("DELETE /rules", func(http.ResponseWriter, *http.Request) { p.ClearRules() })
	mux.HandleFunc("POST /first-byte", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Delay Duration `json:"delay"`
		}
		if decode(w, r, &body) {
			p.SetFirstByte(time.Duration(body.Delay))
		}
	})
	mux.HandleFunc("POST /black-hole", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			On bool `json:"on"`
		}
		if decode(w, r, &body) {
			if err := p.BlackHole(body.On); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}
	})
	mux.HandleFunc("POST /down", func(http.ResponseWriter, *http.Request) { p.Down() })
	mux.HandleFunc("POST /up", func(w http.ResponseWriter, _ *http.Request) {
		if err := p.Up(); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	return mux
}

func decode(w http.ResponseWriter, r *http.Request, to any) bool {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}
