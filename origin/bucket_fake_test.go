package origin

import (
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeBucket is an S3 server with a bucket in memory, which notes what it is asked and whose
// oddities a test gives it.
type fakeBucket struct {
	*httptest.Server
	root string // of its paths; "": none

	mu      sync.Mutex // guards the rest
	objects map[string]fakeObject
	asked   []*http.Request // without bodies
	// odd answers in the bucket's place, if it returns true; key is "" for a listing.
	odd func(w http.ResponseWriter, r *http.Request, key string) bool
}

type fakeObject struct {
	data  []byte
	class string
}

func (o fakeObject) etag() string { return fmt.Sprintf("%x", md5.Sum(o.data)) }

// newFakeBucket serves the bucket "b" to one account.
func newFakeBucket(t *testing.T, keys ...string) *fakeBucket {
	t.Helper()
	key(t)
	b := &fakeBucket{objects: map[string]fakeObject{}}
	for _, k := range keys {
		b.put(k, "")
	}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

// put stores an object of 1,000 bytes.
func (b *fakeBucket) put(key, class string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects[key] = fakeObject{content(key, 1000, 1), class}
}

// open makes an S3 of it that is soon out of patience.
func (b *fakeBucket) open(t *testing.T, c Config) *S3 {
	t.Helper()
	c.URL, c.Region = "s3://b", "us-east-1"
	if c.Endpoint == "" {
		c.Endpoint = b.URL + b.root
	}
	c.Retry = Retry{Attempts: 3, First: time.Millisecond}
	return open(t, c).(*S3)
}

// requests are those so far, in words: method, key and a header.
func (b *fakeBucket) requests(header string) (all []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.asked {
		all = append(all, strings.TrimSpace(r.Method+" "+b.key(r)+" "+strings.Join(r.Header[header], ",")))
	}
	return all
}

// forget forgets the requests so far.
func (b *fakeBucket) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = nil
}

func (b *fakeBucket) key(r *http.Request) string {
	return strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, b.root+"/b"), "/")
}

// ServeHTTP answers GET, HEAD, PUT and listings.
func (b *fakeBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := b.key(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, r.Clone(r.Context()))
	o, found := b.objects[key]
	switch {
	case !strings.HasPrefix(r.URL.Path, b.root+"/b"):
		fakeError(w, http.StatusBadRequest, "InvalidURI", r.URL.Path)
	case b.odd != nil && b.odd(w, r, key): // without a look at the body
	case r.Method == http.MethodPut:
		if body, err := io.ReadAll(r.Body); err == nil {
			b.objects[key] = fakeObject{data: body}
		}
	case key == "":
		b.list(w, r)
	case !found:
		fakeError(w, http.StatusNotFound, "NoSuchKey", "")
	case r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != `"`+o.etag()+`"`:
		fakeError(w, http.StatusPreconditionFailed, "PreconditionFailed", "")
	default:
		o.answer(w, r)
	}
}

// answer sends an object, or the range of it that was asked for.
func (o fakeObject) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"`+o.etag()+`"`)
	if o.class != "" {
		w.Header().Set("X-Amz-Storage-Class", o.class)
	}
	http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(o.data))
}

func (b *fakeBucket) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	after := max(q.Get("start-after"), q.Get("continuation-token"))
	most, err := strconv.Atoi(q.Get("max-keys"))
	var keys []string
	for key := range b.objects {
		if key > after && strings.HasPrefix(key, q.Get("prefix")) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	more := err == nil && len(keys) > most
	if more {
		keys = keys[:most]
	}
	page := fmt.Sprintf("<ListBucketResult><IsTruncated>%v</IsTruncated>", more)
	if more {
		page += fmt.Sprintf("<NextContinuationToken>%s</NextContinuationToken>", keys[len(keys)-1])
	}
	for _, key := range keys {
		o := b.objects[key]
		page += fmt.Sprintf("<Contents><Key>%s</Key><ETag>&quot;%s&quot;</ETag><Size>%d</Size><StorageClass>%s</StorageClass></Contents>", key, o.etag(), len(o.data), o.class)
	}
	_, _ = io.WriteString(w, page+"</ListBucketResult>") // who asked hears that it is cut off
}

// fakeError answers with an error.
func fakeError(w http.ResponseWriter, status int, code, message string) bool {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, message) // as in list
	return true
}

// refuses is an oddity: GETs of keys with a prefix are answered with an error.
func refuses(prefix string, status int, code, message string) func(http.ResponseWriter, *http.Request, string) bool {
	return func(w http.ResponseWriter, r *http.Request, key string) bool {
		return r.Method == http.MethodGet && key != "" && strings.HasPrefix(key, prefix) && fakeError(w, status, code, message)
	}
}

// transcodes is an oddity, that of Google's servers: what is stored compressed is answered
// decompressed, without length and range, unless gzip is accepted and heeded.
func transcodes(key string, heeds bool) func(http.ResponseWriter, *http.Request, string) bool {
	return func(w http.ResponseWriter, r *http.Request, asked string) bool {
		if asked != key || heeds && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			return false
		}
		o := fakeObject{data: content(key, 1000, 1)}
		w.Header().Set("ETag", `W/"`+o.etag()+`"`)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // so that it has no length
		_, _ = w.Write(bytes.Repeat(o.data, 3))
		return true
	}
}

func TestACompressedErrorIsRead(t *testing.T) {
	// A proxy compresses the document of an error, since gzip is accepted: what it says is read.
	b := newFakeBucket(t, "k")
	b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if key == "" {
			return false
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusForbidden)
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, "<Error><Code>AccessDenied</Code><Message>User: x is not authorized to perform: kms:Decrypt on resource: arn:k because</Message></Error>")
		return z.Close() == nil
	}
	s := b.open(t, Config{})
	_, err := s.Probe(t.Context())
	if err == nil || !strings.Contains(Explain(err), "grant kms:Decrypt on arn:k ") {
		t.Error(err)
	}
}
