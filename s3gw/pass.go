package s3gw

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/pass"
	"github.com/hearthfs/hearth/s3gw/request"
)

// pass sends the request to the origin as it is, except for what change does to it.
func (x *exchange) pass(change func(*http.Request)) error {
	l, r, err := x.outgoing(change)
	if err != nil {
		return err
	}
	x.how = "passed"
	if x.asks.Changes && x.asks.Key != "" { // perhaps its tags, but no name
		x.finish(l, r, namespace.Write{Bucket: x.asks.Bucket, Keys: []string{x.asks.Key}, KeepsNames: true})
		return nil
	}
	var asked error
	to := x.target(func(ctx context.Context, r *http.Request, bucket, key string) (*http.Response, error) {
		answer, err := l.Origin.Forward(origin.ForClient(ctx, x.who.Access), r, bucket, key)
		asked = err
		return answer, err
	})
	_, x.cause = x.passes.Serve(x.w, r, to)
	x.told(asked)
	return nil // the client has its answer
}

// passWrite sends a write to the origin, by finish.
func (x *exchange) passWrite(w namespace.Write) error {
	l, r, err := x.outgoing(nil)
	if err != nil {
		return err
	}
	x.how = "written"
	x.finish(l, r, w)
	return nil
}

// finish sends a request that changes something, and has the tree ask again for it before the
// client learns the outcome. Once the whole request is here, it is finished even if the client
// goes. A body that breaks off with the client is cut off at the origin.
func (x *exchange) finish(l *Link, r *http.Request, w namespace.Write) {
	var answer *http.Response
	var asked error
	end := func() {}
	defer func() { end() }()
	to := x.target(func(ctx context.Context, r *http.Request, bucket, key string) (*http.Response, error) {
		ctx, end = x.work.writes.Begin(ctx)
		answer, asked = l.Origin.Forward(origin.ForClient(ctx, x.who.Access), r, bucket, key)
		return answer, asked
	})
	to.Finish, to.Ending = true, func(broken bool) { x.work.writes.Ended(w, x.outcome(answer, asked, broken)) }
	_, x.cause = x.passes.Serve(x.w, r, to)
	x.told(asked)
}

// target returns the target of a passed request.
func (x *exchange) target(forward func(ctx context.Context, r *http.Request, bucket, key string) (*http.Response, error)) pass.Target {
	return pass.Target{Bucket: x.asks.Bucket, Key: x.asks.EscapedKey, ID: x.id, Forward: forward}
}

// outgoing makes the request for a link's origin, once it has its turn.
func (x *exchange) outgoing(change func(*http.Request)) (*Link, *http.Request, error) {
	l, err := x.way()
	if err == nil {
		err = x.enter(x.rooms.ways)
	}
	if err != nil {
		return nil, nil, err
	}
	if from := x.asks.Source; from != nil && !x.reaches(l, from.Bucket) {
		return nil, nil, request.New("NotImplemented", "The bucket %s lies at another origin than %s, which cannot copy from there: get the object, and put it.", from.Bucket, x.asks.Bucket)
	}
	r := x.r.Clone(x.r.Context()) // shallow, with headers of its own
	x.vouched(r.Header)
	if r.Body = x.who.Body(); x.body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
		if x.plainly(r.Header); len(x.body) == 0 {
			r.Body = http.NoBody // otherwise its length would be unknown
		}
	} else {
		r.ContentLength = x.who.Rewrite(r.Header)
	}
	if change != nil {
		change(r)
	}
	return l, r, nil
}

// vouched leaves out headers that were not signed and that an origin may take for a part of the
// request. The origin is asked under a key that is stronger than the client's. A write with such a
// header was refused.
func (x *exchange) vouched(h http.Header) {
	for name, values := range h {
		if request.Vendor(name, values) && !x.who.Covers(name) {
			delete(h, name)
		}
	}
}

// told logs an origin that could not be asked, or whose answer broke off.
func (x *exchange) told(asked error) {
	if x.o.Trouble == nil || !origin.Away(x.cause) {
		return
	}
	if asked == nil {
		asked = x.cause
	}
	x.o.Trouble("origin does not answer what clients ask of it", "cause", asked)
}

// way returns the link by which the request goes on.
func (x *exchange) way() (*Link, error) {
	if x.asks.Key != "" {
		if l := holding(x.links, x.asks.Key); l != nil {
			return l, nil
		}
		return nil, x.outside()
	}
	for i := range x.links {
		if x.links[i].Prefix == "" {
			return &x.links[i], nil
		}
	}
	// Only a part of the bucket is shown, but the origin would answer for all of it.
	switch {
	case x.asks.Operation == "ListObjects" || x.asks.Operation == "ListObjectsV2" || x.asks.Operation == "ListMultipartUploads" || x.asks.Operation == "ListObjectVersions":
		if l := holding(x.links, x.asks.Prefix); l != nil {
			return l, nil
		}
	case x.asks.Touches == request.Listed:
		return &x.links[0], nil // the rights of each key were checked
	}
	return nil, request.New("AccessDenied", "This endpoint shows only a part of the bucket %s: %s concerns all of it.", x.asks.Bucket, x.asks.Operation)
}
