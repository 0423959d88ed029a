package object

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// reference returns net/http's answer, or 599 where Serve must pass, whatever net/http says.
func reference(o *hearth.Object, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	w.Header().Set("Etag", `"`+o.ETag+`"`)
	w.Header().Set("Content-Type", "text/x")
	http.ServeContent(w, r, "", o.ModTime, bytes.NewReader(content(o, 0, o.Size)))
	return w
}

// same compares an answer of ours with net/http's. In a 304 net/http sends no Last-Modified beside
// an ETag; stores do.
func same(t *testing.T, r *http.Request, got, want *httptest.ResponseRecorder) {
	t.Helper()
	names := []string{"Etag", "Content-Length", "Content-Range", "Content-Type", "Last-Modified"}
	if want.Code == http.StatusNotModified {
		names = names[:4]
	}
	for _, name := range names {
		if got.Header().Get(name) != want.Header().Get(name) {
			t.Errorf("%s %v: %s: %q, net/http has %q", r.Method, r.Header, name, got.Header().Get(name), want.Header().Get(name))
		}
	}
	if got.Code != want.Code || !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) {
		t.Errorf("%s %v: %d and %d bytes, net/http has %d and %d", r.Method, r.Header, got.Code, got.Body.Len(), want.Code, want.Body.Len())
	}
}

func TestConditionsAreNetHTTPs(t *testing.T) {
	// For all combinations of conditions, an answer of ours is net/http's (200, 206, 304). A 412 is
	// never given here.
	s := serve(t, newBucket(t), Options{})
	o := object("conditions", 100)
	tag, at := `"`+o.ETag+`"`, o.ModTime.Truncate(time.Second)
	form := func(d time.Duration) string { return at.Add(d).Format(http.TimeFormat) }
	tags := []string{"", tag, `"x"`, `"x", "y"`, `"x", ` + tag, "*", "W/" + tag, o.ETag, `"`, tag + ","}
	dates := []string{"", form(0), form(-time.Second), form(time.Second), form(30 * 365 * 24 * time.Hour), "yesterday", "2026-05-04"}
	answered := map[int]int{}
	for _, match := range tags {
		for _, noneMatch := range tags {
			for i := range len(dates) * len(dates) * 3 * 2 {
				method := []string{http.MethodGet, http.MethodHead}[i%2]
				span := []string{"", "bytes=3-4", "bytes=500-"}[i/2%3]
				r := httptest.NewRequest(method, "/b/k", nil)
				for name, v := range map[string]string{"If-Match": match, "If-None-Match": noneMatch, "Range": span,
					"If-Unmodified-Since": dates[i/6%len(dates)], "If-Modified-Since": dates[i/6/len(dates)]} {
					if v != "" {
						r.Header.Set(name, v)
					}
				}
				w := httptest.NewRecorder()
				s.handle(o).ServeHTTP(w, r)
				if answered[w.Code]++; w.Code != 599 {
					same(t, r, w, reference(o, r))
				}
			}
		}
	}
	if answered[200] == 0 || answered[206] == 0 || answered[304] == 0 || len(answered) != 4 {
		t.Errorf("%v", answered)
	}
}

func TestWhatIsSureIsAnswered(t *testing.T) {
	// Conditions on which Amazon's documentation, MinIO and versitygw agree are answered. Where
	// servers differ the request passes.
	s := serve(t, newBucket(t), Options{})
	o := object("sure", 100)
	tag, now := `"`+o.ETag+`"`, o.ModTime.Format(http.TimeFormat)
	before := o.ModTime.Add(-time.Hour).Format(http.TimeFormat)
	const pass = 599
	for _, x := range []struct {
		want    int
		headers []string
	}{
		{200, nil},
		{200, []string{"If-Match", tag}},
		{pass, []string{"If-Match", `"x"`}},
		{pass, []string{"If-Match", "*"}},
		{pass, []string{"If-Match", o.ETag}},
		{pass, []string{"If-Match", `"x", ` + tag}},
		{pass, []string{"If-Match", tag, "If-Match", tag}},
		{pass, []string{"If-Match", ""}},
		{304, []string{"If-None-Match", tag}},
		{200, []string{"If-None-Match", `"x"`}},
		{200, []string{"If-None-Match", `"x","y" , "z"`}},
		{pass, []string{"If-None-Match", "*"}},
		{pass, []string{"If-None-Match", "W/" + tag}},
		{304, []string{"If-Modified-Since", now}},
		{200, []string{"If-Modified-Since", before}},
		{pass, []string{"If-Modified-Since", "Sun, 01 Jan 2090 00:00:00 GMT"}},
		{200, []string{"If-Unmodified-Since", now}},
		{pass, []string{"If-Unmodified-Since", before}},
		{200, []string{"If-Match", tag, "If-Unmodified-Since", before}},
		{304, []string{"If-None-Match", tag, "If-Modified-Since", before}},
		{pass, []string{"If-None-Match", `"x"`, "If-Modified-Since", now}},
		{200, []string{"If-None-Match", `"x"`, "If-Modified-Since", before}},
		{304, []string{"If-Match", tag, "If-None-Match", tag}},
		{206, []string{"If-Match", tag, "Range", "bytes=1-2"}},
		{304, []string{"If-None-Match", tag, "Range", "bytes=1-2"}},
		{pass, []string{"If-Range", tag, "Range", "bytes=1-2"}},
		{pass, []string{"Range", "bytes=1-2", "Range", "bytes=1-2"}},
		{pass, []string{"X-Amz-Checksum-Mode", "enabled"}},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if w := s.get(o, method, x.headers...); w.Code != x.want {
				t.Errorf("%s %q: %d, want %d", method, x.headers, w.Code, x.want)
			}
		}
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if w := s.get(o, method); w.Code != pass {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	for _, etag := range []string{"", "W/x"} {
		odd := *o
		odd.ETag = etag
		if w := s.get(&odd, http.MethodGet); w.Code != pass {
			t.Errorf("an ETag %q: %d", etag, w.Code)
		}
	}
}

func TestRangesAreNetHTTPs(t *testing.T) {
	// Ranges of objects of no, one and several blocks give the same bytes as net/http. What it
	// refuses, or reads leniently, passes.
	s := serve(t, newBucket(t), Options{})
	const block = hearth.BlockSize
	for _, size := range []int64{0, 1, 12, block, block + 5, 3 * block} {
		o := object(fmt.Sprint("ranges/", size), size)
		for span, sure := range map[string]bool{
			"": true, "bytes=0-0": size > 0, "bytes=0-": size > 0, "bytes=5-7": size > 5, "bytes=5-999999999999999999": size > 5,
			"bytes=-1": size > 0, "bytes=-7": size > 0, "bytes=-999999999999": size > 0, "bytes=007-0008": size > 7,
			fmt.Sprintf("bytes=%d-%d", block-1, block): size >= block,
			fmt.Sprintf("bytes=%d-", block+1):          size > block+1,
			fmt.Sprintf("bytes=%d-", size):             false,
			"bytes=-0":                                 false, "bytes=7-5": false, "bytes=": false, "bytes=-": false, "bytes=a-b": false, "bytes=1": false,
			"bytes=0-1,2-3": false, "bytes=0-1,": false, "bytes= 0-1": false, "bytes=0 - 1": false, "Bytes=0-1": false, "octets=0-1": false, "0-1": false,
			"bytes=+1-2": false, "bytes=1--2": false, "bytes=--1": false, "bytes=0-1 ": false, "bytes=0x1-2": false,
			"bytes=0-99999999999999999999999": false,
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				r := httptest.NewRequest(method, "/b/k", nil)
				if span != "" {
					r.Header.Set("Range", span)
				}
				w := httptest.NewRecorder()
				s.handle(o).ServeHTTP(w, r)
				if sure == (w.Code == 599) {
					t.Errorf("%s %q of %d: %d", method, span, size, w.Code)
				}
				if w.Code != 599 {
					same(t, r, w, reference(o, r))
				}
			}
		}
	}
}

func FuzzConditions(f *testing.F) {
	// Whatever a client sends as conditions and range: if it is answered, the answer is net/http's.
	o := object("fuzz", 100)
	tag, at := `"`+o.ETag+`"`, o.ModTime.Format(http.TimeFormat)
	f.Add(tag, "", at, "", "bytes=1-2")
	f.Add(`"a", "b"`, tag, "", at, "bytes=-5")
	f.Add("*", "W/"+tag, "x", "", "bytes=90-200")
	f.Fuzz(func(t *testing.T, match, noneMatch, unmodified, modified, span string) {
		s := serve(t, newBucket(t), Options{})
		r := httptest.NewRequest(http.MethodGet, "/b/k", nil)
		for name, v := range map[string]string{"If-Match": match, "If-None-Match": noneMatch, "Range": span,
			"If-Unmodified-Since": unmodified, "If-Modified-Since": modified} {
			if v != "" {
				r.Header[name] = []string{v}
			}
		}
		w := httptest.NewRecorder()
		s.handle(o).ServeHTTP(w, r)
		if w.Code != 599 {
			same(t, r, w, reference(o, r))
		}
	})
}
