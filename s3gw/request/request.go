// Package request parses what an HTTP request asks of an S3 endpoint, and decides how it is to be
// answered.
//
// The bucket is the first segment of the path as it was sent, or stands in Host before one of the
// endpoint's own names. The key is all that follows, decoded once and otherwise byte for byte:
// nothing is cleaned, folded or joined. The operation follows from Amazon's API reference, by three
// things: the method, what is named (service, bucket, object), and the sub-resource among the
// parameters.
//
// A read is Cached only if each of its headers and parameters is on a list of those that the cache
// can honour. If it carries anything else, the origin answers it. A write touches the names that it
// could change at any origin: what is not known counts as more, never as less.
//
// Rights are those of the strongest meaning that a request can have, since the endpoint's key, by
// which it goes on, is stronger than the client's. For example, a listing below a prefix with an
// unknown parameter needs the right to the whole bucket.
//
// Three things keep the check and the act the same. A request that two servers could understand in
// two ways is refused. So is one that an origin could take for a path out of where it belongs. An
// id is one segment, and a key that climbs in any reading needs the right to where it leads. And a
// write may have only known headers, and only known parameters that stand for headers: some origins
// copy, link or move by others.
package request

import (
	"net/http"
)

// How says who answers a request.
type How int

const (
	// Refuse means that Fault is the answer, and that nobody else is asked.
	Refuse How = iota
	// Cached means from the cache if it has the answer, else as Pass.
	Cached
	// Pass means by the origin; the request goes there as it is.
	Pass
	// Write means as Pass; then the names that it touches are forgotten.
	Write
	// Configure means as Write, if the link allows to configure, make or remove its bucket.
	Configure
	// Own means by the endpoint alone; no origin knows such a request (GetBatch, Preflight).
	Own
)

// Touch says which names a request may change.
type Touch int

const (
	// Nothing means that no name is changed.
	Nothing Touch = iota
	// TheKey means the one object that Key names.
	TheKey
	// Below means all names that begin with Key.
	Below
	// Listed means the names in the body, which Deletes reads.
	Listed
	// Everything means any name of the bucket.
	Everything
)

// Options are the endpoint's names. The zero Options works: all is addressed by path.
type Options struct {
	// Hosts are the names, without port, below which buckets are hosts (BUCKET.HOST).
	Hosts []string
	// CORS means that the endpoint itself adds the headers for pages of other origins. Otherwise a
	// read with an Origin header is answered by the bucket.
	CORS bool
}

// Request is what an HTTP request asks for.
type Request struct {
	// Operation is Amazon's name (GetObject), or GetBatch or Preflight; it may be "" for a refused
	// request. There are fewer than 200 of them.
	Operation string
	How       How
	// Bucket is "" for a request to the service.
	Bucket string
	// Key is decoded, at most 1,024 bytes, and "" for a request to the service or a bucket.
	Key string
	// EscapedKey is Key as it was sent; only bytes that no URL may have are escaped further.
	EscapedKey string
	// Prefix is that of a listing, decoded.
	Prefix string
	// Source is the object that a copy reads.
	Source *Source
	// Touches are the names that a Write or a Configure may change; for each key also its Alias.
	Touches Touch
	// Changes means that the right to write is needed. A Pass may need it, too.
	Changes bool
	// Overrides means that there are response-* parameters, which anonymous clients may not use.
	Overrides bool
	// Plain means that it reads objects as they are now, or lists them, and that no origin can take
	// it for anything else. Anonymous clients may ask for nothing more.
	Plain bool
	// Fault is why it is refused, else nil.
	Fault *Error

	reach    reach
	climbing []string // keys beside Key and Prefix that it needs the right to read
}

// Parse finds what r asks for. It always returns a Request, for the log; the error is its Fault. It
// reads nothing of the body. The signature is checked elsewhere, and before.
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

// bare reports whether a read has no body: only the origin could make sense of one.
func bare(r *http.Request) bool {
	return r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Trailer) == 0
}
