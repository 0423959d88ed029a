package s3gw

import (
	"net/http"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/request"
)

// changes is what the request may change, of which these keys are known. A key counts together
// with its Alias: to some origins they are one object. What can touch names that it does not tell
// are what configures or removes the bucket and MinIO's way to unpack an archive (Everything), and
// MinIO's forced removal (Below).
func (x *exchange) changes(keys []string) namespace.Write {
	w := namespace.Write{Bucket: x.asks.Bucket, Keys: slices.Clone(keys)}
	for _, key := range keys {
		if alias, _ := request.Alias(key); alias != key && alias != "" {
			w.Keys = append(w.Keys, alias)
		}
	}
	switch x.asks.Touches {
	case request.Below:
		w.Below = w.Keys
	case request.Everything:
		w.Below = []string{""}
	}
	return w
}

// outcome tells what is known of a write by what came of asking the origin; broken is an answer that
// broke off. That the origin finds no such object or upload, or another object than the client
// expects, says that what is believed here may be wrong, too: a CompleteMultipartUpload whose answer
// was lost and that is sent again is answered NoSuchUpload.
func (x *exchange) outcome(answer *http.Response, err error, broken bool) namespace.Outcome {
	if broken || err != nil && !origin.Unsent(err) {
		return namespace.Unknown
	}
	if answer == nil {
		return namespace.Undone
	}
	switch s := answer.StatusCode; {
	case s < 400, s == http.StatusNotImplemented:
		return namespace.Done
	case s == http.StatusServiceUnavailable && strings.Contains(answer.Header.Get("Content-Type"), "xml"): // S3's own, and no proxy's
		return namespace.Done
	case s >= 500: // perhaps of a proxy that waits no longer
		return namespace.Unknown
	case x.asks.Touches == request.TheKey && (s == http.StatusNotFound || s == http.StatusConflict || s == http.StatusPreconditionFailed):
		return namespace.Done
	}
	return namespace.Undone
}

// changed has what is remembered of keys beside their names forgotten; nil: of all.
func (g *Gateway) changed(keys []string) {
	if keys == nil {
		g.objects.AllChanged()
	}
	for _, key := range keys {
		g.objects.Changed(key)
	}
}

// linksTo are the names of the links to a bucket.
func (g *Gateway) linksTo(bucket string) (names []string) {
	for _, l := range g.all(bucket) {
		names = append(names, l.Name)
	}
	return names
}
