package origin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// writers starts each server that is installed, with a bucket "written".
func writers(t *testing.T, each func(t *testing.T, s *hearthtest.Server, o *S3)) {
	for name, start := range map[string]func(t *testing.T) hearthtest.ServerOptions{
		"versitygw": func(t *testing.T) hearthtest.ServerOptions { return hearthtest.ServerOptions{Dir: t.TempDir()} },
		"gofakes3":  func(*testing.T) hearthtest.ServerOptions { return hearthtest.ServerOptions{Fake: true} },
		"minio": func(t *testing.T) hearthtest.ServerOptions {
			if _, err := hearthtest.Tool("minio"); err != nil {
				t.Skip(err)
			}
			return hearthtest.ServerOptions{MinIO: true, Dir: t.TempDir()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := hearthtest.Start(t, start(t))
			var err error
			if !hearthtest.Eventually(t.Context(), 20*time.Second, func() bool { // MinIO listens before it can
				err = s.CreateBucket(t.Context(), "written")
				return err == nil
			}) {
				t.Fatal(err)
			}
			account(t, &s.S3)
			each(t, s, open(t, Config{URL: "s3://written", Link: "/l"}).(*S3))
		})
	}
}

// stored reads what a key has, through the origin.
func stored(t *testing.T, s *S3, key string) ([]byte, hearth.Object) {
	t.Helper()
	o, err := s.Head(t.Context(), key)
	if err != nil {
		t.Errorf("head of %q: %v", key, err)
		return nil, o
	}
	if o.Size == 0 {
		return nil, o
	}
	body, err := s.Read(t.Context(), &o, 0, o.Size)
	if err != nil {
		t.Errorf("read of %q: %v", key, err)
		return nil, o
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		t.Error(err)
	}
	return data, o
}

// same compares what a write answered with what a HEAD says.
func same(t *testing.T, s *S3, got hearth.Object, data []byte) {
	t.Helper()
	now, o := stored(t, s, got.Key)
	if !bytes.Equal(now, data) {
		t.Errorf("%q: %d other bytes, not %d", got.Key, len(now), len(data))
	}
	if o.ETag != got.ETag || o.Size != got.Size || o.Version != got.Version || got.Link != "/l" {
		t.Errorf("written %+v, and a HEAD says %+v", got, o)
	}
}

// uploads are the uploads of a bucket that are not complete, as XML.
func uploads(t *testing.T, s *hearthtest.S3, bucket string) string {
	t.Helper()
	req, err := s.Request(t.Context(), http.MethodGet, bucket, "", url.Values{"uploads": {""}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	http.DefaultClient.CloseIdleConnections()
	return string(text)
}

func TestWhatIsPutIsReadBack(t *testing.T) {
	// Objects of any size and any key come back byte for byte; the answer has the version that a HEAD has.
	writers(t, func(t *testing.T, server *hearthtest.Server, s *S3) {
		keys := []string{"plain", "ünï/☃", "a b+c%41%2B", "&<>\"'", "a=b;c,d?e#f@g:h!$()*~", "dir/ends in  "}
		if !strings.Contains(t.Name(), "minio") && !strings.Contains(t.Name(), "versitygw") {
			keys = append(keys, "x//y", "./dot", "tab\tnew\nline", "/lead", "no \xff UTF-8", " ")
		}
		for i, key := range keys {
			for _, size := range []int{0, 1, 100_000, 1 << 20} {
				data := content(key, size, i)
				o, err := s.Put(t.Context(), &hearth.Upload{Key: key, Size: int64(size), Draft: "d1"}, bytes.NewReader(data))
				if err != nil {
					t.Errorf("put of %q: %v", key, err)
					continue
				}
				same(t, s, o, data)
			}
		}
		if o, err := s.Written(t.Context(), &hearth.Upload{Key: "plain", Draft: "d1"}); err != nil || o.Size != 1<<20 {
			t.Errorf("%+v %v", o, err)
		}
		for _, u := range []hearth.Upload{{Key: "plain", Draft: "d2"}, {Key: "plain"}, {Key: "none", Draft: "d1"}} {
			if _, err := s.Written(t.Context(), &u); !errors.Is(err, hearth.ErrConflict) {
				t.Errorf("%+v is written: %v", u, err)
			}
		}
		want := map[bool]string{true: "CRC64NVME", false: "MD5"}[!strings.Contains(t.Name(), "gofakes3")]
		if able, err := s.WriteAbilities(t.Context()); err != nil || able.Checksum != want {
			t.Errorf("%+v %v", able, err)
		}
		if got := s.Stats(); got.Puts < int64(4*len(keys)) || got.Writing != 0 || got.Errors != 0 || got.Written < 1<<20 {
			t.Errorf("%+v", got)
		}
	})
}

// inParts writes an object of three parts.
func inParts(t *testing.T, s *S3, u *hearth.Upload, data []byte) (id string, parts []hearth.Part) {
	t.Helper()
	id, err := s.Begin(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 3; n++ {
		off := int64(n-1) * leastPart
		size := min(leastPart, int64(len(data))-off)
		p, err := s.PutPart(t.Context(), u, id, n, io.NewSectionReader(bytes.NewReader(data), off, size), size)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	return id, parts
}

func TestAnObjectIsMadeOfParts(t *testing.T) {
	// Three parts, of which one is sent again with other bytes, are listed and become an object; a part
	// is copied from an object as long as that has its version; what was begun is removed, once or twice.
	writers(t, func(t *testing.T, server *hearthtest.Server, s *S3) {
		data := content("parts", 2*leastPart+99, 1)
		u := &hearth.Upload{Key: "dir/p q", Size: int64(len(data)), Draft: "d1"}
		id, parts := inParts(t, s, u, append(bytes.Clone(data[:leastPart]), make([]byte, leastPart+99)...))
		var err error
		if parts[1], err = s.PutPart(t.Context(), u, id, 2, bytes.NewReader(data[leastPart:2*leastPart]), leastPart); err != nil {
			t.Fatal(err)
		}
		if parts[2], err = s.PutPart(t.Context(), u, id, 3, bytes.NewReader(data[2*leastPart:]), 99); err != nil {
			t.Fatal(err)
		}
		listed, err := s.Parts(t.Context(), u, id)
		if err != nil || fmt.Sprint(listed) != fmt.Sprint(parts) {
			t.Errorf("sent\n%+v, listed\n%+v, %v", parts, listed, err)
		}
		if _, err := s.Complete(t.Context(), u, id, parts[:2]); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("two parts of three: %v", err)
		}
		o, err := s.Complete(t.Context(), u, id, parts)
		if err != nil {
			t.Fatal(err)
		}
		same(t, s, o, data)
		if w, err := s.Written(t.Context(), u); err != nil || w.ETag != o.ETag {
			t.Errorf("%+v %v", w, err)
		}
		if _, err := s.Parts(t.Context(), u, id); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("parts of an upload that is complete: %v", err)
		}
		if _, err := s.PutPart(t.Context(), u, id, 1, bytes.NewReader(data), 99); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a part for an upload that is complete: %v", err)
		}
		copied(t, s, &o, data)
		id, err = s.Begin(t.Context(), u)
		for range 2 {
			if err == nil {
				err = s.Abort(t.Context(), u, id)
			}
		}
		if err != nil {
			t.Error(err)
		}
		if left := uploads(t, &server.S3, "written"); strings.Contains(left, "<Upload>") {
			t.Error(left)
		}
	})
}

// copied makes an object of the first part of another, and of new bytes.
func copied(t *testing.T, s *S3, from *hearth.Object, data []byte) {
	t.Helper()
	u := &hearth.Upload{Key: "copied", Size: leastPart + 10, Draft: "d2", Copies: true}
	id, err := s.Begin(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	one, err := s.CopyPart(t.Context(), u, id, 1, from, 5, leastPart)
	if err != nil {
		if strings.Contains(t.Name(), "gofakes3") { // it copies no parts
			if err := s.Abort(t.Context(), u, id); err != nil {
				t.Error(err)
			}
			return
		}
		t.Fatal(err)
	}
	two, err := s.PutPart(t.Context(), u, id, 2, strings.NewReader("0123456789"), 10)
	if err != nil {
		t.Fatal(err)
	}
	other := *from
	other.ETag = "0123456789abcdef0123456789abcdef"
	if _, err := s.CopyPart(t.Context(), u, id, 1, &other, 5, leastPart); !errors.Is(err, hearth.ErrStale) {
		t.Errorf("a copy of another version: %v", err)
	}
	other.Key = "none"
	if _, err := s.CopyPart(t.Context(), u, id, 1, &other, 5, leastPart); !errors.Is(err, hearth.ErrStale) {
		t.Errorf("a copy of nothing: %v", err)
	}
	o, err := s.Complete(t.Context(), u, id, []hearth.Part{one, two})
	if err != nil {
		t.Fatal(err)
	}
	same(t, s, o, append(bytes.Clone(data[5:leastPart+5]), "0123456789"...))
}

func TestConditionsKeepWhatOthersWrote(t *testing.T) {
	// Put, Complete and Delete replace and remove nothing that is not as it was, whether the origin knows
	// conditions or not. What is gone is removed.
	writers(t, func(t *testing.T, server *hearthtest.Server, s *S3) {
		ctx, data := t.Context(), []byte("hello")
		put := func(u hearth.Upload) (hearth.Object, error) {
			u.Size = int64(len(data))
			return s.Put(ctx, &u, bytes.NewReader(data))
		}
		one, err := put(hearth.Upload{Key: "k", IfNone: true, Draft: "d1"})
		if err != nil {
			t.Fatal(err)
		}
		data = []byte("other")
		for _, u := range []hearth.Upload{{Key: "k", IfNone: true}, {Key: "k", IfMatch: "0123"}, {Key: "none", IfMatch: one.ETag}} {
			if _, err := put(u); !errors.Is(err, hearth.ErrConflict) {
				t.Errorf("put of %+v: %v", u, err)
			}
			u.Size, u.Draft = 2*leastPart+9, "d3"
			id, parts := inParts(t, s, &u, content("x", int(u.Size), 1))
			if _, err := s.Complete(ctx, &u, id, parts); !errors.Is(err, hearth.ErrConflict) {
				t.Errorf("complete of %+v: %v", u, err)
			}
			if err := s.Abort(ctx, &u, id); err != nil {
				t.Error(err)
			}
		}
		same(t, s, one, []byte("hello"))
		two, err := put(hearth.Upload{Key: "k", IfMatch: one.ETag})
		if err != nil {
			t.Fatal(err)
		}
		same(t, s, two, data)
		if err := s.Delete(ctx, "k", one.ETag); !errors.Is(err, hearth.ErrConflict) {
			t.Errorf("delete of another version: %v", err)
		}
		same(t, s, two, data)
		for _, etag := range []string{two.ETag, two.ETag, ""} {
			if err := s.Delete(ctx, "k", etag); err != nil {
				t.Error(err)
			}
		}
		var keys []string
		_ = s.List(ctx, hearth.Listing{Recursive: true}, func(o hearth.Object) error {
			keys = append(keys, o.Key)
			return nil
		})
		able, err := s.WriteAbilities(ctx)
		if len(keys) > 0 || err != nil || !able.IfMatch || !able.IfNone || able.IfMatchDelete != strings.Contains(t.Name(), "versitygw") {
			t.Errorf("left: %q, %+v %v", keys, able, err)
		}
	})
}

func TestTheUploadsOfAKey(t *testing.T) {
	// Uploads of a key are told by whoever asks, with when they were begun, and no uploads of keys that only begin so.
	writers(t, func(t *testing.T, _ *hearthtest.Server, s *S3) {
		ids := map[string][]string{}
		for _, key := range []string{"u/a b+%", "u/a b+%2", "u/a b+%"} {
			id, err := s.Begin(t.Context(), &hearth.Upload{Key: key, Size: 3 * leastPart, Draft: "d"})
			if err != nil {
				t.Fatal(err)
			}
			ids[key] = append(ids[key], id)
		}
		for key, want := range ids {
			all, err := s.Uploads(t.Context(), key)
			var got []string
			for _, b := range all {
				if got = append(got, b.ID); time.Since(b.At).Abs() > time.Hour {
					t.Errorf("%s was begun at %v", key, b.At)
				}
				err = errors.Join(err, s.Abort(t.Context(), &hearth.Upload{Key: key}, b.ID))
			}
			slices.Sort(got)
			slices.Sort(want)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%q has %q, not %q, %v", key, got, want, err)
			}
			if all, err := s.Uploads(t.Context(), key); len(all) > 0 || err != nil {
				t.Errorf("%+v are left, %v", all, err)
			}
		}
	})
}
