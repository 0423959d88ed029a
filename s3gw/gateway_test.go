package s3gw

import (
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hearthfs/hearth/namespace"
)

func TestWhoMayDoWhat(t *testing.T) {
	// Keys read and write what their lines say and nothing else, by whatever name it is asked
	// for; nothing that is refused reaches the cache's names or the origin.
	s := newStand(t, nil, shownLink{bucket: "bucket"}, shownLink{bucket: "other"})
	s.put("bucket", "a", "of a")
	s.put("bucket", "mine/b", "of b")
	s.put("other", "c", "of c")
	deletes := func(keys ...string) string {
		text := "<Delete>"
		for _, k := range keys {
			text += "<Object><Key>" + k + "</Key></Object>"
		}
		return text + "</Delete>"
	}
	for _, c := range []struct {
		status              int
		who, method, target string
		body, header        string
	}{
		{403, "reader", "PUT", "/bucket/new", "x", ""},
		{403, "reader", "DELETE", "/bucket/a", "", ""},
		{403, "reader", "PUT", "/bucket/a?tagging", "<Tagging/>", ""},
		{403, "reader", "POST", "/bucket/a?uploads", "", ""},
		{403, "reader", "POST", "/bucket?delete", deletes("a"), ""},
		{403, "reader", "GET", "/other/c", "", ""},
		{403, "mine", "GET", "/bucket/a", "", ""},
		{403, "mine", "GET", "/bucket/mine/../a", "", ""},
		{403, "mine", "GET", "/bucket/mine/%2e%2e/a", "", ""},
		{403, "mine", "GET", "/bucket/mine/../../other/c", "", ""},
		{403, "mine", "PUT", "/bucket/mine/../a", "x", ""},
		{403, "mine", "DELETE", "/bucket//a", "", ""},
		{403, "mine", "PUT", "/bucket/mine/copy", "", "X-Amz-Copy-Source: /bucket/a"},
		{403, "mine", "PUT", "/bucket/mine/copy", "", "X-Amz-Copy-Source: /bucket/mine/../a"},
		{403, "mine", "PUT", "/bucket/mine/copy", "", "X-Amz-Copy-Source: /other/c"},
		{403, "mine", "POST", "/bucket?delete", deletes("mine/b", "a"), ""},
		{403, "mine", "POST", "/bucket?delete", deletes("mine/b", "mine/../a"), ""},
		{403, "mine", "GET", "/bucket?list-type=2", "", ""},
		{403, "mine", "GET", "/bucket?list-type=2&prefix=mine", "", ""},
		{403, "mine", "GET", "/bucket?prefix=mine/&versions&x=1", "", ""},
		{403, "other", "PUT", "/bucket/mine/b", "x", ""},
		{403, "", "GET", "/bucket/a", "", ""},
		{403, "", "GET", "/", "", ""},
		{403, "stranger", "GET", "/bucket/a", "", ""},
		{403, "root", "PUT", "/bucket/from", "", "X-Amz-Copy-Source: /unshown/c"},
		{403, "root", "PUT", "/bucket?policy", "{}", ""},
		{404, "root", "GET", "/unshown/c", "", ""},
		{404, "root", "GET", "/minio/admin/v3/info", "", ""},
		{501, "root", "GET", "/bucket?session", "", ""},
		{403, "", "OPTIONS", "/bucket/a", "", "Origin: https://a.example"},
	} {
		s.went()
		names := s.tree.Stats()
		resp, text := s.ask(c.who, c.method, c.target, c.body, c.header)
		if now := s.tree.Stats(); now.Lookups != names.Lookups || now.Nodes != names.Nodes || now.Read != names.Read {
			t.Errorf("%s %s by %q was looked up", c.method, c.target, c.who)
		}
		if resp.StatusCode != c.status || !strings.Contains(text, "<RequestId>"+resp.Header.Get("X-Amz-Request-Id")+"</RequestId>") || resp.Header.Get("X-Amz-Request-Id") == "" {
			t.Errorf("%s %s by %q (%s): %d, want %d: %v %s", c.method, c.target, c.who, c.header, resp.StatusCode, c.status, resp.Header, text)
		}
		if went := s.went(); len(went) > 0 {
			t.Errorf("%s %s by %q: %q went to the origin", c.method, c.target, c.who, went)
		}
	}
	for _, c := range []struct{ who, method, target, body, header, text string }{
		{"reader", "GET", "/bucket/a", "", "", "of a"},
		{"reader", "HEAD", "/bucket/a", "", "", ""},
		{"reader", "GET", "/bucket?list-type=2", "", "", "<Key>mine/b</Key>"},
		{"mine", "GET", "/bucket?list-type=2&prefix=mine/", "", "", "<Key>mine/b</Key>"},
		{"mine", "GET", "/bucket/mine/b", "", "", "of b"},
		{"mine", "PUT", "/bucket/mine/c", "of mine", "", ""},
		{"mine", "PUT", "/bucket/mine/d", "", "X-Amz-Copy-Source: /bucket/mine/c", "CopyObjectResult"},
		{"mine", "GET", "/bucket/mine/d", "", "", "of mine"},
		{"mine", "POST", "/bucket?delete", deletes("mine/c", "mine/d"), "", "<Deleted>"},
		{"mine", "HEAD", "/bucket", "", "", ""},
		{"mine", "GET", "/", "", "", "<Name>bucket</Name>"},
		{"reader", "GET", "/bucket?location", "", "", "LocationConstraint"},
	} {
		s.gets(200, c.text, c.who, c.method, c.target, c.body, c.header)
	}
	if _, text := s.ask("mine", "GET", "/", ""); strings.Contains(text, "other") || strings.Count(text, "<Name>") != 1 {
		t.Errorf("the buckets of mine: %s", text)
	}
	if resp, text := s.ask("stranger", "HEAD", "/bucket/a", ""); resp.StatusCode != 403 || text != "" {
		t.Errorf("an error of HEAD: %d %q", resp.StatusCode, text)
	}
	s.gets(404, "NoSuchKey", "mine", "GET", "/bucket/mine/c", "")
}

func TestPartsOfABucket(t *testing.T) {
	// Two links show two prefixes of a bucket, one of them within a third: clients see those
	// parts and the way to them, and whatever else the bucket has is told and changed by nobody.
	s := newStand(t, nil, shownLink{bucket: "bucket", prefix: "x/"}, shownLink{bucket: "bucket", prefix: "x/deep/"}, shownLink{bucket: "bucket", prefix: "y/z/"})
	for _, key := range []string{"top", "x/a", "x/deep/b", "y/hidden", "y/z/c"} {
		s.put("bucket", key, "of "+key)
	}
	for _, key := range []string{"x/a", "x/deep/b", "y/z/c"} {
		s.gets(200, "of "+key, "root", "GET", "/bucket/"+key, "")
	}
	for _, key := range []string{"top", "y/hidden", "x/../top", "y/z/../hidden", "y"} {
		s.gets(403, "AccessDenied", "root", "GET", "/bucket/"+key, "")
		s.gets(403, "AccessDenied", "root", "PUT", "/bucket/"+key, "x")
		s.gets(403, "AccessDenied", "root", "PUT", "/bucket/x/copied", "", "X-Amz-Copy-Source: bucket/"+key)
		s.gets(403, "AccessDenied", "root", "POST", "/bucket?delete", "<Delete><Object><Key>x/a</Key></Object><Object><Key>"+key+"</Key></Object></Delete>")
	}
	if _, text := s.ask("root", "GET", "/bucket?list-type=2", ""); !strings.Contains(text, "<Key>x/a</Key>") || !strings.Contains(text, "<Key>y/z/c</Key>") || strings.Contains(text, "hidden") || strings.Contains(text, "top") || strings.Count(text, "<Key>") != 3 {
		t.Errorf("a listing of all: %s", text)
	}
	for _, target := range []string{"/bucket?uploads", "/bucket?versions", "/bucket?versions&prefix=y/", "/bucket?list-type=2&prefix=to"} {
		s.gets(403, "AccessDenied", "root", "GET", target, "")
	}
	s.gets(200, "", "root", "PUT", "/bucket/x/deep/b", "another b")
	s.gets(200, "another b", "root", "GET", "/bucket/x/deep/b", "")
	s.gets(409, "BucketAlreadyOwnedByYou", "root", "PUT", "/bucket", "")
	s.gets(409, "BucketAlreadyOwnedByYou", "mine", "PUT", "/bucket", "")
	s.gets(403, "AccessDenied", "other", "PUT", "/bucket", "")
}

func TestBucketsThatMayBeConfigured(t *testing.T) {
	// One link lets its bucket be configured, another does not, and one to a part of a bucket cannot.
	s := newStand(t, nil, shownLink{bucket: "bucket", prefix: "x/", configure: true}, shownLink{bucket: "bucket2"}, shownLink{bucket: "bucket3", configure: true})
	const tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
	sum := md5.Sum([]byte(tags))
	s.gets(403, "only a part", "root", "PUT", "/bucket?tagging", tags)
	s.gets(403, "links[].configure", "root", "PUT", "/bucket2?tagging", tags)
	s.gets(403, "links[].configure", "root", "PUT", "/new", "")
	s.gets(403, "AccessDenied", "reader", "PUT", "/bucket3?tagging", tags)
	s.gets(204, "", "root", "PUT", "/bucket3?tagging", tags, "Content-Md5: "+base64.StdEncoding.EncodeToString(sum[:]))
	s.gets(200, "<Key>a</Key>", "root", "GET", "/bucket3?tagging", "")
	s.gets(403, "links[].configure", "root", "DELETE", "/bucket2", "")
	s.gets(204, "", "root", "DELETE", "/bucket3", "")
}

func TestWritesAreSeenAtOnce(t *testing.T) {
	// Names that are believed for ever were read and listed; what any write changes is seen by
	// the next request, whatever form it had, and what was refused changes nothing.
	for _, mode := range []namespace.Freshness{{Mode: namespace.Immutable}, {Mode: namespace.Strict}} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			s := newStand(t, nil, shownLink{bucket: "bucket", freshness: mode})
			for i := range 40 {
				s.put("bucket", fmt.Sprintf("many/%02d", i), "old")
			}
			for i := range 20 {
				s.put("bucket", fmt.Sprintf("gone/%02d", i), "old")
			}
			s.put("bucket", "d/a", "old")
			s.gets(200, "many/39", "root", "GET", "/bucket?list-type=2", "")
			s.gets(200, "old", "root", "GET", "/bucket/d/a", "")
			s.gets(404, "NoSuchKey", "root", "GET", "/bucket/d/new", "")
			s.gets(404, "NoSuchKey", "root", "GET", "/bucket/e/new", "")

			s.gets(200, "", "root", "PUT", "/bucket/d/a", "new a")
			s.gets(200, "new a", "root", "GET", "/bucket/d/a", "")
			s.gets(200, "", "root", "PUT", "/bucket/e/new", "new")
			s.gets(200, "new", "root", "GET", "/bucket/e/new", "")
			s.gets(200, "<Key>e/new</Key>", "root", "GET", "/bucket?list-type=2", "")
			s.gets(200, "", "root", "PUT", "/bucket/d/new", "", "X-Amz-Copy-Source: bucket/d/a")
			s.gets(200, "new a", "root", "GET", "/bucket/d/new", "")
			s.gets(200, "", "root", "PUT", "/bucket/d//a", "by its alias") // versitygw joins it
			form := "<Key>d/a</Key><LastModified>"                         // from the tree
			if mode.Mode == namespace.Strict {
				form = "<Key>d/a</Key>" // the origin's own order
			}
			s.gets(200, form, "root", "GET", "/bucket?list-type=2&prefix=d/", "")
			s.gets(200, "<Size>12</Size>", "root", "GET", "/bucket?list-type=2&prefix=d/a", "")
			s.gets(200, "by its alias", "root", "GET", "/bucket/d/a", "")
			s.gets(204, "", "root", "DELETE", "/bucket/d/a", "")
			s.gets(404, "NoSuchKey", "root", "GET", "/bucket/d/a", "")

			text := "<Delete>"
			for i := range 20 {
				text += fmt.Sprintf("<Object><Key>gone/%02d</Key></Object>", i)
			}
			for i := range 39 {
				text += fmt.Sprintf("<Object><Key>many/%02d</Key></Object>", i)
			}
			s.gets(200, "", "root", "POST", "/bucket?delete", text+"</Delete>")
			if _, text := s.ask("root", "GET", "/bucket?list-type=2&prefix=many/", ""); strings.Count(text, "<Key>") != 1 {
				t.Errorf("after 39 of 40 were deleted: %s", text)
			}
			if _, text := s.ask("root", "GET", "/bucket?list-type=2&delimiter=/", ""); strings.Contains(text, "gone/") {
				t.Errorf("after all of a directory was deleted: %s", text)
			}
			s.gets(404, "NoSuchKey", "root", "GET", "/bucket/many/07", "")
			s.gets(412, "PreconditionFailed", "root", "PUT", "/bucket/many/39", "new", "If-None-Match: *")
			s.gets(200, "old", "root", "GET", "/bucket/many/39", "")

			_, answer := s.ask("root", "POST", "/bucket/d/parts?uploads", "")
			_, id, _ := strings.Cut(answer, "<UploadId>")
			id, _, _ = strings.Cut(id, "</UploadId>")
			resp, _ := s.ask("root", "PUT", "/bucket/d/parts?partNumber=1&uploadId="+id, "of parts")
			s.gets(404, "", "root", "GET", "/bucket/d/parts", "")
			s.gets(200, "", "root", "POST", "/bucket/d/parts?uploadId="+id, "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"+resp.Header.Get("Etag")+"</ETag></Part></CompleteMultipartUpload>")
			s.gets(200, "of parts", "root", "GET", "/bucket/d/parts", "")
		})
	}
}

func TestTheTimeInAListingDoesNotMove(t *testing.T) {
	// A key was written, so a HEAD told of it, and the node began anew: its listing tells the time as
	// the bucket does, to the fraction, before and after the directory is listed again.
	s := newStand(t, nil)
	s.server.Bucket(t, "bucket")
	s.gate().fractions = true
	if _, err := s.add(t.Context(), shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}}); err != nil {
		t.Fatal(err)
	}
	s.put("bucket", "d/a", "old")
	s.gets(200, ".618Z<", "root", "GET", "/bucket?list-type=2&prefix=d/&delimiter=/", "")
	s.gets(200, "", "root", "PUT", "/bucket/d/a", "new a")
	s.g.fine.Clear() // as a gateway that begins has it
	modified := regexp.MustCompile(`<LastModified>[^<]*`)
	_, cached := s.ask("root", "GET", "/bucket?list-type=2&prefix=d/&delimiter=/", "")
	_, passed := s.ask("root", "GET", "/bucket?list-type=2&prefix=d/&delimiter=/&optional=1", "")
	if got, want := modified.FindString(cached), modified.FindString(passed); got != want || want == "" {
		t.Errorf("listed at %s, and then at %s", got, want)
	}
}

func TestHeadersThatAWriteChanges(t *testing.T) {
	// An object is written again with the same bytes and other headers within a second, so that
	// its version and its time stay: its headers are not those of before.
	s := newStand(t, nil, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	for _, text := range []string{"one", "two", "three"} {
		s.gets(200, "", "root", "PUT", "/bucket/k", "same", "X-Amz-Meta-Word: "+text)
		for range 2 {
			if resp, _ := s.ask("root", "GET", "/bucket/k", ""); resp.Header.Get("X-Amz-Meta-Word") != text {
				t.Errorf("after %s: %v", text, resp.Header)
			}
		}
	}
	s.gets(200, "", "root", "PUT", "/bucket/k?tagging", "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>")
	asks := s.g.Stats().Headers.Asks
	s.gets(200, "same", "root", "GET", "/bucket/k", "")
	s.gets(200, "same", "root", "GET", "/bucket/k", "")
	if n := s.g.Stats().Headers.Asks - asks; n != 1 {
		t.Errorf("%d HEADs after its tags changed", n)
	}
}

var errLost = errors.New("the answer is lost")

func TestAWriteWhoseAnswerIsLost(t *testing.T) {
	// The origin does what it is asked for and its answer never comes: the client is told so, and
	// what is there now is what the next reader gets.
	s := newStand(t, nil, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	s.put("bucket", "k", "old")
	s.gets(200, "old", "root", "GET", "/bucket/k", "")
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		resp, err := forward()
		if err == nil && r.Method == http.MethodPut {
			resp.Body.Close()
			return nil, errLost
		}
		return resp, err
	})
	s.gets(503, "ServiceUnavailable", "root", "PUT", "/bucket/k", "new")
	s.gets(200, "new", "root", "GET", "/bucket/k", "")
}

func TestObjectsThatChangeBehindItsBack(t *testing.T) {
	// Somebody writes at the origin while clients read by old names: each answer is one version
	// as a whole, and the one after it the new one.
	s := newStand(t, nil, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	text := func(i int) string { return strings.Repeat(fmt.Sprintf("version %03d ", i), 100_000) } // two blocks
	s.put("bucket", "k", text(0))
	s.gets(200, "version 000", "root", "GET", "/bucket/k", "")
	for i := 1; i < 4; i++ {
		s.put("bucket", "k", text(i))
		for range 3 {
			resp, got := s.ask("root", "GET", "/bucket/k", "")
			if j := slices.IndexFunc([]int{i - 1, i}, func(v int) bool { return got == text(v) }); j < 0 || resp.StatusCode != 200 {
				t.Errorf("version %d: %d, %d bytes", i, resp.StatusCode, len(got))
			}
		}
		if resp, got := s.ask("root", "GET", "/bucket/k", ""); got != text(i) {
			t.Errorf("version %d is not found: %d %.11s", i, resp.StatusCode, got)
		}
	}
}

func TestAllBuckets(t *testing.T) {
	// Buckets that no link shows get theirs at first use, one for all who come at once; those
	// that there are not, and names that are other things at some origins, get none.
	var s *stand
	var made sync.Map
	s = newStand(t, func(o *Options) {
		o.Configure = true
		o.Other = func(ctx context.Context, bucket string) (Link, error) {
			if n, again := made.LoadOrStore(bucket, 1); again && bucket == "more" {
				return Link{}, fmt.Errorf("asked again: %v", n)
			}
			return s.add(ctx, shownLink{bucket: bucket})
		}
	}, shownLink{bucket: "bucket"})
	s.server.Bucket(t, "more")
	s.put("more", "k", "of more")
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() { s.gets(200, "of more", "root", "GET", "/more/k", "") })
	}
	work.Wait()
	for _, ask := range []struct{ method, target, asked string }{{"HEAD", "/bucket", "HEAD bucket/"}, {"HEAD", "/more", "HEAD more/"}, {"GET", "/", "GET /"}, {"GET", "/bucket?location", "GET bucket/"}} {
		s.went()
		s.gets(200, "", "root", ask.method, ask.target, "")
		if got := strings.Join(s.went(), ", "); got != ask.asked {
			t.Errorf("%s %s asks the origin %q, expected %q", ask.method, ask.target, got, ask.asked)
		}
	}
	s.gets(404, "NoSuchBucket", "root", "GET", "/nowhere/k", "")
	s.gets(404, "NoSuchBucket", "root", "GET", "/minio/admin/v3/info", "")
	s.gets(403, "AccessDenied", "root", "PUT", "/bucket/k", "", "X-Amz-Copy-Source: admin/k")
	s.gets(400, "InvalidBucketName", "root", "PUT", "/admin", "")
	s.gets(409, "BucketAlreadyOwnedByYou", "root", "PUT", "/bucket", "")
	s.gets(403, "AccessDenied", "reader", "PUT", "/made", "")
	s.gets(200, "", "root", "PUT", "/made", "")
	s.gets(200, "", "root", "HEAD", "/made", "")
	s.gets(200, "<Name>made</Name>", "root", "GET", "/", "")
	s.gets(200, "", "root", "PUT", "/made/k", "of made")
	s.gets(200, "of made", "root", "GET", "/made/k", "")
	if _, text := s.ask("reader", "GET", "/", ""); strings.Count(text, "<Name>") != 1 {
		t.Errorf("the buckets of reader: %s", text)
	}
	s.gets(204, "", "root", "DELETE", "/made/k", "")
	s.gets(204, "", "root", "DELETE", "/made", "")
	s.gets(404, "", "root", "HEAD", "/made", "")
	if _, text := s.ask("root", "GET", "/", ""); strings.Contains(text, "<Name>made</Name>") || !strings.Contains(text, "<Name>bucket</Name>") {
		t.Errorf("the buckets, without the one that was removed: %s", text)
	}
	s.gets(200, "", "root", "PUT", "/made", "")
	s.gets(200, "", "root", "PUT", "/made/k", "of the second")
	s.gets(200, "of the second", "root", "GET", "/made/k", "")
	s.server.Stop()
	s.gets(503, "ServiceUnavailable", "root", "GET", "/unknown/k", "")
	s.gets(503, "ServiceUnavailable", "root", "GET", "/", "")
	s.gets(503, "", "root", "HEAD", "/bucket", "")
}
