package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is an origin with a way to change what lies there.
type bed struct {
	Origin
	put func(key string, data []byte)
	del func(key string)
	odd bool // it can hold keys that are no paths
}

// account sets the variables of an account for this test.
func account(t *testing.T, s *hearthtest.S3) {
	t.Helper()
	for _, name := range []string{"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	for _, v := range s.Env() {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
}

// open opens an origin until the test ends.
func open(t *testing.T, c Config) Origin {
	t.Helper()
	o, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hearthtest.Close(t, o.(io.Closer)) })
	return o
}

func s3Bed(t *testing.T, s *hearthtest.Server) *bed {
	bucket := s.Bucket(t, "conformance")
	account(t, &s.S3)
	return &bed{
		Origin: open(t, Config{URL: "s3://" + bucket, Link: "/l"}),
		put: func(key string, data []byte) {
			if _, err := s.PutBytes(t.Context(), bucket, key, data); err != nil {
				t.Fatal(err)
			}
		},
		del: func(key string) {
			if err := s.Delete(t.Context(), bucket, key); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func dirBed(t *testing.T) *bed {
	dir := t.TempDir()
	return &bed{
		Origin: open(t, Config{URL: "file://" + dir, Link: "/l"}),
		put: func(key string, data []byte) {
			path := filepath.Join(dir, key)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		},
		del: func(key string) {
			if err := os.Remove(filepath.Join(dir, key)); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func TestEveryOriginConforms(t *testing.T) {
	// One suite for a real S3 server, one with flat keys, and a directory.
	for name, start := range map[string]func(t *testing.T) *bed{
		"s3":   func(t *testing.T) *bed { return s3Bed(t, hearthtest.StartS3(t)) },
		"flat": func(t *testing.T) *bed { b := s3Bed(t, hearthtest.StartFakeS3(t)); b.odd = true; return b },
		"dir":  dirBed,
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			t.Run("head", func(t *testing.T) { suiteHead(t, b) })
			t.Run("list", func(t *testing.T) { suiteList(t, b) })
			t.Run("keys", func(t *testing.T) { suiteKeys(t, b) })
			t.Run("read", func(t *testing.T) { suiteRead(t, b) })
			t.Run("stale", func(t *testing.T) { suiteStale(t, b) })
			t.Run("bucket", func(t *testing.T) { suiteBucket(t, b) })
			t.Run("probe", func(t *testing.T) { suiteProbe(t, b) })
		})
	}
}

func content(key string, size, version int) []byte {
	data := make([]byte, size)
	hearthtest.Fill(data, key, 0, version)
	return data
}

func suiteHead(t *testing.T, b *bed) {
	// Head tells key, size, ETag, link, time and version; what is not there is
	// fs.ErrNotExist, a directory and a path below a file among it.
	b.put("head/a", content("head/a", 5000, 1))
	o, err := b.Head(t.Context(), "head/a")
	if err != nil {
		t.Fatal(err)
	}
	if o.Key != "head/a" || o.Size != 5000 || o.ETag == "" || o.Link != "/l" || time.Since(o.ModTime).Abs() > time.Hour || o.Version == [16]byte{} {
		t.Errorf("head: %+v", o)
	}
	for _, key := range []string{"head/b", "head", "head/a/b", "nowhere/at/all"} {
		if _, err := b.Head(t.Context(), key); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("head of %q: %v", key, err)
		}
	}
	b.put("head/empty", nil)
	if o, err := b.Head(t.Context(), "head/empty"); err != nil || o.Size != 0 {
		t.Errorf("head of an empty object: %+v %v", o, err)
	}
}

// listed renders a listing: keys, groups with a star.
func listed(t *testing.T, b Origin, q hearth.Listing) []string {
	t.Helper()
	var got []string
	err := b.List(t.Context(), q, func(o hearth.Object) error {
		if o.Link != "/l" || !o.IsPrefix() && o.Version == [16]byte{} {
			t.Errorf("listed: %+v", o)
		}
		if o.IsPrefix() {
			got = append(got, o.Key+"*")
		} else {
			got = append(got, o.Key)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func suiteList(t *testing.T, b *bed) {
	// Listings come in byte order with groups among the keys, honour Prefix, After,
	// Limit and Recursive, and end with an error of each.
	for _, key := range []string{"list/a", "list/b/1", "list/b/2", "list/b-x", "list/c/d/e", "list/z", "lister"} {
		b.put(key, []byte(key))
	}
	for _, c := range []struct {
		q    hearth.Listing
		want string
	}{
		{hearth.Listing{Prefix: "list/"}, "list/a list/b-x list/b/* list/c/* list/z"},
		{hearth.Listing{Prefix: "list/", Recursive: true}, "list/a list/b-x list/b/1 list/b/2 list/c/d/e list/z"},
		{hearth.Listing{Prefix: "list/b"}, "list/b-x list/b/*"},
		{hearth.Listing{Prefix: "list/b", Recursive: true}, "list/b-x list/b/1 list/b/2"},
		{hearth.Listing{Prefix: "list/b/"}, "list/b/1 list/b/2"},
		{hearth.Listing{Prefix: "list/b/", Limit: 1}, "list/b/1"},
		{hearth.Listing{Prefix: "list/", After: "list/b/"}, "list/c/* list/z"},
		{hearth.Listing{Prefix: "list/", After: "list/b/1", Recursive: true}, "list/b/2 list/c/d/e list/z"},
		{hearth.Listing{Prefix: "list/", After: "list/b-", Limit: 2}, "list/b-x list/b/*"},
		{hearth.Listing{Prefix: "list/", After: "list/zz"}, ""},
		{hearth.Listing{Prefix: "nothing/"}, ""},
		{hearth.Listing{Prefix: "list/a/"}, ""},
	} {
		if got := strings.Join(listed(t, b, c.q), " "); got != c.want {
			t.Errorf("list %+v:\n got %s\nwant %s", c.q, got, c.want)
		}
	}
	stop := errors.New("stop")
	if err := b.List(t.Context(), hearth.Listing{}, func(hearth.Object) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of each came back as %v", err)
	}
	head, err := b.Head(t.Context(), "list/z")
	err2 := b.List(t.Context(), hearth.Listing{Prefix: "list/z"}, func(o hearth.Object) error {
		if o.Version != head.Version || o.ETag != head.ETag {
			t.Errorf("list says %+v, head %+v", o, head)
		}
		return nil
	})
	if err != nil || err2 != nil {
		t.Error(err, err2)
	}
}

func suiteKeys(t *testing.T, b *bed) {
	// Keys of every kind come back byte for byte, and each can be read.
	keys := []string{"keys/ space", "keys/+plus", "keys/%41percent", "keys/&<>\"'amp", "keys/ünï/☃", "keys/\u202e", "keys/a=b;c,d?e#f@g:h!$()*~", "keys/.hidden", "keys/back\\slash"}
	if b.odd {
		keys = append(keys, "keys//empty", "keys/../up", "keys/./dot", "keys/dir/", "keys/tab\tnew\nline", "/lead")
	}
	for _, key := range keys {
		b.put(key, content(key, 100, 1))
	}
	slices.Sort(keys)
	got := listed(t, b, hearth.Listing{Prefix: "keys/", Recursive: true})
	if b.odd {
		got = append(listed(t, b, hearth.Listing{Prefix: "/", Recursive: true}), got...)
	}
	if !slices.Equal(got, keys) {
		t.Errorf("listed\n%q, want\n%q", got, keys)
	}
	for _, key := range keys {
		o, err := b.Head(t.Context(), key)
		if err != nil {
			t.Errorf("head of %q: %v", key, err)
			continue
		}
		if err := readCheck(t.Context(), b, &o, 0, 100, 1); err != nil {
			t.Errorf("read of %q: %v", key, err)
		}
	}
}

// readCheck reads a range and compares every byte.
func readCheck(ctx context.Context, b Origin, o *hearth.Object, off, n int64, version int) error {
	body, err := b.Read(ctx, o, off, n)
	if err != nil {
		return err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if int64(len(data)) != n {
		return fmt.Errorf("%d bytes, not %d", len(data), n)
	}
	return hearthtest.Check(data, o.Key, off, version)
}

func suiteRead(t *testing.T, b *bed) {
	// Ranges of every shape come back exact; what is not there is stale.
	const size = 3_000_001
	b.put("read/a", content("read/a", size, 2))
	o, err := b.Head(t.Context(), "read/a")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]int64{{0, size}, {0, 1}, {size - 1, 1}, {1 << 20, 1 << 20}, {4095, 2}, {12345, 2_000_000}} {
		if err := readCheck(t.Context(), b, &o, r[0], r[1], 2); err != nil {
			t.Errorf("range %v: %v", r, err)
		}
	}
	gone := o
	gone.Key = "read/nothing"
	if _, err := b.Read(t.Context(), &gone, 0, 1); !errors.Is(err, hearth.ErrStale) {
		t.Errorf("read of what is not there: %v", err)
	}
}

func suiteStale(t *testing.T, b *bed) {
	// A version that was replaced, by another of the same size or not, or deleted
	// is ErrStale, and a read never mixes two.
	for _, size := range []int{100_000, 50_000, 200_000} {
		b.put("stale/a", content("stale/a", 100_000, 1))
		one, err := b.Head(t.Context(), "stale/a")
		if err != nil {
			t.Fatal(err)
		}
		b.put("stale/a", content("stale/a", size, 2))
		if err := readCheck(t.Context(), b, &one, 10, 1000, 1); !errors.Is(err, hearth.ErrStale) {
			t.Errorf("replaced by %d bytes: %v", size, err)
		}
		two, err := b.Head(t.Context(), "stale/a")
		if err != nil || two.Version == one.Version {
			t.Fatalf("the new version is the old one: %v", err)
		}
		if err := readCheck(t.Context(), b, &two, 10, 1000, 2); err != nil {
			t.Error(err)
		}
		b.del("stale/a")
		if err := readCheck(t.Context(), b, &two, 10, 1000, 2); !errors.Is(err, hearth.ErrStale) {
			t.Errorf("deleted: %v", err)
		}
	}
}

func suiteBucket(t *testing.T, b *bed) {
	// As a Source: ranges of blocks, many blocks in order, by one request and by
	// parts, and no View left behind.
	const size = 11*hearth.BlockSize + 4711
	b.put("bucket/a", content("bucket/a", size, 3))
	o, err := b.Head(t.Context(), "bucket/a")
	if err != nil {
		t.Fatal(err)
	}
	pool := hearthtest.Pool(t, 64<<20)
	source := NewBucket(pool, func(string) Origin { return b })
	if inner, ok := b.Origin.(*S3); ok {
		source = NewBucket(pool, func(string) Origin { return inner })
	}
	for _, r := range [][3]int{{0, 0, hearth.BlockSize}, {3, 77, 5000}, {11, 0, 4711}, {11, 4710, 1}} {
		hearthtest.CheckGet(t, source, o.Block(int64(r[0])), r[1], r[2], 3)
	}
	for _, r := range [][2]int64{{0, 12}, {1, 1}, {3, 8}, {8, 4}} {
		next := r[0]
		source.GetMany(t.Context(), o.Block(r[0]), int(r[1]), func(block hearth.Block, v *hearth.View, err error) bool {
			if err != nil {
				t.Fatal(err)
			}
			defer v.Release()
			if err := hearthtest.Check(v.Bytes(), o.Key, block.Offset(), 3); err != nil || block.Index != next || v.Len() != block.Len() {
				t.Errorf("block %d for %d, %d bytes: %v", block.Index, next, v.Len(), err)
			}
			next++
			return true
		})
		if next != r[0]+r[1] {
			t.Errorf("run %v ended at %d", r, next)
		}
	}
	calls := 0
	source.GetMany(t.Context(), o.Block(0), 12, func(_ hearth.Block, v *hearth.View, err error) bool {
		calls++
		v.Release()
		return calls < 2
	})
	if calls != 2 {
		t.Errorf("each said enough at its second call, and was called %d times", calls)
	}
	b.del("bucket/a")
	calls = 0
	source.GetMany(t.Context(), o.Block(0), 12, func(block hearth.Block, v *hearth.View, err error) bool {
		calls++
		if !errors.Is(err, hearth.ErrStale) || v != nil || block.Index != 0 {
			t.Errorf("a deleted object: block %d, %v, %v", block.Index, v, err)
		}
		return true
	})
	if calls != 1 {
		t.Errorf("a run that failed at its first block called each %d times", calls)
	}
	if _, err := NewBucket(pool, func(string) Origin { return nil }).Get(t.Context(), o.Block(0), 0, 1); err == nil {
		t.Error("an object of no link was read")
	}
}

func suiteProbe(t *testing.T, b *bed) {
	// The probe passes, and finds that gofakes3 ignores If-Match.
	a, err := b.Probe(t.Context())
	if err != nil || a.RoundTrip <= 0 {
		t.Fatalf("%+v %v", a, err)
	}
	if !a.Objects || !a.Range || a.IfMatch == b.odd {
		t.Errorf("%+v", a)
	}
}

func TestABucketInTheSmallestPoolNeverLocks(t *testing.T) {
	// Sixteen readers share the smallest pool and four connections, by parts and by
	// blocks; all come to their end, so nobody waits for memory holding a View.
	s := hearthtest.StartS3(t)
	bucket := s.Bucket(t, "small")
	account(t, &s.S3)
	const blocks = 16
	if _, err := s.PutBytes(t.Context(), bucket, "k", content("k", blocks*hearth.BlockSize, 1)); err != nil {
		t.Fatal(err)
	}
	o := open(t, Config{URL: "s3://small", Connections: 4}).(*S3)
	object, err := o.Head(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	pool := hearthtest.Pool(t, hearth.MinRAM)
	source := NewBucket(pool, func(string) Origin { return o })
	var wait sync.WaitGroup
	for g := range 16 {
		wait.Go(func() {
			if g%2 == 0 {
				hearthtest.CheckGet(t, source, object.Block(int64(g)), 0, hearth.BlockSize, 1)
				return
			}
			count := 0
			source.GetMany(t.Context(), object.Block(0), blocks, func(b hearth.Block, v *hearth.View, err error) bool {
				if err != nil {
					t.Error(err)
					return false
				}
				if !bytes.Equal(v.Bytes()[:64], content("k", (int(b.Index)+1)<<20, 1)[b.Offset():b.Offset()+64]) {
					t.Errorf("block %d is wrong", b.Index)
				}
				v.Release()
				count++
				return true
			})
			if count != blocks {
				t.Errorf("%d blocks of %d", count, blocks)
			}
		})
	}
	wait.Wait()
}
