package origin

import (
	"io"
	"net/http"
	"time"
)

const (
	// workWithin is how long an origin may say nothing over a request that has it move bytes, once
	// all of that is there: a copy, an upload and the joining of its parts, the removal of many keys.
	// Amazon says of CompleteMultipartUpload that it "can take several minutes", and sends spaces
	// meanwhile; others say nothing until 5 GiB are copied or hashed. Ten minutes are 5 GiB at 9 MB/s.
	workWithin = 10 * time.Minute
	// saidWithin is the same of any other write, as a removal or the beginning of an upload, which
	// change a name and move nothing.
	saidWithin = time.Minute
)

// silence is how long an origin may say nothing: over a read, a write that moves bytes, and another.
type silence struct{ Read, Work, Said time.Duration }

// newSilence is that of an origin whose reads have a timeout.
func newSilence(timeout time.Duration) silence {
	return silence{timeout, max(workWithin, 3*timeout), max(saidWithin, 3*timeout)}
}

// Of is how long it may over a request.
func (s silence) Of(r *http.Request) time.Duration {
	switch {
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return s.Read
	case r.ContentLength != 0, r.Header["X-Amz-Copy-Source"] != nil:
		return s.Work
	case r.Method == http.MethodDelete && (r.URL.RawQuery != "" || r.Header["X-Minio-Force-Delete"] != nil): // perhaps of all below a name
		return s.Work
	}
	return s.Said
}

// watched is an answer's body: the watch runs while the origin is waited for, and who reads may take
// their time.
type watched struct {
	io.Reader
	Watch    *time.Timer
	Patience time.Duration
}

// Read waits for the origin.
func (w watched) Read(b []byte) (int, error) {
	w.Watch.Reset(w.Patience)
	defer w.Watch.Stop()
	return w.Reader.Read(b)
}
