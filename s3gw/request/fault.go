package request

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/http"
)

// This file is the errors of the S3 interface: their codes, the status of each, and the
// document that tells a client of one.
//
// Codes and statuses are those of "Error responses" in Amazon's S3 API reference.

// Error is an answer to a request that is not what it asked for.
type Error struct {
	// Code is Amazon's name of it.
	Code string
	// Message is for people, in one line.
	Message string
	// Status of the answer; 0: the one that belongs to Code.
	Status int
	// Cause is for the log alone; it may be nil.
	Cause error
}

// New returns the Error of a code.
func New(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Of is New with a cause, which clients are not told.
func Of(cause error, code, format string, args ...any) *Error {
	e := New(code, format, args...)
	e.Cause = cause
	return e
}

// Error says all of it.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Code + ": " + e.Message + ": " + e.Cause.Error()
	}
	return e.Code + ": " + e.Message
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// HTTPStatus is the status of the answer.
func (e *Error) HTTPStatus() int { return cmp.Or(e.Status, statusOf(e.Code)) }

// statusOf is the status that belongs to a code; of one that is not known that of a bad
// request.
func statusOf(code string) int {
	switch code {
	case "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "InvalidObjectState":
		return http.StatusForbidden
	case "NoSuchBucket", "NoSuchKey", "NoSuchUpload", "NoSuchVersion":
		return http.StatusNotFound
	case "MethodNotAllowed":
		return http.StatusMethodNotAllowed
	case "BucketAlreadyExists", "BucketAlreadyOwnedByYou", "BucketNotEmpty", "OperationAborted":
		return http.StatusConflict
	case "MissingContentLength":
		return http.StatusLengthRequired
	case "PreconditionFailed":
		return http.StatusPreconditionFailed
	case "InvalidRange":
		return http.StatusRequestedRangeNotSatisfiable
	case "InternalError":
		return http.StatusInternalServerError
	case "NotImplemented":
		return http.StatusNotImplemented
	case "ServiceUnavailable", "SlowDown":
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// errorDocument is what a client is told.
type errorDocument struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Resource  string
	RequestID string `xml:"RequestId"`
}

// Write answers a request with an Error; id is the request's own. The answer to a HEAD has
// no body, and says no more than its status.
func (e *Error) Write(w http.ResponseWriter, r *http.Request, id string) {
	body, err := xml.Marshal(errorDocument{Code: e.Code, Message: e.Message, Resource: r.URL.Path, RequestID: id})
	if err != nil { // these are strings: it cannot fail
		body = nil
	}
	h := w.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("X-Amz-Request-Id", id)
	h.Del("Content-Length")
	w.WriteHeader(e.HTTPStatus())
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(xml.Header)) // a client that went does not want it
		_, _ = w.Write(body)
	}
}
