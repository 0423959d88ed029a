package origin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// This file turns a client's request into the one that is sent on to the origin.
//
// What is meant for this server stays here: the signature, in headers or in the query, what
// is about the connection (RFC 9110, section 7.6.1), and headers of proxies. An origin that
// trusts its own proxies would take another address or host for the client's, and some would take another
// bucket. All else is sent on as it came: the query byte for
// byte, the key's bytes in S3's own encoding, so that every origin computes the same
// signature, the headers, and the length of the body.
//
// The body is streamed (passedBody). It is read when the origin asks for it, given up when
// the origin reads nothing of it, and a truncated body never looks complete to the origin.

// unsignedPayload is the x-amz-content-sha256 of a body that no signature covers.
const unsignedPayload = "UNSIGNED-PAYLOAD"

// trailer is the x-amz-content-sha256 of an unsigned body in aws-chunked encoding with checksums after it.
const trailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"

// errSignedChunks is for a body whose chunks are signed with the client's key: that means nothing
// to the origin, and its framing would be stored.
var errSignedChunks = errors.New("the body is still in chunks that the client signed")

// passedPayload returns the x-amz-content-sha256 that is sent on. A hash of the body, which the origin
// then checks, and the unsigned form of aws-chunked stay as they came. All else becomes
// unsignedPayload.
func passedPayload(h http.Header) (string, error) {
	value := h.Get("X-Amz-Content-Sha256")
	switch {
	case value == trailer || isHash(value):
		return value, nil
	case strings.HasPrefix(value, "STREAMING-"):
		return "", errSignedChunks
	}
	return unsignedPayload, nil
}

func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// passedHeader returns the headers that are sent on; it shares their values. Names of user metadata are
// sent in lower case, as S3 keeps them: net/http changed their case on arrival.
//
// A header that the client's Connection header lists is sent on nevertheless. That list is not signed:
// whoever could add to it on the way could remove a condition from a signed request. Trailers are not
// sent on: some servers take them for headers, and they were not there when rights were checked.
func passedHeader(from http.Header) http.Header {
	h := make(http.Header, len(from)+4)
	for name, values := range from {
		if stays(name) {
			continue
		}
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			name = strings.ToLower(name)
		}
		h[name] = values
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // else net/http would send its own
	}
	return h
}

func stays(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	case "Authorization", "Date", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256":
		return true
	case "Forwarded", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip", "X-Original-Forwarded-For", "X-Original-Host", "X-Host", "True-Client-Ip",
		"Cf-Connecting-Ip", "Cf-Connecting-Ipv6", "X-Nginx-Proxy", "X-Original-Uri":
		return true
	}
	if strings.IndexByte(name, '_') >= 0 { // servers that turn headers into variables (CGI) read "-" as "_"
		return stays(http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")))
	}
	for _, p := range [...]string{"X-Forwarded-", "X-Envoy-", "X-Auth-Request-", "X-Azure-", "X-Arr-", "Fastly-", "L5d-"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// passedQuery returns a query without the parameters that sign a URL.
func passedQuery(raw string) string {
	if !strings.ContainsAny(raw, "xX%") { // such a parameter begins with X or %58
		return raw
	}
	kept, dropped := make([]string, 0, 8), false
	for pair := range strings.SplitSeq(raw, "&") {
		if signs(pair) {
			dropped = true
		} else {
			kept = append(kept, pair)
		}
	}
	if !dropped {
		return raw
	}
	return strings.Join(kept, "&")
}

func signs(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	if strings.ContainsAny(name, "%+") {
		plain, err := url.QueryUnescape(name)
		if err != nil {
			return false
		}
		name = plain
	}
	if len(name) < len("x-amz-date") || !strings.EqualFold(name[:6], "x-amz-") {
		return false
	}
	switch strings.ToLower(name[6:]) {
	case "algorithm", "credential", "date", "expires", "signedheaders", "signature", "security-token", "content-sha256":
		return true
	}
	return false
}

// checkBucketName checks that a name can be put into a URL unchanged.
func checkBucketName(name string) error {
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.' && len(name) > 2:
		default:
			return fmt.Errorf("%q is no bucket's name", name)
		}
	}
	if len(name) > 255 {
		return fmt.Errorf("a bucket's name of %d bytes", len(name))
	}
	return nil
}
