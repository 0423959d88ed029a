package s3gw

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/s3gw/listing"
	"github.com/hearthfs/hearth/s3gw/request"
)

// cached answers a read from the cache, or passes it on.
func (x *exchange) cached() error {
	switch x.asks.Operation {
	case "GetObject", "HeadObject":
		return x.object()
	case "ListObjectsV2", "ListObjects":
		return x.list()
	case "HeadBucket", "GetBucketLocation":
		if x.mayBeGone(x.links) {
			return x.pass(nil)
		}
		if x.asks.Operation == "GetBucketLocation" {
			return x.document(listing.AppendLocation(nil, x.region()))
		}
		listing.SetBucketHeader(x.w.Header(), x.region())
		x.how = "cached"
		x.w.WriteHeader(http.StatusOK)
		return nil
	}
	return x.pass(nil)
}

// region returns the region of the bucket.
func (x *exchange) region() string { return region(x.links[0]) }

func region(l Link) string { return cmp.Or(l.Region, "us-east-1") }

// document answers with XML.
func (x *exchange) document(text []byte) error {
	h := x.w.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	x.how = "cached"
	x.w.WriteHeader(http.StatusOK)
	x.cause = send(x.w, text, documentPatience)
	return nil
}

// object answers a GET or HEAD of an object.
func (x *exchange) object() error {
	l := holding(x.links, x.asks.Key)
	if l == nil {
		return x.outside()
	}
	// Twice: a version that a read finds gone is looked up again.
	for range 2 {
		o, err := x.find(l, x.asks.Key)
		if err != nil {
			return err
		}
		if o == nil {
			return x.pass(nil)
		}
		answered, _, err := x.objects.Serve(x.w, x.r, o)
		if answered {
			x.how, x.cause = "cached", err
			if err != nil {
				panic(http.ErrAbortHandler) // a broken answer must not look complete
			}
			return nil
		}
		if !errors.Is(err, hearth.ErrStale) {
			break
		}
		x.o.Tree.Forget(o)
	}
	return x.pass(nil)
}

// find returns the object of a key. nil means that the tree does not know it and the origin must be
// asked.
func (x *exchange) find(l *Link, key string) (*hearth.Object, error) {
	n, err := x.o.Tree.File(x.r.Context(), l.Name, key)
	switch {
	case err == nil && !n.Dir:
		n, err = x.o.Tree.Open(x.r.Context(), n.ID) // on a strict link this asks the origin
		if err == nil && n.Object.Key == key {
			return &n.Object, nil
		}
		return nil, nil
	case x.r.Context().Err() != nil:
		return nil, context.Cause(x.r.Context())
	}
	return nil, nil // the origin itself answers that there is none, or how it is away
}

// outside answers for a key that lies in no link of the bucket.
func (x *exchange) outside() error {
	return request.New("AccessDenied", "This endpoint shows only a part of the bucket %s: %q lies outside of it.", x.asks.Bucket, x.asks.Key)
}

// mostListing bounds the listing buffer that is kept for the next listing, in bytes.
const mostListing = 1 << 20

// list answers a listing.
func (x *exchange) list() error {
	q, err := listing.Parse(x.r.URL.RawQuery)
	if errors.Is(err, listing.ErrUnsure) {
		return x.pass(nil)
	}
	if err != nil {
		return err
	}
	// Passing a whole listing on costs the origin one request. Where no name is believed, a walk
	// always costs more.
	if l := holding(x.links, q.Prefix); l != nil && q.Delimiter == "" {
		if l.Fresh == 0 {
			return x.passList()
		}
		q.Asks = listing.MostAsked
	}
	n := names{x.Gateway, x.links, new(bool)}
	space, _ := x.spare.Get().(*[]byte)
	if space == nil {
		space = new([]byte)
	}
	text, err := listing.Answer(x.r.Context(), n, listing.Bucket{Name: x.asks.Bucket, Owner: x.owner(q), Class: "STANDARD"}, q, (*space)[:0])
	defer func() {
		if *space = text; cap(text) <= mostListing {
			x.spare.Put(space)
		}
	}()
	switch {
	case err == nil && !*n.told && x.mayBeGone(x.links) && n.none(x.r.Context()):
		// The origin must say whether the bucket still exists.
	case err == nil:
		listing.SetBucketHeader(x.w.Header(), x.region())
		return x.document(text)
	case x.r.Context().Err() != nil:
		return context.Cause(x.r.Context())
	case x.links[0].Prefix != "" && holding(x.links, q.Prefix) == nil:
		return request.New("AccessDenied", "This endpoint shows only a part of the bucket %s: list below %q.", x.asks.Bucket, x.links[0].Prefix)
	}
	return x.passList()
}

// passList passes a listing on, in the form in which the origin is asked.
func (x *exchange) passList() error {
	query := listing.ForOrigin(x.r.URL.RawQuery)
	return x.pass(func(r *http.Request) { r.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: query} })
}
