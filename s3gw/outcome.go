package s3gw

import (
	"net/http"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/request"
)

// changes returns what the request may change; keys are the names known to it. A key counts
// together with its Alias: to some origins both are one object. Three requests touch names that
// they do not tell: those that configure or remove the bucket, MinIO's unpacking of an archive
// (both Everything), and MinIO's forced removal (Below).
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

// outcome says what is known of a write after the origin was asked. broken means an answer that
// broke off. An answer "no such object or upload", or "another object than expected", says that our
// names may be wrong, too. For example, a CompleteMultipartUpload whose answer was lost and that is
// sent again is answered with NoSuchUpload.
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
	case s == http.StatusServiceUnavailable && strings.Contains(answer.Header.Get("Content-Type"), "xml"): // S3's own, not a proxy's
		return namespace.Done
	case s >= 500: // perhaps from a proxy that timed out
		return namespace.Unknown
	case x.asks.Touches == request.TheKey && (s == http.StatusNotFound || s == http.StatusConflict || s == http.StatusPreconditionFailed):
		return namespace.Done
	}
	return namespace.Undone
}

// changed forgets what is remembered of keys beside their names; nil means of all keys.
func (g *Gateway) changed(keys []string) {
	if keys == nil {
		g.objects.AllChanged()
	}
	for _, key := range keys {
		g.objects.Changed(key)
	}
}

// linksTo returns the names of the links to a bucket.
func (g *Gateway) linksTo(bucket string) (names []string) {
	for _, l := range g.all(bucket) {
		names = append(names, l.Name)
	}
	return names
}
