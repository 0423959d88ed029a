package s3gw

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/origin"
	"github.com/hearthfs/hearth/s3gw/keys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stand is a Gateway before a real S3 server, and what clients of it have.
type stand struct {
	*testing.T
	server *hearthtest.Server
	g      *Gateway
	url    string
	file   string // of keys
	client *http.Client
	tree   *namespace.Tree
	pool   *hearth.Pool
	paths  int
	ahead  atomic.Int64 // ns that the tree is told to be later than it is

	mu    sync.Mutex // guards the rest
	links []Link
	lines []AccessLine
	told  []string
	way   func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) // nil: the way is free
	seen  []string                                                                              // what went on to the origin
}

// shownLink is a link that a stand shows.
type shownLink struct {
	bucket, prefix string
	freshness      namespace.Freshness
	account        string // that its origin says it is of; "": the server's
	configure      bool
	timeout        time.Duration // of its origin; 0: 5 s
	stale          bool          // names known last are told while the origin is away
}

// standard is what most stands have: a key that may all, one that may read, one that may write
// below mine/, and one of another bucket.
const standard = `root rootsecret rw *
reader readersecret ro bucket
mine minesecret rw bucket/mine/
other othersecret rw other
`

func newStand(t *testing.T, change func(*Options), links ...shownLink) *stand {
	t.Helper()
	s := &stand{T: t, server: hearthtest.StartS3(t), file: filepath.Join(t.TempDir(), "keys")}
	for _, pair := range s.server.Env() {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	s.write(standard)
	s.pool = hearthtest.Pool(t, 64<<20)
	var err error
	if s.tree, err = namespace.Open(namespace.Options{Clock: func() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }}); err != nil {
		t.Fatal(err)
	}
	made := map[string]bool{}
	for _, l := range links {
		if !made[l.bucket] {
			s.server.Bucket(t, l.bucket)
			made[l.bucket] = true
		}
		if _, err := s.add(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	ks, err := keys.Open(keys.Options{File: s.file})
	if err != nil {
		t.Fatal(err)
	}
	hears := func(what string, attributes ...any) {
		s.mu.Lock()
		s.told = append(s.told, fmt.Sprintln(append([]any{what}, attributes...)...))
		s.mu.Unlock()
	}
	o := Options{Links: s.shown, Tree: s.tree, Pool: s.pool, Keys: ks, Source: origin.NewBucket(s.pool, s.originOf),
		Access:  func(l AccessLine) { s.mu.Lock(); s.lines = append(s.lines, l); s.mu.Unlock() },
		Refused: hears, Trouble: hears}
	if change != nil {
		change(&o)
	}
	s.g = New(o)
	at := httptest.NewServer(s.g)
	s.url, s.client = at.URL, &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		at.Close()
		s.g.Close()
		for _, l := range s.shown() {
			shut(l.Origin.(*road).to)
		}
		if err := s.tree.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stand) write(lines string) {
	s.Helper()
	if err := os.WriteFile(s.file, []byte(lines), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *stand) shown() []Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Link(nil), s.links...)
}

func (s *stand) originOf(link string) origin.Origin {
	for _, l := range s.shown() {
		if l.Name == link {
			return l.Origin.(*road).to
		}
	}
	return nil
}

// add makes a link, as a node does.
func (s *stand) add(ctx context.Context, l shownLink) (Link, error) {
	s.mu.Lock()
	s.paths++
	name := fmt.Sprintf("link%d", s.paths)
	s.mu.Unlock()
	o, err := origin.Open(ctx, origin.Config{URL: "s3://" + l.bucket + "/" + l.prefix, Link: name, Endpoint: s.server.Endpoint, Region: s.server.Region, Timeout: cmp.Or(l.timeout, 5*time.Second)})
	if err != nil {
		return Link{}, err
	}
	if _, err := o.Probe(ctx); err != nil {
		shut(o)
		return Link{}, err
	}
	if err := s.tree.AddLink(namespace.Link{Path: "/" + name, Name: name, Prefix: l.prefix, Origin: o, Freshness: l.freshness, StaleIfError: l.stale}); err != nil {
		shut(o)
		return Link{}, err
	}
	made := Link{Name: name, Bucket: l.bucket, Prefix: l.prefix, Region: s.server.Region, Fresh: time.Minute, Configure: l.configure, Origin: &road{s, o.(*origin.S3), l.account}}
	switch l.freshness.Mode {
	case namespace.Immutable:
		made.Fresh = -1
	case namespace.Strict:
		made.Fresh = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = append(s.links, made)
	return made, nil
}

// road is the way of a stand's requests to the origin.
type road struct {
	s       *stand
	to      *origin.S3
	account string
}

// Account is Origin's.
func (d *road) Fractions() bool { return d.to.Fractions() }

func (d *road) Account() string { return cmp.Or(d.account, d.to.Account()) }

// Forward is Origin's.
func (d *road) Forward(ctx context.Context, r *http.Request, bucket, escapedKey string) (*http.Response, error) {
	d.s.mu.Lock()
	d.s.seen = append(d.s.seen, r.Method+" "+bucket+"/"+escapedKey)
	way := d.s.way
	d.s.mu.Unlock()
	forward := func() (*http.Response, error) { return d.to.Forward(ctx, r, bucket, escapedKey) }
	if way != nil {
		return way(r, forward)
	}
	return forward()
}

// block has what goes to the origin go by way.
func (s *stand) block(way func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.way = way
}

// went is what went to the origin since it was asked last.
func (s *stand) went() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.seen
	s.seen = nil
	return all
}

// request is one to the endpoint, signed by a key of the file; by "" it is not. target is the
// path with its query, escaped; headers are "Name: value".
func (s *stand) request(who, method, target, body string, headers ...string) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+target, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for _, h := range headers {
		if name, value, ok := strings.Cut(h, ": "); ok {
			r.Header.Set(name, value)
		}
	}
	if who != "" {
		r = origin.Sign(r, who, who+"secret", "us-east-1")
	}
	return r
}

// ask sends a request and reads the answer.
func (s *stand) ask(who, method, target, body string, headers ...string) (*http.Response, string) {
	s.Helper()
	resp, err := s.client.Do(s.request(who, method, target, body, headers...))
	if err != nil {
		s.Errorf("%s %s: %v", method, target, err)
		return &http.Response{Header: http.Header{}}, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Errorf("%s %s: %v", method, target, err)
	}
	return resp, string(text)
}

// gets has a request be answered with a status, and a text that is in the answer.
func (s *stand) gets(status int, text, who, method, target, body string, headers ...string) {
	s.Helper()
	resp, got := s.ask(who, method, target, body, headers...)
	if resp.StatusCode != status || !strings.Contains(got, text) {
		s.Errorf("%s %s by %q: %d, want %d with %q: %s", method, target, who, resp.StatusCode, status, text, got)
	}
}

// put stores an object behind the endpoint's back.
func (s *stand) put(bucket, key, text string) {
	s.Helper()
	if _, err := s.server.PutBytes(s.Context(), bucket, key, []byte(text)); err != nil {
		s.Fatal(err)
	}
}

// shut ends an origin's connections.
func shut(o origin.Origin) {
	if c, ok := o.(io.Closer); ok {
		_ = c.Close()
	}
}

// signed signs a request by a word on its body (Signature Version 4, of its x-amz headers).
func signed(r *http.Request, who, payload string) {
	now := time.Now().UTC()
	scope := now.Format("20060102") + "/us-east-1/s3/aws4_request"
	r.Header.Set("X-Amz-Date", now.Format("20060102T150405Z"))
	r.Header.Set("X-Amz-Content-Sha256", payload)
	names, lines := []string{"host"}, "host:"+r.URL.Host+"\n"
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if strings.HasPrefix(name, "X-Amz-") {
			names = append(names, strings.ToLower(name))
			lines += strings.ToLower(name) + ":" + r.Header.Get(name) + "\n"
		}
	}
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, lines, strings.Join(names, ";"), payload}, "\n")
	sum := signature(who, r.Header.Get("X-Amz-Date"), scope, canonical)
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x", who, scope, strings.Join(names, ";"), sum))
}

// presigned signs a request in its URL, whose query is sorted, with all headers that it has.
func presigned(r *http.Request, who string) {
	now := time.Now().UTC()
	scope := now.Format("20060102") + "/us-east-1/s3/aws4_request"
	names, lines := []string{"host"}, "host:"+r.URL.Host+"\n"
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		names = append(names, strings.ToLower(name))
		lines += strings.ToLower(name) + ":" + r.Header.Get(name) + "\n"
	}
	query := r.URL.Query()
	for name, value := range map[string]string{"Algorithm": "AWS4-HMAC-SHA256", "Credential": who + "/" + scope, "Date": now.Format("20060102T150405Z"),
		"Expires": "600", "SignedHeaders": strings.Join(names, ";")} {
		query.Set("X-Amz-"+name, value)
	}
	r.URL.RawQuery = query.Encode()
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, lines, strings.Join(names, ";"), "UNSIGNED-PAYLOAD"}, "\n")
	r.URL.RawQuery += fmt.Sprintf("&X-Amz-Signature=%x", signature(who, query.Get("X-Amz-Date"), scope, canonical))
}

// signature is that of a canonical request, by a key of the stand.
func signature(who, at, scope, canonical string) []byte {
	mac := func(key []byte, s string) []byte {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(s))
		return h.Sum(nil)
	}
	key := []byte("AWS4" + who + "secret")
	for part := range strings.SplitSeq(scope, "/") {
		key = mac(key, part)
	}
	return mac(key, fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%x", at, scope, sha256.Sum256([]byte(canonical))))
}
