package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/tags"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// furnished puts an object with belongings.
func furnished(t *testing.T, s *S3, key string, data []byte) hearth.Object {
	t.Helper()
	w := &write{op: "put", key: key, header: http.Header{"Content-Type": {"text/x-log"}, "Cache-Control": {"no-cache"}, "X-Amz-Meta-Colour": {"blue"}}}
	o, err := s.put(t.Context(), w, &hearth.Upload{Key: key, Size: int64(len(data))}, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// alike compares two objects' bytes and belongings. own are headers that only the second may have.
func alike(t *testing.T, s *S3, from, to hearth.Object, own ...string) {
	t.Helper()
	data, _ := stored(t, s, from.Key)
	same(t, s, to, data)
	_, one, err1 := s.head(t.Context(), from.Key)
	_, two, err2 := s.head(t.Context(), to.Key)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	ours, theirs := belongings(one), belongings(two)
	for _, name := range own {
		theirs.Del(name)
	}
	if !maps.EqualFunc(ours, theirs, slices.Equal) {
		t.Errorf("%s has %v, and its copy %s %v", from.Key, ours, to.Key, theirs)
	}
}

func TestACopyIsTheObjectAgain(t *testing.T) {
	// A copy has the bytes, the metadata and the type of what it was made of, whatever its size and the names;
	// the answer is what a HEAD says. The object stays.
	writers(t, func(t *testing.T, _ *hearthtest.Server, s *S3) {
		for key, to := range map[string]string{"plain": "copy", "a b+c%41%2B": "dir/ünï ☃", "x/&<>\"'": "y/a=b;c,d?e#f", "copy of ünï": "z"} {
			for _, size := range []int{0, 1, 100_000} {
				from := furnished(t, s, key, content(key, size, size))
				o, err := s.Copy(t.Context(), &hearth.Upload{Key: to, Size: from.Size}, &from)
				if err != nil {
					t.Errorf("copy of %q to %q, %d bytes: %v", key, to, size, err)
					continue
				}
				alike(t, s, from, o)
			}
		}
		if got := s.Stats(); got.Copies != 12 || got.Errors != 0 || got.Writing != 0 {
			t.Errorf("%+v", got)
		}
		from := furnished(t, s, "plain", []byte("hello"))
		if _, err := s.Copy(t.Context(), &hearth.Upload{Key: "none", Size: 4}, &from); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("a copy of another size: %v", err)
		}
	})
}

func TestACopyReplacesNothingThatItShouldNot(t *testing.T) {
	// Under a condition a copy replaces no object but the one that is meant, and it is made of no version but
	// the one that is named, whether the origin knows conditions of copies or not; at once and by parts.
	writers(t, func(t *testing.T, server *hearthtest.Server, s *S3) {
		ctx := t.Context()
		from, old := furnished(t, s, "from", []byte("hello")), furnished(t, s, "old", []byte("other"))
		for _, atOnce := range []int64{mostPart, 0} {
			s.out.atOnce = atOnce
			for _, u := range []hearth.Upload{{Key: "old", IfNone: true}, {Key: "old", IfMatch: from.ETag}, {Key: "none", IfMatch: old.ETag}} {
				u.Size = from.Size
				if _, err := s.Copy(ctx, &u, &from); !errors.Is(err, hearth.ErrConflict) {
					t.Errorf("copy to %+v: %v", u, err)
				}
			}
			changed, gone := from, from
			changed.ETag, gone.Key = old.ETag, "gone"
			for _, was := range []hearth.Object{changed, gone} {
				for _, u := range []hearth.Upload{{Key: "old"}, {Key: "none", IfNone: true}} {
					u.Size = was.Size
					if _, err := s.Copy(ctx, &u, &was); !errors.Is(err, hearth.ErrStale) {
						t.Errorf("copy of %+v to %+v: %v", was, u, err)
					}
				}
			}
			same(t, s, old, []byte("other"))
			if _, err := s.Head(ctx, "none"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it was written: %v", err)
			}
		}
		s.out.atOnce = mostPart
		one, err := s.Copy(ctx, &hearth.Upload{Key: "new", Size: from.Size, IfNone: true}, &from)
		if err != nil {
			t.Fatal(err)
		}
		two, err := s.Copy(ctx, &hearth.Upload{Key: "old", Size: from.Size, IfMatch: old.ETag}, &from)
		if err != nil {
			t.Fatal(err)
		}
		alike(t, s, from, one)
		alike(t, s, from, two)
		if left := uploads(t, &server.S3, "written"); strings.Contains(left, "<Upload>") {
			t.Error(left)
		}
	})
}

func TestALargeObjectIsCopiedByParts(t *testing.T) {
	// Over the limit ranges are copied at the same time and joined; metadata, type and tags go along. What
	// cannot be copied leaves no upload.
	writers(t, func(t *testing.T, server *hearthtest.Server, s *S3) {
		s.out.Write.PartSize, s.out.atOnce = leastPart, leastPart
		data := content("large", 2*leastPart+99, 1)
		from := furnished(t, s, "large", data)
		tag(t, s, "large")
		o, err := s.Copy(t.Context(), &hearth.Upload{Key: "dir/large copy", Size: from.Size, IfNone: true}, &from)
		if left := uploads(t, &server.S3, "written"); strings.Contains(left, "<Upload>") {
			t.Error(left)
		}
		if strings.Contains(t.Name(), "gofakes3") { // it copies no parts
			if _, asked := s.Head(t.Context(), "dir/large copy"); err == nil || !errors.Is(asked, fs.ErrNotExist) {
				t.Errorf("%v, and it is there: %v", err, asked)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		alike(t, s, from, o, draftHeader)
		_, h, err := s.head(t.Context(), o.Key)
		if err != nil || h.Get("X-Amz-Tagging-Count") != "1" {
			t.Errorf("%v %v", h, err)
		}
		if got := s.Stats(); got.Copies != 3 || got.Parts != 0 || got.Written != from.Size {
			t.Errorf("%+v", got)
		}
		o, err = s.Copy(t.Context(), &hearth.Upload{Key: "again", Size: from.Size}, &o) // has a draft now, which stays
		if err != nil {
			t.Fatal(err)
		}
		alike(t, s, from, o, draftHeader)
	})
}

// tag gives an object a tag, where the server has any.
func tag(t *testing.T, s *S3, key string) {
	t.Helper()
	text := []byte("<Tagging><TagSet><Tag><Key>team =kin</Key><Value>a+b</Value></Tag></TagSet></Tagging>")
	w := &write{op: "put", key: key, header: http.Header{}, again: true}
	err := s.do(t.Context(), w, func(ctx context.Context, a *attempt) error {
		all, err := tags.ParseObjectXML(bytes.NewReader(text))
		if err != nil {
			return err
		}
		return s.out.core.PutObjectTagging(ctx, anyBucket, anyKey, all, minio.PutObjectTaggingOptions{})
	})
	if err != nil && !strings.Contains(t.Name(), "gofakes3") {
		t.Fatal(err)
	}
}

func TestALostAnswerOfACopyIsSettled(t *testing.T) {
	// A copy whose answer is lost is asked for, and sent again if it is not there. A 200 with an error is that
	// error. What was refused was not done, and its error says whose condition failed.
	for _, c := range []struct {
		name  string
		u     hearth.Upload
		fates []string
		asked string // requests
		err   error
	}{
		{name: "answered", asked: "head copy head"},
		{name: "done", fates: []string{lost}, asked: "head copy head"},
		{name: "done, new", u: hearth.Upload{IfNone: true}, fates: []string{lost}, asked: "head head copy head"},
		{name: "cut", fates: []string{cut}, asked: "head copy head head copy head"},
		{name: "cut, new", u: hearth.Upload{IfNone: true}, fates: []string{cut}, asked: "head head copy head head head copy head"},
		{name: "cut, then lost", fates: []string{cut, lost}, asked: "head copy head head copy head"},
		{name: "nobody knows", fates: []string{cut, cut, cut}, asked: "head copy head head copy head head copy head", err: hearth.ErrUnanswered},
		{name: "failed in a 200", fates: []string{"200 InternalError"}, asked: "head copy head head copy head"},
		{name: "slow down", fates: []string{"503 SlowDown", "200 SlowDown"}, asked: "head copy head copy head copy head"},
		{name: "denied", fates: []string{"403 AccessDenied"}, asked: "head copy", err: fs.ErrPermission},
		{name: "denied in a 200", fates: []string{"200 AccessDenied"}, asked: "head copy", err: fs.ErrPermission},
		{name: "lost, then denied", fates: []string{lost, "403 AccessDenied"}, asked: "head copy head"},
		{name: "the source's condition", fates: []string{"412 PreconditionFailed"}, asked: "head copy", err: hearth.ErrStale},
		{name: "the source is gone", fates: []string{"404 NoSuchKey"}, asked: "head copy", err: hearth.ErrStale},
		{name: "the key's condition", u: hearth.Upload{IfNone: true}, fates: []string{"412 PreconditionFailed"}, asked: "head head copy head", err: hearth.ErrConflict},
		{name: "the key's condition in a 200", u: hearth.Upload{IfNone: true}, fates: []string{"200 PreconditionFailed"}, asked: "head head copy head", err: hearth.ErrConflict},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoad(t, Config{Retry: Retry{Attempts: 3}})
			from := furnished(t, r.S3, "from", []byte("what is copied"))
			asked := r.meets("copy", c.fates...)
			c.u.Key, c.u.Size = "to", from.Size
			o, err := r.Copy(t.Context(), &c.u, &from)
			if got := asked(); got != c.asked {
				t.Errorf("asked %s, not %s", got, c.asked)
			}
			if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("%v, not %v", err, c.err)
			}
			if c.err == nil {
				alike(t, r.S3, from, o)
			} else if _, err := r.Head(t.Context(), "to"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("it is there: %v", err)
			}
		})
	}
}

func TestACopyIsKnownWithoutItsSourcesETag(t *testing.T) {
	// The source was made of parts, so its copy has another ETag. After a lost answer it is known by a draft, or as
	// what has the source's metadata and was not there before. Else the copy is sent again.
	r := newRoad(t, Config{})
	data := content("k", 2*leastPart+99, 1)
	for i, c := range []struct {
		draft string
		u     hearth.Upload
		asked string
	}{
		{draft: "d", asked: "head copy head"},
		{draft: "", u: hearth.Upload{IfNone: true}, asked: "head head copy head"},
		{draft: "", asked: "head copy head head copy head"},
	} {
		u := &hearth.Upload{Key: fmt.Sprint("from", i), Size: int64(len(data)), Draft: c.draft}
		id, parts := inParts(t, r.S3, u, data)
		from, err := r.Complete(t.Context(), u, id, parts)
		if err != nil {
			t.Fatal(err)
		}
		asked := r.meets("copy", lost)
		c.u.Key, c.u.Size = fmt.Sprint("to", i), from.Size
		o, err := r.Copy(t.Context(), &c.u, &from)
		if got := asked(); err != nil || got != c.asked || o.ETag == from.ETag {
			t.Errorf("%+v: asked %s, not %s, ETag %s of %s, %v", c, got, c.asked, o.ETag, from.ETag, err)
		}
		alike(t, r.S3, from, o)
		// The process ends, and the next one is to copy it again, over nothing. Without a draft it may be somebody else's.
		asked = r.meets("copy")
		again, err := r.Copy(t.Context(), &hearth.Upload{Key: c.u.Key, Size: from.Size, IfNone: true, Again: true}, &from)
		if got := asked(); strings.Contains(got, "copy") || (c.draft != "") != (err == nil) || err == nil && again.ETag != o.ETag || err != nil && !errors.Is(err, hearth.ErrConflict) {
			t.Errorf("%+v again: asked %s, %v, %v", c, got, again, err)
		}
	}
}

func TestASourceThatChangesIsNotCopied(t *testing.T) {
	// Somebody replaces the source, after the HEAD that found it as it was.
	for _, u := range []hearth.Upload{{Key: "to"}, {Key: "to", IfNone: true}} {
		r := newRoad(t, Config{})
		from := furnished(t, r.S3, "from", []byte("hello"))
		r.meets("copy")
		r.then = func() { _, _ = r.server.PutBytes(t.Context(), "road", "from", []byte("other")) }
		u.Size = from.Size
		if _, err := r.Copy(t.Context(), &u, &from); !errors.Is(err, hearth.ErrStale) {
			t.Errorf("%+v: %v", u, err)
		}
		if _, err := r.Head(t.Context(), "to"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("it is there: %v", err)
		}
	}
}

func TestACopyByPartsMeetsFaults(t *testing.T) {
	// Parts that are not answered are copied again, and a joining that was lost is asked for. After a refusal nothing
	// is left, and the error is that of the part.
	r := newRoad(t, Config{Write: Write{PartSize: leastPart}})
	r.out.atOnce = leastPart
	data := content("k", 2*leastPart+99, 1)
	from := furnished(t, r.S3, "from", data)
	for i, c := range []struct {
		op    string
		fates []string
		err   error
	}{
		{op: "copy", fates: []string{lost, cut, "200 InternalError", "503 SlowDown"}},
		{op: "begin", fates: []string{"503 SlowDown"}},
		{op: "complete", fates: []string{lost, "404 NoSuchUpload"}},
		{op: "complete", fates: []string{"200 InternalError"}},
		{op: "copy", fates: []string{"403 AccessDenied"}, err: fs.ErrPermission},
		{op: "copy", fates: []string{"200 PreconditionFailed"}, err: hearth.ErrStale},
		{op: "begin", fates: []string{lost}, err: hearth.ErrUnanswered},
		{op: "begin", fates: []string{cut}, err: hearth.ErrUnanswered},
		{op: "complete", fates: []string{"403 AccessDenied"}, err: fs.ErrPermission},
		{op: "complete", fates: []string{"412 PreconditionFailed"}, err: hearth.ErrConflict},
	} {
		r.meets(c.op, c.fates...)
		u := &hearth.Upload{Key: fmt.Sprint("to", i), Size: from.Size, IfNone: true}
		o, err := r.Copy(t.Context(), u, &from)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%+v: %v", c, err)
		}
		if c.err == nil {
			alike(t, r.S3, from, o, draftHeader)
		} else if _, err := r.Head(t.Context(), u.Key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v: it is there: %v", c, err)
		}
		if left := uploads(t, &r.server.S3, "road"); strings.Contains(left, "<Upload>") {
			t.Errorf("%+v: %s", c, left)
		}
	}
}

func TestACopySaysHowItIsStored(t *testing.T) {
	// It has the encryption and the class of what is written, and takes the metadata along. Spaces come before
	// what the origin answers in the end. A copy is unanswered if the key has none, or another object, afterwards.
	b := newFakeBucket(t, "from")
	answers := []string{"  \n  <?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code><Message/></Error>", " \n <CopyObjectResult><ETag>&quot;%s&quot;</ETag></CopyObjectResult>"}
	does := true
	b.odd = func(w http.ResponseWriter, r *http.Request, key string) bool {
		if r.Header.Get("X-Amz-Copy-Source") == "" {
			return false
		}
		text := answers[0]
		if answers = answers[1:]; strings.Contains(text, "%s") {
			text = fmt.Sprintf(text, b.objects["from"].etag())
			if does {
				b.objects[key] = b.objects["from"]
			}
		}
		_, _ = w.Write([]byte(text))
		return true
	}
	s := b.open(t, Config{Write: Write{SSE: "aws:kms", KMSKey: "arn", StorageClass: "ONEZONE_IA"}})
	from, err := s.Head(t.Context(), "from")
	if err != nil {
		t.Fatal(err)
	}
	answers = append(answers, answers[1])
	o, err := s.Copy(t.Context(), &hearth.Upload{Key: "to +", Size: from.Size, Draft: "unused"}, &from)
	if err != nil || o.ETag != from.ETag || o.Size != from.Size {
		t.Errorf("%+v %v", o, err)
	}
	copies := 0
	for _, r := range b.asked {
		if r.Header.Get("X-Amz-Copy-Source") == "" {
			continue
		}
		copies++
		for name, value := range map[string]string{draftHeader: "", "X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "arn",
			"X-Amz-Storage-Class": "ONEZONE_IA", "X-Amz-Metadata-Directive": "COPY", "X-Amz-Copy-Source": "b/from", "X-Amz-Copy-Source-If-Match": `"` + from.ETag + `"`} {
			if got := r.Header.Get(name); got != value {
				t.Errorf("%s is %q", name, got)
			}
		}
	}
	if copies != 2 || s.Stats().Throttled != 1 {
		t.Errorf("%d copies, %+v", copies, s.Stats())
	}
	answers = append(answers, answers[0])
	does = false
	for _, has := range []string{"nothing", "another of that size"} {
		if _, err := s.Copy(t.Context(), &hearth.Upload{Key: "else", Size: from.Size}, &from); !errors.Is(err, hearth.ErrUnanswered) {
			t.Errorf("a copy that was answered, where the key has %s: %v", has, err)
		}
		b.put("else", "")
	}
}

func TestADeleteRemovesNoOtherWhateverIsLost(t *testing.T) {
	// With If-Match, and with a HEAD before where the origin does not know it: another version stays, and a
	// removal whose answer was lost is one. A rival's object after that stays, too.
	for _, heeded := range []bool{true, false} {
		r := newRoad(t, Config{})
		able := *r.out.probed.Load()
		able.IfMatchDelete = heeded
		r.out.probed.Store(&able)
		first, before := "delete", ""
		if !heeded {
			first, before = "head delete", "head"
		}
		one := furnished(t, r.S3, "k", []byte("hello"))
		for _, fates := range [][]string{nil, {lost}, {cut}, {"503 SlowDown"}} {
			asked := r.meets("delete", fates...)
			if err := r.Delete(t.Context(), "k", one.ETag); err != nil || !strings.HasPrefix(asked(), first) {
				t.Errorf("%v %v: %v after %s", heeded, fates, err, asked())
			}
			if _, err := r.Head(t.Context(), "k"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v %v: it is there: %v", heeded, fates, err)
			}
			furnished(t, r.S3, "k", []byte("hello"))
		}
		two := furnished(t, r.S3, "k", []byte("other"))
		asked := r.meets("delete")
		if err := r.Delete(t.Context(), "k", one.ETag); !errors.Is(err, hearth.ErrConflict) || !strings.HasPrefix(asked(), before) || heeded != strings.Contains(asked(), "delete") {
			t.Errorf("%v: %v after %s", heeded, err, asked())
		}
		same(t, r.S3, two, []byte("other"))
		if !heeded {
			continue
		}
		r.meets("delete", lost)
		r.then = func() { _, _ = r.server.PutBytes(t.Context(), "road", "k", []byte("a rival's")) }
		if err := r.Delete(t.Context(), "k", two.ETag); !errors.Is(err, hearth.ErrUnanswered) {
			t.Errorf("a rival: %v", err)
		}
		if got, _ := stored(t, r.S3, "k"); string(got) != "a rival's" {
			t.Errorf("%q is left", got)
		}
	}
}
