package sigv4

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"strconv"
)

// frameSize is the size of the chunks that we make, bytes: MinIO takes at most 16 MiB, and
// Amazon at least 8 KiB.
const frameSize = 1 << 20

// sumSize is the number of bytes of a checksum; 0: not known. Names: "Checking object integrity"
// in Amazon's S3 user guide.
func sumSize(name string) int {
	switch name {
	case "x-amz-checksum-crc32", "x-amz-checksum-crc32c":
		return crc32.Size
	case "x-amz-checksum-crc64nvme", "x-amz-checksum-xxhash64", "x-amz-checksum-xxhash3":
		return 8
	case "x-amz-checksum-md5", "x-amz-checksum-xxhash128":
		return 16
	case "x-amz-checksum-sha1":
		return sha1.Size
	case "x-amz-checksum-sha256":
		return sha256.Size
	case "x-amz-checksum-sha512":
		return 64
	}
	return 0
}

// sumLength is the number of characters of a checksum in a header, in base64; 0: not known.
func sumLength(name string) int { return base64.StdEncoding.EncodedLen(sumSize(name)) }

// wellFormed says whether a value can be the checksum of that name; of a name that is not known
// any can. A value of another length would not be of the length that was told to the origin, and
// cannot go on; it is the fault that Amazon tells of one that is no base64.
func wellFormed(name, value string) bool {
	size := sumSize(name)
	if size == 0 {
		return true
	}
	sum, err := base64.StdEncoding.DecodeString(value)
	return err == nil && len(sum) == size && len(value) == sumLength(name)
}

// checksum is one that is computed while a payload is read.
type checksum struct {
	name string
	hash hash.Hash
}

// verifySums has the checksums of trailers computed, those that the standard library has.
func (c *chunkReader) verifySums(trailers []string) {
	for _, name := range trailers {
		if h := newSum(name); h != nil {
			c.sums = append(c.sums, &checksum{name, h})
		}
	}
}

func newSum(name string) hash.Hash {
	switch name {
	case "x-amz-checksum-crc32":
		return crc32.NewIEEE()
	case "x-amz-checksum-crc32c":
		return crc32.New(crc32.MakeTable(crc32.Castagnoli))
	case "x-amz-checksum-crc64nvme":
		return crc64.New(crc64.MakeTable(0x9a6c9329ac4bc9b5)) // the polynomial of NVMe's CRC-64, bits reversed
	case "x-amz-checksum-sha1":
		return sha1.New()
	case "x-amz-checksum-sha256":
		return sha256.New()
	}
	return nil
}

func (s *checksum) matches(text string) bool {
	return base64.StdEncoding.EncodeToString(s.hash.Sum(nil)) == text
}

// framer gives the payload of signed chunks as chunks without signatures, of frameSize, with
// the trailers behind it.
type framer struct {
	from     *chunkReader
	trailers []string
	left     int64  // of the payload
	frame    int64  // of this chunk
	pending  []byte // of what stands between chunks
	open     bool   // a chunk's line end is still to come
	ended    bool
}

// Close closes the request's body.
func (f *framer) Close() error { return f.from.Close() }

// Read gives a piece of a chunk, or of what stands between two.
func (f *framer) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(f.pending) == 0 && f.frame == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(f.pending) > 0 {
		n := copy(p, f.pending)
		f.pending = f.pending[n:]
		return n, nil
	}
	n, err := f.from.Read(p[:min(int64(len(p)), f.frame)])
	f.frame -= int64(n)
	f.left -= int64(n)
	if err != nil {
		return n, broken(unexpected(err))
	}
	return n, nil
}

// next writes what stands in front of the next chunk, or behind the last.
func (f *framer) next() error {
	if f.ended {
		return io.EOF
	}
	f.pending = f.pending[:0]
	if f.open {
		f.pending = append(f.pending, "\r\n"...)
	}
	if f.left > 0 {
		f.frame, f.open = min(f.left, frameSize), true
		f.pending = append(strconv.AppendInt(f.pending, f.frame, 16), "\r\n"...)
		return nil
	}
	// Only a payload of no bytes is not verified yet.
	if _, err := f.from.Read(make([]byte, 1)); err != io.EOF {
		return broken(unexpected(err))
	}
	f.pending = append(f.pending, "0\r\n"...)
	for _, name := range f.trailers {
		f.pending = append(append(append(append(f.pending, name...), ':'), f.from.got[name]...), "\r\n"...)
	}
	f.pending = append(f.pending, "\r\n"...)
	f.ended = true
	return nil
}

// framedLength is the number of bytes that a framer gives for a payload.
func framedLength(payload int64, trailers []string) int64 {
	chunk := func(n int64) int64 { return int64(len(strconv.FormatInt(n, 16))) + 2 + n + 2 }
	n := payload / frameSize * chunk(frameSize)
	if rest := payload % frameSize; rest > 0 {
		n += chunk(rest)
	}
	n += int64(len("0\r\n\r\n"))
	for _, name := range trailers {
		n += int64(len(name) + len(":") + sumLength(name) + len("\r\n"))
	}
	return n
}
