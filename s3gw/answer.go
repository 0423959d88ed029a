package s3gw

import "net/http"

// answer is a ResponseWriter that counts what is sent.
type answer struct {
	http.ResponseWriter
	status int
	bytes  int64
	before func(http.Header) // edits the headers last; may be nil
}

// WriteHeader is http.ResponseWriter's.
func (a *answer) WriteHeader(status int) {
	if status >= 200 && a.status == 0 {
		a.status = status
		if a.before != nil {
			a.before(a.Header())
		}
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write is http.ResponseWriter's.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
