// Package sigv4 verifies who sent a request to an S3 server, by AWS Signature Version 4. The
// signature is in the Authorization header or in a presigned URL. Later, as the body is read, the
// package verifies that the body is the one that was signed.
//
// The client signs with HMAC-SHA256, under a key that is derived from its secret, the day, the
// region and "s3". It signs a text of four lines: algorithm, time, scope, and the SHA-256 of the
// canonical request. That is the method, the path, the sorted query, the signed headers, their
// names, and the payload word (x-amz-content-sha256). The server writes the same text from what
// arrived and compares.
//
// It tries two forms of the path, as Amazon does: as sent, and decoded and encoded again. It tries
// the host with and without its port. Neither changes what is asked for. A query's `+` is a space,
// so `%20` is what was signed.
//
// Verify reads nothing of the body: a client that waits for 100 Continue gets none before it is
// known. The reader from Signed checks the body, and holds its last bytes back until all of it is
// verified. So an upload that is passed on with its length is never complete if it is wrong.
//
// Formats: "Authenticating Requests (AWS Signature Version 4)" in Amazon's S3 API reference, and
// there "Transferring Payload in Multiple Chunks" and "Including Trailing Headers".
package sigv4

import (
	"crypto/subtle"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	algorithm = "AWS4-HMAC-SHA256"
	// basic is the form of times in signatures.
	basic = "20060102T150405Z"
	// maxSkew bounds the difference between the clocks of client and server; it is Amazon's.
	maxSkew = 15 * time.Minute
	// maxExpires bounds the life of a presigned URL, in seconds: a week, as at Amazon.
	maxExpires = 604800
	// maxPairs bounds the parameters of a query, and maxNames the signed headers. They are several
	// times what S3's limit of 8 KiB of headers allows, and bound the work that a stranger can
	// cause.
	maxPairs, maxNames = 1024, 512
	// maxText bounds a query and an Authorization header, in bytes.
	maxText = 64 << 10
	// maxRegion bounds a region's name, in bytes, which is kept with the key derived for it.
	// Amazon's names have some 15.
	maxRegion = 64
)

// Options of a Verifier. Secret is required.
type Options struct {
	// Secret returns the secret of an access key, and whether there is such a key. Many goroutines
	// call it, once for each request.
	Secret func(access string) (secret string, ok bool)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Region that clients must sign for; "" means any.
	Region string
}

// Verifier verifies requests. It is safe for many goroutines.
type Verifier struct {
	options Options
	keys    keyCache
	work    sync.Pool // of *work
}

// New returns a Verifier.
func New(o Options) *Verifier {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Verifier{options: o, work: sync.Pool{New: func() any { return &work{} }}}
}

// Verify returns who signed a request; if nobody did, Access is "". It reads nothing of the body:
// Signed returns the reader for that. The error is a *request.Error.
func (v *Verifier) Verify(r *http.Request) (*Signed, error) {
	w := v.work.Get().(*work)
	defer v.work.Put(w)
	if err := w.split(r.URL.RawQuery); err != nil {
		return nil, err
	}
	c, err := w.claim(r)
	if err != nil {
		return nil, err
	}
	if c.signature == "" {
		return anonymous(r)
	}
	if err := v.timely(&c); err != nil {
		return nil, err
	}
	if err := w.covered(r, &c); err != nil {
		return nil, err
	}
	key, err := v.authenticate(r, w, &c)
	if err != nil {
		return nil, err
	}
	return c.signed(r, key)
}

// Claimed returns the access key that a request names, whether or not that key exists and the
// signature is right. "" means that it names none, or none that can be read.
func Claimed(r *http.Request) string {
	var w work
	if w.split(r.URL.RawQuery) != nil {
		return ""
	}
	c, _ := w.claim(r) // Verify reports the error
	return c.access
}

// timely checks the time, the day and the region of a claim.
func (v *Verifier) timely(c *claim) error {
	now := v.options.Now()
	switch {
	case c.presigned && c.at.After(now.Add(maxSkew)):
		return request.New("AccessDenied", "Request is not yet valid: it begins at %s, and it is %s here", c.stamp, now.UTC().Format(basic))
	case c.presigned && (c.expires == 0 || now.After(c.at.Add(c.expires))): // 0 holds at no clock
		return request.New("AccessDenied", "Request has expired: it was signed at %s for %d seconds", c.stamp, int64(c.expires.Seconds()))
	case !c.presigned && (c.at.After(now.Add(maxSkew)) || now.After(c.at.Add(maxSkew))):
		return request.New("RequestTimeTooSkewed", "The difference between the request time %s and the server's time %s is too large: set the client's clock",
			c.stamp, now.UTC().Format(basic))
	case c.day != c.stamp[:8]:
		return c.malformed("the credential's date %q is not that of the request, %s", c.day, c.stamp)
	case v.options.Region != "" && c.region != v.options.Region:
		return c.malformed("the region %q is wrong; expecting %q", c.region, v.options.Region)
	}
	return nil
}

// authenticate compares the signature with the right one, and returns the key that signed. An
// unknown access key costs the same work.
func (v *Verifier) authenticate(r *http.Request, w *work, c *claim) (key [32]byte, err error) {
	secret, known := v.options.Secret(c.access)
	key, cached := v.keys.get(c, secret)
	match := w.matches(r, c, &key)
	switch {
	case !known:
		return key, request.New("InvalidAccessKeyId", "The AWS access key Id you provided does not exist in our records.")
	case !match:
		return key, request.New("SignatureDoesNotMatch",
			"The request signature we calculated does not match the signature you provided. Check your secret key and signing method, and that nothing between changes host, path or headers.")
	case !cached:
		v.keys.put(c, secret, key)
	}
	return key, nil
}

// matches reports whether the signature is right for one of the forms of path and host.
func (w *work) matches(r *http.Request, c *claim, key *[32]byte) bool {
	sent := sentPath(r)
	paths, hosts := [2]string{sent, encodedPath(sent)}, [2]string{r.Host, withoutPort(r.Host)}
	for i, path := range paths {
		if i > 0 && path == paths[0] {
			break
		}
		for j, host := range hosts {
			if j > 0 && host == hosts[0] {
				break
			}
			sum := w.signature(r, c, key, [2]string{path, host})
			if subtle.ConstantTimeCompare(sum[:], []byte(c.signature)) == 1 {
				return true
			}
		}
	}
	return false
}

// withoutPort returns a host without its port.
func withoutPort(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		return host[:i]
	}
	return host
}
