package object

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestHeadersOfAVersion(t *testing.T) {
	// Headers of the version are answered as the origin sent them; those of one answer are not.
	// Checksums go only to clients that ask for them, and never with a part.
	k := newBucket(t)
	k.extra = http.Header{
		"Cache-Control": {"max-age=7"}, "Expires": {"Tue, 01 Jan 2030 00:00:00 GMT"}, "Content-Encoding": {"gzip"}, "Vary": {"Origin", "Accept-Encoding"},
		"X-Amz-Meta-Foo": {"1"}, "X-Amz-Version-Id": {"v"}, "X-Amz-Storage-Class": {"STANDARD_IA"}, "X-Amz-Tagging-Count": {"2"}, "X-Amz-Checksum-Crc32": {"abcd=="},
		"X-Amz-Checksum-Type": {"FULL_OBJECT"}, "X-Amz-Server-Side-Encryption": {"AES256"},
		"Date": {"now"}, "Server": {"x"}, "X-Amz-Request-Id": {"r"}, "X-Amz-Id-2": {"i"}, "Connection": {"keep-alive, x-hop"}, "X-Hop": {"h"}, "X-Ratelimit-Limit": {"7"},
		"Access-Control-Allow-Origin": {"*"}, "Set-Cookie": {"c"},
	}
	s := serve(t, k, Options{})
	o := object("headers", 100)
	short := http.Header{"Etag": {`"` + o.ETag + `"`}, "Last-Modified": {"Mon, 04 May 2026 03:02:01 GMT"}, "Accept-Ranges": {"bytes"}, "Cache-Control": {"max-age=7"},
		"Expires": {"Tue, 01 Jan 2030 00:00:00 GMT"}, "Vary": {"Origin", "Accept-Encoding"}, "X-Amz-Version-Id": {"v"}}
	all := short.Clone()
	maps.Copy(all, http.Header{"Content-Type": {"text/x"}, "Content-Encoding": {"gzip"}, "x-amz-meta-foo": {"1"}, "X-Amz-Storage-Class": {"STANDARD_IA"},
		"X-Amz-Tagging-Count": {"2"}, "X-Amz-Server-Side-Encryption": {"AES256"}, "Content-Length": {"100"}})
	with := func(h http.Header, more ...string) http.Header {
		h = h.Clone()
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = []string{more[i+1]}
		}
		return h
	}
	sums := with(all, "X-Amz-Checksum-Crc32", "abcd==", "X-Amz-Checksum-Type", "FULL_OBJECT")
	for _, x := range []struct {
		ask, query string
		want       http.Header
	}{
		{"", "", all},
		{"X-Amz-Checksum-Mode: ENABLED", "", sums},
		{"X-Amz-Checksum-Mode: ENABLED; Range: bytes=0-9", "", with(all, "Content-Length", "10", "Content-Range", "bytes 0-9/100")},
		{"If-None-Match: " + short.Get("Etag"), "?response-content-type=x", short},
		{"", "?response-content-type=a%2Fb+c&x=y&response-expires=Wed%2C%2001%20Jan%202031%2000%3A00%3A00%20GMT&response-content-encoding=e&response-cache-control=n" +
			"&response-content-language=l&response%2Dcontent-disposition=d", with(all, "Content-Type", "a/b c", "Expires", "Wed, 01 Jan 2031 00:00:00 GMT",
			"Content-Encoding", "e", "Cache-Control", "n", "Content-Language", "l", "Content-Disposition", "d")},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r := httptest.NewRequest(method, "/b/k"+x.query, nil)
			for one := range strings.SplitSeq(x.ask, "; ") {
				if name, v, ok := strings.Cut(one, ": "); ok {
					r.Header.Set(name, v)
				}
			}
			w := httptest.NewRecorder()
			s.handle(o).ServeHTTP(w, r)
			got := w.Header()
			for name, v := range got {
				if v == nil {
					delete(got, name)
				}
			}
			if !reflect.DeepEqual(got, x.want) {
				t.Errorf("%s %s%s:\n%v\nwant\n%v", method, x.ask, x.query, got, x.want)
			}
		}
	}
}

func TestMetadataOnTheWire(t *testing.T) {
	// Names of user metadata go out in lower case, and no type is made up where there is none.
	k := newBucket(t)
	k.extra = http.Header{"X-Amz-Meta-Some-Name": {"v"}, "Content-Type": nil}
	s := serve(t, k, Options{})
	server := httptest.NewServer(s.handle(object("wire", 1000)))
	defer server.Close()
	c, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "GET /b/k HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for b := bufio.NewReader(c); ; {
		line, err := b.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "\r\n" {
			break
		}
		lines = append(lines, strings.TrimSpace(line))
	}
	if !slices.Contains(lines, "x-amz-meta-some-name: v") || strings.Contains(strings.ToLower(fmt.Sprint(lines)), "content-type") {
		t.Errorf("%q", lines)
	}
}

func TestWhatPassesByItsHeaders(t *testing.T) {
	// Archived objects, headers that are too large or have no ETag, and headers of another version
	// are not used. For the last the error says so.
	o := object("passes", 100)
	for name, x := range map[string]struct {
		header http.Header
		stale  bool
	}{
		"archived":       {http.Header{"X-Amz-Storage-Class": {"DEEP_ARCHIVE"}}, false},
		"restored":       {http.Header{"X-Amz-Restore": {`ongoing-request="false"`}}, false},
		"huge":           {http.Header{"X-Amz-Meta-A": {strings.Repeat("x", maxPacked+1)}}, false},
		"without ETag":   {http.Header{"Etag": nil}, false},
		"another ETag":   {http.Header{"Etag": {`"other"`}}, true},
		"another length": {http.Header{"Content-Length": {"99"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			k := newBucket(t)
			k.extra = x.header
			s := serve(t, k, Options{})
			if w := s.get(o, http.MethodGet); w.Code != 599 || errors.Is(s.errs()[0], hearth.ErrStale) != x.stale {
				t.Errorf("%d, %v", w.Code, s.errs()[0])
			}
		})
	}
}

func TestOddOverridesPass(t *testing.T) {
	// Overrides that servers read differently, and unknown ones, pass.
	for _, query := range []string{"response-content-type=", "response-content-type", "response-x=y", "response-content-type=a&response-content-type=a",
		"response-content-type=%zz", "response-content-type=a%0d%0ab", "response-content-type=%20a", "response-expires=tomorrow", "a;b=c", "%zz=1",
		"response-content-type=" + strings.Repeat("x", maxOverride+1), strings.Repeat("a=b&", maxQuery/4) + "c"} {
		if found, sure := overrides(query); sure {
			t.Errorf("%.60q: %v", query, found)
		}
	}
}

func FuzzOverrides(f *testing.F) {
	// If a query is sure, its overrides are what net/url reads in it.
	f.Add("response-content-type=a%2Fb&x=1&response-expires=Wed%2C%2001%20Jan%202031%2000%3A00%3A00%20GMT")
	f.Add("a=b;c&response-x=1&%72esponse-cache-control=+a+")
	f.Fuzz(func(t *testing.T, raw string) {
		found, sure := overrides(raw)
		if !sure {
			return
		}
		values, err := url.ParseQuery(raw)
		if err != nil { // of a value that is not asked for
			return
		}
		n := 0
		for name, v := range values {
			if strings.HasPrefix(name, "response-") {
				n++
				if i := slices.IndexFunc(found, func(x override) bool { return x.name == overridden(name) }); i < 0 || len(v) != 1 || found[i].value != v[0] {
					t.Errorf("%q: %v, net/url has %s: %q", raw, found, name, v)
				}
			}
		}
		if n != len(found) {
			t.Errorf("%q: %v, net/url has %v", raw, found, values)
		}
	})
}

func FuzzPacked(f *testing.F) {
	// Headers come out of a set as they went in.
	o := object("packed", 1)
	f.Add("X-Amz-Meta-A", "1", "X-Other", "2", "3")
	f.Add("Cache-Control", "", "x-Odd", strings.Repeat("y", 200), "z")
	f.Fuzz(func(t *testing.T, name, value, other, second, third string) {
		h := http.Header{"Etag": {o.ETag}}
		h[name] = []string{value}
		h[other] = []string{second, third}
		set, err := packSet(h, o, modTime())
		if err != nil || set.archived {
			return
		}
		got, want := http.Header{}, http.Header{}
		set.render(got, kindPlain|kindShort|kindSum)
		for name, v := range h {
			if !passing(name, h) {
				want[spelled(name)] = v
			}
		}
		if _, ok := want["Content-Type"]; !ok {
			want["Content-Type"] = nil
		}
		if spelled(name) != spelled(other) && !reflect.DeepEqual(got, want) {
			t.Errorf("%q became %q", want, got)
		}
	})
}

func drain(t *testing.T, r io.ReadCloser) ([]byte, error) {
	t.Helper()
	defer r.Close()
	return io.ReadAll(r)
}
