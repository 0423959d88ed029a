package listing

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/s3gw/request"
)

// tokenOf returns the token of the page behind a key.
func tokenOf(key string) string {
	w := walk{entry: Entry{Name: key}}
	return string(w.token(nil))
}

func TestParse(t *testing.T) {
	// Queries mean what they mean at Amazon. What Amazon refuses is refused, and what is not known
	// or ambiguous passes.
	token := tokenOf("a/b c")
	for raw, want := range map[string]any{
		"":            Query{Version: 1, Max: 1000},
		"list-type=2": Query{Version: 2, Max: 1000},
		"prefix=a%2Fb&delimiter=%2F&marker=a/bc&max-keys=7&encoding-type=url": Query{Version: 1, Prefix: "a/b", Delimiter: "/", After: "a/bc", Max: 7, URL: true},
		"start-after=%C3%A9&fetch-owner=true&list-type=2":                     Query{Version: 2, After: "é", Max: 1000, Owner: true},
		"list-type=2&continuation-token=" + token:                             Query{Version: 2, Token: token, Max: 1000},
		"list-type=2&max-keys=5000&x-id=ListObjectsV2&X-Amz-Signature=0":      Query{Version: 2, Max: 1000},
		"max-keys=0&delimiter=&prefix=&encoding-type=&&":                      Query{Version: 1},
		"max-keys=": Query{Version: 1, Max: 1000},
		"prefix=a/": Query{Version: 1, Max: 1000, Prefix: "a/"},
		"prefix=.a": Query{Version: 1, Max: 1000, Prefix: ".a"},

		"max-keys=-1":   "InvalidArgument",
		"max-keys=x":    "InvalidArgument",
		"max-keys=0x10": "InvalidArgument",
		"max-keys=1.5":  "InvalidArgument",

		"max-keys=99999999999":                          ErrUnsure,
		"max-keys=-99999999999":                         ErrUnsure,
		"max-keys=%2B5":                                 ErrUnsure,
		"max-keys=-":                                    ErrUnsure,
		"list-type=1":                                   ErrUnsure,
		"list-type=2&list-type=2":                       ErrUnsure,
		"list-type=2&marker=a":                          ErrUnsure,
		"start-after=a":                                 ErrUnsure,
		"fetch-owner=true":                              ErrUnsure,
		"continuation-token=" + token:                   ErrUnsure,
		"list-type=2&fetch-owner=TRUE":                  ErrUnsure,
		"list-type=2&continuation-token=":               ErrUnsure,
		"list-type=2&continuation-token=a":              ErrUnsure,
		"list-type=2&continuation-token=" + token + "A": ErrUnsure,
		"delimiter=-":                                   ErrUnsure,
		"encoding-type=URL":                             ErrUnsure,
		"versions":                                      ErrUnsure,
		"uploads":                                       ErrUnsure,
		"%70refix=a":                                    ErrUnsure,
		"Prefix=a":                                      ErrUnsure,
		"prefix=a+b":                                    ErrUnsure,
		"prefix=a;b":                                    ErrUnsure,
		"prefix=%zz":                                    ErrUnsure,
		"prefix=%FF":                                    ErrUnsure,
		"prefix=/a":                                     ErrUnsure,
		"prefix=a//b":                                   ErrUnsure,
		"prefix=a/..":                                   ErrUnsure,
		"prefix=./":                                     ErrUnsure,
		"prefix=b&marker=a":                             ErrUnsure,
		"marker=b/%5Bminio_cache:v2,return:%5D":         ErrUnsure,
		"prefix=" + strings.Repeat("a", 1025):           ErrUnsure,
		"prefix=a" + strings.Repeat("&x-id=a", 10000): ErrUnsure,
	} {
		got, err := Parse(raw)
		var refused *request.Error
		switch want := want.(type) {
		case Query:
			if err != nil || got != want {
				t.Errorf("%s: %+v %v", raw, got, err)
			}
		case error:
			if !errors.Is(err, want) {
				t.Errorf("%.80s: %v", raw, err)
			}
		case string:
			if !errors.As(err, &refused) || refused.Code != want || refused.HTTPStatus() != 400 {
				t.Errorf("%s: %v", raw, err)
			}
		}
	}
}

func TestForOrigin(t *testing.T) {
	// An origin is asked for the page behind the token's key, and for all else as it was sent. A
	// query without a token of ours is not changed.
	for raw, want := range map[string]string{
		"list-type=2&prefix=%2f&continuation-token=" + tokenOf("a b+c/é"):                "list-type=2&prefix=%2f&start-after=a%20b%2Bc%2F%C3%A9",
		"continuation-token=" + tokenOf("a/") + "&start-after=0&delimiter=/&list-type=2": "delimiter=/&list-type=2&start-after=a%2F%F4%8F%BF%BF",
		"continuation-token=" + tokenOf("a/") + "&list-type=2&delimiter=/&prefix=a%2F":   "list-type=2&delimiter=/&prefix=a%2F&start-after=a%2F",
		"continuation-token=" + tokenOf("a/") + "&list-type=2&delimiter=":                "list-type=2&delimiter=&start-after=a%2F",
		"list-type=2&continuation-token=theirs&start-after=a":                            "list-type=2&continuation-token=theirs&start-after=a",
		"continuation-token=%zz": "continuation-token=%zz",
		"":                       "",
	} {
		if got := ForOrigin(raw); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	// No query panics. A parsed query stays within its bounds, and means the same when it is
	// written again.
	f.Add("list-type=2&prefix=a%2Fb&delimiter=/&start-after=a/b&max-keys=3&encoding-type=url&fetch-owner=true")
	f.Add("prefix=a&marker=ab&max-keys=-1")
	f.Add("list-type=2&continuation-token=" + tokenOf("a/"))
	f.Fuzz(func(t *testing.T, raw string) {
		asked := ForOrigin(raw)
		q, err := Parse(raw)
		if err != nil {
			return
		}
		if q.Max < 0 || q.Max > maxKeys || len(q.Prefix) > maxKey || len(q.After) > maxKey || q.Version != 1 && q.Version != 2 {
			t.Fatalf("%+v", q)
		}
		values, err := url.ParseQuery(raw)
		if err == nil && (values.Get("prefix") != q.Prefix || values.Get("continuation-token") != q.Token || values.Get("start-after")+values.Get("marker") != q.After) {
			t.Fatalf("%+v, want %v", q, values)
		}
		if values, err := url.ParseQuery(asked); err == nil && q.Token != "" && (values.Has("continuation-token") || !strings.HasPrefix(values.Get("start-after"), q.behind())) {
			t.Fatalf("the origin is asked %q", asked)
		}
		if _, err := Answer(t.Context(), treeOfKeys("a", "a/b", "b"), Bucket{Name: "b", Owner: Owner{ID: "me"}}, q, nil); err != nil && !errors.Is(err, ErrUnsure) {
			t.Fatal(err)
		}
	})
}

func FuzzToken(f *testing.F) {
	// A token yields its key, and no other text is a token.
	f.Add("a/b", tokenOf("x"))
	f.Add(strings.Repeat("a", maxKey), "")
	f.Add("\xff\x00", "hearth1.AAAAAGE")
	f.Add("\n", tokenOf("x")+"\n")
	f.Fuzz(func(t *testing.T, key, token string) {
		if len(key) > 0 && len(key) <= maxKey {
			if got, ours := Token(tokenOf(key)); !ours || got != key {
				t.Fatalf("%q: %q %v", key, got, ours)
			}
		}
		if key, ours := Token(token); ours && tokenOf(key) != token {
			t.Fatalf("%q tells %q, whose token is %q", token, key, tokenOf(key))
		}
	})
}
