package s3gw

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/request"
	"github.com/hearthfs/hearth/s3gw/writes"
)

// work is what is under way in a Gateway.
type work struct {
	sync.WaitGroup                // requests
	writes         *writes.Writes // behind clients that have gone
}

// writing is what a request may change.
type writing struct {
	keys   int
	forget func(ctx context.Context) // nil: nothing changes
}

// outcome is what is known of a write.
type outcome int

const (
	undone    outcome = iota // nothing was written
	done                     // it may have been, and nothing follows
	uncertain                // it may be done yet
)

// outcome tells it by what came of asking the origin. That it finds no such object or upload, or
// another object than the client expects, says that what is believed here may be wrong, too: a
// CompleteMultipartUpload whose answer was lost and that is sent again is answered NoSuchUpload.
func (x *exchange) outcome(answer *http.Response, err error) outcome {
	if err != nil && !origin.Unsent(err) {
		return uncertain
	}
	if answer == nil {
		return undone
	}
	switch s := answer.StatusCode; {
	case s < 400, s == http.StatusNotImplemented:
		return done
	case s == http.StatusServiceUnavailable && strings.Contains(answer.Header.Get("Content-Type"), "xml"): // S3's own, and no proxy's
		return done
	case s >= 500: // perhaps of a proxy that waits no longer
		return uncertain
	case x.asks.Touches == request.TheKey && (s == http.StatusNotFound || s == http.StatusConflict || s == http.StatusPreconditionFailed):
		return done
	}
	return undone
}

// after has what a write may have changed forgotten, and again where that may come later.
func (x *exchange) after(o outcome, w writing) {
	if o == undone {
		return
	}
	ctx, cancel := context.WithTimeout(x.work.writes.Context(), seenWithin) // not the client's, who may be gone
	defer cancel()
	w.forget(ctx)
	if o == uncertain {
		x.again(w)
	}
}

// again has it forgotten again. Where too much is unsure all of the bucket that was listed is.
func (x *exchange) again(w writing) {
	name := strconv.Itoa(int(x.asks.Touches)) + "/" + x.asks.Bucket + "/" + x.asks.Key
	if x.asks.Touches == request.Listed {
		name += x.id
	}
	if !x.work.writes.Again(name, w.keys, w.forget) {
		all := &exchange{Gateway: x.Gateway, asks: &request.Request{Bucket: x.asks.Bucket, Touches: request.Everything}, links: x.links}
		x.work.writes.Again("all/"+x.asks.Bucket, 0, func(ctx context.Context) { all.forget(ctx, nil) })
	}
}
