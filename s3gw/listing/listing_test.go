package listing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

func TestDescends(t *testing.T) {
	// A page in the middle of a big tree reads the names that it lists, and few others. The last
	// page says that nothing follows.
	var objects []*hearth.Object
	for d := range 100 {
		for f := range 100 {
			objects = append(objects, object(fmt.Sprintf("data/%02d/part/%03d", d, f)))
		}
	}
	for name, c := range map[string]struct {
		q           Query
		first       string
		told, asked int
		truncated   bool
	}{
		"in the midst":      {Query{After: "data/50/part/050"}, "data/50/part/051", 11, 1, true},
		"behind the last":   {Query{After: "data/50/part/099"}, "data/51/part/000", 23, 5, true},
		"behind all":        {Query{After: "data/99/part/099"}, "", 0, 4, false},
		"inside a name":     {Query{Prefix: "data/7"}, "data/70/part/000", 23, 3, true},
		"one directory":     {Query{Prefix: "data/77/part/", Delimiter: "/"}, "data/77/part/000", 11, 1, true},
		"none there":        {Query{Prefix: "date/", Delimiter: "/"}, "", 0, 1, false},
		"before the prefix": {Query{Prefix: "data/98/", After: "a"}, "data/98/part/000", 12, 2, true},
		"after the prefix":  {Query{Prefix: "data/98/", After: "e"}, "", 0, 0, false},
	} {
		n := treeOf(objects...)
		c.q.Version, c.q.Max = 2, 10
		document, err := Answer(t.Context(), n, Bucket{}, c.q, nil)
		if err != nil {
			t.Fatal(name, err)
		}
		p := read(t, document)
		if p.IsTruncated != c.truncated || (c.first == "") != (len(p.Contents) == 0) || c.first != "" && p.Contents[0].Key != c.first {
			t.Errorf("%s: %s", name, document)
		}
		if n.told != c.told || n.asked != c.asked {
			t.Errorf("%s: %d entries read, %d questions; want %d, %d", name, n.told, n.asked, c.told, c.asked)
		}
	}
}

func TestUnsure(t *testing.T) {
	// A listing that the tree does not know, or that XML cannot carry, is not answered: nothing is
	// left in the buffer, and the cause is known.
	broken := errors.New("broken")
	failing := treeOfKeys("a", "b/c", "d")
	failing.fail = func(prefix string) error {
		if prefix == "b/" {
			return broken
		}
		return nil
	}
	unsure := treeOfKeys("a", "b/c")
	unsure.fail = func(string) error { return ErrUnsure }
	weak := object("weak")
	weak.ETag = `W/"1"`
	backward := treeOfKeys("a", "b", "c")
	slices.Reverse(backward.dirs[""])
	two := Query{Version: 2, Max: 10}
	for name, c := range map[string]struct {
		n    Names
		b    Bucket
		q    Query
		want error
	}{
		"the tree says so":          {unsure, Bucket{}, two, ErrUnsure},
		"the tree fails midway":     {failing, Bucket{}, two, broken},
		"a control character":       {treeOfKeys("a\x01"), Bucket{}, two, ErrUnsure},
		"U+FFFF":                    {treeOfKeys("a\uffff"), Bucket{}, two, ErrUnsure},
		"not UTF-8":                 {treeOfKeys("a\xff"), Bucket{}, two, ErrUnsure},
		"a group's name":            {treeOfKeys("a\x01/b"), Bucket{}, Query{Version: 2, Max: 10, Delimiter: "/"}, ErrUnsure},
		"a prefix":                  {treeOfKeys("a"), Bucket{}, Query{Version: 2, Max: 10, Prefix: "\x01"}, ErrUnsure},
		"a weak ETag":               {treeOf(weak), Bucket{}, two, ErrUnsure},
		"a key that is too long":    {treeOfKeys(strings.Repeat("a", 1025)), Bucket{}, two, ErrUnsure},
		"a group that is too long":  {treeOfKeys(strings.Repeat("a", 1024) + "/b"), Bucket{}, Query{Version: 2, Max: 10, Delimiter: "/"}, ErrUnsure},
		"not in order":              {backward, Bucket{}, two, ErrUnsure},
		"an owner that is unknown":  {treeOfKeys("a"), Bucket{}, Query{Version: 2, Max: 10, Owner: true}, ErrUnsure},
		"behind a part of a group":  {treeOfKeys("a/b"), Bucket{}, Query{Version: 1, Max: 10, Delimiter: "/", After: "a/a"}, ErrUnsure},
		"a name that is no segment": {wrong{Entry{Name: "a/b", Object: object("a/b")}}, Bucket{}, two, ErrUnsure},
		"a file without an object":  {wrong{Entry{Name: "a"}}, Bucket{}, two, ErrUnsure},
	} {
		buf := append(make([]byte, 0, 4096), "before"...)
		got, err := Answer(t.Context(), c.n, c.b, c.q, buf)
		if !errors.Is(err, c.want) || string(got) != "before" {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	deep := treeOfKeys(strings.Repeat("/", 3000))
	if _, err := Answer(t.Context(), deep, Bucket{}, two, nil); !errors.Is(err, ErrUnsure) || deep.asked > maxKey+1 {
		t.Errorf("a tree that is too deep: %v after %d questions", err, deep.asked)
	}
	gone, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Answer(gone, treeOfKeys("a"), Bucket{}, two, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has gone: %v", err)
	}
}

// wrong is a tree with one entry.
type wrong struct{ Entry }

func (w wrong) Dir(_ context.Context, _, _ string, each func(Entry) bool) error {
	each(w.Entry)
	return nil
}

func (w wrong) Asks(string, bool) bool { return false }

func TestDocument(t *testing.T) {
	// A document is appended to the buffer. It has keys that need escapes, the longest prefix, and
	// owners and class where they are known.
	long := strings.Repeat("&", 1000) + "/"
	b := Bucket{Name: "b<", Owner: Owner{ID: "me", Name: "M&E"}, Class: "STANDARD"}
	for _, keys := range [][]string{{}, {"a"}, {long + "a", long + "b/c"}, {"a&b<c>d\"e'f", "g\th\ni\rj", "k\u00e9\U0001F600\x7f"}} {
		prefix := ""
		if len(keys) > 0 && strings.HasPrefix(keys[0], long) {
			prefix = long
		}
		for version := 1; version <= 2; version++ {
			got, err := Answer(t.Context(), treeOfKeys(keys...), b, Query{Version: version, Max: 1000, Prefix: prefix, Owner: version == 2}, []byte("x"))
			if err != nil || got[0] != 'x' {
				t.Fatal(string(got), err)
			}
			p := read(t, got[1:])
			if !slices.Equal(p.keys(), keys) && len(keys) > 0 || p.Prefix != prefix || p.Name != "b<" || p.IsTruncated || p.MaxKeys != 1000 {
				t.Errorf("%q: %+v", keys, p)
			}
			for i, c := range p.Contents {
				o := object(keys[i])
				if c.ETag != `"`+o.ETag+`"` || c.Size != o.Size || c.LastModified != "2023-11-14T22:13:20.123Z" || c.Owner.ID != "me" ||
					c.Owner.DisplayName != "M&E" || c.StorageClass != "STANDARD" {
					t.Errorf("%+v", c)
				}
			}
		}
	}
	got, err := Answer(t.Context(), treeOfKeys("a"), Bucket{Name: "b"}, Query{Version: 1, Max: 1}, nil)
	if s := string(got); err != nil || strings.Contains(s, "Owner") || strings.Contains(s, "StorageClass") {
		t.Errorf("what is not known is told: %s %v", s, err)
	}
}

func TestTime(t *testing.T) {
	// A time is written as the time package does.
	for _, s := range []string{"2026-11-23T08:10:16.664Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "2024-02-29T12:00:00+09:00"} {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{at, at.AddDate(9000, 0, 0)} {
			if got, want := string(appendTime(nil, at)), at.UTC().Format("2006-01-02T15:04:05.000Z"); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
	}
}

func TestSmall(t *testing.T) {
	// The other answers equal MinIO's, byte for byte, except elements that MinIO leaves out.
	const xmlns = ` xmlns="http://s3.amazonaws.com/doc/2006-03-01/"`
	at := time.Date(2026, 11, 23, 8, 10, 16, 653e6, time.UTC)
	for got, want := range map[string]string{
		string(AppendLocation(nil, "us-east-1")): "<LocationConstraint" + xmlns + "></LocationConstraint>",
		string(AppendLocation(nil, "eu-west-1")): "<LocationConstraint" + xmlns + ">eu-west-1</LocationConstraint>",
		string(BucketQuery{}.Append(nil, Owner{ID: "02d6", Name: "minio"}, []Bucket{{Name: "bkt", Created: at}, {Name: "c"}})): "<ListAllMyBucketsResult" + xmlns +
			"><Owner><ID>02d6</ID><DisplayName>minio</DisplayName></Owner><Buckets><Bucket><Name>bkt</Name>" +
			"<CreationDate>2026-11-23T08:10:16.653Z</CreationDate></Bucket><Bucket><Name>c</Name></Bucket></Buckets></ListAllMyBucketsResult>",
	} {
		if want = `<?xml version="1.0" encoding="UTF-8"?>` + "\n" + want; got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
	h := http.Header{}
	if SetBucketHeader(h, "eu-west-1"); h.Get("x-amz-bucket-region") != "eu-west-1" {
		t.Error(h)
	}
}

// BenchmarkAnswer writes pages of a thousand keys: in one directory, in a hundred, and as groups.
func BenchmarkAnswer(b *testing.B) {
	var flat, deep []*hearth.Object
	for i := range 2000 {
		flat = append(flat, object(fmt.Sprintf("train/shard-%06d.tar", i)))
		deep = append(deep, object(fmt.Sprintf("train/class-%04d/image-%06d.jpg", i/10, i)))
	}
	bucket := Bucket{Name: "bucket", Class: "STANDARD"}
	for _, c := range []struct {
		name string
		n    Names
		q    Query
	}{
		{"flat", treeOf(flat...), Query{Version: 2, Prefix: "train/", Delimiter: "/", Max: 1000}},
		{"url", treeOf(flat...), Query{Version: 2, Prefix: "train/", Max: 1000, URL: true}},
		{"directories", treeOf(deep...), Query{Version: 2, Max: 1000}},
		{"groups", treeOf(deep...), Query{Version: 2, Prefix: "train/", Delimiter: "/", Max: 1000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			buf, err := Answer(b.Context(), c.n, bucket, c.q, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if buf, err = Answer(b.Context(), c.n, bucket, c.q, buf[:0]); err != nil {
					b.Fatal(err)
				}
			}
			_, _ = io.Discard.Write(buf)
		})
	}
}

func TestAPageAllocatesNothingPerKey(t *testing.T) {
	allocated := func(keys int) float64 {
		var objects []*hearth.Object
		for i := range keys {
			objects = append(objects, object(fmt.Sprintf("train/image-%06d.jpg", i)))
		}
		names, q := treeOf(objects...), Query{Version: 2, Prefix: "train/", Max: 1000}
		var buf []byte
		return testing.AllocsPerRun(20, func() {
			var err error
			if buf, err = Answer(t.Context(), names, Bucket{Name: "bucket", Class: "STANDARD"}, q, buf[:0]); err != nil {
				t.Fatal(err)
			}
		})
	}
	if few, many := allocated(10), allocated(1000); many > few {
		t.Errorf("a page of 10 keys allocates %v times, one of 1,000 %v times", few, many)
	}
}

func TestStorageClasses(t *testing.T) {
	// Objects of other storage classes stand among those of the bucket's class. Each is listed with
	// its class, and with an owner if that was asked for. By the class clients leave archived
	// objects alone.
	var objects []*hearth.Object
	classes := []string{"", "GLACIER", "GLACIER", "", "STANDARD_IA", "a<b"}
	for i, class := range classes {
		o := object(string(rune('a' + i)))
		o.Class = class
		objects = append(objects, o)
	}
	for _, owner := range []bool{false, true} {
		got, err := Answer(t.Context(), treeOf(objects...), Bucket{Name: "b", Owner: Owner{ID: "me"}, Class: "STANDARD"}, Query{Version: 2, Max: 1000, Owner: owner}, nil)
		if err != nil {
			t.Fatal(err)
		}
		page := read(t, got)
		for i, c := range page.Contents {
			if c.StorageClass != cmp.Or(classes[i], "STANDARD") || owner != (c.Owner.ID == "me") {
				t.Errorf("%+v, want class %q", c, classes[i])
			}
		}
		if len(page.Contents) != len(classes) {
			t.Errorf("%d keys", len(page.Contents))
		}
	}
}
