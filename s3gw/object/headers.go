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

// maxPacked is the most that is kept of one version in bytes. Amazon allows 8 KiB of headers in
// a PUT; more than this is no store's.
const maxPacked = 32 << 10

var (
	errLarge   = errors.New("headers are too large")
	errUnnamed = errors.New("headers without an ETag")
)

// kinds says which answers have a header.
type kinds uint8

const (
	kindPlain kinds = 1 << iota // 200 and 206
	kindShort                   // these and 304, as RFC 9110, section 15.4.5, has it
	kindSum                     // only where x-amz-checksum-mode asks for it
)

// set is what is known of one version's headers.
type set struct {
	// packed has for each value: kinds (1 byte), the lengths of name and value (varints),
	// both texts. Names are as they go out; those that are equal stand together.
	packed   string
	values   int
	modified time.Time // Last-Modified; zero: not known
	asked    time.Time // when the origin was asked
	until    time.Time // believed till then without asking, since the origin is away
	loose    bool      // some change without a new version
	archived bool      // reads may be refused; nothing else is known then
}

// looseFresh is how long headers are believed at most that change without a new version.
const looseFresh = time.Minute

// believed reports whether a set that may be fresh old (below 0: any age) is still good.
func (t *set) believed(now time.Time, fresh time.Duration) bool {
	if t.loose && (fresh < 0 || fresh > looseFresh) {
		fresh = looseFresh
	}
	return fresh < 0 || now.Sub(t.asked) < fresh || now.Before(t.until)
}

// packSet makes a set of a HEAD's answer and compares that with the object.
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

// render writes the headers of some kinds. Values share one array, texts the set's memory.
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
		h["Content-Type"] = nil // or net/http makes one up
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

// spelled is a name as it goes out. Stores send user metadata in lower case (Amazon, MinIO and
// versitygw, tried), and clients show the names as they come, but net/http has changed them.
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
	case "Date", "Age", "Server", "X-Cache", // when and by whom it was answered
		"X-Amz-Request-Id", "X-Amz-Id-2", "X-Amz-Cf-Id", "X-Amz-Cf-Pop", "X-Request-Id", "X-Trans-Id", "X-Guploader-Uploadid",
		"X-Amz-Request-Charged",           // what it costs
		"Content-Length", "Content-Range", // said anew by each answer
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

// loose reports whether a header may change while the version stays: tags are set beside it, what
// expires when follows from the bucket's rules, copies elsewhere are made behind, locks are put
// and lifted. They are kept, for looseFresh at most, since a client that looks for one would
// take its absence for an answer.
func loose(name string) bool {
	switch name {
	case "X-Amz-Tagging-Count", "X-Amz-Expiration", "X-Amz-Replication-Status":
		return true
	}
	return strings.HasPrefix(name, "X-Amz-Object-Lock-")
}

// archived reports whether the origin may refuse to read the object until it was restored, or
// once what was restored is gone again.
func archived(h http.Header) bool {
	class := h.Get("X-Amz-Storage-Class")
	return len(h["X-Amz-Restore"]) > 0 || len(h["X-Amz-Archive-Status"]) > 0 || class == "GLACIER" || class == "DEEP_ARCHIVE"
}
