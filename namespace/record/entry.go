// Package record has the formats of the namespace: the names that keys have in a mount, and the records
// of its database. Both are pure functions.
//
// A record is a byte of flags or kind, then fields as varints or with their length in front. A decoder
// takes all of its input or fails.
package record

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Entry is the record of one sort name in a directory.
type Entry struct {
	ID      uint64
	Dir     bool
	Beside  bool // a file with a directory of the same segment beside it
	Doubted bool // not believed until the origin was asked again: a reader found it gone, for example
	// Checked is when the origin was last asked for this name alone, in Unix milliseconds. 0 means that
	// only listings confirmed it.
	Checked int64

	Size    int64
	ModTime time.Time
	Exact   bool // as in hearth.Object: the origin tells fractions of seconds, and there is none
	ETag    string
	Class   string // the storage class; "" means STANDARD, or not known
	// Version is stored only where it cannot be computed.
	Version    [16]byte
	HasVersion bool
}

// Flags of an entry's record. The low two bits are the form of the ETag. etagClass means that the
// storage class comes first, then a byte with the ETag's own form, then the ETag. A version that does
// not know etagClass cannot read the record, and asks the origin again.
const (
	etagRaw    = 0 // length and bytes
	etagMD5    = 1 // 16 bytes for 32 hex digits, as S3 makes them
	etagParts  = 2 // the same, and the number of parts of a multipart upload
	etagClass  = 3 // after a class
	etagForms  = 3 // the mask of these bits
	flagDir    = 1 << 2
	flagBeside = 1 << 3
	flagDoubt  = 1 << 4
	flagCheck  = 1 << 5
	flagVer    = 1 << 6
	flagNanos  = 1 << 7 // nanoseconds are written: the mod time is not in whole seconds, or it is exact
)

// Epoch is 2020-01-01 in Unix seconds. Times are written relative to it, so that they are short.
const Epoch = 1577836800

var errRecord = errors.New("a record of the namespace cannot be read")

// Append appends the entry's record to buf.
func (e *Entry) Append(buf []byte) []byte {
	at := len(buf)
	buf = append(buf, 0)
	flags := byte(0)
	buf = binary.AppendUvarint(buf, e.ID)
	if e.Checked > 0 {
		flags |= flagCheck
		buf = binary.AppendVarint(buf, e.Checked-Epoch*1000)
	}
	if e.Doubted {
		flags |= flagDoubt
	}
	if e.Beside {
		flags |= flagBeside
	}
	if e.Dir {
		buf[at] = flags | flagDir
		return buf
	}
	buf = binary.AppendUvarint(buf, uint64(e.Size))
	if n := e.ModTime.Nanosecond(); n != 0 || e.Exact {
		flags |= flagNanos
		buf = binary.AppendUvarint(buf, uint64(n))
	}
	buf = binary.AppendVarint(buf, e.ModTime.Unix()-Epoch)
	var form byte
	if e.Class == "" {
		buf, form = appendETag(buf, e.ETag)
	} else {
		buf, form = e.appendClass(buf), etagClass
	}
	if e.HasVersion {
		flags |= flagVer
		buf = append(buf, e.Version[:]...)
	}
	buf[at] = flags | form
	return buf
}

// appendClass writes the class, the ETag's form and the ETag.
func (e *Entry) appendClass(buf []byte) []byte {
	buf = binary.AppendUvarint(buf, uint64(len(e.Class)))
	buf = append(buf, e.Class...)
	at := len(buf)
	buf, form := appendETag(append(buf, 0), e.ETag)
	buf[at] = form
	return buf
}

func appendETag(buf []byte, etag string) ([]byte, byte) {
	digits, parts, multi := strings.Cut(etag, "-")
	n, err := strconv.ParseUint(parts, 10, 32)
	packed := len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
	switch {
	case packed && !multi:
		buf, _ = hex.AppendDecode(buf, []byte(digits))
		return buf, etagMD5
	case packed && err == nil && strconv.FormatUint(n, 10) == parts:
		buf, _ = hex.AppendDecode(buf, []byte(digits))
		return binary.AppendUvarint(buf, n), etagParts
	}
	buf = binary.AppendUvarint(buf, uint64(len(etag)))
	return append(buf, etag...), etagRaw
}

// ParseEntry reads a record.
func ParseEntry(b []byte) (Entry, error) {
	r := reader{b: b}
	flags := r.byte()
	e := Entry{Dir: flags&flagDir != 0, Beside: flags&flagBeside != 0, Doubted: flags&flagDoubt != 0}
	e.ID = r.uvarint()
	if flags&flagCheck != 0 {
		e.Checked = max(0, r.varint()+Epoch*1000)
	}
	if e.Dir {
		return e, r.end()
	}
	e.Size = int64(r.uvarint())
	nanos := uint64(0)
	if flags&flagNanos != 0 {
		nanos = r.uvarint()
	}
	e.ModTime = time.Unix(r.varint()+Epoch, int64(nanos%1e9))
	e.Exact = flags&flagNanos != 0 && nanos == 0
	form := flags & etagForms
	if form == etagClass {
		e.Class, form = string(r.bytes(r.uvarint())), r.byte()
	}
	switch form {
	case etagRaw:
		e.ETag = string(r.bytes(r.uvarint()))
	case etagMD5:
		e.ETag = hex.EncodeToString(r.bytes(16))
	case etagParts:
		digits := r.bytes(16)
		e.ETag = hex.EncodeToString(digits) + "-" + strconv.FormatUint(r.uvarint(), 10)
	default:
		r.bad = true
	}
	if flags&flagVer != 0 {
		e.HasVersion = true
		copy(e.Version[:], r.bytes(16))
	}
	return e, r.end()
}

// Same reports whether two entries are the same version of a file, or both directories. Times do not
// count.
func (e *Entry) Same(x *Entry) bool {
	if e.Dir || x.Dir {
		return e.Dir == x.Dir
	}
	return e.Size == x.Size && e.ETag == x.ETag && e.HasVersion == x.HasVersion && e.Version == x.Version
}

// Date takes over the mod time of x, which is the Same, unless x only tells the same time less finely.
// It reports whether anything changed.
func (e *Entry) Date(x *Entry) bool {
	if !x.fine() && x.ModTime.Equal(e.ModTime.Truncate(time.Second)) || x.ModTime.Equal(e.ModTime) && x.Exact == e.Exact {
		return false
	}
	e.ModTime, e.Exact = x.ModTime, x.Exact
	return true
}

// Refines reports whether e is the Same as was and tells its mod time more finely.
func (e *Entry) Refines(was *Entry) bool {
	return e.fine() && !was.fine() && e.Same(was) && e.ModTime.Truncate(time.Second).Equal(was.ModTime)
}

// fine reports whether the mod time has a fraction of a second, or is known to have none.
func (e *Entry) fine() bool { return e.Exact || e.ModTime.Nanosecond() != 0 }

// reader reads the fields of a record. After the first bad field all others are empty.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) bytes(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.skip(n)
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	r.skip(n)
	return v
}

func (r *reader) skip(n int) {
	if n <= 0 {
		r.bad, r.b = true, nil
		return
	}
	r.b = r.b[n:]
}

// rest returns the bytes that are left.
func (r *reader) rest() []byte { return r.bytes(uint64(len(r.b))) }

// end returns an error if a field was bad, or if bytes are left.
func (r *reader) end() error {
	if r.bad || len(r.b) > 0 {
		return errRecord
	}
	return nil
}
