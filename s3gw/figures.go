package s3gw

import (
	"crypto/tls"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/s3gw/object"
	"github.com/hearthfs/hearth/s3gw/request"
)

// figures are a Gateway's.
type figures struct {
	underway atomic.Int64
	all      sync.Map // Kind -> *sum
	faults   sync.Map // string -> *atomic.Int64
}

// sum is a Sum that many add to.
type sum struct{ requests, bytes, nanoseconds atomic.Int64 }

// Kind is the key by which requests are counted. Operations, codes and ways are words of ours, so
// there are at most some hundred kinds.
type Kind struct {
	// Operation is Amazon's name, Code the status of the answer, How cached, passed, written or
	// refused.
	Operation, Code, How string
}

// Sum is the total over the requests of one Kind.
type Sum struct {
	// Requests that were answered, Bytes of the answers' bodies, Seconds that they took.
	Requests, Bytes int64
	Seconds         float64
}

// Stats are a Gateway's figures.
type Stats struct {
	// UnderWay are requests that are being answered.
	UnderWay int64
	// Kinds are those that were.
	Kinds map[Kind]Sum
	// Faults counts error answers of the endpoint itself, by S3's code.
	Faults map[string]int64
	// Headers are the figures of the object headers that it remembers.
	Headers object.Stats
}

// Stats returns the present figures.
func (g *Gateway) Stats() Stats {
	s := Stats{UnderWay: g.figures.underway.Load(), Kinds: map[Kind]Sum{}, Faults: map[string]int64{}, Headers: g.objects.Stats()}
	g.figures.all.Range(func(k, v any) bool {
		x := v.(*sum)
		s.Kinds[k.(Kind)] = Sum{Requests: x.requests.Load(), Bytes: x.bytes.Load(), Seconds: time.Duration(x.nanoseconds.Load()).Seconds()}
		return true
	})
	g.figures.faults.Range(func(k, v any) bool {
		s.Faults[k.(string)] = v.(*atomic.Int64).Load()
		return true
	})
	return s
}

// end counts and logs a request that was answered or broken off.
func (x *exchange) end() {
	took := time.Since(x.began)
	x.vacate()
	x.figures.underway.Add(-1)
	var f *request.Error
	if errors.As(x.cause, &f) {
		x.figures.fault(f.Code)
		x.audited(f)
	}
	operation := "Unknown"
	if x.asks != nil && x.asks.Operation != "" {
		operation = x.asks.Operation
	}
	x.figures.count(Kind{operation, strconv.Itoa(x.w.status), x.how}, x.w.bytes, took)
	if x.o.Access == nil {
		return
	}
	r := x.r
	l := AccessLine{At: x.began, Took: took, Remote: r.RemoteAddr, ID: x.id, Operation: operation, Request: r.Method + " " + unsigned(r.RequestURI) + " " + r.Proto,
		Status: x.w.status, Bytes: x.w.bytes, Agent: r.UserAgent(), Referer: unsigned(r.Referer()), Host: r.Host, How: x.how}
	if x.asks != nil {
		l.Bucket, l.Key = x.asks.Bucket, x.asks.Key
	}
	if x.who != nil {
		l.Access = x.who.Access
	}
	if f != nil {
		l.Code = f.Code
	}
	if r.TLS != nil {
		l.TLS = strings.ReplaceAll(tls.VersionName(r.TLS.Version), " ", "v")
	}
	x.o.Access(l)
}

func (f *figures) count(k Kind, bytes int64, took time.Duration) {
	v, ok := f.all.Load(k)
	if !ok {
		v, _ = f.all.LoadOrStore(k, &sum{})
	}
	x := v.(*sum)
	x.requests.Add(1)
	x.bytes.Add(bytes)
	x.nanoseconds.Add(int64(took))
}

func (f *figures) fault(code string) {
	v, ok := f.faults.Load(code)
	if !ok {
		v, _ = f.faults.LoadOrStore(code, new(atomic.Int64))
	}
	v.(*atomic.Int64).Add(1)
}
