package listing

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/hearthfs/hearth"
)

// directories returns the keys of a tree with so many directories and so many keys in each, named
// by pattern.
func directories(pattern string, dirs, keys int) *tree {
	var objects []*hearth.Object
	for d := range dirs {
		for k := range keys {
			objects = append(objects, object(fmt.Sprintf(pattern, d)+fmt.Sprintf("/%04d", k)))
		}
	}
	return treeOf(objects...)
}

func TestColdPages(t *testing.T) {
	// A page of an unknown tree without a delimiter asks the origin for few directories, some at
	// once. Or it passes to the origin, and that is decided before it waits for most of them.
	page := Query{Version: 2, Max: 1000, Asks: MostAsked}
	alone, groups := page, page
	alone.Asks, groups.Delimiter = 0, "/"
	for name, c := range map[string]struct {
		n        *tree
		q        Query
		unsure   bool
		requests int
		waits    int
	}{
		"a key in each":                         {directories("%03d", 400, 1), page, true, 2 + maxAhead, 2},
		"in two levels":                         {directories("%d/x", 400, 1), page, true, 3 + maxAhead, 3},
		"few":                                   {directories("%d", 10, 10), page, false, 11, 4},
		"as many as may be":                     {directories("%02d", MostAsked-1, 1), page, false, MostAsked, 4},
		"one more":                              {directories("%02d", MostAsked, 1), page, true, 2 + maxAhead, 2},
		"large ones":                            {directories("%03d", 400, 1000), page, false, 3, 3},
		"none is asked for that is behind them": {directories("%03d", 400, 300), page, false, 5, 3},
		"a few keys":                            {directories("%03d", 400, 1), Query{Version: 2, Max: 5, Asks: MostAsked}, false, 7, 3},
		"it cannot pass":                        {directories("%03d", 400, 1), alone, false, 401, 52},
		"groups":                                {directories("%03d", 400, 1), groups, false, 1, 1},
	} {
		c.n.cold()
		document, err := Answer(t.Context(), c.n, Bucket{}, c.q, nil)
		if c.unsure != errors.Is(err, ErrUnsure) || err != nil && !c.unsure || c.unsure != (len(document) == 0) {
			t.Errorf("%s: %v", name, err)
		}
		if len(c.n.requests) != c.requests || c.n.waits != c.waits {
			t.Errorf("%s: %d requests, waited for %d times; want %d, %d", name, len(c.n.requests), c.n.waits, c.requests, c.waits)
		}
		if c.unsure {
			continue
		}
		c.n.requests = nil
		again, err := Answer(t.Context(), c.n, Bucket{}, c.q, nil)
		if err != nil || string(again) != string(document) || len(c.n.requests) != 0 {
			t.Errorf("%s: the second time %v, %d requests", name, err, len(c.n.requests))
		}
		c.n.known = nil
		if known, err := Answer(t.Context(), c.n, Bucket{}, c.q, nil); err != nil || string(known) != string(document) {
			t.Errorf("%s: another answer from what is known: %v", name, err)
		}
	}
}

func TestPagesGetKnown(t *testing.T) {
	// What a page that passed had asked for is known to the next. After some pages the whole page
	// comes from the tree, and asks for nothing. Names past their bound are asked for again.
	n := directories("%03d", 200, 3).cold()
	q := Query{Version: 2, Max: 1000, Asks: MostAsked}
	passed := 0
	for ; ; passed++ {
		n.requests = nil
		_, err := Answer(t.Context(), n, Bucket{}, q, nil)
		if len(n.requests) > MostAsked || passed > 200 {
			t.Fatalf("%d requests after %d pages", len(n.requests), passed)
		}
		n.arrive()
		if err == nil {
			break
		}
	}
	if least := 200/MostAsked - 1; passed < least || passed > 200/maxAhead {
		t.Errorf("%d pages passed", passed)
	}
	n.requests = nil
	if _, err := Answer(t.Context(), n, Bucket{}, q, nil); err != nil || len(n.requests) > 0 {
		t.Errorf("known: %v, %d requests", err, len(n.requests))
	}
	delete(n.known, "") // its bound has passed
	delete(n.known, "017/")
	if _, err := Answer(t.Context(), n, Bucket{}, q, nil); err != nil || !slices.Equal(n.requests, []string{"", "017/"}) {
		t.Errorf("two were forgotten: %v, asked for %q", err, n.requests)
	}
}

func TestPagesOfTreeAndOrigin(t *testing.T) {
	// Some pages come from the tree and some from the origin, as the tree learns and forgets
	// directories. Together they list each key once, and none asks for more than it may.
	rapid.Check(t, func(t *rapid.T) {
		keys := keysOf(t)
		tree := treeOfKeys(keys...).cold()
		all := slices.Sorted(maps.Keys(tree.dirs))
		q := Query{Version: 2, Max: rapid.IntRange(1, 5).Draw(t, "max"), URL: true, Asks: rapid.IntRange(1, 4).Draw(t, "asks")}
		var got []string
		for pages := 0; pages <= len(keys); pages++ {
			if dir := rapid.SampledFrom(all).Draw(t, "dir"); rapid.Bool().Draw(t, "known") {
				tree.known[dir] = true
			} else {
				delete(tree.known, dir)
			}
			tree.requests = nil
			document, err := Answer(t.Context(), tree, Bucket{Name: "b"}, q, nil)
			if len(tree.requests) > q.Asks {
				t.Fatalf("asked for %q, may for %d", tree.requests, q.Asks)
			}
			tree.arrive()
			told := reference(keys, q, q.behind(), false) // the origin's: a client goes on by its last key
			if err == nil {
				p := decoded(t, document)
				told.check(t, p)
				q.Token, q.After = p.NextContinuationToken, ""
			} else if !errors.Is(err, ErrUnsure) {
				t.Fatal(err)
			} else if told.truncated {
				q.Token, q.After = "", told.keys[len(told.keys)-1]
			}
			got = append(got, told.keys...)
			if !told.truncated {
				if !slices.Equal(got, keys) {
					t.Fatalf("%q, want %q", got, keys)
				}
				return
			}
		}
		t.Fatal("pages without end")
	})
}

// BenchmarkColdFlat measures a page of which nothing is known: requests to the origin, and how
// often the page waits for it. A page that passes costs one more of both.
func BenchmarkColdFlat(b *testing.B) {
	for _, c := range []struct {
		name       string
		dirs, keys int
	}{{"10x10", 10, 10}, {"400x1", 400, 1}, {"400x100", 400, 100}, {"400x1000", 400, 1000}} {
		n := directories("%03d", c.dirs, c.keys)
		b.Run(c.name, func(b *testing.B) {
			passed := 0.0
			n.requests, n.waits = nil, 0
			for b.Loop() {
				n.cold()
				if _, err := Answer(b.Context(), n, Bucket{}, Query{Version: 2, Max: maxKeys, Asks: MostAsked}, nil); err != nil {
					passed++
				}
			}
			b.ReportMetric(float64(len(n.requests))/float64(b.N), "requests/page")
			b.ReportMetric(float64(n.waits)/float64(b.N), "waits/page")
			b.ReportMetric(passed/float64(b.N), "passed/page")
		})
	}
}
