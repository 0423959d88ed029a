package draft

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// What may become of a request to a fakeUploader.
type fault int

const (
	works   fault = iota
	fails         // it is not done, and says so
	unheard       // it is not done, and nobody knows
	lost          // it is done, and nobody knows
)

var errDown = errors.New("the origin is down")

// fakeUploader is an origin in memory.
type fakeUploader struct {
	partSize int64
	// meets is called before each request with its verb, without a lock. nil means that all work.
	meets func(verb string, u *hearth.Upload) fault

	mu      sync.Mutex // guards what follows
	objects map[string]fakeObject
	uploads map[string]*fakeUpload
	calls   map[string]int // that were done, by verb
	begun   int
	bad     []string // requests that break the rules
}

type fakeObject struct {
	data        []byte
	etag, draft string
}

type fakeUpload struct {
	key, draft string
	parts      map[int][]byte
	at         time.Time
}

func newFake(partSize int64) *fakeUploader {
	return &fakeUploader{partSize: partSize, objects: map[string]fakeObject{}, uploads: map[string]*fakeUpload{}, calls: map[string]int{}}
}

// clone is the origin as it is now.
func (f *fakeUploader) clone() *fakeUploader {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := newFake(f.partSize)
	c.objects, c.begun = maps.Clone(f.objects), f.begun
	for id, u := range f.uploads {
		c.uploads[id] = &fakeUpload{u.key, u.draft, maps.Clone(u.parts), u.at}
	}
	return c
}

// do does a request under its fault.
func (f *fakeUploader) do(ctx context.Context, verb string, u *hearth.Upload, work func() error) error {
	how := works
	if f.meets != nil {
		how = f.meets(verb, u)
	}
	switch {
	case how == fails:
		return errDown
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case how == unheard:
		return fmt.Errorf("%s: %w", verb, hearth.ErrUnanswered)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[verb]++
	err := work()
	if how == lost {
		return fmt.Errorf("%s: %w", verb, hearth.ErrUnanswered)
	}
	return err
}

func etagOf(data []byte) string {
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

// put makes an object, if the conditions hold.
func (f *fakeUploader) put(u *hearth.Upload, data []byte, draft string) error {
	old, there := f.objects[u.Key]
	if u.IfNone && there || u.IfMatch != "" && old.etag != u.IfMatch {
		return hearth.ErrConflict
	}
	f.objects[u.Key] = fakeObject{data, etagOf(data), draft}
	return nil
}

func (f *fakeUploader) object(key string) hearth.Object {
	o := f.objects[key]
	return hearth.Object{Key: key, ETag: o.etag, Size: int64(len(o.data)), Version: hearth.VersionOf("fake", key, o.etag, int64(len(o.data)))}
}

func (f *fakeUploader) Put(ctx context.Context, u *hearth.Upload, body io.ReaderAt) (o hearth.Object, err error) {
	data := make([]byte, u.Size)
	if n, err := body.ReadAt(data, 0); int64(n) < u.Size {
		return o, err
	}
	err = f.do(ctx, "Put", u, func() error {
		err := f.put(u, data, u.Draft)
		o = f.object(u.Key)
		return err
	})
	return o, err
}

func (f *fakeUploader) PartSize(size int64) int64 { return max(f.partSize, (size-1)/maxParts+1) }

func (f *fakeUploader) Begin(ctx context.Context, u *hearth.Upload) (id string, err error) {
	err = f.do(ctx, "Begin", u, func() error {
		f.begun++
		id = fmt.Sprint("upload-", f.begun)
		f.uploads[id] = &fakeUpload{u.Key, u.Draft, map[int][]byte{}, time.Now()}
		return nil
	})
	return id, err
}

func (f *fakeUploader) Uploads(ctx context.Context, key string) (all []hearth.Begun, err error) {
	err = f.do(ctx, "Uploads", &hearth.Upload{Key: key}, func() error {
		for id, u := range f.uploads {
			if u.key == key {
				all = append(all, hearth.Begun{ID: id, At: u.at})
			}
		}
		return nil
	})
	return all, err
}

func (f *fakeUploader) upload(u *hearth.Upload, id string) (*fakeUpload, error) {
	x := f.uploads[id]
	if x == nil {
		return nil, fs.ErrNotExist
	}
	if x.key != u.Key {
		f.bad = append(f.bad, "an upload of another key")
	}
	return x, nil
}

func (f *fakeUploader) PutPart(ctx context.Context, u *hearth.Upload, id string, number int, body io.ReaderAt, size int64) (p hearth.Part, err error) {
	data := make([]byte, size)
	if n, err := body.ReadAt(data, 0); int64(n) < size {
		return p, err
	}
	err = f.do(ctx, "PutPart", u, func() error {
		x, err := f.upload(u, id)
		if err == nil {
			x.parts[number] = data
			p = hearth.Part{Number: number, Size: size, ETag: etagOf(data)}
		}
		return err
	})
	return p, err
}

func (f *fakeUploader) CopyPart(ctx context.Context, u *hearth.Upload, id string, number int, from *hearth.Object, off, n int64) (p hearth.Part, err error) {
	err = f.do(ctx, "CopyPart", u, func() error {
		x, err := f.upload(u, id)
		if err != nil {
			return err
		}
		o, there := f.objects[from.Key]
		switch {
		case !there || o.etag != from.ETag:
			return hearth.ErrStale
		case !u.Copies:
			f.bad = append(f.bad, "a copy in an upload without")
		}
		x.parts[number] = slices.Clone(o.data[off : off+n])
		p = hearth.Part{Number: number, Size: n, ETag: etagOf(x.parts[number])}
		return nil
	})
	return p, err
}

// base reads an object as a node does: only what the bucket still has.
func (f *fakeUploader) base(_ context.Context, o *hearth.Object, p []byte, off int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls["Base"]++
	x, there := f.objects[o.Key]
	if !there || x.etag != o.ETag {
		return hearth.ErrStale
	}
	if off+int64(len(p)) > int64(len(x.data)) {
		f.bad = append(f.bad, fmt.Sprintf("[%d, %d) of %d bytes", off, off+int64(len(p)), len(x.data)))
		return io.ErrUnexpectedEOF
	}
	copy(p, x.data[off:])
	return nil
}

func (f *fakeUploader) Copy(ctx context.Context, u *hearth.Upload, from *hearth.Object) (o hearth.Object, err error) {
	err = f.do(ctx, "Copy", u, func() error {
		x, there := f.objects[from.Key]
		if !there || x.etag != from.ETag {
			return hearth.ErrStale
		}
		err := f.put(u, x.data, x.draft)
		o = f.object(u.Key)
		return err
	})
	return o, err
}

func (f *fakeUploader) Parts(ctx context.Context, u *hearth.Upload, id string) (parts []hearth.Part, err error) {
	err = f.do(ctx, "Parts", u, func() error {
		x, err := f.upload(u, id)
		if err != nil {
			return err
		}
		for _, n := range slices.Sorted(maps.Keys(x.parts)) {
			parts = append(parts, hearth.Part{Number: n, Size: int64(len(x.parts[n])), ETag: etagOf(x.parts[n])})
		}
		return nil
	})
	return parts, err
}

func (f *fakeUploader) Complete(ctx context.Context, u *hearth.Upload, id string, parts []hearth.Part) (o hearth.Object, err error) {
	err = f.do(ctx, "Complete", u, func() error {
		x, err := f.upload(u, id)
		if err != nil {
			return err
		}
		var all [][]byte
		for i, p := range parts {
			data := x.parts[p.Number]
			if p.Number != i+1 || etagOf(data) != p.ETag || i < len(parts)-1 && int64(len(data)) != int64(len(x.parts[1])) {
				f.bad = append(f.bad, fmt.Sprintf("part %d of %v is wrong", i+1, parts))
				return errors.New("InvalidPart")
			}
			all = append(all, data)
		}
		whole := bytes.Join(all, nil)
		if int64(len(whole)) != u.Size {
			f.bad = append(f.bad, fmt.Sprintf("%d bytes of %d", len(whole), u.Size))
		}
		if err := f.put(u, whole, x.draft); err != nil {
			return err
		}
		delete(f.uploads, id)
		o = f.object(u.Key)
		return nil
	})
	return o, err
}

func (f *fakeUploader) Abort(ctx context.Context, u *hearth.Upload, id string) error {
	return f.do(ctx, "Abort", u, func() error {
		delete(f.uploads, id)
		return nil
	})
}

func (f *fakeUploader) Written(ctx context.Context, u *hearth.Upload) (o hearth.Object, err error) {
	err = f.do(ctx, "Written", u, func() error {
		if x, there := f.objects[u.Key]; !there || x.draft != u.Draft {
			return hearth.ErrConflict
		}
		o = f.object(u.Key)
		return nil
	})
	return o, err
}

func (f *fakeUploader) Delete(ctx context.Context, key, etag string) error {
	return f.do(ctx, "Delete", &hearth.Upload{Key: key}, func() error {
		if o, there := f.objects[key]; there && etag != "" && o.etag != etag {
			return hearth.ErrConflict
		}
		delete(f.objects, key)
		return nil
	})
}

// has fails the test unless the bucket has exactly these bytes under a key. nil means that it has none.
func (f *fakeUploader) has(t testing.TB, key string, want []byte) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	o, there := f.objects[key]
	if there != (want != nil) || !bytes.Equal(o.data, want) {
		t.Fatalf("the bucket has %v %d bytes of %s, want %v %d", there, len(o.data), key, want != nil, len(want))
	}
	if len(f.bad) > 0 {
		t.Fatalf("bad requests: %q", f.bad)
	}
}

// clean fails the test if an upload is left.
func (f *fakeUploader) clean(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.uploads) > 0 {
		t.Fatalf("%d uploads are left", len(f.uploads))
	}
}

func (f *fakeUploader) count(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[verb]
}
