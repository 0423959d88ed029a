package request

import (
	"net/http"
	"strings"
)

// maxKey is the longest key in bytes ("Naming Amazon S3 objects").
const maxKey = 1024

// address reads bucket and key from path and Host.
func (q *Request) address(r *http.Request, hosts []string) *Error {
	path, f := sent(r)
	if f != nil {
		return f
	}
	bucket, virtual := hosted(r.Host, hosts)
	if !virtual {
		if path == "" {
			return nil
		}
		first, behind, _ := strings.Cut(path, "/")
		var ok bool
		if bucket, ok = unescape(first, false); !ok {
			return badEscape()
		}
		path = behind
	}
	if !plausible(bucket) {
		return New("InvalidBucketName", "The specified bucket is not valid.")
	}
	key, ok := unescape(path, false)
	switch {
	case !ok:
		return badEscape()
	case len(key) > maxKey:
		return New("KeyTooLongError", "Your key is too long")
	}
	q.Bucket, q.Key, q.EscapedKey = bucket, key, legal(path)
	return nil
}

func badEscape() *Error {
	return New("InvalidURI", "Couldn't parse the specified URI.")
}

// sent returns the path as it came, without the leading slash. A target in absolute form (RFC 9112,
// 3.2.2) is served as any other. Its authority is the Host, whatever the header said: net/http has
// put it there.
func sent(r *http.Request) (string, *Error) {
	u := r.URL
	if u.Opaque != "" || u.User != nil || u.Scheme != "" && u.Scheme != "http" && u.Scheme != "https" {
		return "", badEscape()
	}
	path := u.RawPath // set only where encoding Path anew would give something else
	if path == "" {
		path = u.EscapedPath()
	}
	if path == "" && u.Scheme != "" {
		return "", nil
	}
	path, ok := strings.CutPrefix(path, "/")
	if !ok {
		return "", badEscape()
	}
	return path, nil
}

// hosted returns the bucket in a host's name. If several of our names fit, the longest counts: with
// s3.example.com and example.com, s3 is not a bucket of the second.
func hosted(host string, hosts []string) (bucket string, ok bool) {
	if len(hosts) == 0 {
		return "", false
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	host = strings.TrimSuffix(host, ".")
	longest := -1
	for _, h := range hosts {
		n := len(host) - len(h)
		if n < 0 || len(h) <= longest || !strings.EqualFold(host[n:], h) || n > 0 && host[n-1] != '.' {
			continue
		}
		longest, ok, bucket = len(h), n > 0, ""
		if ok {
			bucket = strings.ToLower(host[:n-1])
		}
	}
	return bucket, ok
}

// plausible reports whether a bucket may have this name somewhere: by Amazon's rules before 2018,
// or by what other origins allow. A name that begins with a dot is some server's own.
func plausible(name string) bool {
	if len(name) < 3 || len(name) > 255 || name[0] == '.' || name[0] == '-' {
		return false
	}
	for i := range len(name) {
		if c := name[i]; !alphanumeric(c) && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// proper reports whether a new bucket may have this name ("General purpose bucket naming rules").
func proper(name string) bool {
	if len(name) > 63 || strings.ToLower(name) != name || strings.Contains(name, "_") || strings.Contains(name, "..") ||
		!alphanumeric(name[0]) || !alphanumeric(name[len(name)-1]) || address4(name) {
		return false
	}
	for _, p := range [...]string{"xn--", "sthree-", "amzn-s3-demo-"} {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	for _, s := range [...]string{"-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"} {
		if strings.HasSuffix(name, s) {
			return false
		}
	}
	return true
}

// address4 reports whether a name looks like an IPv4 address.
func address4(name string) bool {
	return strings.Count(name, ".") == 3 && strings.Trim(name, "0123456789.") == "" && !strings.Contains(name, "..")
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// Reserved reports whether a bucket's name is the way to something else at some origin. With the
// endpoint's key /minio/admin/... administers MinIO, and /admin/... Ceph. Where clients may ask for
// buckets that no link names, these are refused.
func Reserved(bucket string) bool {
	switch bucket {
	case "minio", "admin", "swift", "auth":
		return true
	}
	return false
}

// certain reports whether a key means the same to every origin, as far as is known: it is its own
// Alias, and no server refuses it.
func certain(key string) bool {
	return regular(key) && plain(key) && strings.IndexByte(key, '\\') < 0
}

// unescape decodes percent escapes, and in a query + as a space. false means that an escape is
// malformed. A text without escapes is returned as it is.
func unescape(s string, query bool) (string, bool) {
	n := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			if i+2 >= len(s) || !hex(s[i+1]) || !hex(s[i+2]) {
				return "", false
			}
			n++
			i += 2
		case s[i] == '+' && query:
			n++
		}
	}
	if n == 0 {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			b = append(b, nibble(s[i+1])<<4|nibble(s[i+2]))
			i += 2
		case s[i] == '+' && query:
			b = append(b, ' ')
		default:
			b = append(b, s[i])
		}
	}
	return string(b), true
}

func hex(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }

func nibble(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// legal escapes the bytes of a path that are not allowed there (RFC 3986, 3.3). It leaves all
// others, escapes included.
func legal(path string) string {
	bad := 0
	for i := range len(path) {
		if !inPath(path[i]) {
			bad++
		}
	}
	if bad == 0 {
		return path
	}
	const digits = "0123456789ABCDEF"
	b := make([]byte, 0, len(path)+2*bad)
	for i := range len(path) {
		if c := path[i]; inPath(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return string(b)
}

func inPath(c byte) bool {
	return alphanumeric(c) || strings.IndexByte("-._~!$&'()*+,;=:@/%", c) >= 0
}
