package origin

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/identity"
)

var (
	errStalled       = errors.New("the origin went silent")
	errSpeaksTLS     = errors.New("the endpoint speaks HTTPS")
	errLied          = errors.New("the answer is not what was asked for")
	errContradiction = errors.New("the origin contradicts itself")
)

// Error says that an origin could not be asked, or would not answer.
type Error struct {
	// Op is get, head, list, pass or probe; of a write it is put, begin, part, copy, parts, complete, abort
	// or delete. Where is the bucket and key, or the prefix.
	Op, Where string
	// Status and Code are the answer's, where there was one; Message is its text.
	Status        int
	Code, Message string
	// Region is where the origin says that the bucket is; "" means that it does not say.
	Region string
	// Class is the storage class of an archived object; "" means that the origin does not say.
	Class string
	// Endpoint that was asked.
	Endpoint string
	// Err is the cause: a network error, or fs.ErrNotExist and such.
	Err error

	after    time.Duration // Retry-After
	pays     bool          // the request said that the requester pays
	location string        // the Location of an answer
	via      string        // who redirected the request to Endpoint; "": nobody
}

// Error says what was asked and what came of it.
func (e *Error) Error() string {
	s := e.Op + " " + e.Where + ": "
	if e.Status == 0 {
		return s + e.Err.Error()
	}
	s += strconv.Itoa(e.Status)
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Status/100 == 2 {
		s += " " + e.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// readError makes an Error of an answer that is not 2xx. It reads the answer's body.
func readError(resp *http.Response) *Error {
	e := &Error{Status: resp.StatusCode, Region: resp.Header.Get("X-Amz-Bucket-Region"), location: resp.Header.Get("Location")}
	text := errorText(resp)
	var body struct{ Code, Message, Region, StorageClass string }
	if xml.Unmarshal(text, &body) == nil {
		e.Code, e.Message, e.Class = body.Code, strings.Join(strings.Fields(body.Message), " "), body.StorageClass
		if e.Region == "" {
			e.Region = body.Region
		}
	} else if line := strings.TrimSpace(string(text)); len(line) < 200 {
		e.Message = strings.Join(strings.Fields(line), " ")
	}
	if e.Code == "" { // the answer to a HEAD has no body
		e.Code = resp.Header.Get("X-Minio-Error-Code")
	}
	e.after = retryAfter(resp.Header.Get("Retry-After"))
	e.Err = sentinel(e.Status, e.Code)
	return e
}

// errorText reads the body of an answer that is not 2xx. Since gzip is accepted, a proxy
// on the way may have compressed it.
func errorText(resp *http.Response) []byte {
	const most = 64 << 10
	in := io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if plain, err := gzip.NewReader(in); err == nil {
			in = plain
		}
	}
	text, _ := io.ReadAll(io.LimitReader(in, most)) // a part of it is enough
	return text
}

func sentinel(status int, code string) error {
	switch {
	case code == "InvalidObjectState", code == "NotRestored": // the latter is Oracle's
		return hearth.ErrArchived
	case code == "NoSuchBucket":
		return errors.New("no such bucket")
	case code == "XAdminUserNotFound": // versitygw answers 404 for an access key that it does not know
		return fs.ErrPermission
	case strings.Contains(code, "QuotaExceeded"): // MinIO's is XMinioAdminBucketQuotaExceeded
		return syscall.EDQUOT
	case code == "EntityTooLarge":
		return syscall.EFBIG
	case status == http.StatusInsufficientStorage || code == "XMinioStorageFull":
		return syscall.ENOSPC
	case code == "XMinioInvalidObjectName" || code == "XMinioInvalidResourceName":
		return fs.ErrInvalid
	case status == http.StatusNotFound:
		return fs.ErrNotExist
	case status == http.StatusPreconditionFailed || status == http.StatusRequestedRangeNotSatisfiable:
		return hearth.ErrStale
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return fs.ErrPermission
	}
	return errors.New(http.StatusText(status))
}

// retryAfter reads seconds or a date.
func retryAfter(value string) time.Duration {
	if n, err := strconv.Atoi(value); err == nil {
		return time.Duration(max(0, n)) * time.Second
	}
	if t, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(t))
	}
	return 0
}

// class is how a failed attempt is handled.
type class int

const (
	final     class = iota // a retry would give the same answer
	transient              // S3 expects a retry
	throttled              // the same, and the origin says that there are too many requests
	unreached              // nobody answers; two more attempts are enough to outlast a restart
)

// Away reports whether an error says that an origin cannot be asked now: a timeout, a refused
// connection, no such host, 5xx, 401, 403, or an unreachable source of credentials. Any other error is
// an answer, or a configuration that waiting does not mend.
func Away(err error) bool {
	var e *Error
	if !errors.As(err, &e) || errors.Is(err, errSpeaksTLS) || errors.Is(err, errContradiction) || errors.Is(err, context.Canceled) || garbled(err) {
		return false
	}
	var (
		name *net.DNSError
		who  *identity.Error
	)
	if errors.As(err, &who) {
		return who.Away
	}
	return errors.As(err, &name) || errors.Is(err, fs.ErrPermission) || classify(err) != final || e.Status >= 500 ||
		errors.Is(err, context.DeadlineExceeded)
}

// OfOne reports whether an error may concern one object only: it is archived, denied, encrypted with a
// key that cannot be used, or answered in another way than asked for. Asking for another object tells
// whether all are like that.
func OfOne(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch {
	case errors.Is(err, hearth.ErrArchived), Odd(err):
		return true
	case e.Status == http.StatusForbidden:
		return e.Code == "" || e.Code == "AccessDenied" || e.ofKey()
	}
	return e.Status == http.StatusBadRequest && (e.ofKey() || e.Code == "InvalidRequest" || e.Code == "InvalidArgument")
}

// Odd reports whether an error is an answer that does not fit the request.
func Odd(err error) bool { return errors.Is(err, errLied) || errors.Is(err, errContradiction) }

// ofKey reports whether an answer is about the key that an object is encrypted with.
func (e *Error) ofKey() bool {
	return strings.HasPrefix(e.Code, "KMS.") || strings.HasPrefix(e.Code, "Kms") || strings.Contains(e.Message, "kms:")
}

// Unsent reports whether an error of Forward means that the origin did nothing: it was not reached, or
// refused Hearth's own signature.
func Unsent(err error) bool {
	var (
		e    *Error
		name *net.DNSError
		op   *net.OpError
	)
	return errors.As(err, &e) && (e.Status != 0 || errors.Is(err, errFull) || errors.As(err, &name) || errors.As(err, &op) && op.Op == "dial")
}

// garbled reports whether the answer was not HTTP. On a kept connection it may be the rest of the
// answer before, whose length was wrong: then a new connection gets the right one. net/http has no
// error value for it, and keys and messages may contain its words.
func garbled(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return err != nil && strings.Contains(err.Error(), "malformed HTTP ")
}

func classify(err error) class {
	var e *Error
	if errors.As(err, &e) && e.Status/100 > 2 {
		switch {
		case e.Status == 429 || e.Code == "SlowDown" || e.Code == "ServiceUnavailable" || e.Status == 503:
			return throttled
		case e.Status == 500 || e.Status == 502 || e.Status == 504 || e.Code == "RequestTimeout" || e.Status == 408,
			e.Code == "OperationAborted", e.Code == "ConditionalRequestConflict", // of writes at the same time: "try again"
			e.Code == "BadDigest", e.Code == "XAmzContentChecksumMismatch": // the body was harmed on its way, or written meanwhile
			return transient
		}
		return final
	}
	var (
		name    *net.DNSError
		op      *net.OpError
		cert    *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		timeout net.Error
		who     *identity.Error // its search asked more than once
	)
	switch {
	case errors.Is(err, errFull):
		return throttled
	case errors.Is(err, errStalled), errors.Is(err, errContradiction):
		return transient
	case errors.As(err, &cert), errors.As(err, &record), errors.As(err, &who), errors.Is(err, errLied),
		errors.Is(err, hearth.ErrStale), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return final
	case errors.As(err, &name):
		if name.IsNotFound {
			return final
		}
		return unreached
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, syscall.ECONNREFUSED), garbled(err):
		return unreached
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.As(err, &timeout) && timeout.Timeout(), errors.As(err, &op), strings.Contains(err.Error(), "server closed idle connection"):
		return transient
	}
	return final
}
