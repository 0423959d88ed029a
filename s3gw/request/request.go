// Package request says what an HTTP request asks of an S3 endpoint, and how it is to be
// answered.
//
// The bucket is the first segment of the path as it was sent, or stands before one of the
// endpoint's own names in Host; the key is all that follows, decoded once and otherwise byte for
// byte: nothing is cleaned, folded or joined. Method, what is named (service, bucket, object)
// and the sub-resource among the parameters make the operation, by Amazon's API reference.
//
// A read is Cached only if each of its headers and parameters is on a list of those that the
// cache can honour; whatever else it carries, it is for the origin to answer. A write touches
// the names that it could change at any origin: what is not known counts as more, never as less.
// Rights are those of the strongest meaning that a request can have, since the key by which it
// goes on is stronger than the client's: who lists below a prefix and sends a parameter that is
// not known needs the right to the whole bucket. What two servers could understand in two ways,
// and would then be checked as one thing and done as another, is refused. So is what an origin could
// take for a path out of where it belongs: ids are one segment, and a key that climbs in any reading
// needs the right to where it leads. A write has only headers that are known, and so have the
// parameters that stand for headers: some origins copy, link or move by others.
package request

import (
	"net/http"
)

// How is how a request is to be answered.
type How int

const (
	// Refuse: by Fault, and nobody else is asked.
	Refuse How = iota
	// Cached: from the cache, where that has the answer; else as Pass.
	Cached
	// Pass: by the origin, to which it goes as it is.
	Pass
	// Write: as Pass; then the names that it touches are forgotten.
	Write
	// Configure: as Write, if the link allows that its bucket is configured, made or removed.
	Configure
	// Own: by the endpoint alone; no origin knows such a request (GetBatch, Preflight).
	Own
)

// Touch is which names a request may change.
type Touch int

const (
	// Nothing: none.
	Nothing Touch = iota
	// TheKey: the one object that Key names.
	TheKey
	// Below: all that begin with Key.
	Below
	// Listed: those in the body; Deletes reads them.
	Listed
	// Everything: any of the bucket.
	Everything
)

// Options are what the endpoint is called. The zero Options works: all is addressed by path.
type Options struct {
	// Hosts are the names, without port, below which buckets are hosts (BUCKET.HOST).
	Hosts []string
	// CORS: the endpoint adds the headers for pages of other origins itself. If not, a read that
	// names a page's origin is the bucket's to answer.
	CORS bool
}

// Request is what an HTTP request asks for.
type Request struct {
	// Operation is Amazon's name of it (GetObject), or GetBatch or Preflight; of what is refused
	// perhaps "". There are fewer than 200 of them.
	Operation string
	How       How
	// Bucket is "" for what asks the service.
	Bucket string
	// Key is decoded, at most 1,024 bytes, and "" for what asks the service or a bucket.
	Key string
	// EscapedKey is Key as it was sent; only bytes that no URL may have are escaped further.
	EscapedKey string
	// Prefix is that of a listing, decoded.
	Prefix string
	// Source is what a copy reads.
	Source *Source
	// Touches are the names that a Write, or a Configure, may change; of each key its Alias, too.
	Touches Touch
	// Changes: it needs the right to write. A Pass may.
	Changes bool
	// Overrides: there are response-* parameters, which anonymous clients may not use.
	Overrides bool
	// Plain: it is a read of objects as they are now, or a listing of them, and no origin can take it
	// for anything else. It is all that anonymous clients may ask for.
	Plain bool
	// Fault is why it is refused; else nil.
	Fault *Error

	reach    reach
	climbing []string // keys beside Key and Prefix that it needs the right to read
}

// Parse says what r asks for. There is always a Request, for the log; the error is its Fault.
// Nothing of the body is read. The signature is checked elsewhere, and before.
func Parse(r *http.Request, o Options) (*Request, error) {
	q := &Request{}
	if f := q.parse(r, &o); f != nil {
		q.How, q.Fault, q.Touches = Refuse, f, Nothing
		return q, f
	}
	return q, nil
}

func (q *Request) parse(r *http.Request, o *Options) *Error {
	if r.Method == http.MethodOptions {
		q.Operation, q.How, q.reach = "Preflight", Own, reachesNothing
		if r.URL.Path == "*" {
			return nil
		}
	}
	if f := q.address(r, o.Hosts); f != nil || r.Method == http.MethodOptions {
		return f
	}
	var p params
	if f := p.read(r.URL.RawQuery); f != nil {
		return f
	}
	seen, f := headers(r.Header)
	if f != nil {
		return f
	}
	q.Prefix, q.Overrides = p.prefix, p.overrides
	if q.Bucket != "" {
		q.climbing = p.climbing
	}
	switch {
	case q.Bucket == "":
		f = q.service(r.Method, &p)
	case q.Key == "":
		f = q.bucket(r, &p, seen)
	default:
		f = q.object(r, &p, seen)
	}
	if f != nil {
		return f
	}
	if p.many && q.Changes {
		return New("InvalidArgument", "Conflicting query string parameters")
	}
	q.Plain = q.plain(&p)
	if q.How != Own && r.Method != http.MethodGet && r.Method != http.MethodHead {
		if f := carried(r.Header, &p); f != nil {
			return f
		}
	}
	if q.How == Cached && !(bare(r) && q.cacheable(&p, seen, o.CORS)) {
		q.How = Pass
		if q.Bucket == "" {
			q.reach = reachesService
		}
	}
	return nil
}

// bare: a read's body would be the origin's to make sense of.
func bare(r *http.Request) bool {
	return r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Trailer) == 0
}
