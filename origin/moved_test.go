package origin

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/hearthfs/hearth/origin/sign"
)

// sendsOn is an oddity: what concerns objects is sent on to another place.
func sendsOn(status int, to func(*http.Request) string) func(http.ResponseWriter, *http.Request, string) bool {
	return func(w http.ResponseWriter, r *http.Request, key string) bool {
		if key == "" {
			return false
		}
		w.Header().Set("Location", to(r))
		return fakeError(w, status, "TemporaryRedirect", "")
	}
}

// signed reports whether a request that came over the wire has the signature that its host, path and query need.
func signed(t *testing.T, r *http.Request) bool {
	t.Helper()
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		t.Fatal(err)
	}
	again := &http.Request{Method: r.Method, Host: r.Host, URL: &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}, Header: http.Header{}}
	for _, name := range []string{"X-Amz-Request-Payer", "X-Amz-Content-Sha256"} {
		if v := r.Header[name]; v != nil {
			again.Header[name] = v
		}
	}
	v := credentials.Value{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secretsecretsecret"}
	if new(sign.Signer).Any(again, v, "us-east-1", at); again.Header.Get("Authorization") == r.Header.Get("Authorization") {
		return true
	}
	new(sign.Signer).Read(again, v, "us-east-1", at)
	return again.Header.Get("Authorization") == r.Header.Get("Authorization")
}

func TestARequestIsSentOn(t *testing.T) {
	// An origin sends what concerns objects on to another host, by a whole Location, one with another path or query, or one of a path
	// alone: each request goes on there under a signature of its own, and an upload arrives whole.
	for name, x := range map[string]struct {
		status int
		root   string
		to     func(there string) func(*http.Request) string
	}{
		"same path": {307, "", func(there string) func(*http.Request) string {
			return func(r *http.Request) string { return there + r.URL.RequestURI() }
		}},
		"without query": {307, "", func(there string) func(*http.Request) string {
			return func(r *http.Request) string { return there + r.URL.EscapedPath() }
		}},
		"another path": {308, "/deep", func(there string) func(*http.Request) string {
			return func(r *http.Request) string { return there + "/deep" + r.URL.EscapedPath() }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			const odd = "k ä%2F+"
			there := newFakeBucket(t, odd)
			there.root = x.root
			b := newFakeBucket(t, odd)
			b.odd = sendsOn(x.status, x.to(there.URL))
			s := b.open(t, Config{})
			if can, err := s.Probe(t.Context()); err != nil || !can.Range || !can.IfMatch {
				t.Fatalf("%+v, %v", can, err)
			}
			o, err := s.Head(t.Context(), odd)
			if err != nil {
				t.Fatal(err)
			}
			if err := readCheck(t.Context(), s, &o, 10, 500, 1); err != nil {
				t.Error(err)
			}
			s.transport.ExpectContinueTimeout = time.Hour // a busy machine is no origin that says nothing
			upload := put(t, bytes.NewReader(content("new", 1000, 1)), 1000)
			upload.Header.Set("Expect", "100-continue") // as S3's clients do, for this very reason
			answer, err := s.Forward(t.Context(), upload, "b", "new")
			if err != nil {
				t.Fatal(err)
			}
			if err := answer.Body.Close(); err != nil || answer.StatusCode != 200 || !bytes.Equal(there.objects["new"].data, content("new", 1000, 1)) {
				t.Errorf("%d, %v, %d bytes came", answer.StatusCode, err, len(there.objects["new"].data))
			}
			for _, r := range there.asked {
				if !signed(t, r) {
					t.Errorf("%s %s is not signed for %s", r.Method, r.URL, r.Host)
				}
			}
			if st := s.Stats(); st.Errors != 0 || len(there.asked) != 6 { // three of the probe, and what was asked here
				t.Errorf("%+v after %q", st, there.requests(""))
			}
		})
	}
}

func TestWhereNoRequestIsSentOn(t *testing.T) {
	// A request is sent round in a circle, to another scheme, with a question of another, or by an answer
	// that leaves it to the client: it ends soon, and the line names the other place and what to do.
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	for name, x := range map[string]struct {
		status int
		to     string // HERE is the server itself
		says   string
		asked  int
	}{
		"circle":         {307, "HERE/b/k", "sends requests on to HERE", 1 + mostMoves},
		"another scheme": {307, "https://127.0.0.1:1/b/k", "the origin sends requests on to https://127.0.0.1:1 (307), and they cannot go on there; set endpoint: https://127.0.0.1:1", 1},
		"signed already": {307, other.URL + "/b/k?X-Amz-Signature=1", "set endpoint: " + other.URL, 1},
		"moved":          {301, other.URL + "/b/k", "set endpoint: " + other.URL, 1},
		"found":          {302, other.URL + "/login", "set endpoint: " + other.URL, 1},
		"nobody there":   {307, "http://127.0.0.1:1/b/k", "nobody listens at http://127.0.0.1:1 (HERE sends requests on to http://127.0.0.1:1)", 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBucket(t, "k")
			here := func(text string) string { return strings.ReplaceAll(text, "HERE", b.URL) }
			b.odd = sendsOn(x.status, func(*http.Request) string { return here(x.to) })
			s := b.open(t, Config{})
			_, err := s.Head(t.Context(), "k")
			if err == nil || !strings.Contains(Explain(err), here(x.says)) {
				t.Errorf("%q, want %q", Explain(err), here(x.says))
			}
			if n := len(b.requests("")); n != x.asked {
				t.Errorf("%d requests", n)
			}
		})
	}
}

func TestWhoPaysIsSaidInEachRequest(t *testing.T) {
	// A bucket has its readers pay: a HEAD, a listing, a read, and whatever goes on for a client say that they do, signed.
	// Without the option nothing says so; with it and without a key there is no origin.
	for _, pays := range []bool{true, false} {
		b := newFakeBucket(t, "k")
		s := b.open(t, Config{RequesterPays: pays})
		if _, err := s.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Head(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		answer, err := s.Forward(t.Context(), put(t, strings.NewReader("x"), 1), "b", "new")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		want := []string{"GET requester", "GET k requester", "HEAD k requester", "GET k requester", "HEAD k requester", "PUT new requester"}
		if !pays {
			want = []string{"GET", "GET k", "HEAD k", "GET k", "HEAD k", "PUT new"}
		}
		got := b.requests("X-Amz-Request-Payer")
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], "  ", " ")
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		for _, r := range b.asked {
			if !signed(t, r) || strings.Contains(r.Header.Get("Authorization"), "x-amz-request-payer") != pays {
				t.Errorf("%s %s: %q", r.Method, r.URL, r.Header["Authorization"])
			}
		}
	}
	if _, err := Open(t.Context(), Config{URL: "s3://b", RequesterPays: true, Anonymous: true}); err == nil || !strings.Contains(err.Error(), "needs credentials") {
		t.Error(err)
	}
}

func TestEndpointsWithAPath(t *testing.T) {
	// An endpoint has a path, as of a project at a hosted server: it stands before the bucket in all that is asked and signed, or
	// before the key, and makes another bucket of the same name at that host.
	b := newFakeBucket(t, "k", "d/x")
	b.root = "/storage/v1/s3"
	s := b.open(t, Config{Endpoint: b.URL + "/storage/v1/s3/"})
	if can, err := s.Probe(t.Context()); err != nil || !can.Range {
		t.Fatalf("%+v, %v", can, err)
	}
	o, err := s.Head(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := readCheck(t.Context(), s, &o, 0, 1000, 1); err != nil {
		t.Error(err)
	}
	answer, err := s.Forward(t.Context(), client(t, "GET /b/k HTTP/1.1\nHost: h\n\n"), "b", "k")
	if err != nil || answer.StatusCode != 200 {
		t.Fatalf("%+v, %v", answer, err)
	}
	answer.Body.Close()
	for _, r := range b.asked {
		if !strings.HasPrefix(r.URL.Path, "/storage/v1/s3/b") || !signed(t, r) {
			t.Errorf("%s %s, signed %v", r.Method, r.URL, signed(t, r))
		}
	}
	place := func(endpoint, style string) string {
		s := open(t, Config{URL: "s3://b", Endpoint: endpoint, PathStyle: style}).(*S3)
		p := s.place.Load()
		return fmt.Sprint(p.host+p.path("k")+" "+p.path("")+" ", s.Account(), " ", s.Identity())
	}
	for _, x := range [][3]string{
		{"http://h/p/q/", "on", "h/p/q/b/k /p/q/b http://h/p/q s3 http://h/p/q b"},
		{"http://h/p/q", "off", "b.h/p/q/k /p/q/ http://h/p/q s3 http://h/p/q b"},
		{"http://h/", "on", "h/b/k /b http://h s3 http://h b"},
	} {
		if got := place(x[0], x[1]); got != x[2] {
			t.Errorf("%s, path style %s: %q, want %q", x[0], x[1], got, x[2])
		}
	}
}

func TestWrongEndpointsNameTheirCure(t *testing.T) {
	// An endpoint with more in it than host and path is refused, and the line says what to write.
	for endpoint, says := range map[string]string{
		"http://h:9000/b":                      "write http://h:9000",
		"https://h/p/b/":                       "write https://h/p",
		"https://b.s3.eu-west-1.amazonaws.com": "write https://s3.eu-west-1.amazonaws.com",
		"http://key:secret@h":                  "AWS_ACCESS_KEY_ID",
		"http://h/?x=1":                        "leave out",
		"http://h/#x":                          "leave out",
		"ftp://h":                              "is not http://host:port",
		"http://":                              "is not http://host:port",
		"https://b.vpce-1.s3.eu-1.vpce.amazonaws.com": "",
	} {
		_, err := Open(t.Context(), Config{URL: "s3://b", Endpoint: endpoint, Anonymous: true})
		if (err == nil) != (says == "") || err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") && says != "AWS_ACCESS_KEY_ID") {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}
