package object

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
)

// maxPacked bounds what is kept of one version, in bytes. Amazon allows 8 KiB of headers in a PUT;
// no store sends more than this.
const maxPacked = 32 << 10

var (
	errLarge   = errors.New("headers are too large")
	errUnnamed = errors.New("headers without an ETag")
)

// kinds says which answers carry a header.
type kinds uint8

const (
	kindPlain kinds = 1 << iota // 200 and 206
	kindShort                   // these and 304, by RFC 9110, section 15.4.5
	kindSum                     // only if x-amz-checksum-mode asks for it
)

// set holds the known headers of one version.
type set struct {
	// packed holds for each value: kinds (1 byte), the lengths of name and value (varints), and
	// both texts. Names are spelled as they are sent; equal names stand together.
	packed   string
	values   int
	modified time.Time // Last-Modified; the zero time means not known
	asked    time.Time // when the origin was asked
	until    time.Time // believed until then without a question, since the origin is away
	loose    bool      // some header may change without a new version
	archived bool      // reads may be refused; then nothing else is known
}

// looseFresh bounds how long headers are believed that change without a new version.
const looseFresh = time.Minute

// believed reports whether a set is still good, where fresh is the greatest age (below 0: any).
func (t *set) believed(now time.Time, fresh time.Duration) bool {
	if t.loose && (fresh < 0 || fresh > looseFresh) {
		fresh = looseFresh
	}
	return fresh < 0 || now.Sub(t.asked) < fresh || now.Before(t.until)
}

// packSet makes a set of the answer to a HEAD, if that answer is about the object.
func packSet(h http.Header, o *hearth.Object, asked time.Time) (*set, error) {
	switch etag := h["Etag"]; {
	case len(etag) != 1:
		return nil, errUnnamed
	case etag[0] != `"`+o.ETag+`"` && etag[0] != o.ETag:
		return nil, fmt.Errorf("%w: its ETag is %.100s", hearth.ErrStale, etag[0])
	}
	if n := h["Content-Length"]; len(n) == 1 && n[0] != fmt.Sprint(o.Size) {
		return nil, fmt.Errorf("%w: it has %.20s bytes", hearth.ErrStale, n[0])
	}
	t := &set{asked: asked, archived: archived(h)}
	if t.archived {
		return t, nil
	}
	var names []string
	for name := range h {
		if !passing(name, h) {
			names = append(names, name)
			t.loose = t.loose || loose(name)
		}
	}
	slices.Sort(names)
	var b []byte
	for _, name := range names {
		for _, v := range h[name] {
			out := spelled(name)
			b = append(b, byte(kindOf(name)))
			b = binary.AppendUvarint(b, uint64(len(out)))
			b = binary.AppendUvarint(b, uint64(len(v)))
			b = append(append(b, out...), v...)
			t.values++
		}
		if len(b) > maxPacked {
			return nil, errLarge
		}
	}
	t.packed = string(b)
	if at, ok := date(h.Get("Last-Modified")); ok {
		t.modified = at
	}
	return t, nil
}

// render writes the headers of some kinds. All values share one array, and their texts are the
// set's memory.
func (t *set) render(h http.Header, want kinds) {
	values := make([]string, 0, t.values)
	last, first := "", 0
	for s := t.packed; s != ""; {
		kind := kinds(s[0])
		s = s[1:]
		n, s1 := cutUvarint(s)
		m, s2 := cutUvarint(s1)
		name, value := s2[:n], s2[n:n+m]
		s = s2[n+m:]
		if kind&want == 0 {
			continue
		}
		if name != last {
			last, first = name, len(values)
		}
		values = append(values, value)
		h[name] = values[first:len(values):len(values)]
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or net/http guesses one
	}
}

// cutUvarint reads a number below 2^21 that packSet wrote.
func cutUvarint(s string) (int, string) {
	n := 0
	for i := 0; ; i++ {
		n |= int(s[i]&0x7f) << (7 * i)
		if s[i] < 0x80 {
			return n, s[i+1:]
		}
	}
}

// spelled returns a name as it is sent. Stores send user metadata in lower case (Amazon, MinIO and
// versitygw, tried), and clients show the names as they come. But net/http has changed them.
func spelled(name string) string {
	if strings.HasPrefix(name, "X-Amz-Meta-") && http.CanonicalHeaderKey(name) == name {
		return strings.ToLower(name)
	}
	return name
}

func kindOf(name string) kinds {
	switch name {
	case "Etag", "Last-Modified", "Cache-Control", "Expires", "Vary", "Content-Location", "Accept-Ranges", "X-Amz-Version-Id":
		return kindShort
	}
	if strings.HasPrefix(name, "X-Amz-Checksum-") {
		return kindSum
	}
	return kindPlain
}

// passing reports whether a header belongs to one answer alone, and not to the version.
func passing(name string, h http.Header) bool {
	switch name {
	case "Date", "Age", "Server", "X-Cache", // when, and by which server
		"X-Amz-Request-Id", "X-Amz-Id-2", "X-Amz-Cf-Id", "X-Amz-Cf-Pop", "X-Request-Id", "X-Trans-Id", "X-Guploader-Uploadid",
		"X-Amz-Request-Charged",           // the cost
		"Content-Length", "Content-Range", // set by each answer
		"Set-Cookie", "Alt-Svc", "Connection", // about the connection to the origin
		"Keep-Alive", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Proxy-Connection", "Proxy-Authenticate":
		return true
	}
	if strings.HasPrefix(name, "X-Ratelimit-") || strings.HasPrefix(name, "Access-Control-") {
		return true // how often this caller may ask, and from which pages
	}
	for _, list := range h["Connection"] {
		for one := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(one), name) {
				return true
			}
		}
	}
	return false
}

// loose reports whether a header may change while the version stays. Tags are set beside the
// version. The expiry follows from the bucket's rules. Replicas are made later, and locks are put
// and lifted. Such headers are kept for looseFresh at most. They are not left out: a client that
// looks for one would take its absence for an answer.
func loose(name string) bool {
	switch name {
	case "X-Amz-Tagging-Count", "X-Amz-Expiration", "X-Amz-Replication-Status":
		return true
	}
	return strings.HasPrefix(name, "X-Amz-Object-Lock-")
}

// archived reports whether the origin may refuse to read the object until it is restored, or once
// the restored copy is gone again.
func archived(h http.Header) bool {
	class := h.Get("X-Amz-Storage-Class")
	return len(h["X-Amz-Restore"]) > 0 || len(h["X-Amz-Archive-Status"]) > 0 || class == "GLACIER" || class == "DEEP_ARCHIVE"
}
