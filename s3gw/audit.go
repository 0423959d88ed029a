package s3gw

import (
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
	"github.com/hearthfs/hearth/s3gw/sigv4"
)

const (
	// auditEach is how long who was refused is not told of again, for the same reason, and
	// mostAudited how many are told of in that time: whoever floods the endpoint does not flood
	// the log, and does not hide others by one line of its own.
	auditEach   = time.Minute
	mostAudited = 20
	// mostSaid bytes of what a client names are told.
	mostSaid = 200
)

// audit tells of refusals: of each sender and reason once in a while, of few in all.
type audit struct {
	tell func(what string, attributes ...any) // nil: nobody
	now  func() time.Time

	mu    sync.Mutex // guards the rest
	began time.Time
	told  map[refusal]bool // since it began
	since int64            // refusals that were not told, since one was
}

// refusal is what is not told twice.
type refusal struct{ host, access, code string }

// take reports whether a refusal is to be told, and how many were not since the last one.
func (a *audit) take(r refusal) (also int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.now(); a.told == nil || now.Sub(a.began) >= auditEach {
		a.began, a.told = now, map[refusal]bool{}
	}
	if a.told[r] || len(a.told) >= mostAudited {
		a.since++
		return 0, false
	}
	a.told[r] = true
	also, a.since = a.since, 0
	return also, true
}

// audited has the operator hear of a request whose key, signature or rights were not good: from
// where it came, which key it named, what it asked for and why it was refused. Its signature and
// what was signed are not told, and no secret that stands where a key should.
func (x *exchange) audited(f *request.Error) {
	if x.audit.tell == nil || !refuses(f) {
		return
	}
	host, _, err := net.SplitHostPort(x.r.RemoteAddr)
	if err != nil {
		host = x.r.RemoteAddr
	}
	access := ""
	switch {
	case x.who != nil:
		access = x.who.Access
	default:
		access = sigv4.Claimed(x.r)
	}
	also, ok := x.audit.take(refusal{host, short(access), f.Code})
	if !ok {
		return
	}
	if access != "" && x.o.Keys.Holds(access) {
		access = "(a secret in an access key's place)"
	}
	attributes := []any{"code", f.Code, "why", short(f.Message), "from", host, "key", short(access), "method", short(x.r.Method)}
	if x.asks != nil {
		attributes = append(attributes, "operation", x.asks.Operation, "bucket", short(x.asks.Bucket), "object", short(x.asks.Key))
	}
	if also > 0 {
		attributes = append(attributes, "others_since_last", also)
	}
	x.audit.tell("S3 request refused", append(attributes, "request", x.id)...)
}

// refuses tells faults of a key, a signature or a right from others.
func refuses(f *request.Error) bool {
	switch f.Code {
	case "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError", "InvalidToken", "XAmzContentSHA256Mismatch":
		return true
	}
	return f.HTTPStatus() == http.StatusForbidden
}

// short is a text of a client's in so many bytes as are told.
func short(s string) string {
	if len(s) > mostSaid {
		s = s[:mostSaid] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// unsigned is a URL or a target without the signature that a presigned one has: whoever reads it in
// a log could use it.
func unsigned(target string) string {
	path, query, ok := strings.Cut(target, "?")
	if !ok {
		return target
	}
	hidden := false
	pairs := strings.Split(query, "&")
	for i, p := range pairs {
		name, _, _ := strings.Cut(p, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		switch strings.ToLower(name) {
		case "x-amz-signature", "x-amz-security-token", "signature":
			pairs[i], hidden = name+"=hidden", true
		}
	}
	if !hidden {
		return target
	}
	return path + "?" + strings.Join(pairs, "&")
}
