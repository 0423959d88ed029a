package origin

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hearthfs/hearth"
)

// fakeLister is a server that lists in its own way; the zero value does as S3 does.
type fakeLister struct {
	keys     []string
	encodes  bool // keys are URL-encoded
	says     bool // and EncodingType says that they are
	yes, no  string
	token    bool // beside the end, too
	again    bool // what follows that token begins anew
	capped   int  // keys of a page at most; 0: as many as are asked for
	requests atomic.Int64
}

func (f *fakeLister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.requests.Add(1)
	q := r.URL.Query()
	prefix, after := q.Get("prefix"), max(q.Get("continuation-token"), q.Get("start-after"))
	if after == "anew" {
		after = ""
	}
	most, _ := strconv.Atoi(q.Get("max-keys"))
	if f.capped > 0 {
		most = min(most, f.capped)
	}
	var page strings.Builder
	last, more, n := "", false, 0
	for _, key := range f.keys {
		rest, ok := strings.CutPrefix(key, prefix)
		cut := strings.IndexByte(rest, '/') + 1
		if q.Get("delimiter") == "" {
			cut = 0
		}
		if name := key[:len(key)-len(rest)+cut]; cut > 0 {
			key = name
		}
		if !ok || key <= after || key == last {
			continue
		}
		if more = n == most; more {
			break
		}
		last = key
		n++
		if f.encodes {
			key = url.QueryEscape(key)
			key = strings.ReplaceAll(key, "%2F", "/")
		}
		page.WriteString(map[bool]string{true: "<CommonPrefixes><Prefix>", false: "<Contents><Key>"}[cut > 0])
		_ = xml.EscapeText(&page, []byte(key))
		page.WriteString(map[bool]string{true: "</Prefix></CommonPrefixes>", false: "</Key><ETag>e</ETag><Size>1</Size></Contents>"}[cut > 0])
	}
	says := map[bool]string{true: f.yes, false: f.no}[more]
	if f.yes == "" {
		says = strconv.FormatBool(more)
	}
	if says != "-" {
		fmt.Fprintf(&page, "<IsTruncated>%s</IsTruncated>", says)
	}
	if token := last; more || f.token && (last != "" || f.again) {
		if !more && f.again {
			token = "anew"
		}
		page.WriteString("<NextContinuationToken>")
		_ = xml.EscapeText(&page, []byte(token))
		page.WriteString("</NextContinuationToken>")
	}
	if f.says {
		page.WriteString("<EncodingType>url</EncodingType>")
	}
	_, _ = fmt.Fprintf(w, "<ListBucketResult>%s</ListBucketResult>", page.String())
}

// lists opens it until the test ends, its keys in order.
func (f *fakeLister) lists(t *testing.T) Origin {
	slices.Sort(f.keys)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return open(t, Config{URL: "s3://b", Endpoint: server.URL, Anonymous: true})
}

func TestNoNameIsMissingHoweverPagesEnd(t *testing.T) {
	// Servers write IsTruncated in their own ways, leave it out, or have a token beside the end: all names
	// come once, and the listing ends. What cannot be read is an error.
	var keys []string
	for i := range 25 {
		keys = append(keys, fmt.Sprintf("d/%02d", i), fmt.Sprintf("e%02d/x", i))
	}
	for name, f := range map[string]*fakeLister{
		"as S3 does": {}, "capitals": {yes: "True", no: "False"}, "blanks": {yes: " true\n", no: "\tfalse "}, "numbers": {yes: "1", no: "0"},
		"always no, and a token": {yes: "false", no: "false"}, "a token beside the end": {token: true}, "a token that leads back": {token: true, again: true},
		"nothing is said": {yes: "-", no: "-"}, "nothing, and a token": {yes: "-", no: "-", token: true}, "an empty element": {yes: " ", no: " "},
		"neither": {yes: "perhaps", no: "false"},
	} {
		f.keys, f.capped = keys, 7
		o := f.lists(t)
		for _, q := range []hearth.Listing{{Recursive: true}, {}, {Prefix: "d/"}} {
			var got, want []string
			for _, k := range f.keys {
				if in, ok := deeper(q.Prefix, k); ok && !q.Recursive {
					k = in
				}
				if strings.HasPrefix(k, q.Prefix) && (len(want) == 0 || k != want[len(want)-1]) {
					want = append(want, k)
				}
			}
			err := o.List(t.Context(), q, func(x hearth.Object) error { got = append(got, x.Key); return nil })
			if name == "neither" {
				if !errors.Is(err, errLied) || !strings.Contains(err.Error(), `"perhaps"`) {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %+v: %v, %q", name, q, err, got)
			}
		}
	}
	f := &fakeLister{keys: keys}
	o := f.lists(t)
	if listedKeys(t, o); f.requests.Load() != 1 {
		t.Errorf("a server that says what it means was asked %d times", f.requests.Load())
	}
}

func TestKeysAsTheServerHoldsThem(t *testing.T) {
	// Some servers ignore encoding-type=url, say that they encode and do not, or encode and do not say so.
	// Each key and each group is the one that can be asked for, also where it could be read in both ways.
	for _, keys := range [][]string{
		{"a+b", "c"}, {"a%20b"}, {"a b"}, {"100%", "a+b"}, {"100%25"}, {"%2Bx/y"}, {"x+y/z", "x/z"}, {"a%zz", "a%41"}, {"é+", "é"}, {"plain", "d/plain"},
		{"a b", "a+b", "a%2Bb"}, {"+", "%", "%%", " "},
	} {
		for _, how := range []struct{ encodes, says bool }{{true, true}, {false, false}, {false, true}, {true, false}} {
			f := &fakeLister{keys: slices.Clone(keys), encodes: how.encodes, says: how.says}
			o := f.lists(t)
			for _, recursive := range []bool{true, false, true} {
				var got, want []string
				for _, k := range f.keys {
					if in, ok := deeper("", k); ok && !recursive {
						k = in
					}
					want = append(want, k)
				}
				err := o.List(t.Context(), hearth.Listing{Recursive: recursive}, func(x hearth.Object) error { got = append(got, x.Key); return nil })
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%+v: %v, %q, want %q", how, err, got, want)
				}
			}
			if n := f.requests.Load(); n > 5 {
				t.Errorf("%+v, %q: %d requests for three pages", how, keys, n)
			}
		}
	}
}
