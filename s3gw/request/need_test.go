package request

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNeeds(t *testing.T) {
	// Each request needs the rights to all that it can read or change at any origin, and to no
	// more.
	for _, c := range []struct{ method, target, header, want string }{
		{"GET", "/", "", ""},
		{"GET", "/?max-buckets=1", "", "r /"},
		{"OPTIONS", "/bucket/a", "", ""},
		{"HEAD", "/bucket", "", "r bucket/some"},
		{"HEAD", "/bucket?new", "", "r bucket/"},
		{"GET", "/bucket?location", "", "r bucket/some"},
		{"GET", "/bucket?versioning", "", "r bucket/some"},
		{"GET", "/bucket?policy", "", "r bucket/"},
		{"GET", "/bucket?prefix=a", "", "r bucket/a"},
		{"GET", "/bucket?versions&prefix=a%2Fb", "", "r bucket/a/b"},
		{"GET", "/bucket?uploads&prefix=a", "", "r bucket/a"},
		{"GET", "/bucket?uploads&prefix=a&acl", "", "r bucket/"},
		{"GET", "/bucket?prefix=a&new", "", "r bucket/"},
		{"GET", "/bucket?prefix=a&Prefix=b", "", "r bucket/"},
		{"GET", "/bucket?prefix=a;prefix=b", "", "r bucket/"},
		{"GET", "/bucket?list-type=2;prefix=b&prefix=a", "", "r bucket/"},
		{"GET", "/bucket?x-amz-a;prefix=b&prefix=a", "", "r bucket/"},
		{"GET", "/bucket?prefix=a/../", "", "r bucket/a/../, r bucket/"},
		{"GET", "/bucket?prefix=a/../../b", "", "r bucket/a/../../b, r /, r bucket/b"},
		{"GET", "/bucket?prefix=a/.", "", "r bucket/a/."},
		{"GET", "/bucket/a", "", "r bucket/a"},
		{"GET", "/bucket/a/../b", "", "r bucket/a/../b, r bucket/b"},
		{"GET", "/bucket/a//b", "", "r bucket/a//b, r bucket/a/b"},
		{"GET", "/bucket//a", "", "r bucket//a, r bucket/a"},
		{"GET", "/bucket/../b", "", "r bucket/../b, r /"},
		{"PUT", "/bucket/../b", "", "w bucket/../b, w /"},
		{"POST", "/bucket/a?select&select-type=2", "", "r bucket/a"},
		{"PUT", "/bucket/a", "", "w bucket/a"},
		{"PUT", "/bucket/a?tagging", "", "w bucket/a"},
		{"PUT", "/bucket/a", "X-Amz-Meta-Snowball-Auto-Extract: true", "w bucket/"},
		{"PUT", "/bucket/a", "X-Amz-Copy-Source: other/b", "w bucket/a, r other/b"},
		{"PUT", "/bucket/a?acl", "X-Amz-Copy-Source: other/b", "w bucket/a, r other/b"},
		{"PUT", "/bucket/a", "X-Amz-Copy-Source: other/b+c", "w bucket/a, r other/b+c, r other/b c"},
		{"PUT", "/bucket/a", "X-Amz-Copy-Source: other/b/../c", "w bucket/a, r other/b/../c, r other/c"},
		{"DELETE", "/bucket/a", "", "w bucket/a"},
		{"DELETE", "/bucket", "", "w bucket/"},
		{"POST", "/bucket?delete", "", "w bucket/some"},
		{"POST", "/bucket?hearth-batch", "", "r bucket/some"},
		{"PUT", "/bucket?policy", "", "w bucket/"},
	} {
		header := c.header
		if header == "" {
			header = "Te: trailers"
		}
		q, err := Parse(ask(t, c.method, c.target, header), Options{})
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.target, err)
			continue
		}
		var asked []string
		all := q.Allowed(func(n Need) bool {
			asked = append(asked, said(n))
			return true
		})
		if got := strings.Join(asked, ", "); got != c.want || !all {
			t.Errorf("%s %s %s: %s (%v), want %s", c.method, c.target, c.header, got, all, c.want)
		}
		// If any one of them is missing, it is refused.
		for _, missing := range asked {
			if q.Allowed(func(n Need) bool { return said(n) != missing }) {
				t.Errorf("%s %s is allowed without %s", c.method, c.target, missing)
			}
		}
	}
}

func said(n Need) string {
	verb, key := "r", n.Key
	if n.Write {
		verb = "w"
	}
	if n.Some {
		key = "some"
	}
	return fmt.Sprintf("%s %s/%s", verb, n.Bucket, key)
}

func TestAlias(t *testing.T) {
	// A key that is a path for some server is known by where it leads.
	for key, want := range map[string]string{"": "", "a": "a", "a/": "a/", "a/b": "a/b", ".a": ".a", "a//b": "a/b", "/a": "a", "//a//": "a/",
		"a/./b": "a/b", "a/..": "", "a/../b": "b", "./a": "a", "a/.": "a", "a/../": "", "../a": "a!", "a/../../b": "b!", "/": "", ".": "",
		"a/b/../../c": "c"} {
		alias, outside := Alias(key)
		if outside {
			alias += "!"
		}
		if alias != want {
			t.Errorf("%q: %q, want %q", key, alias, want)
		}
		if slices.Contains([]string{"", "a", "a/", "a/b", ".a"}, key) != regular(key) {
			t.Errorf("%q: regular %v", key, regular(key))
		}
	}
}
