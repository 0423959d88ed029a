package request

import (
	"bufio"
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestDeletes(t *testing.T) {
	// The keys of a document come out as they are. If another reader could find other keys, it is
	// refused.
	for doc, want := range map[string]string{
		"<Delete><Object><Key>a</Key></Object></Delete>":                                                                                                      "a",
		"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Delete xmlns=\"x\">\n <Object><Key> a\tb </Key></Object>\n</Delete>\n":                                  " a\tb ",
		"<Delete><Quiet>true</Quiet><Object><VersionId>1</VersionId><Key>a&amp;&#x2F;&lt;</Key><ETag>x</ETag></Object><Object><Key>b</Key></Object></Delete>": "a&/<|b",
		"<s:Delete xmlns:s=\"x\"><s:Object><s:Key>a</s:Key></s:Object></s:Delete>":                                                                            "a",
		"<Delete><Object><Key>a<!-- c -->b</Key></Object><!-- c --></Delete><!-- c -->":                                                                       "ab",
		"<Delete><Object><Key><![CDATA[a<b]]></Key></Object></Delete>":                                                                                        "a<b",
		"<Delete><Object><Key>a&#13;</Key></Object></Delete>":                                                                                                 "a\r",
		"\ufeff<Delete><Object><Key>a</Key></Object></Delete>":                                                                                                "a",
		"<Delete><Object><Key>a</Key><New><Deep>x</Deep></New></Object></Delete>":                                                                             "a",
		"<Delete><Object><Key>a</Key></Object><Object><Key>a</Key></Object></Delete>":                                                                         "a|a",

		"":                           "-",
		"<Delete></Delete>":          "-",
		"<Delete/>":                  "-",
		"<Delete><Object/></Delete>": "-",
		"<Delete><Object><Key/></Object></Delete>":                              "-",
		"<Delete><Object><Key>a</Key></Object>":                                 "-",
		"<Delete><Object><Key>a</Key></Object></Delete><Delete/>":               "-",
		"<Delete><Object><Key>a</Key></Object></Delete>x":                       "-",
		"x<Delete><Object><Key>a</Key></Object></Delete>":                       "-",
		"<Delete>x<Object><Key>a</Key></Object></Delete>":                       "-",
		"<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>":            "-",
		"<Delete><Object><Key>a</Key><New><Key>b</Key></New></Object></Delete>": "-",
		"<Delete><Object><Key>a<b/></Key></Object></Delete>":                    "-",
		"<Delete><Object><Object><Key>a</Key></Object></Object></Delete>":       "-",
		"<Delete><Key>a</Key></Delete>":                                         "-",
		"<Object><Key>a</Key></Object>":                                         "-",
		"<Delete><New><Object><Key>a</Key></Object></New></Delete>":             "-",
		"<Delete><Object><Key>a</Key></Object></Remove>":                        "-",
		"<Delete><Object><Key>a</Object></Key></Delete>":                        "-",
		"</Delete>": "-",
		"<!DOCTYPE x [<!ENTITY e 'a'>]><Delete><Object><Key>&e;</Key></Object></Delete>":            "-",
		"<!DOCTYPE x><Delete><Object><Key>a</Key></Object></Delete>":                                "-",
		"<Delete><Object><Key>&e;</Key></Object></Delete>":                                          "-",
		"<Delete><Object><Key>&#1;</Key></Object></Delete>":                                         "-",
		"<Delete><Object><Key>\xff</Key></Object></Delete>":                                         "-",
		"<?php x?><Delete><Object><Key>a</Key></Object></Delete>":                                   "-",
		"<?xml version=\"1.0\" encoding=\"latin1\"?><Delete><Object><Key>a</Key></Object></Delete>": "-",
		"<Delete><Object><a><b><c><d><e>" + "</e></d></c></b></a><Key>a</Key></Object></Delete>":    "-",
		"{}": "-",
	} {
		keys, err := Deletes(strings.NewReader(doc))
		got := strings.Join(keys, "|")
		if err != nil {
			got = "-"
			checkFault(t, err, "MalformedXML")
		}
		if got != want {
			t.Errorf("%s: %q %v, want %q", doc, got, err, want)
		}
	}
}

func checkFault(t *testing.T, err error, code string) {
	t.Helper()
	var f *Error
	if !errors.As(err, &f) || f.Code != code {
		t.Errorf("%v, want %s", err, code)
	}
}

// document returns a DeleteObjects document of n objects.
func document(n int, key string) string {
	return "<Delete>" + strings.Repeat("<Object><Key>"+key+"</Key></Object>", n) + "</Delete>"
}

func TestDeletesAreBounded(t *testing.T) {
	// A thousand of the longest keys are taken, and one more is not. Nothing is read beyond 2 MiB.
	longest := strings.Repeat("k", maxKey)
	if keys, err := Deletes(strings.NewReader(document(1000, longest))); err != nil || len(keys) != 1000 || keys[999] != longest {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	_, err := Deletes(strings.NewReader(document(1001, "k")))
	checkFault(t, err, "MalformedXML")
	for _, endless := range []string{" ", "<Delete>", "<Delete><Object><Key>a", "<Delete><New>", "<Delete a='"} {
		r := &counting{r: io.MultiReader(strings.NewReader(endless), forever{})}
		_, err = Deletes(r)
		checkFault(t, err, "MalformedXML")
		if r.n > MaxDeletesBytes+1 {
			t.Errorf("%q: %d bytes read", endless, r.n)
		}
	}
	_, err = Deletes(io.MultiReader(strings.NewReader("<Delete>"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body that was cut off: %v", err)
	}
}

// forever is an endless text.
type forever struct{}

func (forever) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

type counting struct {
	r io.Reader
	n int
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

func FuzzDeletes(f *testing.F) {
	// If Deletes finds keys, encoding/xml, as MinIO uses it, finds the same keys, and every version
	// is an id.
	f.Add([]byte(document(2, "a&amp;b")))
	f.Add([]byte("<?xml version='1.0'?><Delete xmlns='x'><Quiet/><Object><Key><![CDATA[x]]></Key><A/></Object></Delete>"))
	f.Add([]byte("<Delete><Object><Key>a</Key><VersionId>.<!-- -->./x</VersionId></Object></Delete>"))
	f.Add([]byte("<a:Delete><Object x='&lt;'><Key>a</Key></Object><!-- --></a:Delete>"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		keys, err := Deletes(bytes.NewReader(doc))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "InvalidArgument: ") {
				checkFault(t, err, "MalformedXML")
			}
			return
		}
		var want struct {
			XMLName xml.Name `xml:"Delete"`
			Objects []struct {
				Key, VersionId string
			} `xml:"Object"`
		}
		if err := xml.Unmarshal(doc, &want); err != nil {
			return // it is stricter about names, and the origin reports that
		}
		if len(keys) != len(want.Objects) {
			t.Fatalf("%q: %d keys, want %d", doc, len(keys), len(want.Objects))
		}
		for i, o := range want.Objects {
			if keys[i] != o.Key {
				t.Errorf("%q: %q, want %q", doc, keys[i], o.Key)
			}
			if v := strings.Trim(o.VersionId, " \t\r\n"); !id(v) {
				t.Errorf("%q: the version %q", doc, v)
			}
		}
	})
}

func BenchmarkDeletes(b *testing.B) {
	doc := document(1000, "data/train/shard-000123.tar")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Deletes(strings.NewReader(doc)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestBatch(t *testing.T) {
	// A line is a key, or JSON with a key and a range. Any other line is refused with its number.
	for text, want := range map[string]string{
		"a":                               "a []",
		"a\nb\n":                          "a [] b []",
		"a\r\n\r\n\n b \n":                "a []  b  []",
		"a//../%2F+\xff":                  "a//../%2F+\xff []",
		`{"key":"a"}`:                     "a []",
		`{"range":"bytes=0-9","key":"a"}`: "a [bytes=0-9]",
		`{"key":"a\n{ü\ud83d\ude00"}`:     "a\n{ü😀 []",
		`{"key":"\ufffd"}`:                "\ufffd []",
		"\"a\"":                           "\"a\" []",

		"":                                   "InvalidRequest",
		"\n\r\n":                             "InvalidRequest",
		`{"key":"a"} x`:                      "InvalidArgument",
		`{"key":"a"}{"key":"b"}`:             "InvalidArgument",
		`{"key":"a","size":1}`:               "InvalidArgument",
		`{"key":""}`:                         "InvalidArgument",
		`{"range":"bytes=0-1"}`:              "InvalidArgument",
		`{"key":1}`:                          "InvalidArgument",
		`{`:                                  "InvalidArgument",
		"{\"key\":\"\xff\"}":                 "InvalidArgument",
		`{"key":"\ud800"}`:                   "InvalidArgument",
		`{"key":"a","range":"bytes=1-0"}`:    "InvalidArgument",
		`{"key":"a","range":"bytes=0-,1-2"}`: "InvalidArgument",
		strings.Repeat("k", 1025):            "KeyTooLongError",
		strings.Repeat("k", 9000):            "InvalidRequest",
	} {
		items, err := Batch(strings.NewReader(text))
		var f *Error
		var got []string
		for _, it := range items {
			got = append(got, it.Key+" ["+it.Range+"]")
		}
		if errors.As(err, &f) {
			got = []string{f.Code}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %q %v, want %q", text, s, err, want)
		}
	}
	if _, err := Batch(strings.NewReader("a\n\n{\n")); err == nil || !strings.Contains(err.Error(), "Line 3") {
		t.Errorf("%v does not tell the line", err)
	}
}

func TestBatchIsBounded(t *testing.T) {
	// Ten thousand of the longest keys are taken, and one more is not. Nothing is read beyond 16
	// MiB.
	longest := strings.Repeat("k", maxKey) + "\n"
	items, err := Batch(strings.NewReader(strings.Repeat(longest, maxItems)))
	if err != nil || len(items) != maxItems {
		t.Errorf("%d items, %v", len(items), err)
	}
	_, err = Batch(strings.NewReader(strings.Repeat("k\n", maxItems+1)))
	checkFault(t, err, "InvalidRequest")
	r := &counting{r: newlines{}}
	_, err = Batch(r)
	checkFault(t, err, "InvalidRequest")
	if r.n > MaxBatchBytes+1 {
		t.Errorf("%d bytes read", r.n)
	}
	_, err = Batch(io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	checkFault(t, err, "IncompleteBody")
}

type newlines struct{}

func (newlines) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '\n'
	}
	return len(p), nil
}

func FuzzBatch(f *testing.F) {
	// A parsed batch is written as JSON, where JSON can carry it, and is parsed to the same items.
	f.Add([]byte("a\r\n{\"key\":\"b\",\"range\":\"bytes=-1\"}\n"))
	f.Add([]byte("{\"key\":\"\\ud800\xff\"}"))
	f.Add([]byte("\x80\r\r"))
	f.Fuzz(func(t *testing.T, body []byte) {
		items, err := Batch(bytes.NewReader(body))
		var fe *Error
		if err != nil && (!errors.As(err, &fe) || items != nil) || err == nil && len(items) == 0 {
			t.Fatalf("%d items, %v", len(items), err)
		}
		var again bytes.Buffer
		for _, it := range items {
			if it.Key == "" || len(it.Key) > maxKey || it.Range != "" && !oneRange(it.Range) {
				t.Fatalf("%+v", it)
			}
			line, err := json.Marshal(it)
			var back Item
			if err != nil || json.Unmarshal(line, &back) != nil || back != it { // not UTF-8
				line = []byte(it.Key)
			}
			again.Write(append(line, "\r\n"...)) // for a key that ends in "\r" the last one is the line's
		}
		if err != nil {
			return
		}
		if got, err := Batch(&again); err != nil || !slices.Equal(got, items) {
			t.Fatalf("%q: %q and again %q %v", body, items, got, err)
		}
	})
}

func TestBatchAnswers(t *testing.T) {
	// A client reads each item in order, with the error of one between the others. It can tell the
	// end from a connection that was cut.
	var out bytes.Buffer
	b := NewBatchWriter(&out)
	big := bytes.Repeat([]byte("200 1 x\n"), 1000)
	for _, err := range []error{b.Object(200, int64(len(big)), `"one"`), written(b, big[:10]), written(b, big[10:]), b.Object(206, 0, ""),
		b.Fault(New("NoSuchKey", "gone")), b.Object(200, 3, "a\nb"), written(b, []byte("abc")), b.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{`200 "one" ` + string(big), "206 - ", "404 NoSuchKey ", "200 - abc"}
	got, err := answers(bytes.NewReader(out.Bytes()))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for cut := range out.Len() {
		if _, err := answers(bytes.NewReader(out.Bytes()[:cut])); err == nil {
			t.Fatalf("%d of %d bytes look whole", cut, out.Len())
		}
	}
}

func written(b *BatchWriter, p []byte) error {
	_, err := b.Write(p)
	return err
}

// answers reads a batch's answer as the comment of BatchWriter says.
func answers(r io.Reader) ([]string, error) {
	in := bufio.NewReader(r)
	var all []string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return all, io.ErrUnexpectedEOF
		}
		if line == fmt.Sprintf("end %d\n", len(all)) {
			return all, nil
		}
		var status, length int
		var word string
		if _, err := fmt.Sscanf(line, "%d %d %s\n", &status, &length, &word); err != nil {
			return all, err
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(in, body); err != nil {
			return all, err
		}
		all = append(all, fmt.Sprintf("%d %s %s", status, word, body))
	}
}

func TestABrokenBatchStaysBroken(t *testing.T) {
	// Too few or too many bytes, and a client that went away, end the writer for good: nothing more
	// is written.
	for name, breaks := range map[string]func(*BatchWriter) error{
		"too many":        func(b *BatchWriter) error { return written(b, []byte("abcd")) },
		"too few":         func(b *BatchWriter) error { return b.Object(200, 1, "x") },
		"then a fault":    func(b *BatchWriter) error { return b.Fault(New("NoSuchKey", "x")) },
		"too few, closed": func(b *BatchWriter) error { return b.Close() },
		"no length":       func(b *BatchWriter) error { _ = written(b, []byte("abc")); return b.Object(200, -1, "x") },
	} {
		var out bytes.Buffer
		b := NewBatchWriter(&out)
		if err := b.Object(200, 3, "x"); err != nil {
			t.Fatal(err)
		}
		if err := breaks(b); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
		n := out.Len()
		if b.Object(200, 0, "") == nil || b.Close() == nil || written(b, nil) == nil || out.Len() != n {
			t.Errorf("%s: it goes on", name)
		}
	}
	b := NewBatchWriter(iotest.TruncateWriter(io.Discard, 0))
	if err := b.Object(200, 3, "x"); err != nil {
		t.Fatal(err)
	}
	gone := NewBatchWriter(full{})
	if err := gone.Object(200, 3, "x"); !errors.Is(err, io.ErrClosedPipe) || !errors.Is(gone.Close(), io.ErrClosedPipe) {
		t.Error("a client that went is not told")
	}
}

// full is a writer that takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func BenchmarkBatchWriter(b *testing.B) {
	w, body := NewBatchWriter(io.Discard), make([]byte, 16<<10)
	b.ReportAllocs()
	for b.Loop() {
		if w.Object(200, int64(len(body)), `"9b2cf535f27731c974343645a3985328"`) != nil || written(w, body) != nil {
			b.Fatal("broken")
		}
	}
}
