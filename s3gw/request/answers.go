package request

import (
	"errors"
	"io"
	"strconv"
)

// BatchType is the Content-Type of a batch's answer.
const BatchType = "application/vnd.hearth.batch"

// ErrBroken means that the bytes written to a BatchWriter are not as many as announced. The client
// would take what follows for them, so the connection must be cut.
var ErrBroken = errors.New("an object of a batch has another length than was announced")

// BatchWriter writes the answer to a batch. Each item, in order, is a line and then its bytes, with
// nothing between items. The last line tells a complete answer from one that was cut off.
//
//	200 16384 "9b2cf535f27731c974343645a3985328"
//	...16,384 bytes...
//	206 100 "33a64df551425fcc55e4d42a148795d9"
//	...100 bytes...
//	404 0 NoSuchKey
//	end 3
//
// The line holds status, length and ETag, or S3's error code: such an item ends there, and the
// others go on. One goroutine uses the writer. An error is one of the writer below or ErrBroken,
// and lasts.
type BatchWriter struct {
	w     io.Writer
	items int
	left  int64 // bytes of this object that still have to come
	err   error
	line  [64]byte // room for most lines
}

// NewBatchWriter writes to w, which need not buffer: each line is one Write.
func NewBatchWriter(w io.Writer) *BatchWriter { return &BatchWriter{w: w} }

// Object begins the next item, with status 200 or 206. Exactly length bytes must be written before
// anything else.
func (b *BatchWriter) Object(status int, length int64, etag string) error {
	return b.begin(status, length, etag)
}

// Fault writes the next item, which is only an error.
func (b *BatchWriter) Fault(f *Error) error { return b.begin(f.HTTPStatus(), 0, f.Code) }

func (b *BatchWriter) begin(status int, length int64, word string) error {
	if b.err == nil && (b.left != 0 || length < 0) {
		b.err = ErrBroken
	}
	if b.err != nil {
		return b.err
	}
	b.items++
	b.left = length
	l := strconv.AppendInt(b.line[:0], int64(status), 10)
	l = append(l, ' ')
	l = strconv.AppendInt(l, length, 10)
	l = append(l, ' ')
	_, b.err = b.w.Write(append(append(l, printable(word)...), '\n'))
	return b.err
}

// printable returns s, or "-" if s cannot be the rest of one line.
func printable(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return "-"
		}
	}
	if s == "" {
		return "-"
	}
	return s
}

// Write writes bytes of the object that began last.
func (b *BatchWriter) Write(p []byte) (int, error) {
	if b.err == nil && int64(len(p)) > b.left {
		b.err = ErrBroken
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.w.Write(p)
	b.left -= int64(n)
	b.err = err
	return n, err
}

// Close writes the last line. It does not close the writer below.
func (b *BatchWriter) Close() error {
	if b.err == nil && b.left != 0 {
		b.err = ErrBroken
	}
	if b.err != nil {
		return b.err
	}
	l := strconv.AppendInt(append(b.line[:0], "end "...), int64(b.items), 10)
	_, b.err = b.w.Write(append(l, '\n'))
	return b.err
}
