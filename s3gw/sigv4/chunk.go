package sigv4

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"hash"
	"io"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// maxChunkHeader bounds "SIZE;chunk-signature=..." and its line end, in bytes.
	maxChunkHeader = 128
	// maxTrailers bounds the trailers of a request, and maxTrailer the bytes behind its last chunk.
	// S3 knows one checksum, of at most 88 characters.
	maxTrailers = 4
	maxTrailer  = 4 << 10
	// chunkBuffer holds a header or a trailer's line; chunks are read past it.
	chunkBuffer = 4 << 10
)

// chunkReader decodes aws-chunked:
//
//	SIZE;chunk-signature=SIGNATURE\r\n  BYTES \r\n     for each chunk, the last of size 0
//	NAME:VALUE\r\n                                    trailers, instead of the last one's bytes
//	x-amz-trailer-signature:SIGNATURE\r\n  \r\n
//
// SIZE is hexadecimal. Each signature signs the signature before it, and the bytes or trailers that
// it stands with. Without signatures (STREAMING-UNSIGNED-PAYLOAD-TRAILER) a header is only the
// size. A chunk may have any size, so its bytes are returned before its signature is verified. But
// the last bytes of the payload are held back until all that follows is verified.
type chunkReader struct {
	s     *Signed
	from  *bufio.Reader
	left  int64 // bytes left of the payload
	chunk int64 // bytes left of this chunk
	// open means within a chunk, whose signature is want; previous is the signature before it.
	open           bool
	want, previous [64]byte
	hash           hash.Hash
	sum            [sha256.Size]byte // of hash; a field, so that not each chunk allocates one
	sign           message
	sums           []*checksum
	trailer        map[string]string // got is set to it when all is verified
	got            map[string]string
	err            error
}

// decoder returns the reader of the chunks. It reads nothing yet.
func (s *Signed) decoder() *chunkReader {
	c := &chunkReader{s: s, from: bufio.NewReaderSize(s.body, chunkBuffer), left: s.Length, hash: sha256.New()}
	copy(c.previous[:], s.seed)
	s.chunks = c
	return c
}

// signed reports whether the chunks are signed.
func (c *chunkReader) signed() bool { return c.s.payload != unsignedTrailing }

// Close closes the request's body.
func (c *chunkReader) Close() error { return c.s.body.Close() }

// Read returns bytes of the payload.
func (c *chunkReader) Read(p []byte) (int, error) {
	if c.err == nil && len(p) == 0 {
		return 0, nil
	}
	if c.err == nil && c.left == 0 { // the payload is empty
		if c.err = c.finish(); c.err == nil {
			c.err = io.EOF
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.read(p)
	if err != nil {
		c.err = err
		return 0, err
	}
	if c.left == 0 {
		c.err = io.EOF
	}
	return n, nil
}

func (c *chunkReader) read(p []byte) (int, error) {
	if !c.open {
		if err := c.header(); err != nil {
			return 0, err
		}
		if c.chunk == 0 {
			return 0, request.New("IncompleteBody", "The last chunk came %d bytes before x-amz-decoded-content-length", c.left)
		}
	}
	n, err := c.from.Read(p[:min(int64(len(p)), c.chunk)])
	if n == 0 && err != nil {
		return 0, broken(unexpected(err))
	}
	if c.signed() {
		c.hash.Write(p[:n])
	}
	for _, s := range c.sums {
		s.hash.Write(p[:n])
	}
	c.chunk -= int64(n)
	c.left -= int64(n)
	if c.chunk > 0 {
		return n, nil
	}
	if err := c.end(); err != nil {
		return 0, err
	}
	if c.left > 0 {
		return n, nil
	}
	return n, c.finish()
}

// header reads the line in front of a chunk.
func (c *chunkReader) header() error {
	line, err := c.line(maxChunkHeader)
	if err != nil {
		return err
	}
	size, signature, _ := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(size), 16, 62)
	if err != nil {
		return request.New("InvalidChunkSizeError", "The size of a chunk is not a hexadecimal number")
	}
	if int64(n) > c.left {
		return request.New("IncompleteBody", "The chunks hold more bytes than x-amz-decoded-content-length")
	}
	if c.signed() {
		value, ok := bytes.CutPrefix(signature, []byte("chunk-signature="))
		if !ok || len(value) != len(c.want) {
			return request.New("InvalidRequest", "A chunk has no chunk-signature of 64 hexadecimal digits")
		}
		copy(c.want[:], value)
		c.hash.Reset()
	} else if len(signature) > 0 {
		return request.New("InvalidRequest", "A chunk that is not signed has more than its size in front")
	}
	c.chunk, c.open = int64(n), true
	return nil
}

// end reads the line end behind a chunk's bytes and checks its signature.
func (c *chunkReader) end() error {
	if line, err := c.line(2); err != nil || len(line) > 0 {
		return orMalformed(err)
	}
	return c.closeChunk()
}

// closeChunk checks the signature of a chunk whose bytes were read.
func (c *chunkReader) closeChunk() error {
	c.open = false
	if !c.signed() {
		return nil
	}
	return c.compare("AWS4-HMAC-SHA256-PAYLOAD", emptySum, c.hash.Sum(c.sum[:0]), c.want[:])
}

// compare compares a signature with the right one of a chunk or a trailer. headers is the sum of no
// bytes for a chunk, and "" for a trailer.
func (c *chunkReader) compare(kind, headers string, sum, signature []byte) error {
	m := c.sign.begin(kind)
	m = append(append(m, '\n'), c.s.stamp...)
	m = append(append(m, '\n'), c.s.scope...)
	m = append(append(m, '\n'), c.previous[:]...)
	if headers != "" {
		m = append(append(m, '\n'), headers...)
	}
	c.sign = hex.AppendEncode(append(m, '\n'), sum)
	c.previous = c.sign.mac(&c.s.key)
	if subtle.ConstantTimeCompare(c.previous[:], signature) != 1 {
		return request.New("SignatureDoesNotMatch", "The signature of a chunk of the body, or of its trailer, does not match: the body was changed on its way")
	}
	return nil
}

// finish reads what follows the payload (the last chunk, trailers, the end of the body) and checks
// all of it.
func (c *chunkReader) finish() error {
	if err := c.header(); err != nil { // of size 0, since nothing is left
		return err
	}
	if err := c.closeChunk(); err != nil {
		return err
	}
	if err := c.trailers(); err != nil {
		return err
	}
	for _, name := range c.s.trailers {
		if c.trailer[name] == "" {
			return request.New("MalformedTrailerError", "The request contained trailing data that was not well-formed or did not conform to our published schema: %q is missing", name)
		}
	}
	for _, s := range c.sums {
		if !s.matches(c.trailer[s.name]) {
			return request.New("BadDigest", "The %s you specified did not match the calculated checksum.", s.name)
		}
	}
	c.got = c.trailer
	return nil
}

// trailers reads the trailers and the empty line, and then the end of the body. There may be more
// empty lines: minio-go sends some.
func (c *chunkReader) trailers() error {
	var signature, signed []byte // signed holds each line with a bare line feed
	ended := false
	for room := maxTrailer; ; {
		line, err := c.from.ReadSlice('\n')
		if room -= len(line); room < 0 || err == bufio.ErrBufferFull {
			return orMalformed(nil)
		}
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil {
			return broken(unexpected(err))
		}
		line = bytes.TrimSuffix(line[:len(line)-1], []byte("\r"))
		if len(line) == 0 {
			ended = ended || signature != nil || !c.signed() || c.s.payload == signedChunks
			continue
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		name, value = bytes.ToLower(name), bytes.Trim(value, " ")
		switch {
		case !ok || ended || signature != nil || c.s.payload == signedChunks:
			return orMalformed(nil)
		case string(name) == "x-amz-trailer-signature" && c.signed():
			signature = bytes.Clone(value)
		default:
			signed = append(append(append(append(signed, name...), ':'), value...), '\n')
			if err := c.keep(string(name), string(value)); err != nil {
				return err
			}
		}
	}
	if !ended {
		return broken(io.ErrUnexpectedEOF)
	}
	if c.s.payload != signedTrailing {
		return nil
	}
	sum := sha256.Sum256(signed)
	return c.compare("AWS4-HMAC-SHA256-TRAILER", "", sum[:], signature)
}

// keep stores a trailer, if it was announced.
func (c *chunkReader) keep(name, value string) error {
	for _, announced := range c.s.trailers {
		if name != announced || c.trailer[name] != "" {
			continue
		}
		if !wellFormed(name, value) {
			return request.New("InvalidRequest", "Value for %s trailing header is invalid.", name)
		}
		if c.trailer == nil {
			c.trailer = map[string]string{}
		}
		c.trailer[name] = value
		return nil
	}
	return request.New("MalformedTrailerError", "The trailer %q was not announced in x-amz-trailer, or is there twice", strings.ToValidUTF8(name, "?"))
}

// line reads a line of at most most bytes, and returns it without its line end.
func (c *chunkReader) line(most int) ([]byte, error) {
	line, err := c.from.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull || len(line) > most:
		return nil, orMalformed(nil)
	case err != nil:
		return nil, broken(unexpected(err))
	}
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return nil, orMalformed(nil)
	}
	return line, nil
}

// orMalformed returns err, or if it is nil the error for chunks of a wrong form.
func orMalformed(err error) error {
	if err != nil {
		return err
	}
	return request.New("InvalidRequest", "The body is not well-formed aws-chunked: a chunk's header, line end or trailer is wrong, or bytes follow the end")
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
