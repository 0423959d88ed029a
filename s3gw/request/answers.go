package request

import (
	"errors"
	"io"
	"strconv"
)

// BatchType is the Content-Type of a batch's answer.
const BatchType = "application/vnd.hearth.batch"

// ErrBroken is what a BatchWriter gives when the bytes written are not those announced: what
// follows would be taken for them, so that the connection must be cut.
var ErrBroken = errors.New("an object of a batch has another length than was announced")

// BatchWriter writes the answer to a batch: for each item, in order, a line and the bytes
// themselves, nothing between them, and a last line that tells a whole answer from one that was
// cut off.
//
//	200 16384 "9b2cf535f27731c974343645a3985328"
//	...16,384 bytes...
//	206 100 "33a64df551425fcc55e4d42a148795d9"
//	...100 bytes...
//	404 0 NoSuchKey
//	end 3
//
// The line is status, length and ETag, or S3's error code: the end of one item, not of the
// others. One goroutine uses it; an error is the writer's own and lasts.
type BatchWriter struct {
	w     io.Writer
	items int
	left  int64 // bytes of this object that are still to come
	err   error
	line  [64]byte // what most lines fit into
}

// NewBatchWriter writes to w, which need not buffer: lines are written whole.
func NewBatchWriter(w io.Writer) *BatchWriter { return &BatchWriter{w: w} }

// Object begins the next item: its status is 200 or 206; exactly length bytes must be written
// before anything else.
func (b *BatchWriter) Object(status int, length int64, etag string) error {
	return b.begin(status, length, etag)
}

// Fault is the next item, of which there is nothing but an error.
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

// printable is "-" for what would not be the rest of one line.
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

// Write writes bytes of the object that was begun last.
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
