package e2e

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/xml"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/origin/sign"
)

const (
	// twinBucket gets what the endpoint's bucket gets, straight from the client.
	twinBucket = "twin"
	noBucket   = "no-such-bucket"
	// seedOfAll is that of each run below full: they send the same requests each time, so that the
	// list of operations which was made of them stays true.
	seedOfAll = 1
	// mostDifferences are told; more are of the same kind mostly.
	mostDifferences = 40
)

// twins are a bucket behind the endpoint and one at the origin that must stay equal. Reads ask
// the same bucket both ways.
type twins struct {
	*env
	rng          *rand.Rand
	origin, here *s3Client
	keys         []string // escaped
	etags        map[string]string
	uploads      []twoUploads
	asked, wrong int
	kinds        map[string]int
	minio        bool // is the origin; else versitygw
}

// twoUploads is a multipart upload of both buckets.
type twoUploads struct{ path, origin, here string }

// s3Differential sends generated requests both ways and compares the answers.
func s3Differential(e *env, o *server, minio bool) {
	e.must(o.CreateBucket(e.ctx, twinBucket), "make the twin")
	h, s3 := e.serveS3(o)
	seed := uint64(seedOfAll)
	if e.level == full {
		seed = hearthtest.Seed(e.T)
	}
	t := &twins{env: e, rng: rand.New(rand.NewPCG(seed, 9)), keys: oddPaths(), etags: map[string]string{}, kinds: map[string]int{}, minio: minio,
		origin: newS3Client(e, o.Endpoint, o.access, o.secret), here: newS3Client(e, s3.url, s3.access, s3.secret)}
	for i := range differentialSteps(e.level) {
		switch x := t.rng.IntN(10); {
		case i < len(t.keys): // there is something to be read
			t.both(t.put(t.keys[i]))
		case x < 4:
			t.read(t.object())
		case x < 6:
			t.list()
		case x < 7:
			t.read(t.subresource())
		case x < 9:
			t.both(t.change())
		default:
			t.multipart()
		}
		if t.wrong >= mostDifferences {
			e.Fatalf("%d differences in %d requests", t.wrong, t.asked)
		}
	}
	t.equal()
	for _, word := range streams() {
		if t.kinds[word] == 0 && e.level != core { // too few are sent
			e.Errorf("no upload in the form %s was taken", word)
		}
	}
	e.Logf("%d requests, by kind %v", t.asked, t.kinds)
	if e.level == all {
		e.compared(h)
	}
	h.quit()
}

// compared holds the operations that were answered well, and as the origin answers, against the
// list from which the manual's table of operations is made.
func (e *env) compared(h *hearth) {
	e.Helper()
	names := map[string]bool{}
	for _, r := range h.status().S3.Requests {
		if r.Code < "300" && r.How != "refused" {
			names[r.Operation] = true
		}
	}
	const file = "testdata/s3_operations.txt"
	text, err := os.ReadFile(file)
	e.must(err, "read the operations")
	if got := strings.Join(slices.Sorted(maps.Keys(names)), "\n") + "\n"; got != string(text) {
		e.Errorf("%s is stale; it is to hold\n%s\nand then: go test ./s3gw/request -run Manual -update", file, got)
	}
}

// differentialSteps is how often something is asked or changed; pages of listings come besides.
func differentialSteps(l level) int { return map[level]int{core: 300, all: 3000, full: 10_000}[l] }

// oddPaths are keys as they stand in a path, each a way of its own to be misunderstood.
func oddPaths() []string {
	all := []string{"plain", "a+b", "a%2Bb", "a%20b", "sp%20ace/in%20dir", "%C3%A4%E6%97%A5", "x%2Fy", "x%252Fy", "per%25cent", "q%3Fmark", "ha%23sh", "am%26p", "eq=uals", "semi;colon", "til~de", "ti%7Elde",
		"quo%22te", "lt%3Cgt%3E", "apos'trophe", "(paren)", "star*", "ex!cl", "dol$lar", "at@", "co:lon", "com,ma", "pi%7Cpe", "back%5Cslash", "br%5B0%5D", "cur%7B1%7D", "ca%5Eret", "gra%60ve",
		"d/a", "d/b", "d/c/e", "d/c/f", "d0", "d-/x", "d.txt", "deep/1/2/3/4/5", ".hidden", "dots..", "..dots", "UPPER", "upper", "e%CC%81", "%C3%A9", "%F0%9F%94%A5", strings.Repeat("l", 200), "z/" + strings.Repeat("m", 200)}
	for i := range 30 {
		all = append(all, fmt.Sprintf("many/%03d", i))
	}
	return all
}

// worse are paths that an origin may refuse, or take for another one.
func worse() []string {
	return append(parents(), "..", ".", "../x", "nul%00l", "nl%0A", strings.Repeat("k", 300))
}

// parents lie above or below keys that are there. What lies below an object MinIO refuses to take,
// and where it was there before, it does not list it: there they are read alone.
func parents() []string { return []string{"d", "d/a/under", "plain/under"} }

// aliases are paths that versitygw takes for other keys (request.Alias).
func aliases() []string {
	return []string{"a//b", "/lead", "d//a", "sp%20ace//in%20dir", "a/../plain", "a/./b", "a/..", "d//", "//plain"}
}

// unlisted are those whose keys no XML can carry, and one that is longer than Amazon takes. They are
// read alone.
func unlisted() []string { return []string{"ctl%01", "bad%FF", strings.Repeat("k/", 600)} }

func one[T any](t *twins, of ...T) T { return of[t.rng.IntN(len(of))] }

// chance is true once in n times.
func (t *twins) chance(n int) bool { return t.rng.IntN(n) == 0 }

func (t *twins) key() string {
	switch {
	case t.chance(12):
		return one(t, slices.Concat(worse(), aliases(), unlisted())...)
	case t.chance(15):
		return fmt.Sprintf("none/%d", t.rng.IntN(3))
	}
	return one(t, t.keys...)
}

// compare tells of answers that are not the same.
func (t *twins) compare(a s3Ask, origin, here *s3Answer, written bool) {
	t.Helper()
	t.asked++
	t.kinds[fmt.Sprintf("%s %d", a.method, origin.status)]++
	if a.form != nil && here.status == http.StatusOK {
		t.kinds[a.header.Get("X-Amz-Content-Sha256")]++
	}
	if d := sameAnswer(a, origin, here, written); d != "" {
		t.wrong++
		t.Errorf("request %d: %v\n the origin: %s", t.asked, a, d)
	}
}

// read asks for what is the same both ways.
func (t *twins) read(a s3Ask) (origin, here *s3Answer) {
	t.Helper()
	var err error
	origin, err = t.origin.do(t.ctx, a)
	t.must(err, "ask the origin: %v", a)
	if here, err = t.here.do(t.ctx, a); err != nil {
		t.wrong++
		t.Errorf("request %d: %v: %v; the origin says %d", t.asked, a, err, origin.status)
		return origin, origin
	}
	t.compare(a, origin, here, false)
	if origin.status < 300 && a.query == "" && a.path != "" {
		t.etags[a.path] = origin.header.Get("Etag")
	}
	return origin, here
}

// both changes the twin, and the endpoint's bucket through it.
func (t *twins) both(a s3Ask) (origin, here *s3Answer) { return t.each(a, a) }

func (t *twins) each(a, b s3Ask) (origin, here *s3Answer) {
	t.Helper()
	twin := a
	if twin.bucket == "data" {
		twin.bucket = twinBucket
	}
	if from := a.header.Get("X-Amz-Copy-Source"); from != "" {
		twin.header = a.header.Clone()
		twin.header.Set("X-Amz-Copy-Source", strings.Replace(from, "data/", twinBucket+"/", 1))
	}
	var err error
	origin, err = t.origin.do(t.ctx, twin)
	t.must(err, "ask the origin: %v", twin)
	if here, err = t.here.do(t.ctx, b); err != nil {
		t.wrong++
		t.Errorf("request %d: %v: %v; the origin says %d", t.asked, b, err, origin.status)
		return origin, origin
	}
	t.compare(b, origin, here, true)
	return origin, here
}

func (t *twins) data() string {
	const most = 3000
	return strings.Repeat(string(rune('a'+t.rng.IntN(26))), t.rng.IntN(most))
}

func (t *twins) put(key string) s3Ask {
	a := s3Ask{method: "PUT", bucket: "data", path: "/" + key, header: http.Header{}, body: t.data()}
	if strings.HasSuffix(key, "/") {
		a.body = ""
	}
	for _, pair := range [][2]string{{"Content-Type", "text/plain"}, {"Content-Type", "image/x-test"}, {"Cache-Control", "no-store"}, {"Content-Encoding", "x-own"}, {"Content-Disposition", `attachment; filename="a b"`},
		{"Content-Language", "de"}, {"Expires", "Wed, 21 Oct 2099 07:28:00 GMT"}, {"X-Amz-Meta-Kind", "Test"}, {"X-Amz-Meta-two-Words", "a, b"}, {"X-Amz-Tagging", "a=b&c=d"}, {"X-Amz-Storage-Class", "STANDARD"}} {
		if t.chance(6) {
			a.header.Set(pair[0], pair[1])
		}
	}
	return a
}

// object reads one, whole or not, on conditions or without.
func (t *twins) object() s3Ask {
	key := t.key()
	a := s3Ask{method: one(t, "GET", "GET", "HEAD"), bucket: "data", path: "/" + key, header: http.Header{}, presigned: t.chance(6)}
	if t.chance(3) {
		n, m := t.rng.IntN(3000), t.rng.IntN(3000)
		a.header.Set("Range", one(t, fmt.Sprintf("bytes=%d-%d", n, n+m), fmt.Sprintf("bytes=%d-", n), fmt.Sprintf("bytes=-%d", n), "bytes=0-0", "bytes=-0", "bytes=5-2", "bytes=a-b", "bytes=0-1,3-4", "lines=1-2",
			"bytes=-", "bytes= 0-5", "bytes=0-99999999999999999999", "bytes=-99999999", "BYTES=0-4", "bytes=00-04"))
	}
	for _, name := range []string{"If-Match", "If-None-Match"} {
		if t.chance(8) {
			etag := t.etags[a.path]
			a.header.Set(name, one(t, etag, strings.Trim(etag, `"`), "*", `"0"`, `"0", `+etag, "W/"+etag, `""`, "x"))
		}
	}
	// Not by the very second of Last-Modified: versitygw compares with a fraction of it that no client is told.
	for _, name := range []string{"If-Modified-Since", "If-Unmodified-Since"} {
		if t.chance(8) {
			a.header.Set(name, one(t, "Sat, 01 Jan 2000 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT", "yesterday", "2020-01-01T00:00:00Z"))
		}
	}
	for name, values := range a.header { // what nothing is known of yet is not asked by
		if values[0] == "" {
			delete(a.header, name)
		}
	}
	if t.chance(8) {
		a.header.Set("X-Amz-Checksum-Mode", one(t, "ENABLED", "DISABLED"))
	}
	if t.chance(20) {
		a.header.Set("Accept-Encoding", "gzip")
	}
	if t.chance(6) {
		a.query = one(t, "response-content-type=text%2Fodd", "response-cache-control=no-cache&response-content-language=fr", "response-content-disposition=attachment%3B%20filename%3D%22x%22", "response-expires=Wed%2C%2021%20Oct%202099%2007%3A28%3A00%20GMT",
			"response-content-encoding=identity", "x-id=GetObject", "partNumber=1", "partNumber=2", "versionId=null", "versionId=nothing", "unknown=1", "response-content-type=")
	}
	return a
}

// subresource asks for what the endpoint does not know itself.
func (t *twins) subresource() s3Ask {
	if t.chance(3) {
		return s3Ask{method: one(t, "GET", "GET", "GET", "HEAD"), bucket: one(t, "data", "data", "data", noBucket),
			query: one(t, "location", "location", "location", "uploads", "uploads", "versioning", "uploads", "versions", "acl", "policy", "tagging", "cors", "object-lock", "ownershipControls", "lifecycle", "website", "encryption", "policyStatus", "notification", "")}
	}
	a := s3Ask{method: "GET", bucket: "data", path: "/" + t.key(), query: one(t, "acl", "tagging", "attributes", "uploadId=none", "retention", "legal-hold", "versionId=null")}
	if a.query == "attributes" && !t.chance(4) {
		a.header = http.Header{"X-Amz-Object-Attributes": {one(t, "ETag,ObjectSize", "StorageClass", "Checksum", "Nothing")}}
	}
	return a
}

// list asks for a listing, page by page.
func (t *twins) list() {
	q := url.Values{}
	v2 := !t.chance(3)
	if v2 {
		q.Set("list-type", one(t, "2", "2", "2", "2", "2", "2", "2", "2", "3", ""))
	}
	t.listParameters(q, v2)
	a := s3Ask{method: "GET", bucket: "data", query: strings.ReplaceAll(q.Encode(), "+", "%20"), presigned: t.chance(10)}
	var origin, here *s3Answer
	next := func(p page) s3Ask { return a.following(q, p) }
	ask, askHere := a, a
	for range 6 { // pages
		var err error
		origin, err = t.origin.do(t.ctx, ask)
		t.must(err, "list at the origin: %v", ask)
		here, err = t.here.do(t.ctx, askHere)
		t.must(err, "list at the endpoint: %v", askHere)
		x, y := pageOf(origin), pageOf(here)
		if x.IsTruncated && !y.IsTruncated && here.status == http.StatusOK {
			t.settle(origin, next(x))
		}
		t.compare(askHere, origin, here, false)
		if !x.IsTruncated || !y.IsTruncated {
			return
		}
		ask, askHere = next(x), next(y)
	}
}

// settle takes the word that there is more from a page behind which there is nothing: versitygw
// says it where what it would find next is only directories that it does not show.
func (t *twins) settle(origin *s3Answer, next s3Ask) {
	t.Helper()
	behind, err := t.origin.do(t.ctx, next)
	t.must(err, "follow a listing of the origin")
	if p := pageOf(behind); behind.status == http.StatusOK && len(p.Contents)+len(p.CommonPrefixes) == 0 {
		text := strings.Replace(string(origin.body), "<IsTruncated>true<", "<IsTruncated>false<", 1)
		before, rest, _ := strings.Cut(text, "<NextContinuationToken>")
		_, after, found := strings.Cut(rest, "</NextContinuationToken>")
		if found {
			text = before + after
		}
		origin.body = []byte(text)
	}
}

// following is the request for the page behind one.
func (a s3Ask) following(q url.Values, p page) s3Ask {
	next := maps.Clone(q)
	switch {
	case q.Has("list-type"):
		next.Set("continuation-token", p.NextContinuationToken)
	case p.NextMarker != "":
		next.Set("marker", p.NextMarker)
	case len(p.Contents) > 0:
		next.Set("marker", p.Contents[len(p.Contents)-1].Key)
	}
	a.query = strings.ReplaceAll(next.Encode(), "+", "%20")
	return a
}

func (t *twins) listParameters(q url.Values, v2 bool) {
	if !t.chance(4) {
		q.Set("prefix", one(t, "", "d", "d/", "d/c", "many/", "many/01", "none", "sp ace/", "a", "ä", "deep/1/", "z/", "d/c/e", "UP", "/", "..", "plain/"))
	}
	if !t.chance(3) {
		q.Set("delimiter", one(t, "/", "/", "/", "/", "", "-", "a"))
	}
	if !t.chance(3) {
		q.Set("max-keys", one(t, "1", "2", "7", "20", "1000", "0", "5000", "-1", "x", "+3", "99999999999", ""))
	}
	if t.chance(2) {
		q.Set("encoding-type", one(t, "url", "url", "url", "url", "base64", ""))
	}
	if !v2 && t.chance(3) {
		q.Set("marker", one(t, "d", "d/", "d/a", "many/010", "zzz", "a b", ""))
	}
	if v2 && t.chance(3) {
		q.Set("start-after", one(t, "d", "d/", "d/a", "many/010", "zzz", "a b", ""))
	}
	if v2 && t.chance(5) {
		q.Set("fetch-owner", one(t, "true", "false"))
	}
	if v2 && t.chance(12) {
		q.Set("continuation-token", one(t, "nonsense", "", "hearth1.x"))
	}
}

// page is what following a listing needs.
type page struct {
	IsTruncated                       bool
	NextContinuationToken, NextMarker string
	Contents                          []struct{ Key, ETag, Size string }
	CommonPrefixes                    []struct{ Prefix string }
}

func pageOf(a *s3Answer) (p page) {
	_ = xml.Unmarshal(a.body, &p) // an error has no pages
	if own := a.header.Get("X-Amz-Id-2") == "" || isMinIO(a); own && strings.Contains(string(a.body), "<EncodingType>url<") {
		for _, text := range markers(&p) {
			if plain, err := url.QueryUnescape(*text); err == nil {
				*text = plain
			}
		}
	}
	return p
}

// markers are the places of keys in a page by which the next one is asked for.
func markers(p *page) []*string {
	all := []*string{&p.NextMarker}
	for i := range p.Contents {
		all = append(all, &p.Contents[i].Key)
	}
	return all
}

// change writes, copies or deletes.
func (t *twins) change() s3Ask {
	key := t.key()
	for slices.Contains(unlisted(), key) || t.minio && slices.Contains(parents(), key) {
		key = t.key()
	}
	a := s3Ask{method: "PUT", bucket: "data", path: "/" + key, header: http.Header{}}
	switch t.rng.IntN(10) {
	case 0, 1:
		a.method = "DELETE"
	case 2:
		a.header.Set("X-Amz-Copy-Source", one(t, "/", "")+"data/"+one(t, t.key(), t.key(), "none/0", ""))
		if t.chance(3) {
			a.header.Set("X-Amz-Metadata-Directive", one(t, "REPLACE", "COPY", "OTHER"))
			a.header.Set("X-Amz-Meta-Copied", "yes")
		}
		if t.chance(5) {
			a.header.Set("X-Amz-Copy-Source-If-Match", `"0"`)
		}
	case 3:
		a.method, a.path, a.query, a.body = "POST", "", "delete", t.deletes()
		sum := md5.Sum([]byte(a.body))
		a.header.Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	case 4:
		a.query, a.body = "tagging", one(t, "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>", "<Tagging>", "", "nonsense")
		if t.chance(3) {
			a.method, a.body = "DELETE", ""
		}
	case 5:
		a = t.put(key)
		switch t.rng.IntN(5) {
		case 0:
			a.header.Set("Content-Md5", one(t, "AAAAAAAAAAAAAAAAAAAAAA==", "short"))
		case 1:
			a.header.Set("If-None-Match", "*")
		case 2:
			a.header.Set("If-Match", one(t, `"0"`, "*"))
		case 3:
			a.header.Set("X-Amz-Checksum-Crc32", one(t, "AAAAAA==", "x"))
		default:
			a.header.Set("X-Amz-Sdk-Checksum-Algorithm", "CRC32")
		}
	default:
		// Nothing is wrong with a body whose key may be refused, too: servers differ in what they look at first.
		sure := slices.Contains(t.keys, key) && key != "plain" && !strings.HasPrefix(key, "d/")
		a = t.dress(t.put(key), sure && !t.chance(3))
	}
	return a
}

// deletes is the body of a DeleteObjects, right or not.
func (t *twins) deletes() string {
	if t.chance(5) {
		return one(t, "", "<Delete>", "nonsense", "<Delete></Delete>", "<Other><Object><Key>nowhere</Key></Object></Other>", "<Delete><Object></Object></Delete>")
	}
	var b strings.Builder
	b.WriteString("<Delete>")
	if t.chance(3) {
		b.WriteString("<Quiet>true</Quiet>")
	}
	for range 1 + t.rng.IntN(4) {
		key, err := url.PathUnescape(one(t, t.keys...))
		t.must(err, "unescape a key")
		b.WriteString("<Object><Key>")
		t.must(xml.EscapeText(&b, []byte(key)), "escape a key")
		b.WriteString("</Key></Object>")
	}
	return b.String() + "</Delete>"
}

// multipart begins, goes on with or ends an upload.
func (t *twins) multipart() {
	if len(t.uploads) == 0 || t.chance(4) {
		a := s3Ask{method: "POST", bucket: "data", path: "/" + one(t, t.keys...), query: "uploads"}
		origin, here := t.both(a)
		id := func(a *s3Answer) string {
			var x struct{ UploadId string }
			_ = xml.Unmarshal(a.body, &x) // an error has none
			return x.UploadId
		}
		if x, y := id(origin), id(here); x != "" && y != "" {
			t.uploads = append(t.uploads, twoUploads{a.path, x, y})
		}
		return
	}
	i := t.rng.IntN(len(t.uploads))
	u := t.uploads[i]
	a := s3Ask{bucket: "data", path: u.path, header: http.Header{}}
	query := "uploadId="
	switch t.rng.IntN(7) {
	case 6:
		a.method, query = "PUT", "partNumber=1&uploadId="
		a.header.Set("X-Amz-Copy-Source", "data/"+one(t, one(t, t.keys...), one(t, t.keys...), "none/0"))
		if t.chance(3) {
			a.header.Set("X-Amz-Copy-Source-Range", one(t, "bytes=0-5", "bytes=0-99999", "bytes=x"))
		}
	case 0, 1, 2:
		a.method, query, a.body = "PUT", fmt.Sprintf("partNumber=%s&uploadId=", one(t, "1", "1", "1", "2", "0", "10001", "x")), t.data()
		if strings.HasPrefix(query, "partNumber=1&") {
			a = t.dress(a, !t.chance(3))
		}
	case 3:
		a.method = "GET"
	case 4:
		a.method = "DELETE"
	default:
		a.method = "POST"
		parts := t.parts(u)
		a.body = one(t, parts, parts, parts, "<CompleteMultipartUpload></CompleteMultipartUpload>", "nonsense", `<CompleteMultipartUpload><Part><PartNumber>9</PartNumber><ETag>"0"</ETag></Part></CompleteMultipartUpload>`)
	}
	b := a
	a.query, b.query = query+url.QueryEscape(u.origin), query+url.QueryEscape(u.here)
	origin, _ := t.each(a, b)
	if (a.method == "DELETE" || a.method == "POST") && origin.status < 300 {
		t.uploads = append(t.uploads[:i], t.uploads[i+1:]...)
	}
}

// parts names those of an upload that are there.
func (t *twins) parts(u twoUploads) string {
	answer, err := t.origin.do(t.ctx, s3Ask{method: "GET", bucket: twinBucket, path: u.path, query: "uploadId=" + url.QueryEscape(u.origin)})
	t.must(err, "list parts")
	var list struct {
		Part []struct{ PartNumber, ETag string }
	}
	_ = xml.Unmarshal(answer.body, &list) // an error has none
	b := "<CompleteMultipartUpload>"
	for _, p := range list.Part {
		b += "<Part><PartNumber>" + p.PartNumber + "</PartNumber><ETag>" + p.ETag + "</ETag></Part>"
	}
	return b + "</CompleteMultipartUpload>"
}

// equal compares the buckets when all is done: their listings, and a HEAD of each key, of the
// bucket at the origin and at the endpoint, and of the twin.
func (t *twins) equal() {
	t.Helper()
	lists, keys := map[string][]string{}, map[string]bool{}
	for _, bucket := range []string{"data", twinBucket} {
		answer := t.wants(t.origin, http.StatusOK, s3Ask{method: "GET", bucket: bucket, query: "list-type=2"})
		for _, o := range pageOf(answer).Contents {
			lists[bucket] = append(lists[bucket], fmt.Sprint(o))
			keys[sign.Encode(o.Key, true)] = true
		}
	}
	if x, y := strings.Join(lists[twinBucket], "\n"), strings.Join(lists["data"], "\n"); x != y || x == "" {
		t.Errorf("the twin has\n%s\nand the bucket\n%s", x, y)
	}
	for _, key := range t.keys {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		a := s3Ask{method: "HEAD", bucket: "data", path: "/" + key, header: http.Header{"X-Amz-Checksum-Mode": {"ENABLED"}}}
		_, here := t.read(a)
		twin, err := t.origin.do(t.ctx, s3Ask{method: "HEAD", bucket: twinBucket, path: a.path, header: a.header})
		t.must(err, "ask for the twin of %s", key)
		for _, x := range []*s3Answer{twin, here} {
			x.header.Del("Last-Modified") // written at two times
			if coding := x.header.Get("Content-Encoding"); coding == "aws-chunked" {
				x.header.Del("Content-Encoding") // which versitygw keeps, and Amazon and the endpoint take off signed chunks
			}
		}
		t.compare(a, twin, here, true)
	}
}
