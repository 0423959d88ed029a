package sigv4

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/s3gw/request"
)

// The payload words in x-amz-content-sha256, besides a SHA-256 of the body.
const (
	unsignedPayload  = "UNSIGNED-PAYLOAD"
	unsignedTrailing = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	signedChunks     = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	signedTrailing   = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
)

// emptySum is the SHA-256 of no bytes.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Signed is a request with a right signature, or with none.
type Signed struct {
	// Access is the key that signed; "" means that nobody did.
	Access string
	// Presigned means signed in the URL, whose X-Amz-* parameters are not part of the request.
	Presigned bool
	// Length of the object's bytes that the client sends, without the headers of chunks; -1 means
	// that it did not say.
	Length int64

	names   string // names of the signed headers, in lower case, between semicolons
	payload string
	body    io.ReadCloser
	sent    int64 // length of body in bytes; -1 means not known
	key     [32]byte
	// stamp, scope and seed are parts of what the signatures of chunks sign.
	stamp, scope, seed string
	trailers           []string // names that x-amz-trailer announces, in lower case
	chunks             *chunkReader
}

// Covers reports whether a header was signed: the holder of the key set it, not one who was given a
// URL.
func (s *Signed) Covers(name string) bool {
	for signed := range strings.SplitSeq(s.names, ";") {
		if strings.EqualFold(signed, name) {
			return true
		}
	}
	return false
}

// anonymous returns a request that nobody signed. Its body is checked if it says how.
func anonymous(r *http.Request) (*Signed, error) {
	c := claim{payload: r.Header.Get("X-Amz-Content-Sha256")}
	switch c.payload {
	case "":
		c.payload = unsignedPayload
	case signedChunks, signedTrailing:
		return nil, request.New("AccessDenied", "The chunks of the body are signed, and the request is not")
	}
	return c.signed(r, [32]byte{})
}

// signed returns the request of a claim that was verified.
func (c *claim) signed(r *http.Request, key [32]byte) (*Signed, error) {
	s := &Signed{Access: c.access, Presigned: c.presigned, Length: r.ContentLength,
		names: c.names, payload: c.payload, body: r.Body, sent: r.ContentLength}
	if s.body == nil {
		s.body, s.sent, s.Length = http.NoBody, max(s.sent, 0), max(s.Length, 0)
	}
	switch {
	case c.payload == unsignedPayload, len(c.payload) == len(emptySum) && isHex(strings.ToLower(c.payload)):
		return s, nil
	case c.payload == unsignedTrailing:
		s.Length = -1
		if r.Header["X-Amz-Decoded-Content-Length"] == nil { // the origin may accept it
			return s, nil
		}
	case c.payload == signedChunks, c.payload == signedTrailing:
		s.key, s.stamp, s.scope, s.seed = key, c.stamp, c.scope, c.signature
	case strings.HasPrefix(c.payload, "STREAMING-AWS4-ECDSA-"):
		return nil, unsupported("Signature Version 4A")
	default:
		return nil, request.New("InvalidArgument", "x-amz-content-sha256 must be %s, %s, %s, %s or a valid sha256 value.",
			unsignedPayload, unsignedTrailing, signedChunks, signedTrailing)
	}
	return s, s.announced(r)
}

// announced reads what a request announces about its chunks: their length, and the trailers.
func (s *Signed) announced(r *http.Request) error {
	length, err := single(r, "X-Amz-Decoded-Content-Length")
	if err != nil {
		return err
	}
	if length == "" {
		return request.New("MissingContentLength", "You must provide the x-amz-decoded-content-length HTTP header.")
	}
	n, err := strconv.ParseUint(length, 10, 62)
	if err != nil {
		return request.New("InvalidArgument", "x-amz-decoded-content-length is not a number of bytes")
	}
	s.Length = int64(n)
	if s.payload == signedChunks {
		return nil
	}
	for _, value := range r.Header["X-Amz-Trailer"] {
		for name := range strings.SplitSeq(value, ",") {
			name = strings.ToLower(strings.TrimSpace(name))
			if sumLength(name) == 0 && s.payload == signedTrailing || len(s.trailers) == maxTrailers {
				return request.New("InvalidRequest", "The value specified in the x-amz-trailer header is not supported: name at most %d checksums", maxTrailers)
			}
			s.trailers = append(s.trailers, name)
		}
	}
	if len(s.trailers) == 0 && s.payload == signedTrailing {
		return request.New("InvalidRequest", "x-amz-trailer must name the checksum that follows the body")
	}
	return nil
}

// Body returns the body to be passed on, which is checked while it is read. If it is not what was
// signed, a read fails with a *request.Error, and gives neither the last bytes nor io.EOF. Signed
// chunks are decoded. With a trailer they become unsigned chunks with that trailer, so that the
// origin stores and checks the checksum. Other forms go on byte for byte. Rewrite sets the headers
// for that. The first Read is the first of the request's body. If nothing is to be sent (Rewrite
// returns 0) a proxy reads nothing, so the caller reads it to io.EOF before. Either Body or Payload
// is called, once.
func (s *Signed) Body() io.ReadCloser {
	switch s.payload {
	case signedChunks:
		return s.decoder()
	case signedTrailing:
		return &framer{from: s.decoder(), left: s.Length, trailers: s.trailers}
	case unsignedPayload, unsignedTrailing:
		return s.body
	}
	return &hashReader{body: s.body, left: s.sent, want: strings.ToLower(s.payload), hash: sha256.New()}
}

// Payload returns the body as the client means it: decoded, checked as by Body, and compared with
// the checksums that follow it. It is for a caller that reads the body itself.
func (s *Signed) Payload() io.ReadCloser {
	switch {
	case s.payload == unsignedTrailing && s.Length < 0:
		return failed{s.body, request.New("MissingContentLength", "You must provide the x-amz-decoded-content-length HTTP header.")}
	case s.payload == unsignedTrailing, s.payload == signedTrailing:
		d := s.decoder()
		d.verifySums(s.trailers)
		return d
	}
	return s.Body()
}

// Trailer returns the trailers of the body, by names in lower case: x-amz-checksum-*. It is
// complete when Payload, or Body of signed chunks, has returned io.EOF. Before that and for other
// forms it is nil.
func (s *Signed) Trailer() map[string]string {
	if s.chunks == nil {
		return nil
	}
	return s.chunks.got
}

// Rewrite changes the headers of a request that goes on with Body, and returns the length of Body
// in bytes; -1 means not known. It changes Content-Length, and for signed chunks Content-Encoding,
// x-amz-decoded-content-length and x-amz-trailer. It sets x-amz-content-sha256 to the word for
// which the request must be signed anew, even if the client sent none. The caller replaces the
// Authorization header, and the X-Amz-* parameters of a presigned URL.
func (s *Signed) Rewrite(h http.Header) int64 {
	word, length := s.payload, s.sent
	switch s.payload {
	case signedChunks:
		word, length = unsignedPayload, s.Length
		delete(h, "X-Amz-Decoded-Content-Length")
		delete(h, "X-Amz-Trailer")
		withoutChunked(h)
	case signedTrailing:
		word, length = unsignedTrailing, framedLength(s.Length, s.trailers)
	}
	h["X-Amz-Content-Sha256"] = []string{word}
	delete(h, "Content-Length")
	if length < 0 {
		return length
	}
	h["Content-Length"] = []string{strconv.FormatInt(length, 10)}
	return length
}

// withoutChunked removes aws-chunked from Content-Encoding.
func withoutChunked(h http.Header) {
	var keep []string
	for _, value := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(value, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "aws-chunked") {
				keep = append(keep, coding)
			}
		}
	}
	if keep == nil {
		delete(h, "Content-Encoding")
		return
	}
	h["Content-Encoding"] = []string{strings.Join(keep, ",")}
}

// hashReader reads a body whose SHA-256 must be want.
type hashReader struct {
	body io.ReadCloser
	left int64 // bytes still to come; below 0 means not known
	want string
	hash hash.Hash
	err  error
}

// Read holds the end of a body of known length back until the sum is right.
func (h *hashReader) Read(p []byte) (int, error) {
	if h.err != nil {
		return 0, h.err
	}
	n, err := h.body.Read(p)
	h.hash.Write(p[:n])
	known := h.left >= 0
	if known {
		h.left -= int64(n)
	}
	switch {
	case err != nil && err != io.EOF:
		h.err = broken(err)
		return 0, h.err
	case known && h.left < 0 || err == io.EOF && h.left > 0:
		h.err = broken(io.ErrUnexpectedEOF)
		return 0, h.err
	case err == io.EOF || known && h.left == 0:
		if h.err = h.check(); h.err != nil {
			return 0, h.err
		}
		h.err = io.EOF
	}
	return n, err
}

func (h *hashReader) check() error {
	var sum [sha256.Size]byte
	if got := hex.EncodeToString(h.hash.Sum(sum[:0])); got != h.want {
		return request.New("XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header, %s, does not match what was computed, %s.", h.want, got)
	}
	return nil
}

// Close closes the request's body.
func (h *hashReader) Close() error { return h.body.Close() }

// broken returns the error for a body that ended early or could not be read.
func broken(err error) error {
	var told *request.Error
	if errors.As(err, &told) {
		return told
	}
	return request.Of(err, "IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header, or the body ends within a chunk.")
}

// failed is a body that cannot be read.
type failed struct {
	io.Closer
	err error
}

func (f failed) Read([]byte) (int, error) { return 0, f.err }
