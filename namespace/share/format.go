package share

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
)

// The formats of questions and answers, with sizes in bytes. A string has its length in front, as a varint.
//
//	question  the format 1, how old the answer may be in milliseconds 8, the directory's id 16, and the
//	          strings link, prefix, and sort name or segment
//	page      age in milliseconds 8, how long the listing took in milliseconds 8, hidden names 8, last 1,
//	          then names to the end
//	name      kind 1, the string segment, and the attributes if it is a file
//	found     age in milliseconds 8, kind 1, and the attributes if it is a file
//
// A file's attributes are its size, mod time and nanoseconds as varints, and the string ETag. A file of
// kind 3 has its storage class after these, as a string.
const (
	format   = 1
	toldSize = 25

	kindAbsent = 0
	kindFile   = 1
	kindDir    = 2
	kindClass  = 3 // a file of another class than STANDARD

	// The most bytes of each string: what S3 allows, and for a link's name what URLs take.
	maxLink = 1 << 10
	maxKey  = 1 << 10
	maxETag = 1 << 10
	// maxClass is three times Amazon's longest.
	maxClass = 64
	// maxOld is the longest age in milliseconds: 292 years, the most that a Duration holds.
	maxOld = int64(math.MaxInt64 / time.Millisecond)
	// maxTook is longer than any listing takes: in a day a billion names are listed.
	maxTook = 24 * time.Hour
)

// question is what another node is asked.
type question struct {
	dir    hearth.Directory // without the identity, which is not sent: the id depends on it
	behind string           // the sort name that is the cursor, or the segment to find
	old    time.Duration
}

func (q *question) append(dst []byte) ([]byte, error) {
	if len(q.dir.Link) > maxLink || len(q.dir.Prefix) > maxKey || len(q.behind) > maxKey {
		return nil, fmt.Errorf("ask for the names in %q: link, prefix and name of %d, %d and %d bytes, at most %d, %d and %d",
			q.dir.Prefix, len(q.dir.Link), len(q.dir.Prefix), len(q.behind), maxLink, maxKey, maxKey)
	}
	dst = append(dst, format)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(max(0, q.old)/time.Millisecond)) // rounded down; ages go up
	dst = append(dst, q.dir.ID[:]...)
	for _, s := range []string{q.dir.Link, q.dir.Prefix, q.behind} {
		dst = appendString(dst, s)
	}
	return dst, nil
}

func parseQuestion(b []byte) (*question, error) {
	r := reader{b: b}
	if v := r.byte(); v != format {
		return nil, fmt.Errorf("a question of format %d, this node knows %d: run releases next to each other", v, format)
	}
	q := &question{old: r.milliseconds()}
	copy(q.dir.ID[:], r.bytes(16))
	q.dir.Link, q.dir.Prefix, q.behind = r.string(maxLink), r.string(maxKey), r.string(maxKey)
	if q.dir.Prefix != "" && !strings.HasSuffix(q.dir.Prefix, "/") || strings.Contains(strings.TrimSuffix(q.behind, "/"), "/") {
		r.bad = true
	}
	if !r.end() {
		return nil, fmt.Errorf("a question of %d bytes that cannot be read", len(b))
	}
	return q, nil
}

// putTold writes the first toldSize bytes of a page.
func putTold(b []byte, t *hearth.Told) {
	binary.LittleEndian.PutUint64(b, milliseconds(t.Age))
	binary.LittleEndian.PutUint64(b[8:], milliseconds(t.Took))
	binary.LittleEndian.PutUint64(b[16:], uint64(max(0, t.Hidden)))
	if b[24] = 0; t.Last {
		b[24] = 1
	}
}

// milliseconds rounds up, so that nothing looks younger than it is.
func milliseconds(d time.Duration) uint64 {
	if d > time.Duration(maxOld)*time.Millisecond-time.Millisecond {
		return uint64(maxOld)
	}
	return uint64((max(0, d) + time.Millisecond - 1) / time.Millisecond)
}

// nameSize is the most bytes that a name takes.
func nameSize(o *hearth.Object, prefix int) int {
	return 1 + len(o.Key) - prefix + len(o.ETag) + len(o.Class) + 6*binary.MaxVarintLen64
}

func appendName(dst []byte, o *hearth.Object, prefix int) []byte {
	name := o.Key[prefix:]
	if o.IsPrefix() {
		return appendString(append(dst, kindDir), strings.TrimSuffix(name, "/"))
	}
	return appendFile(appendString(append(dst, kindOf(o)), name), o)
}

// kindOf is the kind of a file.
func kindOf(o *hearth.Object) byte {
	if o.Class != "" && len(o.Class) <= maxClass {
		return kindClass
	}
	return kindFile
}

func appendFile(dst []byte, o *hearth.Object) []byte {
	dst = binary.AppendUvarint(dst, uint64(o.Size))
	dst = binary.AppendVarint(dst, o.ModTime.Unix())
	dst = binary.AppendUvarint(dst, nanosOf(o))
	dst = appendString(dst, o.ETag)
	if kindOf(o) == kindClass {
		dst = appendString(dst, o.Class)
	}
	return dst
}

// exactly stands for the nanoseconds of an exact time in whole seconds.
const exactly = 1e9

func nanosOf(o *hearth.Object) uint64 {
	if o.Exact {
		return exactly
	}
	return uint64(o.ModTime.Nanosecond())
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// parsePage reads the answer to a question. Names that are out of order, not after the cursor, or more
// than one segment are an error.
func parsePage(b []byte, q *question) (told hearth.Told, page []hearth.Object, err error) {
	r := reader{b: b}
	told.Age, told.Took = r.milliseconds(), r.milliseconds()
	hidden, last := r.uint64(), r.byte()
	if hidden > math.MaxInt32 || last > 1 || told.Took > maxTook {
		r.bad = true
	}
	told.Hidden, told.Last = int64(hidden), last == 1
	behind, first := q.behind, q.behind == ""
	for len(r.b) > 0 && len(page) < pageNames {
		kind := r.byte()
		name := r.segment()
		o := hearth.Object{Link: q.dir.Link, Key: q.dir.Prefix + name, Size: hearth.PrefixSize}
		switch kind {
		case kindDir:
			name, o.Key = name+"/", o.Key+"/"
		case kindFile, kindClass:
			r.file(&o, kind, q.dir.Identity)
		default:
			r.bad = true
		}
		if r.bad || !first && name <= behind {
			return told, nil, fmt.Errorf("%w: name %d of a page", ErrAnswer, len(page))
		}
		behind, first = name, false
		page = append(page, o)
	}
	if !r.end() || len(page) == 0 && !told.Last {
		return told, nil, fmt.Errorf("%w: a page of %d bytes and %d names", ErrAnswer, len(b), len(page))
	}
	return told, page, nil
}

func appendFound(dst []byte, f *hearth.Found) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, milliseconds(f.Age))
	switch {
	case f.Object != nil:
		return appendFile(append(dst, kindOf(f.Object)), f.Object)
	case f.Dir:
		return append(dst, kindDir)
	}
	return append(dst, kindAbsent)
}

func parseFound(b []byte, q *question) (f hearth.Found, err error) {
	r := reader{b: b}
	f.Age = r.milliseconds()
	switch kind := r.byte(); kind {
	case kindFile, kindClass:
		f.Object = &hearth.Object{Link: q.dir.Link, Key: q.dir.Prefix + q.behind}
		r.file(f.Object, kind, q.dir.Identity)
	case kindDir:
		f.Dir = true
	case kindAbsent:
	default:
		r.bad = true
	}
	if !r.end() {
		return hearth.Found{}, fmt.Errorf("%w: %d bytes for a name", ErrAnswer, len(b))
	}
	return f, nil
}

// reader reads fields; the first bad one makes all that follow empty.
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

func (r *reader) uint64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) milliseconds() time.Duration {
	ms := r.uint64()
	if ms > uint64(maxOld) {
		r.bad, r.b = true, nil
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

func (r *reader) string(most uint64) string {
	n := r.uvarint()
	if n > most {
		r.bad, r.b = true, nil
		return ""
	}
	return string(r.bytes(n))
}

func (r *reader) uvarint() uint64 {
	n, used := binary.Uvarint(r.b)
	r.skip(used)
	return n
}

// segment reads a name. A name with a "/" is bad, as it would lead out of its directory.
func (r *reader) segment() string {
	s := r.string(maxKey)
	if strings.IndexByte(s, '/') >= 0 {
		r.bad = true
	}
	return s
}

// file reads the attributes of a file of that kind. It computes the Version.
func (r *reader) file(o *hearth.Object, kind byte, identity string) {
	size := r.uvarint()
	seconds, n := binary.Varint(r.b)
	r.skip(n)
	nanos := r.uvarint()
	etag, class := r.string(maxETag), ""
	if kind == kindClass {
		class = r.string(maxClass)
	}
	if size > math.MaxInt64 || nanos > exactly || seconds < -1<<40 || seconds > 1<<40 {
		r.bad = true
	}
	if r.bad {
		return
	}
	o.Exact = nanos == exactly
	o.Size, o.ModTime, o.ETag, o.Class = int64(size), time.Unix(seconds, int64(nanos%exactly)), etag, class
	o.Version = hearth.VersionOf(identity, o.Key, etag, o.Size)
}

func (r *reader) skip(n int) {
	if n <= 0 {
		r.bad, r.b = true, nil
		return
	}
	r.b = r.b[n:]
}

// end reports whether everything was read, and no field was bad.
func (r *reader) end() bool { return !r.bad && len(r.b) == 0 }
