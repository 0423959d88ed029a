package sigv4

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

// claim is what a request says about its signature; nothing of it is verified yet.
type claim struct {
	access, day, region string
	// scope is day/region/s3/aws4_request, as sent.
	scope string
	// names are the signed headers, as sent; signature is "" if nothing is signed.
	names, signature string
	// stamp is the time at in the basic form.
	stamp string
	at    time.Time
	// presigned means that all came in the query; expires is how long it is valid.
	presigned bool
	expires   time.Duration
	// payload is the word on the body, from x-amz-content-sha256.
	payload string
}

// claim reads what a request says about its signature: in its header or, presigned, in its query,
// which was split before. Older and other forms are refused.
func (w *work) claim(r *http.Request) (claim, error) {
	header, presigned, second := r.Header["Authorization"], false, false
	for _, p := range w.pairs {
		switch p.name {
		case "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature":
			presigned = true
		case "AWSAccessKeyId", "Signature":
			second = true
		}
	}
	switch {
	case len(header) > 1 || len(header) == 1 && (presigned || second):
		return claim{}, request.New("InvalidArgument",
			"Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified")
	case len(header) == 1:
		return w.fromHeader(r, header[0])
	case presigned:
		return w.fromQuery(r)
	case second:
		return claim{}, unsupported("Signature Version 2")
	case r.Method == http.MethodPost && isForm(r.Header.Get("Content-Type")):
		return claim{}, request.New("NotImplemented", "Uploads by an HTML form are not served: send the object by PUT, signed or with a presigned URL")
	}
	return claim{}, nil
}

func isForm(contentType string) bool {
	const form = "multipart/form-data"
	return len(contentType) >= len(form) && strings.EqualFold(contentType[:len(form)], form)
}

// unsupported is Amazon's error for other signatures. The setting in it is one of the AWS CLI and
// botocore, which make presigned URLs of version 2 for some regions.
func unsupported(what string) error {
	return request.New("InvalidRequest", "The authorization mechanism you have provided, %s, is not supported. Please use %s: set s3.signature_version to s3v4.", what, algorithm)
}

// malformed returns the error for a wrong part of a claim.
func (c *claim) malformed(format string, args ...any) error {
	if c.presigned {
		return request.New("AuthorizationQueryParametersError", "Error parsing the query's authorization: "+format, args...)
	}
	return request.New("AuthorizationHeaderMalformed", "The authorization header is malformed; "+format, args...)
}

// fromHeader reads `AWS4-HMAC-SHA256 Credential=..., SignedHeaders=..., Signature=...`; the fields
// may be in any order.
func (w *work) fromHeader(r *http.Request, value string) (c claim, err error) {
	scheme, rest, _ := strings.Cut(value, " ")
	switch {
	case scheme == "AWS":
		return c, unsupported("Signature Version 2")
	case strings.HasPrefix(scheme, "AWS4-ECDSA-"):
		return c, unsupported("Signature Version 4A")
	case scheme != algorithm:
		return c, request.New("InvalidArgument", "Unsupported Authorization Type: please use %s", algorithm)
	case len(value) > maxText:
		return c, c.malformed("it is longer than %d bytes", maxText)
	}
	var credential string
	for rest != "" {
		var field string
		field, rest, _ = strings.Cut(rest, ",")
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		into := &credential
		switch name {
		case "Credential":
		case "SignedHeaders":
			into = &c.names
		case "Signature":
			into = &c.signature
		default:
			return c, c.malformed("it has a field that is none of Credential, SignedHeaders and Signature")
		}
		if *into != "" {
			return c, c.malformed("it has %s twice", name)
		}
		*into = value
	}
	if _, both := r.Header["X-Amz-Security-Token"]; both {
		return c, noToken()
	}
	if err := w.fill(&c, credential); err != nil {
		return c, err
	}
	if c.payload, err = single(r, "X-Amz-Content-Sha256"); err != nil {
		return c, err
	}
	if c.payload == "" {
		if r.ContentLength != 0 {
			return c, request.New("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
		}
		c.payload = emptySum
	}
	return c, c.timeFrom(r)
}

// timeFrom reads the time of a request that is signed by header: x-amz-date, or else Date.
func (c *claim) timeFrom(r *http.Request) (err error) {
	if c.stamp, err = single(r, "X-Amz-Date"); err != nil {
		return err
	}
	if c.stamp == "" {
		date, err := single(r, "Date")
		if err != nil {
			return err
		}
		if at, err := http.ParseTime(date); err == nil {
			date = at.UTC().Format(basic)
		}
		c.stamp = date
	}
	if c.at, err = time.Parse(basic, c.stamp); err != nil || len(c.stamp) != len(basic) {
		return request.New("AccessDenied", "AWS authentication requires a valid Date or x-amz-date header")
	}
	return nil
}

// single returns the value of a header that may be there only once.
func single(r *http.Request, name string) (string, error) {
	switch values := r.Header[name]; len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", request.New("InvalidArgument", "The header %s is there more than once", strings.ToLower(name))
}

func noToken() error {
	return request.New("InvalidToken", "The provided token is malformed or otherwise invalid: keys of this endpoint have no session token, leave it out")
}

// fromQuery reads the six parameters of a presigned URL.
func (w *work) fromQuery(r *http.Request) (c claim, err error) {
	c.presigned = true
	var scheme, credential, expires string
	for _, p := range w.pairs {
		var into *string
		switch p.name {
		case "X-Amz-Algorithm":
			into = &scheme
		case "X-Amz-Credential":
			into = &credential
		case "X-Amz-Date":
			into = &c.stamp
		case "X-Amz-Expires":
			into = &expires
		case "X-Amz-SignedHeaders":
			into = &c.names
		case "X-Amz-Signature":
			into = &c.signature
		case "X-Amz-Content-Sha256":
			into = &c.payload
		case "X-Amz-Security-Token":
			return c, noToken()
		default:
			continue
		}
		if *into != "" {
			return c, c.malformed("%s is there twice", p.name)
		}
		*into = decoded(p.value)
	}
	if strings.HasPrefix(scheme, "AWS4-ECDSA-") {
		return c, unsupported("Signature Version 4A")
	}
	if scheme != algorithm || credential == "" || c.stamp == "" || expires == "" || c.names == "" || c.signature == "" {
		return c, c.malformed("Query-string authentication version 4 requires the X-Amz-Algorithm (%s), X-Amz-Credential, X-Amz-Signature, X-Amz-Date, X-Amz-SignedHeaders, and X-Amz-Expires parameters.", algorithm)
	}
	if c.at, err = time.Parse(basic, c.stamp); err != nil || len(c.stamp) != len(basic) {
		return c, c.malformed("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
	}
	seconds, err := strconv.ParseUint(expires, 10, 32)
	if err != nil || seconds > maxExpires {
		return c, c.malformed("X-Amz-Expires must be a number of seconds from 0 to %d", maxExpires)
	}
	c.expires = time.Duration(seconds) * time.Second
	if c.payload == "" {
		if c.payload, err = single(r, "X-Amz-Content-Sha256"); err != nil {
			return c, err
		}
	}
	if c.payload == "" {
		c.payload = unsignedPayload
	}
	return c, w.fill(&c, credential)
}

// fill reads `ACCESS/DAY/REGION/s3/aws4_request`, where an access key may have slashes. It checks
// and splits the names of the signed headers, and checks the form of the signature.
func (w *work) fill(c *claim, credential string) error {
	at := len(credential)
	var cut [4]int // places of the last four slashes
	for i := len(cut) - 1; i >= 0; i-- {
		if at = strings.LastIndexByte(credential[:at], '/'); at <= 0 {
			return c.malformed("the Credential is not of the form \"<YOUR-AKID>/YYYYMMDD/REGION/s3/aws4_request\"")
		}
		cut[i] = at
	}
	c.access, c.scope = credential[:cut[0]], credential[cut[0]+1:]
	c.day, c.region = credential[cut[0]+1:cut[1]], credential[cut[1]+1:cut[2]]
	if len(c.region) > maxRegion {
		return c.malformed("the region is longer than %d bytes", maxRegion)
	}
	if service := credential[cut[2]+1 : cut[3]]; service != "s3" {
		return c.malformed("incorrect service %q: this endpoint belongs to \"s3\"", service)
	}
	if end := credential[cut[3]+1:]; end != "aws4_request" {
		return c.malformed("the Credential ends with %q, not with \"aws4_request\"", end)
	}
	if len(c.signature) != 64 || !isHex(c.signature) {
		return c.malformed("the Signature is not of 64 hexadecimal digits in lower case")
	}
	return w.splitNames(c)
}

// splitNames splits the names of the signed headers.
func (w *work) splitNames(c *claim) error {
	w.names = w.names[:0]
	for rest, more := c.names, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, ";")
		if !isName(name) || len(w.names) == maxNames {
			return c.malformed("SignedHeaders are not at most %d names in lower case, separated by semicolons", maxNames)
		}
		w.names = append(w.names, name)
	}
	return nil
}

// isName reports whether s is a header's name in lower case (RFC 9110: a token).
func isName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("-!#$%&'*+.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}
