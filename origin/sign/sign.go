// Package sign writes Amazon's Signature Version 4 for requests to an S3 origin, as "Authenticating
// Requests (AWS Signature Version 4)" in the S3 API reference describes it.
//
// A canonical form of the request is hashed, and the hash is signed with a key that is derived from the
// secret, the day and the region. Deriving costs more than signing, so the key of the day is cached.
package sign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// EmptyHash is SHA-256 of nothing, in hex.
const EmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Signer signs requests; the zero one works, and many may use it at a time.
type Signer struct {
	key atomic.Pointer[signingKey]
}

// signingKey is derived from a secret, once for a day and region.
type signingKey struct {
	day, region, secret string
	scope               string
	key                 [32]byte
}

func (s *Signer) keyFor(day, region, secret string) *signingKey {
	if k := s.key.Load(); k != nil && k.day == day && k.region == region && k.secret == secret {
		return k
	}
	k := &signingKey{day: day, region: region, secret: secret, scope: day + "/" + region + "/s3/aws4_request"}
	key := mac([]byte("AWS4"+secret), day)
	for _, part := range []string{region, "s3", "aws4_request"} {
		key = mac(key[:], part)
	}
	k.key = key
	s.key.Store(k)
	return k
}

// Read signs a request without a body at a given time. It covers host, the x-amz-* headers that it adds
// itself, and x-amz-request-payer. Nothing else is covered: Google's front ends change Accept-Encoding.
// Path and query are signed as they are sent: the path as Encode returns it, the query encoded and
// sorted. The rest of a read needs no signature, since every answer is compared with what was asked.
func (s *Signer) Read(r *http.Request, v credentials.Value, region string, now time.Time) {
	var stamp [16]byte
	at := now.UTC().AppendFormat(stamp[:0], "20060102T150405Z")
	k := s.keyFor(string(at[:8]), region, v.SecretAccessKey)
	path, query := r.URL.EscapedPath(), r.URL.RawQuery
	var space [1024]byte
	b := append(space[:0], r.Method...)
	for _, part := range []string{"\n", path, "\n", query, "\nhost:", r.Host, "\nx-amz-content-sha256:" + EmptyHash + "\nx-amz-date:"} {
		b = append(b, part...)
	}
	b = append(b, at...)
	names := "host;x-amz-content-sha256;x-amz-date"
	if payer := r.Header["X-Amz-Request-Payer"]; len(payer) == 1 {
		names += ";x-amz-request-payer"
		b = append(append(b, "\nx-amz-request-payer:"...), payer[0]...)
	}
	if v.SessionToken != "" {
		names += ";x-amz-security-token"
		b = append(append(b, "\nx-amz-security-token:"...), v.SessionToken...)
		r.Header["X-Amz-Security-Token"] = []string{v.SessionToken}
	}
	b = append(append(append(b, "\n\n"...), names...), "\n"+EmptyHash...)
	canonical := sha256.Sum256(b)

	b = append(space[:0], "AWS4-HMAC-SHA256\n"...)
	b = append(append(append(append(b, at...), '\n'), k.scope...), '\n')
	b = hex.AppendEncode(b, canonical[:])
	signature := mac(k.key[:], string(b))

	b = append(space[:0], "AWS4-HMAC-SHA256 Credential="...)
	b = append(append(append(b, v.AccessKeyID...), '/'), k.scope...)
	b = append(append(append(b, ", SignedHeaders="...), names...), ", Signature="...)
	r.Header["Authorization"] = []string{string(hex.AppendEncode(b, signature[:]))}
	r.Header["X-Amz-Date"] = []string{string(at)}
	r.Header["X-Amz-Content-Sha256"] = []string{EmptyHash}
}

func mac(key []byte, text string) (sum [32]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	h.Sum(sum[:0])
	return sum
}

// Encode encodes bytes as S3 does in paths and queries: all but the unreserved ones become %XX, and "/"
// is kept in a path.
func Encode(s string, keepSlash bool) string {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = unreserved(s[i]) || keepSlash && s[i] == '/'
	}
	if plain {
		return s
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; unreserved(c) || keepSlash && c == '/' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~'
}
