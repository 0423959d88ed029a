package request

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/http"
)

// This file holds the errors of the S3 interface: their codes, the status of each, and the XML
// document for the client.
//
// Codes and statuses are those of "Error responses" in Amazon's S3 API reference.

// Error is an error of the S3 interface, and answers a request.
type Error struct {
	// Code is Amazon's name of the error.
	Code string
	// Message is for people, in one line.
	Message string
	// Status of the answer; 0 means the one that belongs to Code.
	Status int
	// Cause is for the log alone; it may be nil.
	Cause error
}

// New returns the Error of a code.
func New(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Of is New with a cause, which is not sent to clients.
func Of(cause error, code, format string, args ...any) *Error {
	e := New(code, format, args...)
	e.Cause = cause
	return e
}

// Error returns code, message and cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Code + ": " + e.Message + ": " + e.Cause.Error()
	}
	return e.Code + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// HTTPStatus is the status of the answer.
func (e *Error) HTTPStatus() int { return cmp.Or(e.Status, statusOf(e.Code)) }

// statusOf returns the status that belongs to a code; an unknown code is a bad request.
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

// errorDocument is the body of the answer.
type errorDocument struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Resource  string
	RequestID string `xml:"RequestId"`
}

// Write answers a request with an Error; id is the request's own. The answer to a HEAD has no body,
// only the status.
func (e *Error) Write(w http.ResponseWriter, r *http.Request, id string) {
	body, err := xml.Marshal(errorDocument{Code: e.Code, Message: e.Message, Resource: r.URL.Path, RequestID: id})
	if err != nil { // only strings: it cannot fail
		body = nil
	}
	h := w.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("X-Amz-Request-Id", id)
	h.Del("Content-Length")
	w.WriteHeader(e.HTTPStatus())
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(xml.Header)) // a client that went away does not need it
		_, _ = w.Write(body)
	}
}
