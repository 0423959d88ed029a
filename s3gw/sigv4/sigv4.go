// Package sigv4 tells who sent a request to an S3 server: it verifies AWS Signature Version
// 4, in the Authorization header or in a presigned URL, and later, as the body is read, that
// the body is the one that was signed.
//
// The client signs with HMAC-SHA256, under a key that is derived from its secret, the day,
// the region and "s3", a text of four lines: algorithm, time, scope, and the SHA-256 of the
// canonical request: method, path, query sorted, the signed headers, their names, and a word
// on the body (x-amz-content-sha256). The server writes the same text from what arrived and
// compares. Two forms of the path are tried, as Amazon does (as sent, and decoded and encoded
// again), and the host with and without its port: neither changes what is asked for. A query's
// `+` is a space, so `%20` is what was signed.
//
// Verify reads nothing of the body: a client that waits for 100 Continue gets none before it
// is known. What the body must be is checked by the reader that Signed gives, and that reader
// holds the last bytes back until all of it is verified: an upload that is passed on with its
// length is never whole if it is wrong.
//
// Formats: "Authenticating Requests (AWS Signature Version 4)" in Amazon's S3 API reference,
// and there "Transferring Payload in Multiple Chunks" and "Including Trailing Headers".
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
	// maxSkew is Amazon's.
	maxSkew = 15 * time.Minute
	// maxExpires of a presigned URL, seconds: a week, Amazon's.
	maxExpires = 604800
	// maxPairs of a query and maxNames of signed headers: several times what S3's limits of
	// 8 KiB of headers allow, so that what a stranger can make us do is bounded.
	maxPairs, maxNames = 1024, 512
	// maxText bounds a query and an Authorization header, bytes.
	maxText = 64 << 10
	// maxRegion bounds a region's name, bytes, which is kept with the key that was derived for
	// it: Amazon's have some 15.
	maxRegion = 64
)

// Options of a Verifier.
type Options struct {
	// Secret of an access key, and whether there is such a key. It is called from many
	// goroutines, for each request.
	Secret func(access string) (secret string, ok bool)
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// Region that clients must sign for; "": any.
	Region string
}

// Verifier verifies requests; its methods may be called from many goroutines.
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

// Verify says who signed a request; of one that is not signed Access is "". It reads nothing
// of the body, which is read by what Signed gives. The error is a *request.Error.
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

// Claimed is the access key that a request names, whether there is such a key or not and whatever
// its signature is; "": it names none, or none that can be read.
func Claimed(r *http.Request) string {
	var w work
	if w.split(r.URL.RawQuery) != nil {
		return ""
	}
	c, _ := w.claim(r) // what is wrong with it Verify tells
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

// authenticate compares the signature with what it must be, and returns the key that signed.
// An access key that is not known costs the same work.
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

// matches tries the forms of path and host.
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

// withoutPort is a host without its port.
func withoutPort(host string) string {
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		return host[:i]
	}
	return host
}
