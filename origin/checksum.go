package origin

import (
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/hearthfs/hearth"
)

// checksum is how a body is verified: the origin compares it with what it received, and refuses another.
// The best that it knows is found out once. A header that an origin does not know is ignored by most, so
// it is known by its coming back in the answer; until then Content-MD5, which all know, goes with it.
type checksum int32

const (
	tryCRC64  checksum = iota // with MD5
	crc64                     // ten times as fast as MD5
	tryCRC32C                 // with MD5
	crc32c
	onlyMD5
)

// kind is the algorithm beside MD5.
func (c checksum) kind() minio.ChecksumType {
	switch c {
	case tryCRC64, crc64:
		return minio.ChecksumCRC64NVME
	case tryCRC32C, crc32c:
		return minio.ChecksumCRC32C
	}
	return minio.ChecksumNone
}

func (c checksum) known() bool { return c == crc64 || c == crc32c || c == onlyMD5 }

// next is what is tried if c is not known.
func (c checksum) next() checksum {
	if c.kind() == minio.ChecksumCRC64NVME {
		return tryCRC32C
	}
	return onlyMD5
}

// sumFor is the checksum for a body of an Upload.
func (s *S3) sumFor(u *hearth.Upload) checksum {
	if u.Copies && !isAWS(s.place.Load().url()) { // Amazon computes the sum of a copy itself
		return onlyMD5
	}
	return checksum(s.out.sum.Load())
}

// sumOf gives an attempt the headers of size bytes, which it reads once.
func (a *attempt) sumOf(c checksum, from io.ReaderAt, size int64) error {
	var crc hash.Hash
	digest, into := md5.New(), []io.Writer{}
	if c.kind().IsSet() {
		crc = c.kind().Hasher()
		into = append(into, crc)
	}
	if c != crc64 && c != crc32c {
		into = append(into, digest)
	}
	buf := make([]byte, min(max(size, 1), 256<<10))
	n, err := io.CopyBuffer(io.MultiWriter(into...), io.NewSectionReader(from, 0, size), buf)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnread, err)
	}
	h := a.w.header
	for _, kind := range []minio.ChecksumType{minio.ChecksumCRC64NVME, minio.ChecksumCRC32C} {
		h.Del(kind.Key()) // of the attempt before
	}
	h.Del("Content-Md5")
	if crc != nil {
		h.Set(c.kind().Key(), base64.StdEncoding.EncodeToString(crc.Sum(nil)))
	}
	if c != crc64 && c != crc32c {
		h.Set("Content-Md5", base64.StdEncoding.EncodeToString(digest.Sum(nil)))
	}
	return nil
}

// learn notes whether an origin that took a body knows its checksum, which it returns if so.
func (s *S3) learn(c checksum, answer http.Header) string {
	said := ""
	if c.kind().IsSet() {
		said = answer.Get(c.kind().Key())
	}
	switch {
	case c == onlyMD5:
	case said == "":
		s.out.sum.CompareAndSwap(int32(c), int32(c.next()))
	case !c.known():
		s.out.sum.CompareAndSwap(int32(c), int32(c)+1)
	}
	return said
}

// unlearn reports whether an error may be about the checksum's algorithm, and another is to be tried. A
// body that does not fit its checksum is another error.
func (s *S3) unlearn(c checksum, err error) bool {
	var e *Error
	if c == onlyMD5 || !errors.As(err, &e) || e.Status != http.StatusBadRequest && e.Status != http.StatusNotImplemented {
		return false
	}
	switch e.Code {
	case "", "NotImplemented", "InvalidArgument", "InvalidRequest", "BadRequest", "UnsupportedArgument", "UnsupportedOperation":
		s.out.sum.CompareAndSwap(int32(c), int32(c.next()))
		return true
	}
	return false
}
