package s3gw

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/s3gw/keys"
)

func TestNoUploadIDLeadsOutOfItsUpload(t *testing.T) {
	// versitygw keeps an upload in a directory of its id. A client that may write mine/ alone, and one that reads without a key, get at nothing
	// else by an id: no object, no bucket, no directory of the server's machine is listed, taken, removed or added to. Uploads go on as before.
	s := newStand(t, func(o *Options) {
		k, err := keys.Open(keys.Options{File: writeKeys(t), Anonymous: "ro bucket/mine/"})
		if err != nil {
			t.Fatal(err)
		}
		o.Keys = k
	}, shownLink{bucket: "bucket"}, shownLink{bucket: "other"})
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.put("bucket", "mine/x", "own")
	s.put("bucket", "secret/1", "secret")
	s.put("bucket", "victim/a", "victim")
	s.put("bucket", "planted/x", "x")
	s.put("other", "dir/c", "of other")
	before := files(t, s.server.Dir)
	s.went()
	climb := strings.Repeat("../", 30)
	for _, id := range []string{"../../../victim", "../../../secret", "../../../planted", "../../../../other/dir", "../../../../other", "../../..", climb + outside[1:], "..", "."} {
		for _, escaped := range []string{id, url.QueryEscape(id), strings.ReplaceAll(id, "..", "%2e%2E"), url.QueryEscape(url.QueryEscape(id)), strings.ReplaceAll(id, "/", "%5C"), "a&uploadId=" + id} {
			const done = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>0</ETag></Part></CompleteMultipartUpload>"
			s.gets(400, "uploadId", "mine", "DELETE", "/bucket/mine/x?uploadId="+escaped, "")
			s.gets(400, "uploadId", "mine", "PUT", "/bucket/mine/x?partNumber=7&uploadId="+escaped, "written by mine")
			s.gets(400, "uploadId", "mine", "PUT", "/bucket/mine/x?partNumber=7&uploadId="+escaped, "", "X-Amz-Copy-Source: /bucket/mine/x")
			s.gets(400, "uploadId", "mine", "POST", "/bucket/mine/stolen?uploadId="+escaped, done)
			for _, reader := range []string{"mine", "reader", ""} {
				s.gets(400, "<Code>InvalidArgument</Code>", reader, "GET", "/bucket/mine/x?uploadId="+escaped, "")
			}
		}
		s.gets(400, "partNumber", "mine", "PUT", "/bucket/mine/x?uploadId=a&partNumber="+url.QueryEscape(id), "written by mine")
	}
	if went := s.went(); len(went) > 0 {
		t.Errorf("to the origin went %q", went)
	}
	if after := files(t, s.server.Dir); after != before {
		t.Errorf("the server had\n%s\nand has\n%s", before, after)
	}
	if _, err := os.Stat(filepath.Join(outside, "f")); err != nil {
		t.Error(err)
	}
	_, begun := s.ask("mine", "POST", "/bucket/mine/big?uploads", "")
	id := regexp.MustCompile("<UploadId>(.*)</UploadId>").FindStringSubmatch(begun)
	if id == nil {
		t.Fatal(begun)
	}
	part, _ := s.ask("mine", "PUT", "/bucket/mine/big?partNumber=1&uploadId="+id[1], "whole")
	s.gets(200, part.Header.Get("Etag")[1:9], "mine", "GET", "/bucket/mine/big?uploadId="+id[1], "")
	s.gets(200, "", "mine", "POST", "/bucket/mine/big?uploadId="+id[1], "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"+part.Header.Get("Etag")+"</ETag></Part></CompleteMultipartUpload>")
	s.gets(200, "whole", "mine", "GET", "/bucket/mine/big", "")
}

// writeKeys writes the standard keys to a file.
func writeKeys(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(standard), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// files are the names below a directory, each in a line.
func files(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all.WriteString(path + "\n")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestNoHeaderMakesACopyOfAWrite(t *testing.T) {
	// A header by which some origin copies, links or moves is refused on a write, and what proxies say of the client stays here.
	s := newStand(t, nil, shownLink{bucket: "bucket"}, shownLink{bucket: "other"})
	s.put("other", "secret", "of other")
	for _, name := range []string{"X_Amz_Copy_Source", "X-Copy-From", "X-Object-Manifest", "X-Symlink-Target", "x-goog-copy-source", "x-oss-copy-source", "x-obs-copy-source", "x-cos-copy-source", "X-Amz-Rename-Source", "X-New"} {
		s.gets(400, http.CanonicalHeaderKey(name), "mine", "PUT", "/bucket/mine/copy", "", name+": /other/secret")
		if strings.HasPrefix(name, "x-") {
			s.gets(400, name, "mine", "PUT", "/bucket/mine/copy?"+name+"=%2Fother%2Fsecret", "")
		}
	}
	s.gets(403, "", "mine", "PUT", "/bucket/mine/copy", "", "X-Amz-Copy-Source: /other/secret")
	s.gets(403, "", "mine", "POST", "/bucket/mine/copy?uploads", "", "X-Amz-Copy-Source: /other/secret")
	if went := s.went(); len(went) > 0 {
		t.Errorf("to the origin went %q", went)
	}
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		answer, err := forward()
		if err == nil {
			for name := range answer.Request.Header {
				if strings.Contains(name, "orwarded") || strings.Contains(name, "Ip") || strings.HasPrefix(name, "X-Envoy-") {
					t.Errorf("%s went to the origin", name)
				}
			}
		}
		return answer, err
	})
	for _, h := range []string{"X-Forwarded-Host: other.s3.example", "X-Forwarded-For: 10.0.0.1", "Forwarded: host=other.s3.example", "X-Real-IP: 10.0.0.1", "X-Envoy-Original-Path: /other/x", "Fastly-Client-IP: 10.0.0.1"} {
		s.gets(200, "", "mine", "PUT", "/bucket/mine/a", "a", h)
		s.gets(206, "a", "mine", "GET", "/bucket/mine/a?partNumber=1", "", h)
	}
}

func TestNoBodyNamesWhatIsElsewhere(t *testing.T) {
	// The documents of a write are looked at ahead of the origin: versions and parts are ids, and a restore writes nothing to another bucket.
	s := newStand(t, nil, shownLink{bucket: "bucket"}, shownLink{bucket: "other"})
	s.put("bucket", "mine/x", "own")
	for _, c := range []struct{ target, body, code string }{
		{"/bucket?delete", "<Delete><Object><Key>mine/x</Key><VersionId>../../victim</VersionId></Object></Delete>", "InvalidArgument"},
		{"/bucket/mine/x?uploadId=a", "<CompleteMultipartUpload><Part><PartNumber>../../victim</PartNumber><ETag>0</ETag></Part></CompleteMultipartUpload>", "InvalidArgument"},
		{"/bucket/mine/x?uploadId=a", strings.Repeat(" ", 4<<20+1), "MalformedXML"},
		{"/bucket/mine/x?restore", "<RestoreRequest><Type>SELECT</Type><OutputLocation><S3><BucketName>other</BucketName></S3></OutputLocation></RestoreRequest>", "NotImplemented"},
	} {
		resp, text := s.ask("mine", "POST", c.target, c.body)
		if resp.StatusCode < 400 || !strings.Contains(text, "<Code>"+c.code+"</Code>") {
			t.Errorf("%s: %s %s", c.target, resp.Status, text)
		}
	}
	if went := s.went(); len(went) > 0 {
		t.Errorf("to the origin went %q", went)
	}
	lengths := map[string]int64{}
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		lengths[r.URL.RawQuery] = r.ContentLength
		if r.Header.Get("Content-Md5") != "" {
			t.Errorf("%s has a checksum that nobody sent", r.URL)
		}
		return forward()
	})
	for query, body := range map[string]string{"uploadId=a": "<CompleteMultipartUpload/>", "uploadId=b": "", "restore=": "", "restore=1": "<RestoreRequest><Days>1</Days></RestoreRequest>"} {
		s.ask("mine", "POST", "/bucket/mine/x?"+query, body)
		if n, ok := lengths[query]; !ok || n != int64(len(body)) {
			t.Errorf("%s: %d bytes of %d went on (%v)", query, n, len(body), ok)
		}
	}
}

func TestWithoutAKeyThereAreReadsAndListingsAlone(t *testing.T) {
	// s3.anonymous lets anybody read and list. What else a key that reads may ask (rights, tags, old
	// versions, unfinished uploads, the bucket's configuration, parameters of other vendors) asks no origin.
	s := newStand(t, func(o *Options) {
		k, err := keys.Open(keys.Options{File: writeKeys(t), Anonymous: "ro bucket"})
		if err != nil {
			t.Fatal(err)
		}
		o.Keys = k
	}, shownLink{bucket: "bucket"})
	s.put("bucket", "a", "content")
	s.went()
	for _, q := range []string{
		"?policy", "?acl", "?versions", "?uploads", "?notification", "?lifecycle", "?tagging", "?cors", "?versioning", "?location=x", "?policyStatus",
		"?object-lock", "?publicAccessBlock", "?list-type=2&metadata=true", "?list-type=2&acl", "?acl=", "?list-type=2&x-oss-process=a", "?websiteConfig",
		"/a?acl", "/a?versionId=null", "/a?tagging", "/a?attributes", "/a?uploadId=x", "/a?retention", "/a?legal-hold", "/a?torrent", "/a?x-oss-process=image",
		"/a?tagging=1", "/a?acl&tagging", "/a?select&select-type=2",
	} {
		for _, method := range []string{"GET", "HEAD"} {
			resp, text := s.ask("", method, "/bucket"+q, "")
			if resp.StatusCode != 403 && !(resp.StatusCode == 501 && q == "/a?torrent") {
				t.Errorf("%s %s: %s %.200s", method, q, resp.Status, text)
			}
		}
	}
	for _, write := range []string{"PUT /bucket/b", "DELETE /bucket/a", "POST /bucket/a?uploads", "PUT /bucket/a?tagging", "POST /bucket?delete"} {
		method, target, _ := strings.Cut(write, " ")
		s.gets(403, "AccessDenied", "", method, target, "")
	}
	if went := s.went(); len(went) > 0 {
		t.Errorf("to the origin went %q", went)
	}
	s.gets(200, "content", "", "GET", "/bucket/a", "")
	s.gets(206, "ont", "", "GET", "/bucket/a", "", "Range: bytes=1-3")
	s.gets(206, "content", "", "GET", "/bucket/a?partNumber=1", "")
	s.gets(200, "", "", "HEAD", "/bucket/a", "")
	s.gets(200, "", "", "HEAD", "/bucket", "")
	s.gets(200, "<Key>a</Key>", "", "GET", "/bucket", "")
	s.gets(200, "<Key>a</Key>", "", "GET", "/bucket?list-type=2&prefix=a&delimiter=/&encoding-type=url&x-id=ListObjectsV2", "")
	s.gets(200, "LocationConstraint", "", "GET", "/bucket?location", "")
	s.gets(200, "content", "", "POST", "/bucket?hearth-batch", "{\"key\":\"a\"}\n")
	s.gets(200, "<Tagging", "reader", "GET", "/bucket/a?tagging", "")
	s.gets(200, "<AccessControlPolicy", "reader", "GET", "/bucket?acl", "")
}

func TestWhatNobodySignedStaysHere(t *testing.T) {
	// Who was given a presigned URL, or has no key, adds headers that no list here has. With a write
	// they are refused, with a read they stay here: to some origin they are a part of what is asked.
	s := newStand(t, func(o *Options) {
		k, err := keys.Open(keys.Options{File: writeKeys(t), Anonymous: "ro bucket/mine/"})
		if err != nil {
			t.Fatal(err)
		}
		o.Keys = k
	}, shownLink{bucket: "bucket"})
	s.put("bucket", "mine/a", "content")
	const vendors = "X-Minio-Force-Delete X_Minio_Force_Delete X-Goog-Acl X-Oss-Process X-Rgw-Object-Append-Position X-Amz-Expected-Bucket-Owner X-Unheard-Of"
	ask := func(method, name string, signed bool) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, s.url+"/bucket/mine/a?partNumber=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		if signed {
			r.Header[name] = []string{"true"}
		}
		presigned(r, "mine")
		r.Header[name] = []string{"true"}
		resp, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	var had []string
	s.block(func(r *http.Request, forward func() (*http.Response, error)) (*http.Response, error) {
		for name := range r.Header {
			if strings.Contains(vendors, name) {
				had = append(had, name)
			}
		}
		return forward()
	})
	for name := range strings.FieldsSeq(vendors) {
		if resp := ask("DELETE", name, false); resp.StatusCode != 403 && resp.StatusCode != 400 {
			t.Errorf("a DELETE with %s: %s", name, resp.Status)
		}
		resp := ask("GET", name, false)
		if theirs := strings.HasPrefix(name, "X-Amz-") || strings.HasPrefix(name, "X-Minio-"); theirs && resp.StatusCode != 403 || !theirs && resp.StatusCode != 206 {
			t.Errorf("a GET with %s: %s", name, resp.Status)
		}
		if !strings.HasPrefix(name, "X-Amz-") {
			s.gets(206, "content", "", "GET", "/bucket/mine/a?partNumber=1", "", name+": true")
		}
	}
	if len(had) > 0 {
		t.Errorf("to the origin went %q", had)
	}
	if resp := ask("GET", "X-Goog-Acl", true); resp.StatusCode != 206 || len(had) != 1 {
		t.Errorf("a header that was signed: %s, to the origin went %q", resp.Status, had)
	}
	s.gets(200, "content", "mine", "GET", "/bucket/mine/a", "")
}
