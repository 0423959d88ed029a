package e2e

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hearthfs/hearth/origin/sign"
)

// s3Client signs requests in which each byte is the caller's: no SDK sends half of what a
// differential test has to.
type s3Client struct {
	base           string // http://HOST:PORT
	access, secret string
	signer         sign.Signer
	http           http.Client
}

// s3Ask is a request. Path is escaped and begins behind the bucket; "": the bucket's own.
type s3Ask struct {
	method, bucket, path, query string
	header                      http.Header
	body                        string
	form                        *payload // of the body on its way; nil: as it is
	presigned                   bool     // by its URL, and not by a header
}

func (a s3Ask) String() string {
	text := fmt.Sprintf("%s /%s%.100s?%s %v %.80q", a.method, a.bucket, a.path, a.query, a.header, a.body)
	if a.form != nil {
		text += fmt.Sprintf(" as %+v", *a.form)
	}
	if a.presigned {
		text += " presigned"
	}
	return text
}

// s3Answer is what came of one.
type s3Answer struct {
	status int
	header http.Header
	body   []byte
}

// code is that of an error's document.
func (a *s3Answer) code() string {
	var f struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	_ = xml.Unmarshal(a.body, &f) // what is none has no code
	return f.Code
}

func newS3Client(e *env, base, access, secret string) *s3Client {
	e.Helper()
	t := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 4, ResponseHeaderTimeout: 30 * time.Second}
	e.Cleanup(t.CloseIdleConnections)
	return &s3Client{base: base, access: access, secret: secret,
		http: http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// request is a signed one.
func (c *s3Client) request(ctx context.Context, a s3Ask) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, a.method, c.base, nil)
	if err != nil {
		return nil, err
	}
	raw := "/" + a.bucket + a.path
	if r.URL.Path, err = url.PathUnescape(raw); err != nil {
		return nil, err
	}
	r.URL.RawPath, r.URL.RawQuery = raw, a.query
	r.Header = a.header.Clone()
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if a.body != "" || a.method == http.MethodPut || a.method == http.MethodPost {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(a.body)), int64(len(a.body))
		if a.body == "" {
			r.Body = http.NoBody
		}
	}
	if a.presigned {
		return r, c.presign(r)
	}
	if r.Header.Get("X-Amz-Content-Sha256") == "" {
		r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	}
	c.signer.Any(r, credentials.Value{AccessKeyID: c.access, SecretAccessKey: c.secret}, "us-east-1", time.Now())
	if a.form != nil {
		_, last, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
		body := a.form.body(&chunkSigner{c.secret, r.Header.Get("X-Amz-Date"), last}, a.body)
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	return r, nil
}

// presign signs a request in its URL, for five minutes, together with its x-amz-* headers.
func (c *s3Client) presign(r *http.Request) error {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	names, lines := []string{"host"}, "host:"+r.URL.Host+"\n"
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-") {
			names, lines = append(names, lower), lines+lower+":"+r.Header.Get(name)+"\n"
		}
	}
	now := time.Now().UTC().Format(stamp)
	scope := now[:8] + "/us-east-1/s3/aws4_request"
	for name, value := range map[string]string{"Algorithm": "AWS4-HMAC-SHA256", "Credential": c.access + "/" + scope, "Date": now, "Expires": "300", "SignedHeaders": strings.Join(names, ";")} {
		q.Set("X-Amz-"+name, value)
	}
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	canonical := strings.Join([]string{r.Method, sign.Encode(r.URL.Path, true), query, lines, strings.Join(names, ";"), "UNSIGNED-PAYLOAD"}, "\n")
	r.URL.RawQuery = query + "&X-Amz-Signature=" + seal(c.secret, now[:8], "AWS4-HMAC-SHA256\n"+now+"\n"+scope+"\n"+sumOf(canonical))
	return nil
}

// do sends a request and reads all of its answer.
func (c *s3Client) do(ctx context.Context, a s3Ask) (*s3Answer, error) {
	r, err := c.request(ctx, a)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return &s3Answer{resp.StatusCode, resp.Header, bytes.Clone(body)}, err
}

// wants sends a request that must be answered with a status.
func (e *env) wants(c *s3Client, status int, a s3Ask) *s3Answer {
	e.Helper()
	got, err := c.do(e.ctx, a)
	if err != nil {
		e.Errorf("%v: %v", a, err)
		return &s3Answer{header: http.Header{}}
	}
	if got.status != status {
		e.Errorf("%v: %d and not %d: %.300s", a, got.status, status, got.body)
	}
	return got
}
