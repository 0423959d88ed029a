package listing

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// answer is the content of a listing.
type answer struct {
	keys, groups []string
	truncated    bool
}

// reference lists a sorted slice by the definition: the keys with the prefix behind after, grouped.
// With skip a group that after names is left out.
func reference(keys []string, q Query, after string, skip bool) (a answer) {
	for _, key := range keys {
		if !strings.HasPrefix(key, q.Prefix) || key <= after && after != "" {
			continue
		}
		group := ""
		if q.Delimiter != "" {
			if i := strings.Index(key[len(q.Prefix):], q.Delimiter); i >= 0 {
				group = key[:len(q.Prefix)+i+1]
			}
		}
		if group != "" && (slices.Contains(a.groups, group) || skip && group == after) {
			continue
		}
		if len(a.keys)+len(a.groups) == q.Max {
			a.truncated = q.Max > 0
			return a
		}
		if group != "" {
			a.groups = append(a.groups, group)
		} else {
			a.keys = append(a.keys, key)
		}
	}
	return a
}

func (a answer) check(t *rapid.T, p page) {
	t.Helper()
	if !slices.Equal(p.keys(), a.keys) || !slices.Equal(p.groups(), a.groups) || p.IsTruncated != a.truncated {
		t.Fatalf("keys %q groups %q truncated %v, want %q %q %v", p.keys(), p.groups(), p.IsTruncated, a.keys, a.groups, a.truncated)
	}
}

func keysOf(t *rapid.T) []string {
	piece := rapid.SampledFrom([]string{"a", "b", "-", "/", "/", "0", "a/", ".", "é", "a-b", "z/y/x", "\x00", "`\U0010FFFF"})
	keys := rapid.SliceOfDistinct(rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(piece, 1, 5).Draw(t, "pieces"), "")
	}), rapid.ID[string]).Draw(t, "keys")
	slices.Sort(keys)
	return keys
}

// near draws a string like a part of one of the keys.
func near(t *rapid.T, keys []string, what string) string {
	s := rapid.SampledFrom(append([]string{"", "a", "/", "b/", "-"}, keys...)).Draw(t, what)
	s = s[:rapid.IntRange(0, len(s)).Draw(t, what+" length")]
	return s + rapid.SampledFrom([]string{"", "", "", "/", "0", "\x00", "a"}).Draw(t, what+" end")
}

func TestModel(t *testing.T) {
	// For any keys and any query the answer is what the definition says. Its pages, followed to the
	// end, list each key and group once. An origin that is asked for one of them by ForOrigin lists
	// the same.
	rapid.Check(t, func(t *rapid.T) {
		keys := keysOf(t)
		for range 20 {
			walkPages(t, keys, Query{Version: rapid.IntRange(1, 2).Draw(t, "version"), Max: rapid.IntRange(0, 5).Draw(t, "max"), URL: true,
				Delimiter: rapid.SampledFrom([]string{"", "/"}).Draw(t, "delimiter"), Prefix: near(t, keys, "prefix"), After: near(t, keys, "after")})
		}
	})
}

func walkPages(t *rapid.T, keys []string, q Query) {
	tree := treeOfKeys(keys...)
	for pages := 0; ; pages++ {
		document, err := Answer(t.Context(), tree, Bucket{Name: "b"}, q, nil)
		if inGroup(q) {
			if !errors.Is(err, ErrUnsure) {
				t.Fatalf("inside a group: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p := decoded(t, document)
		reference(keys, q, q.behind(), true).check(t, p)
		if q.Token != "" {
			checkOrigin(t, keys, q, p)
		}
		if !p.IsTruncated {
			return
		}
		next(t, &q, p)
		if pages > len(keys) {
			t.Fatal("pages without end")
		}
	}
}

// inGroup reports whether a page begins in a group, which the origin answers.
func inGroup(q Query) bool {
	rest, ok := strings.CutPrefix(q.behind(), q.Prefix)
	i := strings.IndexByte(rest, '/')
	return q.Max > 0 && q.Delimiter != "" && ok && i >= 0 && (i+1 < len(rest) || q.Version == 2 && q.Token == "")
}

// next returns the query for the next page, as a client makes it.
func next(t *rapid.T, q *Query, p page) {
	switch {
	case q.Version == 2:
		q.Token = p.NextContinuationToken
	case q.Delimiter != "":
		q.After = p.NextMarker
	default:
		q.After = p.Contents[len(p.Contents)-1].Key
	}
	if (q.Version == 2 || q.Delimiter == "") != (p.NextMarker == "") {
		t.Fatalf("NextMarker %q", p.NextMarker)
	}
}

// checkOrigin asks an origin for the same page. That origin lists a group if one of its keys
// follows.
func checkOrigin(t *rapid.T, keys []string, q Query, p page) {
	sent := "list-type=2&delimiter=" + q.Delimiter + "&prefix=" + url.QueryEscape(q.Prefix)
	raw := ForOrigin("start-after=a&" + sent + "&continuation-token=" + q.Token)
	after, ok := strings.CutPrefix(raw, sent+"&start-after=")
	if !ok {
		t.Fatalf("asked with %q", raw)
	}
	for _, skip := range []bool{false, true} {
		reference(keys, q, unescaped(t, after), skip).check(t, p)
	}
}

func TestPlaces(t *testing.T) {
	// A directory sorts as its name with "/" behind, and a place before a prefix comes before each
	// name with that prefix.
	names := []string{"", "a", "a-", "a0", "a-0", "ab", "a\x00", "a\x00\x00", "0", "-", "b", "é", "a."}
	for _, a := range names {
		for _, b := range names {
			for i := range 4 {
				p, e := place{name: a, dir: i&1 != 0, set: true}, Entry{Name: b, Dir: i&2 != 0}
				if got, want := p.less(e), p.after() < (place{name: b, dir: e.Dir}).after(); got != want {
					t.Errorf("%+v before %+v: %v", p, e, got)
				}
			}
		}
		if p := before(a); !p.less(Entry{Name: a}) && a != "" {
			t.Errorf("%+v is not before %q", p, a)
		}
	}
}
