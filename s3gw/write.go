package s3gw

import (
	"bytes"
	"context"
	"crypto/md5" // S3's Content-MD5
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/sign"
	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// bodyPatience bounds the time for each bodyPiece of a body that the endpoint reads, and
	// leavePatience the time for a body that it does not read.
	bodyPatience, leavePatience = 30 * time.Second, 5 * time.Second
	// bodyPiece is in bytes. It allows 546 bytes a second; a slower client only holds memory.
	bodyPiece = 16 << 10
)

// write sends a request on, and has the tree ask again for what it wrote before the answer goes
// out.
func (x *exchange) write() error {
	var keys []string
	switch {
	case x.asks.Touches == request.Listed:
		var err error
		if keys, err = x.listed(); err != nil {
			return err
		}
	case request.Documented(x.asks.Operation):
		var err error
		if x.body, err = x.read(request.MaxDocumentBytes); err != nil {
			return err
		}
		if err = request.Document(x.asks.Operation, bytes.NewReader(x.body)); err != nil {
			return err
		}
		fallthrough
	case x.asks.Key != "":
		keys = []string{x.asks.Key}
	}
	return x.passWrite(x.changes(keys))
}

// listed returns the keys of a DeleteObjects, whose body is read and sent on from memory. It checks
// the rights of each key.
func (x *exchange) listed() ([]string, error) {
	body, err := x.read(request.MaxDeletesBytes)
	if err != nil {
		return nil, err
	}
	keys, err := request.Deletes(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if !(request.Need{Bucket: x.asks.Bucket, Key: key, Write: true}).Granted(func(n request.Need) bool { return x.may(n) && x.shows(n) }) {
			return nil, request.New("AccessDenied", "Access Denied: %q.", key)
		}
	}
	x.body = body
	return keys, nil
}

// read reads a body for the endpoint, at most one byte more than most. A client that takes longer
// over a piece than the endpoint's patience is given up.
func (x *exchange) read(most int64) ([]byte, error) {
	if err := x.hold(most + 1); err != nil {
		return nil, err
	}
	c := http.NewResponseController(x.w)
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	body, left := x.who.Payload(), 0
	return io.ReadAll(io.LimitReader(reader(func(p []byte) (int, error) {
		if left <= 0 {
			left = bodyPiece
			_ = c.SetReadDeadline(time.Now().Add(x.patience)) // a test's recorder has none
		}
		n, err := body.Read(p)
		left -= n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = request.Of(err, "RequestTimeout", "The body did not come: %d KiB of it may take %v.", bodyPiece>>10, x.patience)
		}
		return n, err
	}), most+1))
}

// reader is an io.Reader made of its one method.
type reader func([]byte) (int, error)

// Read calls it.
func (r reader) Read(p []byte) (int, error) { return r(p) }

// plainly changes the headers of a request whose body was read and decoded here. Fields of its
// trailer become headers. DeleteObjects must have a checksum; where there is none it adds one.
func (x *exchange) plainly(h http.Header) {
	if strings.HasPrefix(h.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		h.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
		for _, name := range h["X-Amz-Trailer"] {
			h.Del(name)
		}
		for name, value := range x.who.Trailer() {
			h.Set(name, value)
		}
		for _, name := range []string{"X-Amz-Trailer", "X-Amz-Decoded-Content-Length", "Content-Encoding", "Trailer"} {
			h.Del(name)
		}
	}
	if x.asks.Touches != request.Listed {
		return
	}
	for name := range h {
		if name == "Content-Md5" || strings.HasPrefix(name, "X-Amz-Checksum-") {
			return
		}
	}
	sum := md5.Sum(x.body)
	h.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
}

// headOf asks the origin for the headers of a version.
func headOf(ctx context.Context, l *Link, o *hearth.Object) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, headWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, "/", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("If-Match", `"`+o.ETag+`"`)
	r.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	r.Header.Set("Accept-Encoding", "gzip") // otherwise Google's servers describe other bytes than are stored
	answer, err := l.Origin.Forward(ctx, r, l.Bucket, sign.Encode(o.Key, true))
	if err == nil && (answer.StatusCode == http.StatusNotImplemented || answer.StatusCode == http.StatusBadRequest) { // some origins refuse If-Match
		_ = answer.Body.Close()
		r.Header.Del("If-Match")
		answer, err = l.Origin.Forward(ctx, r, l.Bucket, sign.Encode(o.Key, true))
	}
	if err != nil {
		return nil, err
	}
	_ = answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		if strings.Trim(answer.Header.Get("Etag"), `"`) != o.ETag || answer.ContentLength != o.Size {
			return nil, hearth.ErrStale // it ignores If-Match
		}
		return answer.Header, nil
	case http.StatusPreconditionFailed, http.StatusNotFound:
		return nil, hearth.ErrStale
	}
	return nil, errors.New("the origin answers a HEAD with " + answer.Status)
}

// headWithin bounds the wait for the headers of an object.
const headWithin = 30 * time.Second
