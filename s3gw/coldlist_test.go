package s3gw

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/namespace"
)

// gate stands before a stand's server, for links that are made from then on, and tells whether
// requests reach it, and which ones have.
type gate struct {
	mu   sync.Mutex // guards the rest
	shut bool
	seen []url.Values // queries of listings

	fractions bool // listings tell them; it does not change
}

var wholeSecond = regexp.MustCompile(`(:\d\d)(?:\.\d+)?Z<`)

func (s *stand) gate() *gate {
	to, err := url.Parse(s.server.Endpoint)
	if err != nil {
		s.Fatal(err)
	}
	g, way := &gate{}, &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	way.ModifyResponse = func(resp *http.Response) error {
		if !g.fractions || !resp.Request.URL.Query().Has("list-type") {
			return nil
		}
		text, err := io.ReadAll(resp.Body)
		text = wholeSecond.ReplaceAll(text, []byte("$1.618Z<"))
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		resp.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return err
	}
	transport := &http.Transport{}
	way.Transport, way.ErrorLog = transport, log.New(io.Discard, "", 0) // clients go away
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		if q := r.URL.Query(); q.Has("list-type") {
			g.seen = append(g.seen, q)
		}
		shut := g.shut
		g.mu.Unlock()
		if shut {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		way.ServeHTTP(w, r)
	}))
	s.Cleanup(func() {
		at.Close()
		transport.CloseIdleConnections()
	})
	s.server.Endpoint = at.URL
	return g
}

// asked counts the listings that reached the origin since it was asked last: of a directory, and whole pages.
func (g *gate) asked() (directories, pages int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, q := range g.seen {
		if q.Get("delimiter") == "/" {
			directories++
		} else {
			pages++
		}
	}
	g.seen = nil
	return directories, pages
}

var oneKey = regexp.MustCompile(`<Key>([^<]*)</Key>`)

// keys lists flat, page by page, as boto3 does, and tells how many pages there were.
func (s *stand) keys(query string) (keys []string, pages int) {
	s.Helper()
	next := regexp.MustCompile(`<NextContinuationToken>([^<]+)<`)
	for token := ""; ; pages++ {
		target := "/bucket?list-type=2" + query
		if token != "" {
			target += "&continuation-token=" + url.QueryEscape(token)
		}
		resp, text := s.ask("root", "GET", target, "")
		if resp.StatusCode != http.StatusOK {
			s.Fatalf("%s: %d %s", target, resp.StatusCode, text)
		}
		for _, m := range oneKey.FindAllStringSubmatch(text, -1) {
			keys = append(keys, m[1])
		}
		found := next.FindStringSubmatch(text)
		if found == nil {
			return keys, pages + 1
		}
		token = found[1]
	}
}

// fill puts a key into each of so many directories below a prefix.
func (s *stand) fill(prefix string, n int) (keys []string) {
	s.Helper()
	var work sync.WaitGroup
	for i := range n {
		key := fmt.Sprintf("%s%03d/k", prefix, i)
		keys = append(keys, key)
		work.Go(func() {
			if _, err := s.server.PutBytes(s.Context(), "bucket", key, []byte("x")); err != nil {
				s.Error(err)
			}
		})
	}
	work.Wait()
	return keys
}

func TestFlatListingsThatAreCold(t *testing.T) {
	// A flat page of many directories of which nothing is known is the origin's, for a few requests
	// more that make some of them known, until none is asked for; one of few directories is asked for once. The
	// keys are the same by either way, and in pages of both.
	s := newStand(t, nil)
	s.server.Bucket(t, "bucket")
	want := append(s.fill("few/", 9), s.fill("many/", 60)...)
	g := s.gate()
	if _, err := s.add(t.Context(), shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}}); err != nil {
		t.Fatal(err)
	}
	is := func(what, query string, want []string) (directories, pages int) {
		t.Helper()
		g.asked()
		got, _ := s.keys(query)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		return g.asked()
	}
	if directories, pages := is("cold", "&prefix=few/", want[:9]); directories < 10 || directories > 11 || pages > 1 { // a look-up of few/ is a page of one key
		t.Errorf("of 9 directories %d requests, %d pages", directories, pages)
	}
	if directories, pages := is("known", "&prefix=few/", want[:9]); directories+pages != 0 {
		t.Errorf("known: %d requests, %d pages", directories, pages)
	}
	listed, known, sum := 0, 0, 0
	for ; known < 2; listed++ {
		directories, pages := is("many", "", want)
		// What a listing began when it passed may reach the origin behind it, and so during the next one.
		if sum += directories; sum > 16*(listed+1) || pages > 1 {
			t.Fatalf("%d requests and %d pages for one, %d for %d", directories, pages, sum, listed+1)
		}
		if directories == 0 && pages == 0 {
			known++
		} else if known > 0 || listed > 60 {
			t.Fatalf("%d requests and %d pages in listing %d", directories, pages, listed)
		}
	}
	if listed < 5 {
		t.Errorf("known after %d", listed)
	}
	if got, n := s.keys("&max-keys=7"); n != 10 || !slices.Equal(got, want) {
		t.Errorf("%d pages: %q", n, got)
	}
}

func TestFlatListingsWhoseTimeIsOver(t *testing.T) {
	// What was known and is no longer believed is as what never was, in pages of both; but for an
	// origin that is away: names known last are told then.
	s := newStand(t, nil)
	s.server.Bucket(t, "bucket")
	want := append(s.fill("a", 4), s.fill("many/", 40)...)
	g := s.gate()
	if _, err := s.add(t.Context(), shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Bounded, Bound: time.Hour}, stale: true}); err != nil {
		t.Fatal(err)
	}
	list := func(query string) (directories, pages int) {
		t.Helper()
		g.asked()
		if got, _ := s.keys(query); !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
		return g.asked()
	}
	learn := func() {
		t.Helper()
		for n := 0; ; n++ {
			if directories, pages := list(""); directories+pages == 0 {
				return
			} else if n > 40 {
				t.Fatal("it does not get known")
			}
		}
	}
	learn()
	s.ahead.Add(int64(2 * time.Hour))
	if directories, pages := list(""); directories == 0 || directories > 16 || pages != 1 {
		t.Errorf("after the bound: %d requests, %d pages", directories, pages)
	}
	for range 20 {
		list("&max-keys=11")
	}
	learn()
	s.ahead.Add(int64(2 * time.Hour))
	g.mu.Lock()
	g.shut = true
	g.mu.Unlock()
	list("")
}

func TestFlatListingsOfAStrictLink(t *testing.T) {
	// Where no name is believed a flat page is one request, and a token of the endpoint's goes on at the origin.
	s := newStand(t, nil)
	s.server.Bucket(t, "bucket")
	want := s.fill("d/", 20)
	g := s.gate()
	if _, err := s.add(t.Context(), shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Strict}}); err != nil {
		t.Fatal(err)
	}
	g.asked()
	got, n := s.keys("&max-keys=8")
	directories, pages := g.asked()
	if !slices.Equal(got, want) || n != 3 || directories != 0 || pages != 3 {
		t.Errorf("%d directories and %d pages for %d: %q", directories, pages, n, got)
	}
	if _, text := s.ask("root", "GET", "/bucket?list-type=2&delimiter=/&prefix=d/", ""); strings.Count(text, "<CommonPrefixes>") != 20 {
		t.Errorf("groups: %s", text)
	}
	if directories, _ := g.asked(); directories == 0 {
		t.Error("groups are the tree's")
	}
}
