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

// region is that of the bucket.
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
	// Twice: what a reader finds gone is asked for again.
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
				panic(http.ErrAbortHandler) // no answer that was cut off looks whole
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

// find is what a key names; nil: the tree does not know, and the origin does.
func (x *exchange) find(l *Link, key string) (*hearth.Object, error) {
	n, err := x.o.Tree.File(x.r.Context(), l.Name, key)
	switch {
	case err == nil && !n.Dir:
		n, err = x.o.Tree.Open(x.r.Context(), n.ID) // a strict link's origin is asked
		if err == nil && n.Object.Key == key {
			return &n.Object, nil
		}
		return nil, nil
	case x.r.Context().Err() != nil:
		return nil, context.Cause(x.r.Context())
	}
	return nil, nil // that there is none the origin says in its own words; and if it is away, how
}

// outside answers for a key that lies in no link of the bucket.
func (x *exchange) outside() error {
	return request.New("AccessDenied", "This endpoint shows only a part of the bucket %s: %q lies outside of it.", x.asks.Bucket, x.asks.Key)
}

// mostListing bytes of a listing's document are kept for the next one.
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
	// What can pass as a whole costs the origin one request: where no name is believed the walk costs it more, always.
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
		// Whether there is such a bucket still is for the origin to say.
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

// passList passes a listing on, as the origin is to be asked for it.
func (x *exchange) passList() error {
	query := listing.ForOrigin(x.r.URL.RawQuery)
	return x.pass(func(r *http.Request) { r.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: query} })
}
