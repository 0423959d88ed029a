package origin

import (
	"io"
	"net/http"
	"time"
)

const (
	// workWithin is how long an origin may be silent over a request that makes it move bytes, once
	// it has the whole request: a copy, an upload, the joining of parts, the removal of many keys.
	// Amazon says of CompleteMultipartUpload that it "can take several minutes", and sends spaces
	// meanwhile; others say nothing until 5 GiB are copied or hashed. Ten minutes are 5 GiB at 9 MB/s.
	workWithin = 10 * time.Minute
	// saidWithin is the same for any other write, such as a removal or the start of an upload, which
	// change a name and move nothing.
	saidWithin = time.Minute
)

// silence is how long an origin may be silent: over a read, over a write that moves bytes, and over
// another write.
type silence struct{ Read, Work, Said time.Duration }

// newSilence returns the bounds of an origin, given the timeout of its reads.
func newSilence(timeout time.Duration) silence {
	return silence{timeout, max(workWithin, 3*timeout), max(saidWithin, 3*timeout)}
}

// Of is how long the origin may be silent over a request.
func (s silence) Of(r *http.Request) time.Duration {
	switch {
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return s.Read
	case r.ContentLength != 0, r.Header["X-Amz-Copy-Source"] != nil:
		return s.Work
	case r.Method == http.MethodDelete && (r.URL.RawQuery != "" || r.Header["X-Minio-Force-Delete"] != nil): // it may remove everything below a name
		return s.Work
	}
	return s.Said
}

// watched is an answer's body. Its watchdog runs only while the origin is waited for: the reader may
// take its time.
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
