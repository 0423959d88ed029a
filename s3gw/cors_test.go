package s3gw

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

// some are rules of three kinds: one site may write, its neighbours may read, all may HEAD.
func some(t testing.TB) *CORSRules {
	t.Helper()
	c, err := newCORS([]CORSRule{
		{Origins: []string{"https://a.test", "http://localhost:*"}, Methods: []string{"GET", "PUT"}, Headers: []string{"Content-Type", "x-amz-*"},
			Expose: []string{"ETag", "x-amz-meta-a"}, MaxAge: time.Hour},
		{Origins: []string{"https://*.a.test"}},
		{Origins: []string{"*"}, Methods: []string{"HEAD"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func told(h http.Header) string {
	return strings.Join([]string{h.Get("Access-Control-Allow-Origin"), h.Get("Access-Control-Allow-Methods"), h.Get("Access-Control-Allow-Headers"),
		h.Get("Access-Control-Expose-Headers"), h.Get("Access-Control-Max-Age"), h.Get("Access-Control-Allow-Credentials")}, "; ")
}

func TestPreflight(t *testing.T) {
	// The first rule that has origin, method and each header answers; where there is none the page may not.
	for _, c := range []struct{ origin, method, headers, want string }{
		{"https://a.test", "PUT", "content-type, X-Amz-Date", "https://a.test; GET, PUT; content-type, X-Amz-Date; ETag, x-amz-meta-a; 3600; true"},
		{"https://a.test", "GET", "", "https://a.test; GET, PUT; ; ETag, x-amz-meta-a; 3600; true"},
		{"http://localhost:8080", "GET", "", "http://localhost:8080; GET, PUT; ; ETag, x-amz-meta-a; 3600; true"},
		{"https://b.a.test", "GET", "anything", "https://b.a.test; GET, HEAD; anything; ; ; true"},
		{"https://else.test", "HEAD", "", "*; HEAD; ; ; ; "},
		{"null", "HEAD", "", "*; HEAD; ; ; ; "},
		{"https://a.test", "HEAD", "", "*; HEAD; ; ; ; "},

		{"https://a.test", "PUT", "authorization", "AccessForbidden 403"},
		{"https://a.test", "DELETE", "", "AccessForbidden 403"},
		{"https://b.a.test", "PUT", "", "AccessForbidden 403"},
		{"https://A.test", "PUT", "", "AccessForbidden 403"},
		{"https://a.test.evil", "PUT", "", "AccessForbidden 403"},
		{"https://.a.tes", "GET", "", "AccessForbidden 403"},
		{"null", "GET", "", "AccessForbidden 403"},
		{"", "GET", "", "BadRequest 400"},
		{"https://a.test", "", "", "BadRequest 400"},
		{"https://a.test", "PUT", "a b", "BadRequest 400"},
		{"https://a.test", "PUT", strings.Repeat("x-amz-a,", maxHeaders+1), "BadRequest 400"},
	} {
		r := httptest.NewRequest(http.MethodOptions, "/bucket/a", nil)
		for name, v := range map[string]string{"Origin": c.origin, "Access-Control-Request-Method": c.method, "Access-Control-Request-Headers": c.headers} {
			if v != "" {
				r.Header.Set(name, v)
			}
		}
		w := httptest.NewRecorder()
		err := some(t).Preflight(w, r)
		got := told(w.Header())
		var f *request.Error
		if errors.As(err, &f) {
			got = f.Code + " " + http.StatusText(f.HTTPStatus())
			c.want = strings.NewReplacer("403", "Forbidden", "400", "Bad Request").Replace(c.want)
			if strings.Trim(told(w.Header()), "; ") != "" {
				t.Errorf("%+v: refused, and yet %s", c, told(w.Header()))
			}
		}
		if got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
		if !slices.Contains(w.Header()["Vary"], "Origin") {
			t.Errorf("%+v: an answer for one origin may be given to another", c)
		}
	}
}

func TestAllow(t *testing.T) {
	// An answer says what our rules say, and nothing of the bucket's own.
	for _, c := range []struct{ origin, method, want string }{
		{"https://a.test", "GET", "https://a.test; GET, PUT; ; ETag, x-amz-meta-a; 3600; true"},
		{"https://a.test", "DELETE", "; ; ; ; ; "},
		{"", "GET", "; ; ; ; ; "},
	} {
		r := httptest.NewRequest(c.method, "/bucket/a", nil)
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		h := http.Header{"Access-Control-Allow-Origin": {"https://bucket.test"}, "Vary": {"Origin"}, "Etag": {"x"}}
		some(t).Allow(h, r)
		if got := told(h); got != c.want || h.Get("ETag") != "x" || len(h["Vary"]) != 3 {
			t.Errorf("%+v: %s, %v", c, got, h)
		}
	}
	none, err := newCORS(nil)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{"Access-Control-Allow-Origin": {"https://bucket.test"}}
	none.Allow(h, httptest.NewRequest("GET", "/", nil))
	if h.Get("Access-Control-Allow-Origin") == "" {
		t.Error("without rules of ours the bucket's are hidden")
	}
}

func TestTwoOriginsAreNone(t *testing.T) {
	// A request with two origins is of neither.
	r := httptest.NewRequest("GET", "/", nil)
	r.Header["Origin"] = []string{"https://a.test", "https://b.test"}
	h := http.Header{}
	some(t).Allow(h, r)
	if h.Get("Access-Control-Allow-Origin") != "" {
		t.Error(h)
	}
}

func TestRulesAreChecked(t *testing.T) {
	// A rule that would never fit, or break an answer, is told at the start, with its number.
	for _, r := range []CORSRule{{}, {Origins: []string{""}}, {Origins: []string{"a.test"}}, {Origins: []string{"https://*.*"}},
		{Origins: []string{"https://a\n.test"}}, {Origins: []string{"*"}, Methods: []string{"get"}}, {Origins: []string{"*"}, Methods: []string{"OPTIONS"}},
		{Origins: []string{"*"}, Headers: []string{"a b"}}, {Origins: []string{"*"}, Expose: []string{"a\r\nb: c"}}, {Origins: []string{"*"}, MaxAge: -1}} {
		if _, err := newCORS([]CORSRule{{Origins: []string{"*"}}, r}); err == nil || !strings.Contains(err.Error(), "rule 2") {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func FuzzPreflight(f *testing.F) {
	// Whatever a browser sends, an answer names its origin only where a rule does, and repeats nothing that could be another header.
	f.Add("https://a.test", "PUT", "x-amz-date, content-type")
	f.Add("http://localhost:", "GET", ",,a\t,")
	c := some(f)
	f.Fuzz(func(t *testing.T, origin, method, headers string) {
		r := httptest.NewRequest(http.MethodOptions, "/", nil)
		r.Header["Origin"] = []string{origin}
		r.Header["Access-Control-Request-Method"] = []string{method}
		r.Header["Access-Control-Request-Headers"] = []string{headers}
		w := httptest.NewRecorder()
		err := c.Preflight(w, r)
		allowed := w.Header().Get("Access-Control-Allow-Origin")
		if (err == nil) != (allowed != "") {
			t.Fatalf("%v, and %q allowed", err, allowed)
		}
		named := origin == "https://a.test" || strings.HasPrefix(origin, "http://localhost:") || strings.HasPrefix(origin, "https://") && strings.HasSuffix(origin, ".a.test")
		if allowed != "" && allowed != "*" && (!named || allowed != origin) {
			t.Errorf("%q is allowed as %q", origin, allowed)
		}
		for _, name := range strings.Split(w.Header().Get("Access-Control-Allow-Headers"), ", ") {
			if name != "" && !token(name) {
				t.Errorf("%q is no header", name)
			}
		}
	})
}

func BenchmarkAllow(b *testing.B) {
	c, h := some(b), http.Header{}
	r := httptest.NewRequest("GET", "/bucket/a", nil)
	r.Header.Set("Origin", "https://a.test")
	b.ReportAllocs()
	for b.Loop() {
		clear(h)
		c.Allow(h, r)
	}
}
