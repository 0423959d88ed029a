package s3gw

import (
	"strings"
	"testing"
)

func TestBucketsOfOneNameAtTwoOrigins(t *testing.T) {
	// Two links lead to buckets of one name, which are two buckets: no endpoint begins so, and where
	// the second link comes later clients see the first one's bucket alone, and who runs it is told once.
	s := newStand(t, nil, shownLink{bucket: "bucket", prefix: "x/"}, shownLink{bucket: "bucket", prefix: "y/", account: "http://elsewhere"}, shownLink{bucket: "bucket", prefix: "z/"})
	s.put("bucket", "x/a", "of x")
	s.put("bucket", "y/a", "of y")
	s.put("bucket", "z/a", "of z")
	_, err := s.endpoint(t.Context(), Setup{})
	if err == nil {
		t.Fatal("it begins")
	}
	for _, want := range []string{"link1", "link2", "http://elsewhere", "same endpoint", "a node of its own"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	for range 2 {
		s.gets(200, "of x", "root", "GET", "/bucket/x/a", "")
		s.gets(200, "of z", "root", "GET", "/bucket/z/a", "")
		s.gets(403, "AccessDenied", "root", "GET", "/bucket/y/a", "")
		s.gets(403, "AccessDenied", "root", "PUT", "/bucket/y/b", "x")
		if _, text := s.ask("root", "GET", "/bucket?list-type=2", ""); strings.Count(text, "<Key>") != 2 || strings.Contains(text, "y/") {
			t.Errorf("a listing: %s", text)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if told := strings.Join(s.told, ""); strings.Count(told, "link that S3 clients are not shown") != 1 {
		t.Errorf("it was told %q", told)
	}
}

func TestCopiesFromAnotherOrigin(t *testing.T) {
	// A copy's source lies at another origin than its target, which would read a bucket of its own
	// by that name: the client is told what to do instead, and the origin asked nothing.
	s := newStand(t, nil, shownLink{bucket: "bucket"}, shownLink{bucket: "near"}, shownLink{bucket: "far", account: "http://elsewhere"})
	for _, bucket := range []string{"bucket", "near", "far"} {
		s.put(bucket, "k", "of "+bucket)
	}
	s.went()
	for _, target := range []string{"/bucket/copy", "/bucket/copy?partNumber=1&uploadId=x"} {
		s.gets(501, "get the object, and put it", "root", "PUT", target, "", "X-Amz-Copy-Source: far/k")
	}
	s.gets(501, "NotImplemented", "root", "PUT", "/far/copy", "", "X-Amz-Copy-Source: near/k")
	if asked := s.went(); len(asked) != 0 {
		t.Errorf("asked: %q", asked)
	}
	s.gets(200, "", "root", "PUT", "/bucket/copy", "", "X-Amz-Copy-Source: near/k")
	s.gets(200, "of near", "root", "GET", "/bucket/copy", "")
	s.gets(200, "", "root", "PUT", "/far/copy", "", "X-Amz-Copy-Source: far/k")
	s.gets(200, "of far", "root", "GET", "/far/copy", "")
}
