package cache_test

import (
	"context"
	"fmt"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeBucket says what it is asked for.
type fakeBucket map[[16]byte]string

func (f fakeBucket) Get(_ context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	fmt.Printf("  the bucket is asked for %d bytes\n", n)
	return hearth.NewView([]byte(f[b.Object.Version][off : off+n])), nil
}

// greeting is one version of one object; another ETag makes another version.
func greeting(etag, text string) *hearth.Object {
	o := &hearth.Object{Key: "greeting", ETag: etag, Size: int64(len(text))}
	o.Version = hearth.VersionOf("s3://bucket", o.Key, o.ETag, o.Size)
	return o
}

// A tier stands in front of what is slower. The first read of a block fetches all of it, and
// the next one is answered from memory. A changed object is another version, so its blocks
// have other names: nothing is invalidated.
func ExampleThrough() {
	before, after := greeting("v1", "hello, world"), greeting("v2", "hello, moon")
	bucket := fakeBucket{before.Version: "hello, world", after.Version: "hello, moon"}
	ram := cache.NewRAM(hearth.NewPool(hearth.MinRAM), 4<<20)
	defer ram.Close()
	tier := cache.Through(ram, hearthtest.Source(bucket), cache.Always)
	defer tier.Close()

	for _, o := range []*hearth.Object{before, before, after} {
		fmt.Printf("%s, from byte 7:\n", o.ETag)
		view, err := tier.Get(context.Background(), o.Block(0), 7, int(o.Size)-7)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("  %s\n", view.Bytes())
		view.Release()
	}

	// Output:
	// v1, from byte 7:
	//   the bucket is asked for 12 bytes
	//   world
	// v1, from byte 7:
	//   world
	// v2, from byte 7:
	//   the bucket is asked for 11 bytes
	//   moon
}

// Tiers are stacked, and admit says what each keeps. This one keeps nothing, so that just the
// range that was asked for is fetched, each time.
func ExampleAdmit() {
	o := greeting("v1", "hello, world")
	ram := cache.NewRAM(hearth.NewPool(hearth.MinRAM), 4<<20)
	defer ram.Close()
	never := func(hearth.Block, int) bool { return false }
	tier := cache.Through(ram, hearthtest.Source(fakeBucket{o.Version: "hello, world"}), never)
	defer tier.Close()

	for range 2 {
		view, err := tier.Get(context.Background(), o.Block(0), 7, 5)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", view.Bytes())
		view.Release()
	}

	// Output:
	//   the bucket is asked for 5 bytes
	// world
	//   the bucket is asked for 5 bytes
	// world
}
