package share

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/route"
	"github.com/hearthfs/hearth/peer/wire"
)

// sample is a question, and an answer to it.
func sample() (*question, hearth.Told, []hearth.Object) {
	q := &question{dir: hearth.Directory{ID: [16]byte{1, 2}, Link: "/ s3://b", Identity: identity, Prefix: "p/"}, behind: "a", old: 45 * time.Second}
	file := hearth.Object{Link: "/ s3://b", Key: "p/b", ETag: "e-2", Size: 5 << 30, ModTime: time.Unix(1700000000, 123456789)}
	file.Version = hearth.VersionOf(identity, file.Key, file.ETag, file.Size)
	group := hearth.Object{Link: "/ s3://b", Key: "p/b/", Size: hearth.PrefixSize}
	empty := hearth.Object{Link: "/ s3://b", Key: "p/..", ModTime: time.Unix(-5, 0), Exact: true, Class: "GLACIER"}
	empty.Version = hearth.VersionOf(identity, empty.Key, "", 0)
	return q, hearth.Told{Age: 3 * time.Second, Took: 1500 * time.Millisecond, Hidden: 2, Last: true}, []hearth.Object{file, group, empty}
}

// encode writes a page as an owner does.
func encode(t testing.TB, told hearth.Told, prefix int, objects []hearth.Object) []byte {
	p := page{prefix: prefix}
	for i := range objects {
		p.add(&objects[i])
	}
	b, err := p.end(told)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	// Questions, pages and names come out as they went in; the Version is computed.
	q, told, objects := sample()
	objects[2].Key = "p/c"
	objects[2].Version = hearth.VersionOf(identity, "p/c", "", 0)
	b, err := q.append(nil)
	if err != nil {
		t.Fatal(err)
	}
	back, err := parseQuestion(b)
	if err != nil {
		t.Fatal(err)
	}
	want := *q
	if want.dir.Identity = ""; *back != want {
		t.Errorf("%+v, not %+v", back, want)
	}
	gotTold, got, err := parsePage(encode(t, told, 2, objects), q)
	if err != nil || gotTold != told || !slices.Equal(got, objects) {
		t.Errorf("%+v %+v %v", gotTold, got, err)
	}
	q.behind = "b"
	classed := objects[0]
	classed.Class = "STANDARD_IA"
	for _, f := range []hearth.Found{{Object: &objects[0], Age: time.Second}, {Object: &classed}, {Dir: true}, {Age: time.Hour}} {
		got, err := parseFound(appendFound(nil, &f), q)
		if err != nil || got.Dir != f.Dir || got.Age != f.Age || (got.Object == nil) != (f.Object == nil) || f.Object != nil && *got.Object != *f.Object {
			t.Errorf("%+v, not %+v: %v", got, f, err)
		}
	}
}

func TestAPageEndsWhereItsRoomDoes(t *testing.T) {
	// A page takes a thousand names, or fewer that are long, and then says that there are more.
	for name, want := range map[string]int{"n": pageNames, strings.Repeat("n", 1000): 0} {
		p := page{prefix: 2}
		n := 0
		for p.add(&hearth.Object{Key: "p/" + name, ETag: "e", ModTime: time.Unix(1, 0)}) {
			n++
		}
		b, err := p.end(hearth.Told{Last: true})
		if err != nil {
			t.Fatal(err)
		}
		if n < 100 || want != 0 && n != want || len(b) > pageBytes || b[24] != 0 {
			t.Errorf("names of %d bytes: %d of them in %d bytes, last: %d", len(name), n, len(b), b[24])
		}
	}
	if _, err := (&page{}).end(hearth.Told{}); err == nil {
		t.Error("a page that leads nowhere")
	}
}

func TestAnAnswerWaitsForMemory(t *testing.T) {
	// An owner without memory waits a while for others to release some, and then refuses. An asker
	// without memory for an answer asks again.
	synctest.Test(t, func(t *testing.T) {
		pool := hearth.NewPool(0)
		var held []*hearth.View
		for _, size := range []int{hearth.BlockSize, 512} {
			for v := pool.TryAlloc(size); v != nil; v = pool.TryAlloc(size) {
				held = append(held, v)
			}
		}
		n := New(Options{Pool: pool, Owner: func([16]byte) (string, bool) { return "me", true }})
		n.Serve(many{page: []hearth.Object{{Key: "f"}}})
		q := question{}
		body, err := q.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := n.names(t.Context(), body); !errors.Is(err, hearth.ErrRefused) || time.Since(began) != memoryWait {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.AfterFunc(memoryWait/2, func() { held[0].Release() })
		v, err := n.names(t.Context(), body)
		if err != nil {
			t.Fatal(err)
		}
		v.Release()
		if s := n.Stats(); s.Refused != 1 || s.ToldPages != 1 || s.Sent == 0 {
			t.Errorf("%+v", s)
		}
		for _, v := range held[1:] {
			v.Release()
		}
	})
	r := route.New("me")
	r.Set(route.Table{Peers: map[string]route.Peer{"other": &crowded{}}})
	n := New(Options{Owner: func([16]byte) (string, bool) { return "other", false }, Call: r.Call})
	if f, err := n.Over(newBucket()).Find(t.Context(), hearth.Directory{}, "d", time.Second); err != nil || !f.Dir {
		t.Errorf("%+v, %v", f, err)
	}
}

// crowded finds no memory for its answers but the fifth.
type crowded struct {
	route.Peer // nil: nobody reads from it

	calls int
}

func (p *crowded) Call(context.Context, uint16, *hearth.View) (*hearth.View, error) {
	if p.calls++; p.calls < 5 {
		return nil, wire.ErrMemory
	}
	return hearth.NewView(appendFound(nil, &hearth.Found{Dir: true})), nil
}

func TestNoAnswerLeadsAstray(t *testing.T) {
	// A peer that is damaged or lies sends a name that is more than one segment, out of order, or not after
	// the cursor. Nothing of such an answer is taken.
	at := func(name string) hearth.Object { return hearth.Object{Key: "p/" + name, ETag: "e"} }
	told := hearth.Told{Last: true}
	pages := map[string][]byte{
		"empty":           {},
		"cut":             encode(t, told, 2, []hearth.Object{at("b")})[:toldSize+3],
		"a path":          encode(t, told, 2, []hearth.Object{at("b/../../c")}),
		"two segments":    encode(t, told, 2, []hearth.Object{{Key: "p/b/c/", Size: hearth.PrefixSize}}),
		"not in order":    encode(t, told, 2, []hearth.Object{at("c"), at("b")}),
		"twice":           encode(t, told, 2, []hearth.Object{at("c"), at("c")}),
		"not behind":      encode(t, told, 2, []hearth.Object{at("a")}),
		"of the future":   append(bytes.Repeat([]byte{255}, 8), encode(t, told, 2, nil)[8:]...),
		"more than all":   append(encode(t, told, 2, []hearth.Object{at("b")}), 9),
		"listed for ever": encode(t, hearth.Told{Last: true, Took: 100 * time.Hour}, 2, []hearth.Object{at("b")}),
		"too old":         encode(t, hearth.Told{Last: true, Age: time.Hour, Took: time.Second}, 2, []hearth.Object{at("b")}),
	}
	none := encode(t, told, 2, nil)
	none[24] = 0
	pages["nothing and no end"] = none
	huge := appendString(append(encode(t, told, 2, nil), kindFile), "b")
	pages["a size that is none"] = append(huge, bytes.Repeat([]byte{255}, 20)...)
	long := encode(t, told, 2, nil)
	pages["a name too long"] = append(appendString(append(long, kindDir), strings.Repeat("x", maxKey+1)), 0)

	var answer []byte
	n := New(Options{Pool: hearth.NewPool(0), Owner: func([16]byte) (string, bool) { return "other", false },
		Call: func(context.Context, string, uint16, *hearth.View) (*hearth.View, error) {
			if answer == nil {
				return nil, nil
			}
			return hearth.NewView(answer), nil
		}})
	s := n.Over(newBucket())
	dir := hearth.Directory{Link: "/", Identity: identity, Prefix: "p/"}
	for what, b := range pages {
		answer = b
		_, err := s.Names(context.Background(), dir, "a", time.Minute, func(o *hearth.Object) bool {
			t.Errorf("%s: took %q", what, o.Key)
			return true
		})
		if !errors.Is(err, ErrAnswer) && !(errors.Is(err, ErrOld) && what == "too old") {
			t.Errorf("%s: %v", what, err)
		}
	}
	finds := map[string][]byte{"nothing": nil, "cut": {0, 0}, "no kind": append(make([]byte, 8), 7), "more": append(make([]byte, 8), kindDir, 1),
		"too old": appendFound(nil, &hearth.Found{Dir: true, Age: time.Hour})}
	for what, b := range finds {
		answer = b
		if f, err := s.Find(context.Background(), dir, "b", time.Minute); err == nil || f != (hearth.Found{}) {
			t.Errorf("%s: %+v, %v", what, f, err)
		}
	}
	if got := n.Stats(); got.Elsewhere != int64(len(pages)+len(finds)) || got.Old != 2 {
		t.Errorf("%+v", got)
	}
	if _, err := s.Find(context.Background(), hearth.Directory{Prefix: strings.Repeat("d", maxKey) + "/"}, "b", 0); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a key that is too long: %v", err)
	}
}

func FuzzPage(f *testing.F) {
	q, told, objects := sample()
	f.Add(encode(f, told, 2, objects[:2]), q.behind)
	f.Add(encode(f, hearth.Told{}, 2, objects[:1]), "")
	f.Fuzz(func(t *testing.T, b []byte, behind string) {
		q, _, _ := sample()
		q.behind = behind
		told, page, err := parsePage(b, q)
		if err != nil {
			return
		}
		if told.Age < 0 || told.Took < 0 || told.Took > maxTook || told.Hidden < 0 || len(page) > pageNames || len(page) == 0 && !told.Last {
			t.Fatalf("%+v and %d names", told, len(page))
		}
		last := q.behind
		for i, o := range page {
			sort, ok := strings.CutPrefix(o.Key, "p/")
			if !ok || strings.Contains(strings.TrimSuffix(sort, "/"), "/") || strings.HasSuffix(sort, "/") != o.IsPrefix() || sort <= last && (i > 0 || last != "") {
				t.Fatalf("name %d: %q behind %q", i, o.Key, last)
			}
			if last = sort; !o.IsPrefix() && (o.Size < 0 || o.Version != hearth.VersionOf(identity, o.Key, o.ETag, o.Size)) {
				t.Fatalf("name %d: %+v", i, o)
			}
		}
	})
}

func FuzzFound(f *testing.F) {
	q, _, objects := sample()
	f.Add(appendFound(nil, &hearth.Found{Object: &objects[0]}))
	f.Add(appendFound(nil, &hearth.Found{Dir: true, Age: time.Second}))
	f.Add(appendFound(nil, &hearth.Found{}))
	q.behind = "b"
	f.Fuzz(func(t *testing.T, b []byte) {
		found, err := parseFound(b, q)
		if o := found.Object; err == nil && (found.Age < 0 || o != nil && (found.Dir || o.Key != "p/b" || o.Size < 0 || o.Version != hearth.VersionOf(identity, o.Key, o.ETag, o.Size))) {
			t.Fatalf("%+v", found)
		}
	})
}

func FuzzQuestion(f *testing.F) {
	q, _, _ := sample()
	b, _ := q.append(nil)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := parseQuestion(b)
		if err != nil {
			return
		}
		if q.old < 0 || strings.Contains(strings.TrimSuffix(q.behind, "/"), "/") || q.dir.Prefix != "" && !strings.HasSuffix(q.dir.Prefix, "/") {
			t.Fatalf("%+v", q)
		}
		again, err := q.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := parseQuestion(again); err != nil || *back != *q {
			t.Fatalf("%+v, not %+v: %v", back, q, err)
		}
	})
}
