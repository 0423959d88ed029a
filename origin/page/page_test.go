package page

import (
	"encoding/xml"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const samplePage = `<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix>p/</Prefix><EncodingType>url</EncodingType>
<IsTruncated>true</IsTruncated><NextContinuationToken>tok&amp;en==</NextContinuationToken><Delimiter/>
<Contents><Key>p/a%20b%2Bc+d</Key><LastModified>2024-02-03T04:05:06.789Z</LastModified><ETag>&quot;abc&#34;</ETag><Size>17</Size>
<Owner><ID>x</ID><DisplayName>y</DisplayName></Owner><StorageClass>STANDARD</StorageClass></Contents>
<Contents><Key>p/%E2%98%83</Key><ETag>W/&quot;d&quot;</ETag><Size>0</Size><StorageClass>GLACIER</StorageClass></Contents>
<CommonPrefixes><Prefix>p/b/</Prefix></CommonPrefixes></ListBucketResult>`

func TestAPageIsReadAsItWasMeant(t *testing.T) {
	// Escapes of XML and of the URL encoding are undone, groups and keys merged in
	// byte order, and other fields left alone.
	p, err := Parse([]byte(samplePage))
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Key: "p/a b+c d", ETag: `"abc"`, Size: 17, Modified: time.Date(2024, 2, 3, 4, 5, 6, 789e6, time.UTC)},
		{Key: "p/b/", Prefix: true},
		{Key: "p/☃", ETag: `W/"d"`, Class: "GLACIER"},
	}
	if !p.Truncated || p.Token != "tok&en==" || !slices.Equal(p.Entries, want) {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"", "<html>", "<ListBucketResult>", "<ListBucketResult></Other>", "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>", samplePage[:400]} {
		if p, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, p)
		}
	}
}

// reference is the same page by encoding/xml.
type reference struct {
	XMLName  xml.Name `xml:"ListBucketResult"`
	Contents []struct {
		Key, ETag string
		Size      int64
	}
	CommonPrefixes []struct{ Prefix string }
}

func TestPagesOfAnyKeysAreReadAsEncodingXMLReadsThem(t *testing.T) {
	// Any keys and groups, escaped by the standard library, come back equal.
	rapid.Check(t, func(t *rapid.T) {
		var r reference
		name := rapid.StringOfN(rapid.RuneFrom([]rune("ab/&<>'\"% +☃\t")), 1, 20, -1)
		for _, key := range rapid.SliceOf(name).Draw(t, "keys") {
			r.Contents = append(r.Contents, struct {
				Key, ETag string
				Size      int64
			}{key, `"` + key + `"`, int64(len(key))})
		}
		for _, key := range rapid.SliceOf(name).Draw(t, "groups") {
			r.CommonPrefixes = append(r.CommonPrefixes, struct{ Prefix string }{key + "/"})
		}
		text, err := xml.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Parse(text)
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		want := map[string]int{}
		for _, c := range r.Contents {
			want[c.Key+c.ETag]++
		}
		for _, c := range r.CommonPrefixes {
			want[c.Prefix]++
		}
		got := map[string]int{}
		for _, e := range p.Entries {
			got[e.Key+e.ETag]++
		}
		if !maps.Equal(got, want) || !slices.IsSortedFunc(p.Entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) }) {
			t.Fatalf("got %v want %v", got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	// No page makes the reader panic, and what it takes has a key in each entry.
	f.Add([]byte(samplePage))
	f.Add([]byte("<ListBucketResult><Contents><Key>&#x41;&bad;&</Key></Contents></ListBucketResult>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		for _, e := range p.Entries {
			if e.Key == "" || e.Size < 0 {
				t.Errorf("%+v", e)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	// A page of a thousand keys, in ns per page.
	var text strings.Builder
	text.WriteString("<ListBucketResult><IsTruncated>false</IsTruncated>")
	for i := range 1000 {
		text.WriteString("<Contents><Key>d1/class0001/" + strconv.Itoa(100000+i) + ".bin</Key><LastModified>2024-02-03T04:05:06.789Z</LastModified><ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>102400</Size><StorageClass>STANDARD</StorageClass></Contents>")
	}
	text.WriteString("</ListBucketResult>")
	b.ReportAllocs()
	for b.Loop() {
		if p, err := Parse([]byte(text.String())); err != nil || len(p.Entries) != 1000 {
			b.Fatal(err)
		}
	}
}
