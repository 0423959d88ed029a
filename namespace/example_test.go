package namespace_test

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace"
)

// fakeBucket is an origin of names in memory, by key.
type fakeBucket struct {
	mu      sync.Mutex
	objects map[string]hearth.Object
}

func (f *fakeBucket) put(key, etag string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[key] = hearth.Object{Link: "data", Key: key, ETag: etag, Size: 1, ModTime: time.Unix(1, 0),
		Version: hearth.VersionOf("s3://bucket", key, etag, 1)}
}

func (f *fakeBucket) Head(_ context.Context, key string) (hearth.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o, ok := f.objects[key]; ok {
		return o, nil
	}
	return hearth.Object{}, fs.ErrNotExist
}

func (f *fakeBucket) List(_ context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	f.mu.Lock()
	objects := maps.Clone(f.objects)
	f.mu.Unlock()
	last, left := "", q.Limit
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		rest, below := strings.CutPrefix(key, q.Prefix)
		o := objects[key]
		if group, _, deeper := strings.Cut(rest, "/"); deeper && !q.Recursive {
			o = hearth.Object{Link: "data", Key: q.Prefix + group + "/", Size: hearth.PrefixSize}
		}
		if !below || o.Key <= q.After || o.Key == last {
			continue
		}
		if err := each(o); err != nil {
			return err
		}
		if last = o.Key; left == 1 {
			break
		}
		left--
	}
	return nil
}

// A Tree shows the keys of a bucket as directories, and says which version a name means. An object
// is replaced; its name is believed for the link's bound, or until a reader finds the version gone.
func ExampleTree() {
	ctx, bucket := context.Background(), &fakeBucket{objects: map[string]hearth.Object{}}
	bucket.put("train/cat.jpg", "v1")
	bucket.put("train/dog.jpg", "v1")
	tree, err := namespace.Open(namespace.Options{Links: []namespace.Link{{
		Path: "/", Name: "data", Origin: bucket, Identity: "s3://bucket",
		Freshness: namespace.Freshness{Mode: namespace.Bounded, Bound: time.Hour},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tree.Close() }() // its names lie in memory: there is nothing to lose

	dir, err := tree.Resolve(ctx, "/train")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = tree.ReadDir(ctx, dir.ID, "", func(n namespace.Node) bool {
		fmt.Println(n.Name, n.Object.ETag)
		return true
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	bucket.put("train/cat.jpg", "v2")
	before, err := tree.Lookup(ctx, dir.ID, "cat.jpg")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("within the bound:", before.Object.ETag)

	tree.Forget(&before.Object)
	after, err := tree.Lookup(ctx, dir.ID, "cat.jpg")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("found gone:", after.Object.ETag)
	fmt.Println("another version, another inode:", after.ID != before.ID)

	// Output:
	// cat.jpg v1
	// dog.jpg v1
	// within the bound: v1
	// found gone: v2
	// another version, another inode: true
}
