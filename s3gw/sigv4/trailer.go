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

// frameSize is the size of the chunks that a framer makes, in bytes. MinIO takes at most 16 MiB,
// and Amazon at least 8 KiB.
const frameSize = 1 << 20

// sumSize returns the bytes of a checksum; 0 means that its name is not known. Names: "Checking
// object integrity" in Amazon's S3 user guide.
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

// sumLength returns the characters of a checksum in a header, in base64; 0 means not known.
func sumLength(name string) int { return base64.StdEncoding.EncodedLen(sumSize(name)) }

// wellFormed reports whether a value can be the checksum of that name; any value can for an unknown
// name. A value of another length does not fit the length that was announced to the origin, so it
// cannot go on. Amazon gives the same error for a value that is not base64.
func wellFormed(name, value string) bool {
	size := sumSize(name)
	if size == 0 {
		return true
	}
	sum, err := base64.StdEncoding.DecodeString(value)
	return err == nil && len(sum) == size && len(value) == sumLength(name)
}

// checksum is a checksum that is computed while a payload is read.
type checksum struct {
	name string
	hash hash.Hash
}

// verifySums starts the checksums of trailers, of the kinds that the standard library has.
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

// framer reads the payload of signed chunks as unsigned chunks of frameSize, with the trailers
// behind it.
type framer struct {
	from     *chunkReader
	trailers []string
	left     int64  // bytes left of the payload
	frame    int64  // bytes left of this chunk
	pending  []byte // bytes between chunks that were not read yet
	open     bool   // a chunk's line end is still to come
	ended    bool
}

// Close closes the request's body.
func (f *framer) Close() error { return f.from.Close() }

// Read returns a piece of a chunk, or of the bytes between two.
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

// next writes the bytes in front of the next chunk, or behind the last.
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
	// Only a payload of no bytes is not verified by now.
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

// framedLength returns the length in bytes of a framer's output for a payload.
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
