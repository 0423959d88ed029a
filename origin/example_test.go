package origin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin"
)

// An origin says what keys there are, what a key is now, and what the bytes of exactly one
// version are. Once the object was replaced, its old version is stale, and never other bytes.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bucket")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is the system's to clean up
	put := func(key, text string) {
		name := filepath.Join(dir, key)
		err := os.WriteFile(name+".new", []byte(text), 0o600)
		if err = errors.Join(err, os.Rename(name+".new", name)); err != nil {
			fmt.Println(err)
		}
	}
	put("greeting", "hello, world")

	bucket, err := origin.Open(ctx, origin.Config{URL: "file://" + dir, Link: "data"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = bucket.List(ctx, hearth.Listing{}, func(o hearth.Object) error {
		fmt.Printf("%s: %d bytes\n", o.Key, o.Size)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	read := func(o *hearth.Object) {
		body, err := bucket.Read(ctx, o, 7, o.Size-7)
		if err != nil {
			fmt.Println("stale:", errors.Is(err, hearth.ErrStale))
			return
		}
		text, err := io.ReadAll(body)
		fmt.Printf("%s, %v\n", text, errors.Join(err, body.Close()))
	}
	before, err := bucket.Head(ctx, "greeting")
	if err != nil {
		fmt.Println(err)
		return
	}
	read(&before)
	put("greeting", "hello, moon")
	read(&before)
	after, err := bucket.Head(ctx, "greeting")
	if err != nil {
		fmt.Println(err)
		return
	}
	read(&after)

	// Output:
	// greeting: 12 bytes
	// world, <nil>
	// stale: true
	// moon, <nil>
}
