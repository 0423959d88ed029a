package listing

import (
	"encoding/base64"
	"hash/crc32"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// maxQuery bounds the length in bytes of a query that is parsed. Three keys with each byte
	// escaped, a token and the signature of a presigned URL need less.
	maxQuery = 16 << 10
	// tokenTag begins each token of ours. No origin's is known to hold a ".". A CRC-32 and the key
	// follow in base64, so that a token that only looks like ours passes to the origin.
	tokenTag = "hearth1."
)

// Query holds the parameters of a listing.
type Query struct {
	// Version is 2 for ListObjectsV2, 1 for ListObjects.
	Version int
	// Prefix is what all keys begin with.
	Prefix string
	// Delimiter is "/" or "".
	Delimiter string
	// After is the key behind which the listing begins: start-after, or the marker.
	After string
	// Token is the continuation-token as it was sent.
	Token string
	// Max is the most keys and groups on the page, 0 to 1,000.
	Max int
	// URL means that keys are wanted percent-encoded.
	URL bool
	// Owner means that ListObjectsV2 is to list owners.
	Owner bool
	// Asks is how many directories may be asked of the origin for a page without a delimiter. A
	// page that needs more fails with ErrUnsure. 0 means any number. The caller sets it: no query
	// holds it.
	Asks int
}

// Parse reads the raw query of a listing. A *request.Error is for the client. ErrUnsure means that
// the request passes to the origin: Hearth does not know a parameter, or origins differ about it.
func Parse(raw string) (Query, error) {
	q := Query{Version: 1, Max: maxKeys}
	if len(raw) > maxQuery {
		return q, ErrUnsure
	}
	var seen [parameters]bool
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		name, value, _ := strings.Cut(pair, "=")
		p := parameterOf(name)
		if p == signature || pair == "" {
			continue
		}
		if p == unknown || seen[p] || strings.ContainsAny(value, "+;") {
			return q, ErrUnsure
		}
		seen[p] = true
		value, err := url.PathUnescape(value)
		if err != nil {
			return q, ErrUnsure
		}
		if err := q.set(p, value); err != nil {
			return q, err
		}
	}
	// A parameter of the other version: most origins ignore it.
	if q.Version == 2 && seen[marker] || q.Version == 1 && (seen[startAfter] || seen[token] || seen[fetchOwner]) {
		return q, ErrUnsure
	}
	return q, q.check()
}

// parameter names one of the parameters that a listing knows.
type parameter int

const (
	unknown parameter = iota
	signature
	listType
	prefix
	delimiter
	maximum
	encoding
	startAfter
	token
	fetchOwner
	marker
	parameters
)

func parameterOf(name string) parameter {
	switch name {
	case "list-type":
		return listType
	case "prefix":
		return prefix
	case "delimiter":
		return delimiter
	case "max-keys":
		return maximum
	case "encoding-type":
		return encoding
	case "start-after":
		return startAfter
	case "continuation-token":
		return token
	case "fetch-owner":
		return fetchOwner
	case "marker":
		return marker
	case "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature",
		"X-Amz-Security-Token", "X-Amz-Content-Sha256":
		return signature // of a presigned URL
	case "x-id":
		return signature // the operation's name, which some clients add; ignored, too
	}
	return unknown
}

// set takes a parameter's value. ErrUnsure means that origins differ about the value.
func (q *Query) set(p parameter, value string) error {
	unsure := false
	switch p {
	case listType:
		q.Version, unsure = 2, value != "2"
	case prefix:
		q.Prefix = value
	case delimiter:
		q.Delimiter, unsure = value, value != "" && value != "/"
	case maximum:
		return q.setMax(value)
	case encoding:
		q.URL, unsure = value == "url", value != "url" && value != ""
	case startAfter, marker:
		q.After = value
	case token:
		_, ours := Token(value)
		q.Token, unsure = value, !ours
	case fetchOwner:
		q.Owner, unsure = value == "true", value != "true" && value != "false"
	}
	if unsure {
		return ErrUnsure
	}
	return nil
}

// setMax takes max-keys; "" means that there is none.
func (q *Query) setMax(value string) error {
	if value == "" {
		return nil
	}
	n, err := strconv.ParseInt(value, 10, 32)
	number := strings.Trim(strings.TrimPrefix(value, "-"), "0123456789") == "" && value != "-"
	switch {
	case !number && strings.Trim(value, "+-0123456789") != "":
		return request.New("InvalidArgument", "Provided max-keys not an integer or within integer range")
	case number && err == nil && n < 0:
		return request.New("InvalidArgument", "Argument maxKeys must be an integer between 0 and 2147483647")
	case !number || err != nil:
		return ErrUnsure // beyond 32 bits, or "+5": some origins take it
	}
	q.Max = int(min(n, maxKeys))
	return nil
}

// check reports ErrUnsure unless the keys in the query mean the same everywhere.
func (q *Query) check() error {
	if odd(q.Prefix) || odd(q.After) {
		return ErrUnsure
	}
	// MinIO refuses a marker without the prefix, and its own markers hold more than a key.
	if q.Version == 1 && (q.After != "" && !strings.HasPrefix(q.After, q.Prefix) || strings.Contains(q.After, "[minio_cache:")) {
		return ErrUnsure
	}
	return nil
}

// odd reports whether some origins refuse or clean a key: too long, not UTF-8, or with a segment
// that is empty, "." or "..".
func odd(key string) bool {
	if len(key) > maxKey || !utf8.ValidString(key) {
		return true
	}
	for first := true; key != ""; first = false {
		segment, rest, more := strings.Cut(key, "/")
		if segment == "." || segment == ".." || segment == "" && (more || first) {
			return true
		}
		key = rest
	}
	return false
}

// behind returns the key behind which the page begins, "" for the first page. With a delimiter it
// may be a group.
func (q *Query) behind() string {
	if key, ours := Token(q.Token); ours {
		return key
	}
	return q.After
}

// Token reads a continuation token. ours means that it is one of Hearth's, and that the page begins
// behind key.
func Token(s string) (key string, ours bool) {
	code, ours := strings.CutPrefix(s, tokenTag)
	// Go's decoder would skip line ends.
	if !ours || strings.ContainsAny(code, "\r\n") || len(code) > base64.RawURLEncoding.EncodedLen(4+maxKey) {
		return "", false
	}
	text, err := base64.RawURLEncoding.Strict().DecodeString(code)
	if err != nil || len(text) <= 4 {
		return "", false
	}
	sum := uint32(text[0])<<24 | uint32(text[1])<<16 | uint32(text[2])<<8 | uint32(text[3])
	if sum != crc32.ChecksumIEEE(text[4:]) {
		return "", false
	}
	return string(text[4:]), true
}

// ForOrigin returns the raw query that asks an origin for the same page. A token of Hearth's, which
// no origin knows, becomes a start-after. All else stays as it was sent.
func ForOrigin(raw string) string {
	key, under, grouped := "", "", false
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		value, err := url.PathUnescape(value)
		switch {
		case err != nil:
		case name == "continuation-token":
			if k, ours := Token(value); ours {
				key = k
			}
		case name == "delimiter":
			grouped = value != ""
		case name == "prefix":
			under = value
		}
	}
	if key == "" {
		return raw
	}
	if grouped && key != under && strings.HasSuffix(key, "/") && len(key)+len(last) <= maxKey {
		key += last // behind the whole group, even where the origin compares start-after with each of its keys
	}
	var pairs []string
	for pair := range strings.SplitSeq(raw, "&") {
		if name, _, _ := strings.Cut(pair, "="); name != "continuation-token" && name != "start-after" {
			pairs = append(pairs, pair)
		}
	}
	return strings.Join(append(pairs, "start-after="+strings.ReplaceAll(url.QueryEscape(key), "+", "%20")), "&")
}
