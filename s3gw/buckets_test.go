package s3gw

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hearthfs/hearth/namespace"
)

// removed is what is answered of a bucket that a client removed, and of one made in its place.
func removed(s *stand, bucket string) {
	s.Helper()
	s.gets(200, "", "root", "PUT", "/"+bucket+"/d/k", "old")
	s.gets(200, "d/k", "root", "GET", "/"+bucket+"?list-type=2", "")
	s.gets(204, "", "root", "DELETE", "/"+bucket+"/d/k", "")
	s.gets(200, "<KeyCount>0</KeyCount>", "root", "GET", "/"+bucket+"?list-type=2", "")
	s.gets(204, "", "root", "DELETE", "/"+bucket, "")
	s.gets(404, "", "root", "HEAD", "/"+bucket, "")
	for _, path := range []string{"?location", "?list-type=2", "", "?prefix=d/", "/d/k"} {
		s.gets(404, "NoSuchBucket", "root", "GET", "/"+bucket+path, "")
	}
	if _, text := s.ask("root", "GET", "/", ""); strings.Contains(text, "<Name>"+bucket+"<") {
		s.Errorf("a bucket that was removed is told: %s", text)
	}
	s.gets(200, "", "root", "PUT", "/"+bucket, "")
	s.gets(200, "<Name>"+bucket+"<", "root", "GET", "/", "")
	s.gets(200, "", "root", "HEAD", "/"+bucket, "")
	s.gets(200, "", "root", "PUT", "/"+bucket+"/d/k", "new")
	s.gets(200, "d/k", "root", "GET", "/"+bucket+"?prefix=d/", "")
	s.gets(200, "new", "root", "GET", "/"+bucket+"/d/k", "")
}

func TestARemovedBucketIsGone(t *testing.T) {
	for _, mode := range []namespace.Freshness{{}, {Mode: namespace.Immutable}, {Mode: namespace.Strict}} {
		s := newStand(t, nil, shownLink{bucket: "bucket"}, shownLink{bucket: "bucket2", configure: true, freshness: mode})
		removed(s, "bucket2")
		s.gets(409, "BucketAlreadyOwnedByYou", "root", "PUT", "/bucket", "")
		s.gets(409, "BucketAlreadyOwnedByYou", "reader", "PUT", "/bucket", "")
	}
}

func TestARemovedBucketOfTheAccountIsGone(t *testing.T) {
	var s *stand
	s = newStand(t, func(o *Options) {
		o.Configure = true
		o.Other = func(ctx context.Context, bucket string) (Link, error) { return s.add(ctx, shownLink{bucket: bucket}) }
	}, shownLink{bucket: "bucket"})
	s.gets(200, "", "root", "PUT", "/made", "")
	removed(s, "made")
	removed(s, "bucket")
	s.gets(409, "BucketAlreadyOwnedByYou", "reader", "PUT", "/bucket", "")
}

func TestAPartOfABucketIsNotRemoved(t *testing.T) {
	// Clients cannot remove a bucket of which a part is shown, whatever is allowed else: it is there.
	s := newStand(t, func(o *Options) { o.Configure = true }, shownLink{bucket: "bucket", prefix: "train/"})
	s.gets(200, "", "root", "HEAD", "/bucket", "")
	s.gets(200, "LocationConstraint", "root", "GET", "/bucket?location", "")
	s.gets(200, "<Name>bucket<", "root", "GET", "/", "")
	s.gets(200, "<Prefix>train/</Prefix>", "root", "GET", "/bucket?list-type=2&delimiter=/", "")
	s.gets(409, "BucketAlreadyOwnedByYou", "root", "PUT", "/bucket", "")
}

func TestNobodyMakesABucketUnlessThatIsAllowed(t *testing.T) {
	var s *stand
	s = newStand(t, func(o *Options) {
		o.Other = func(ctx context.Context, bucket string) (Link, error) { return s.add(ctx, shownLink{bucket: bucket}) }
	}, shownLink{bucket: "bucket"})
	s.server.Bucket(t, "more")
	s.gets(403, "s3.configure", "root", "PUT", "/more", "")
	s.gets(200, "", "root", "GET", "/more", "")
	s.went()
	s.gets(403, "s3.configure", "root", "PUT", "/more", "") // now that it has a link
	s.gets(409, "BucketAlreadyOwnedByYou", "root", "PUT", "/bucket", "")
	if went := s.went(); len(went) > 0 {
		t.Errorf("%q went to the origin", went)
	}
}

func TestListBucketsWithParameters(t *testing.T) {
	for _, others := range []bool{false, true} {
		var s *stand
		s = newStand(t, func(o *Options) {
			if others {
				o.Other = func(ctx context.Context, bucket string) (Link, error) { return s.add(ctx, shownLink{bucket: bucket}) }
			}
		}, shownLink{bucket: "bucket"}, shownLink{bucket: "other"}, shownLink{bucket: "other2"})
		names := func(query string) (names, next string) {
			resp, text := s.ask("root", "GET", "/"+query, "")
			if resp.StatusCode != 200 {
				t.Fatalf("%s: %s", query, text)
			}
			_, next, _ = strings.Cut(text, "<ContinuationToken>")
			next, _, _ = strings.Cut(next, "<")
			for part := range strings.SplitSeq(text, "<Name>") {
				if name, _, ok := strings.Cut(part, "</Name>"); ok {
					names += name + " "
				}
			}
			return names, next
		}
		for query, want := range map[string]string{
			"": "bucket other other2 ", "?prefix=oth": "other other2 ", "?prefix=no": "", "?x-id=ListBuckets": "bucket other other2 ",
			"?bucket-region=us-east-1": "bucket other other2 ", "?max-buckets=3": "bucket other other2 ", "?prefix=other2&max-buckets=1": "other2 ",
		} {
			if got, next := names(query); got != want || next != "" {
				t.Errorf("ListBuckets%s: %q, then %q; want %q", query, got, next, want)
			}
		}
		all, token := "", ""
		for range 4 {
			got, next := names("?max-buckets=1&continuation-token=" + token)
			if all += got; next == "" {
				break
			}
			token = next
		}
		if all != "bucket other other2 " {
			t.Errorf("page by page: %q", all)
		}
		s.gets(200, "<Prefix>oth</Prefix>", "root", "GET", "/?prefix=oth", "")
		s.gets(200, "<BucketRegion>us-east-1</BucketRegion>", "root", "GET", "/?prefix=oth", "")
		for _, bad := range []string{"max-buckets=0", "max-buckets=10001", "max-buckets=x", "max-buckets=", "continuation-token=%25"} {
			s.gets(400, "InvalidArgument", "root", "GET", "/?"+bad, "")
		}
	}
}

func TestTwinLinksForgetAlike(t *testing.T) {
	// Two links show one bucket: S3 clients are shown one of them, and mounts both.
	s := newStand(t, nil, shownLink{bucket: "bucket"}, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	s.put("bucket", "d/k", "first")
	size := func(want int64) {
		t.Helper()
		for _, l := range s.shown() {
			n, err := s.tree.File(t.Context(), l.Name, "d/k")
			if want == 0 != (err != nil) || n.Object.Size != want {
				t.Errorf("%s: %d bytes, %v; want %d", l.Name, n.Object.Size, err, want)
			}
		}
	}
	size(5)
	s.gets(200, "", "root", "PUT", "/bucket/d/k", "second, longer")
	size(14)
	s.gets(204, "", "root", "DELETE", "/bucket/d/k", "")
	size(0)
}

func TestDeletesDoNotListWhatIsLargeOrUnknown(t *testing.T) {
	s := newStand(t, nil, shownLink{bucket: "bucket", freshness: namespace.Freshness{Mode: namespace.Immutable}})
	for i := range 60 {
		s.put("bucket", fmt.Sprintf("flat/%05d", i), "x")
	}
	deletes := func(from int) int64 {
		text := "<Delete><Quiet>true</Quiet>"
		for i := range 20 {
			text += fmt.Sprintf("<Object><Key>flat/%05d</Key></Object>", from+i)
		}
		lists := func() int64 { return s.shown()[0].Origin.(*road).to.Stats().Lists }
		before := lists()
		s.gets(200, "", "root", "POST", "/bucket?delete=", text+"</Delete>")
		return lists() - before
	}
	if n := deletes(0); n != 0 {
		t.Errorf("20 keys of a directory that nobody listed cost %d LISTs", n)
	}
	s.gets(200, "<KeyCount>40</KeyCount>", "root", "GET", "/bucket?list-type=2&prefix=flat/", "")
	if n := deletes(20); n == 0 || n > 2 {
		t.Errorf("20 of 40 names that are known cost %d LISTs; want the directory listed again", n)
	}
	s.gets(200, "<KeyCount>20</KeyCount>", "root", "GET", "/bucket?list-type=2&prefix=flat/", "")
	for i := range 20 {
		s.gets(404, "NoSuchKey", "root", "GET", fmt.Sprintf("/bucket/flat/%05d", i), "")
	}
}
