package s3gw

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/fault"
	"github.com/hearthfs/hearth/s3gw/pass"
	"github.com/hearthfs/hearth/s3gw/request"
)

// pass sends the request to the origin as it is, but for what change does to it.
func (x *exchange) pass(change func(*http.Request)) error { return x.passThen(change, nil) }

// passThen sends the request to the origin, and calls then with what came of it before the
// client gets to know.
func (x *exchange) passThen(change func(*http.Request), then func(*http.Response, error)) error {
	l, err := x.way()
	if err == nil {
		err = x.enter(x.rooms.ways)
	}
	if err != nil {
		return err
	}
	if from := x.asks.Source; from != nil && !x.reaches(l, from.Bucket) {
		return fault.New("NotImplemented", "The bucket %s lies at another origin than %s, which cannot copy from there: get the object, and put it.", from.Bucket, x.asks.Bucket)
	}
	r := x.r.Clone(x.r.Context()) // shallow, with headers of its own
	if r.Body = x.who.Body(); x.body != nil {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
		x.plainly(r.Header)
	} else {
		r.ContentLength = x.who.Rewrite(r.Header)
	}
	if change != nil {
		change(r)
	}
	if x.how = "passed"; then != nil {
		x.how = "written"
	} else if x.asks.Changes && x.asks.Key != "" { // its tags, perhaps, and no name
		then = func(*http.Response, error) { x.objects.Changed(x.asks.Key) }
	}
	var answer *http.Response
	var asked error
	to := pass.Target{Bucket: x.asks.Bucket, Key: x.asks.EscapedKey, ID: x.id, Forward: func(ctx context.Context, r *http.Request, bucket, key string) (*http.Response, error) {
		answer, asked = l.Origin.Forward(ctx, r, bucket, key)
		return answer, asked
	}}
	if then != nil {
		to.Ending = func() { then(answer, asked) }
	}
	_, x.cause = x.passes.Serve(x.w, r, to)
	x.told(asked)
	return nil // the client knows
}

// told has the operator hear of an origin that could not be asked, or broke off.
func (x *exchange) told(asked error) {
	if x.o.Trouble == nil || !origin.Away(x.cause) {
		return
	}
	if asked == nil {
		asked = x.cause
	}
	x.o.Trouble("origin does not answer what clients ask of it", "cause", asked)
}

// way is the link by which the request goes on.
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
	// A part of the bucket is shown, and the origin would tell of all.
	switch {
	case x.asks.Operation == "ListObjects" || x.asks.Operation == "ListObjectsV2" || x.asks.Operation == "ListMultipartUploads" || x.asks.Operation == "ListObjectVersions":
		if l := holding(x.links, x.asks.Prefix); l != nil {
			return l, nil
		}
	case x.asks.Touches == request.Listed:
		return &x.links[0], nil // each key was looked at
	}
	return nil, fault.New("AccessDenied", "This endpoint shows only a part of the bucket %s: %s concerns all of it.", x.asks.Bucket, x.asks.Operation)
}
