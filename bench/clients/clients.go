// Package clients is S3 clients that cost little themselves, in a process of their own: requests
// are signed before the clock starts, sent as they are, one after another on each of many
// connections, and of the answers status and length are looked at. A server's CPU seconds and the
// time are compared so, not a client library's.
//
// A crowd is clients that stay: idle ones have had an answer and ask no more, slow ones take
// theirs at SlowRate.
package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Ask is a GET of an object or of a bucket's listing.
type Ask struct {
	// Key of the object; "": the bucket is asked.
	Key string `json:"key,omitempty"`
	// Query of the URL, encoded.
	Query string `json:"query,omitempty"`
	// Off and Len are the range in bytes; Len 0: all of it.
	Off int64 `json:"off,omitempty"`
	Len int64 `json:"len,omitempty"`
}

// Work is what a process of clients does.
type Work struct {
	// Account at the server, and its bucket.
	Account hearthtest.S3 `json:"account"`
	Bucket  string        `json:"bucket"`
	// Connections at once, each kept from request to request.
	Connections int `json:"connections"`
	// Asks are sent in order, from the first again, until Requests were answered.
	Asks     []Ask `json:"asks"`
	Requests int   `json:"requests"`
	// Check compares bodies of objects with what they have to be.
	Check bool `json:"check"`
	// Crowd has the connections stay: "idle", "slow", or "" for neither.
	Crowd string `json:"crowd,omitempty"`

	patience time.Duration // of a crowd's client; 0: answerWithin
}

// Sum is what came of a Work.
type Sum struct {
	Requests int64   `json:"requests"`
	Bytes    int64   `json:"bytes"` // of bodies
	Seconds  float64 `json:"seconds"`
	Wrong    int64   `json:"wrong"` // answers whose bytes were not right; 0 unless checked
	// Latencies are of one answer, from its request to its last byte.
	Latencies []time.Duration `json:"latencies,omitempty"`
}

// sign returns the requests as they go over the wire.
func (w *Work) sign(ctx context.Context) ([][]byte, error) {
	var all [][]byte
	for _, a := range w.Asks {
		query, err := url.ParseQuery(a.Query)
		if err != nil {
			return nil, fmt.Errorf("query of %s: %w", a.Key, err)
		}
		r, err := w.Account.Request(ctx, "GET", w.Bucket, a.Key, query)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\n", r.URL.RequestURI(), r.Host)
		if a.Len > 0 { // not signed, as SDKs do
			fmt.Fprintf(&b, "Range: bytes=%d-%d\r\n", a.Off, a.Off+a.Len-1)
		}
		if err := r.Header.Write(&b); err != nil {
			return nil, err
		}
		b.WriteString("\r\n")
		all = append(all, b.Bytes())
	}
	return all, nil
}

// Do sends a Work's requests.
func (w *Work) Do(ctx context.Context) (Sum, error) {
	if len(w.Asks) == 0 || w.Connections < 1 {
		return Sum{}, errors.New("nothing to ask, or nobody")
	}
	signed, err := w.sign(ctx)
	if err != nil {
		return Sum{}, err
	}
	conns := make([]*conn, w.Connections)
	defer func() {
		for _, c := range conns {
			c.close()
		}
	}()
	for i := range conns {
		if conns[i], err = dial(ctx, &w.Account, 0); err != nil {
			return Sum{}, err
		}
	}
	var next, sum, wrong atomic.Int64
	latencies, failed := make([]time.Duration, w.Requests), make([]error, len(conns))
	var group sync.WaitGroup
	begun := time.Now()
	for at, c := range conns {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(w.Requests) && failed[at] == nil; i = next.Add(1) - 1 {
				which, start := int(i)%len(signed), time.Now()
				n, right, err := c.ask(signed[which], w.Asks[which], w.Check)
				latencies[i] = time.Since(start)
				sum.Add(n)
				if !right {
					wrong.Add(1)
				}
				failed[at] = err
			}
		})
	}
	group.Wait()
	return Sum{int64(w.Requests), sum.Load(), time.Since(begun).Seconds(), wrong.Load(), latencies}, errors.Join(failed...)
}
