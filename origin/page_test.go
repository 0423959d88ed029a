package origin

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
	p, err := parsePage([]byte(samplePage))
	if err == nil {
		err = p.Undo(p.Encoded)
	}
	if err != nil {
		t.Fatal(err)
	}
	want := []listEntry{
		{Key: "p/a b+c d", ETag: `"abc"`, Size: 17, Modified: time.Date(2024, 2, 3, 4, 5, 6, 789e6, time.UTC)},
		{Key: "p/b/", Prefix: true},
		{Key: "p/☃", ETag: `W/"d"`, Class: "GLACIER"},
	}
	if !p.Truncated || p.Token != "tok&en==" || !slices.Equal(p.Entries, want) {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"", "<html>", "<ListBucketResult>", "<ListBucketResult></Other>", "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>", samplePage[:400]} {
		if p, err := parsePage([]byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, p)
		}
	}
}

func TestWhetherMoreFollowsIsReadInAnySpelling(t *testing.T) {
	// Languages write a boolean in their own ways; what is none of them is an error that names it, since a
	// page that is taken for the last one hides all names behind it.
	for text, want := range map[string]listPage{
		"<IsTruncated>true</IsTruncated>": {Truncated: true, Said: true}, "<IsTruncated>True</IsTruncated>": {Truncated: true, Said: true},
		"<IsTruncated>\n TRUE\t</IsTruncated>": {Truncated: true, Said: true}, "<IsTruncated>1</IsTruncated>": {Truncated: true, Said: true},
		"<IsTruncated>False </IsTruncated>": {Said: true}, "<IsTruncated>0</IsTruncated>": {Said: true}, "": {}, "<IsTruncated/>": {}, "<IsTruncated> </IsTruncated>": {},
		"<IsTruncated>false</IsTruncated><NextContinuationToken>t</NextContinuationToken>": {Said: true, Token: "t"},
	} {
		p, err := parsePage([]byte("<ListBucketResult>" + text + "</ListBucketResult>"))
		if err != nil || p.Truncated != want.Truncated || p.Said != want.Said || p.Token != want.Token {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	for _, value := range []string{"maybe", "truefalse", "-1"} {
		_, err := parsePage([]byte("<ListBucketResult><IsTruncated>" + value + "</IsTruncated></ListBucketResult>"))
		if err == nil || !strings.Contains(err.Error(), "IsTruncated") || !strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

func TestFieldsWithBlanksAroundThem(t *testing.T) {
	// A server that lays its pages out for people means the same; only a key's blanks are its own. A size
	// that is missing or empty is none, and one that is no number is an error.
	const text = "<ListBucketResult>\n <EncodingType> URL </EncodingType>\n <Contents>\n  <Key> a</Key>\n  <Size> 17\n</Size>\n  <ETag> &quot;e&quot; </ETag>" +
		"<LastModified> 2024-02-03T04:05:06Z </LastModified><StorageClass> STANDARD </StorageClass></Contents><Contents><Key>b</Key><Size/></Contents></ListBucketResult>"
	p, err := parsePage([]byte(text))
	want := []listEntry{{Key: " a", ETag: `"e"`, Size: 17, Modified: time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)}, {Key: "b"}}
	if err != nil || !p.Encoded || !slices.Equal(p.Entries, want) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := parsePage([]byte(strings.Replace(text, " 17", " 1.7", 1))); err == nil || !strings.Contains(err.Error(), `size "1.7"`) {
		t.Error(err)
	}
}

func TestNamesThatAreOthersOnceDecoded(t *testing.T) {
	// Which name of a page tells whether names are encoded, and which can be read in one way only.
	for keys, want := range map[string]struct {
		key, decoded string
		plain        bool
	}{
		"a,b/c": {}, "a,b+c,d%20e": {"b+c", "b c", false}, "%41": {"%41", "A", false}, "100%": {"", "", true}, "a%zz,b+c": {"b+c", "b c", true}, "a b": {"", "", true},
	} {
		p := &listPage{}
		for _, k := range strings.Split(keys, ",") {
			p.Entries = append(p.Entries, listEntry{Key: k})
		}
		if key, decoded, plain := p.Ambiguous(); key != want.key || decoded != want.decoded || plain != want.plain {
			t.Errorf("%s: %q, %q, %t", keys, key, decoded, plain)
		}
		if err := p.Undo(true); (err == nil) == (strings.Contains(keys, "100") || strings.Contains(keys, "zz")) {
			t.Errorf("%s: %v", keys, err)
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
		p, err := parsePage(text)
		if err == nil {
			err = p.Undo(false)
		}
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
		if !maps.Equal(got, want) || !slices.IsSortedFunc(p.Entries, func(a, b listEntry) int { return strings.Compare(a.Key, b.Key) }) {
			t.Fatalf("got %v want %v", got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	// No page makes the reader panic, and what it takes has a key in each entry.
	f.Add([]byte(samplePage))
	f.Add([]byte("<ListBucketResult><Contents><Key>&#x41;&bad;&</Key></Contents></ListBucketResult>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := parsePage(text)
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
		if p, err := parsePage([]byte(text.String())); err != nil || len(p.Entries) != 1000 {
			b.Fatal(err)
		}
	}
}
