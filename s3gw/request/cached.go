package request

import (
	"net/http"
	"strings"
	"unicode/utf8"
)

// headerSet says which kinds of headers a request has, besides those that change no answer.
type headerSet uint8

const (
	headerObject  headerSet = 1 << iota // the cache honours it for an object
	headerOrigin                        // Origin: the page's origin, for which CORS has rules
	headerOther                         // on no list
	headerServer                        // MinIO's servers tell each other the ETag and time of a copy
	headerForce                         // x-minio-force-delete
	headerExtract                       // a PUT whose body is an archive of objects
)

func (s headerSet) has(kind headerSet) bool { return s&kind != 0 }

// headers returns the kinds of all headers.
func headers(h http.Header) (headerSet, *Error) {
	var seen headerSet
	for name, values := range h {
		switch kind := header(name, values); kind {
		case headerRefused:
			return 0, New("InvalidRequest", "The header %s is not taken here", name)
		default:
			seen |= kind
			if f := headerValues(name, values, kind); f != nil {
				return 0, f
			}
		}
	}
	return seen, nil
}

// headerValues checks the values of a header that may mean something to an origin against the rule
// of its name.
func headerValues(name string, values []string, kind headerSet) *Error {
	if !kind.has(headerOther) || httpHeader(name) {
		return nil
	}
	for _, v := range values {
		climbing, f := value("header", name, v)
		switch {
		case f != nil:
			return f
		case climbing: // a parameter in a header, with a meaning that is not known
			return New("InvalidArgument", "The header %s is not taken: its value leads upwards as a path; leave out the .. in it", name)
		}
	}
	return nil
}

// headerRefused is not a set: with such a header two servers could see two requests.
const headerRefused headerSet = 0xff

// header returns the kind of a header, whose name is in Go's canonical form. 0 means that it
// changes no answer.
func header(name string, values []string) headerSet {
	switch name {
	case "User-Agent", "Accept", "Accept-Encoding", "Accept-Language", "Accept-Charset", "Authorization", "Date",
		"Content-Length", "Content-Type", "Cache-Control", "Pragma", "Keep-Alive", "Te", "Upgrade", "Http2-Settings",
		"X-Amz-Date", "X-Amz-Content-Sha256", "X-Amz-Security-Token", "X-Amz-User-Agent", "X-Amzn-Trace-Id",
		"Amz-Sdk-Invocation-Id", "Amz-Sdk-Request", "Amz-Sdk-Retry", "Traceparent", "Tracestate", "Baggage", "X-Request-Id",
		"Via", "Forwarded", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Real-Ip",
		"Referer", "Dnt", "Priority", "Upgrade-Insecure-Requests", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest",
		"Sec-Fetch-User", "Sec-Ch-Ua", "Sec-Ch-Ua-Mobile", "Sec-Ch-Ua-Platform", "Sec-Gpc":
		return 0
	case "Range":
		if len(values) != 1 || !oneRange(values[0]) {
			return headerOther
		}
		return headerObject
	case "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since":
		if len(values) != 1 {
			return headerOther
		}
		return headerObject
	case "X-Amz-Te":
		// The SDKs for Java and Ruby ask with it for an MD5 behind the bytes of a GetObject. They
		// do without if the answer has no X-Amz-Transfer-Encoding. So an origin may leave it out,
		// and the cache does.
		if len(values) != 1 || values[0] != "append-md5" {
			return headerOther
		}
		return 0
	case "X-Amz-Checksum-Mode":
		if len(values) != 1 || values[0] != "ENABLED" {
			return headerOther
		}
		return headerObject
	case "Origin":
		return headerOrigin
	case "Connection", "Proxy-Connection":
		return connection(values)
	case "X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url":
		return headerRefused
	}
	return rare(name, values)
}

// rare is header for names that few clients send.
func rare(name string, values []string) headerSet {
	switch {
	case name == "X-Minio-Force-Delete":
		return headerForce | headerOther
	case name == "X-Amz-Meta-Snowball-Auto-Extract", name == "X-Amz-Meta-Minio-Snowball", name == "X-Minio-Extract":
		return headerExtract | headerOther
	case strings.HasPrefix(name, "X-Minio-"), strings.HasPrefix(name, "X-Amz-Replication-"):
		return headerServer | headerOther
	case strings.IndexByte(name, '_') >= 0:
		// A server that passes headers as variables (CGI) does not tell "_" from "-".
		if header(http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")), values) == headerRefused {
			return headerRefused
		}
	}
	return headerOther
}

// connection checks a Connection header. Proxies drop the headers that it names (RFC 9110, 7.6.1),
// so it must not name any that the request needs.
func connection(values []string) headerSet {
	for _, v := range values {
		for v != "" {
			var token string
			token, v, _ = strings.Cut(v, ",")
			token = strings.Trim(token, " \t")
			switch {
			case token == "", strings.EqualFold(token, "keep-alive"), strings.EqualFold(token, "close"),
				strings.EqualFold(token, "te"), strings.EqualFold(token, "upgrade"), strings.EqualFold(token, "http2-settings"),
				strings.EqualFold(token, "trailer"), strings.EqualFold(token, "transfer-encoding"):
			default:
				return headerRefused
			}
		}
	}
	return 0
}

// oneRange reports whether s is a single well-formed range of bytes (RFC 9110, 14.1.2) whose
// numbers fit into 63 bits.
func oneRange(s string) bool {
	s, ok := strings.CutPrefix(s, "bytes=")
	first, last, dash := strings.Cut(s, "-")
	if !ok || !dash || !number(first) && first != "" || !number(last) && last != "" {
		return false
	}
	if first == "" || last == "" {
		return first != last
	}
	first, last = strings.TrimLeft(first, "0"), strings.TrimLeft(last, "0")
	return len(first) < len(last) || len(first) == len(last) && first <= last
}

// number reports whether s is 1 to 18 digits.
func number(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return 0 < len(s) && len(s) <= 18
}

// cacheable reports whether the cache can honour all that a read carries.
func (q *Request) cacheable(p *params, seen headerSet, cors bool) bool {
	object := q.Operation == "GetObject" || q.Operation == "HeadObject"
	switch {
	case seen.has(headerOther), seen.has(headerObject) && !object, seen.has(headerOrigin) && !cors,
		p.repeated, p.other, p.valued, q.Key != "" && !certain(q.Key):
		return false
	}
	listing := q.Operation == "ListObjectsV2" || q.Operation == "ListObjects"
	for raw := p.raw; ; {
		a, rest, more, _ := next(raw)
		if !more {
			return true
		}
		raw = rest
		switch {
		case presigned(a.name):
		case object:
			if !overrides(a.name) {
				return false
			}
		case listing:
			if !lists(a, p.list2) {
				return false
			}
		case q.Operation != "GetBucketLocation" || a.name != "location":
			return false
		}
	}
}

// presigned reports whether a parameter belongs to a signature, or only names the operation.
func presigned(name string) bool {
	switch name {
	case "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature",
		"X-Amz-Security-Token", "X-Amz-Content-Sha256", "x-id":
		return true
	}
	return false
}

// overrides reports whether a parameter of GetObject sets a header of its answer.
func overrides(name string) bool {
	switch name {
	case "response-content-type", "response-content-language", "response-expires", "response-cache-control",
		"response-content-disposition", "response-content-encoding":
		return true
	}
	return false
}

// lists reports whether the tree of names can honour a parameter of a listing.
func lists(a param, v2 bool) bool {
	switch a.name {
	case "prefix":
		return plain(a.value())
	case "delimiter":
		v := a.value()
		return v == "" || v == "/"
	case "max-keys":
		return len(a.escaped) <= 9 && number(a.escaped)
	case "encoding-type":
		return a.escaped == "url"
	case "list-type":
		return v2
	case "start-after":
		return v2 && plain(a.value())
	case "continuation-token":
		return v2 && a.escaped != ""
	case "fetch-owner":
		return v2 && (a.escaped == "false" || a.escaped == "true")
	case "marker":
		return !v2 && plain(a.value())
	}
	return false
}

// plain reports whether all origins take s for the same text.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return len(s) <= maxKey && utf8.ValidString(s)
}
