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
	// auditEach is the time in which a refusal of the same sender, key and code is logged once, and
	// mostAudited bounds the refusals logged in that time. So a client that floods the endpoint
	// does not flood the log, and one line of its own does not hide others.
	auditEach   = time.Minute
	mostAudited = 20
	// mostSaid bounds each text from a client, in bytes.
	mostSaid = 200
)

// audit logs refusals with a rate limit: once in a while for each sender and reason, and few in
// all.
type audit struct {
	tell func(what string, attributes ...any) // nil means that nothing is logged
	now  func() time.Time

	mu    sync.Mutex // guards the rest
	began time.Time
	told  map[refusal]bool // since it began
	since int64            // refusals since the last logged one
}

// refusal is the key by which repeated refusals are recognized.
type refusal struct{ host, access, code string }

// take reports whether to log a refusal, and how many were not logged since the last one.
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

// audited logs a request that was refused for its key, its signature or its rights: the sender, the
// key it named, what it asked for and the reason. It logs neither the signature nor what was
// signed, nor a secret that stands in a key's place.
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

// refuses reports whether an error is about a key, a signature or a right.
func refuses(f *request.Error) bool {
	switch f.Code {
	case "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError", "InvalidToken", "XAmzContentSHA256Mismatch":
		return true
	}
	return f.HTTPStatus() == http.StatusForbidden
}

// short cuts a client's text to mostSaid bytes.
func short(s string) string {
	if len(s) > mostSaid {
		s = s[:mostSaid] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// unsigned returns a URL or a target without the signature of a presigned request. Anybody who
// reads it in a log could use it.
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
