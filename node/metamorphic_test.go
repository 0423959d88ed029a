package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/origin"
)

func TestTheSameReadsGiveTheSameBytesThroughEveryTier(t *testing.T) {
	// The sources are the bucket alone, RAM, real disks (one of them far too small), and all of them.
	// Whatever stands between, the same random reads give the same bytes.
	s3 := hearthtest.StartS3(t)
	bucket := s3.Bucket(t, "data")
	sizes := []int64{1, 4095, 100_000, 1 << 20, 1<<20 + 1, 5<<20 + 77}
	var files []hearthtest.File
	for i, size := range sizes {
		f := hearthtest.File{Path: fmt.Sprint("meta/", i), Size: size}
		files = append(files, f)
		if err := s3.PutFile(t.Context(), bucket, "", f, 0); err != nil {
			t.Fatal(err)
		}
	}
	for name, w := range map[string]struct{ ram, disk int64 }{
		"bucket only": {}, "RAM": {ram: 32 << 20}, "disk": {disk: 1 << 30}, "small disk": {disk: 6 << 20}, "all": {16 << 20, 1 << 30},
	} {
		t.Run(name, func(t *testing.T) { readRandomly(t, s3, bucket, files, w.ram, w.disk) })
	}
}

func readRandomly(t *testing.T, s3 *hearthtest.Server, bucket string, files []hearthtest.File, ram, diskBytes int64) {
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": s3.AccessKey, "AWS_SECRET_ACCESS_KEY": s3.SecretKey} {
		t.Setenv(k, v)
	}
	o, err := origin.Open(t.Context(), origin.Config{URL: "s3://" + bucket, Link: "/", Endpoint: s3.Endpoint, Region: s3.Region, PathStyle: "on"})
	if err != nil {
		t.Fatal(err)
	}
	pool := hearthtest.Pool(t, 64<<20)
	var mem *cache.RAM
	var store *disk.Store
	if ram > 0 {
		mem = cache.NewRAM(pool, ram)
		defer mem.Close()
	}
	if diskBytes > 0 {
		store, err = disk.Open(disk.Options{Dirs: []disk.DirOptions{{Path: t.TempDir(), Budget: diskBytes, Floor: -1}}, Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer hearthtest.Close(t, store)
	}
	next := cache.Through(nil, origin.NewBucket(pool, func(string) origin.Origin { return o }), cache.Always)
	if store != nil {
		next = cache.Through(store, next, cache.Keep(store))
		defer next.Close()
	}
	if mem != nil {
		next = cache.Memory(mem, next, cache.Always)
		defer next.Close()
	}
	rng := rand.New(rand.NewPCG(42, 42)) // the same reads for every wiring
	for i := range 120 {
		f := files[rng.IntN(len(files))]
		object, err := o.Head(t.Context(), f.Path)
		if err != nil {
			t.Fatal(err)
		}
		r := cache.NewReader(next, &object, cache.ReaderOptions{})
		off := rng.Int64N(f.Size)
		got := make([]byte, 1+rng.IntN(2<<20))
		n, err := r.ReadAt(t.Context(), got, off)
		r.Close()
		want := make([]byte, min(int64(len(got)), f.Size-off))
		hearthtest.Fill(want, f.Path, off, 0)
		if err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(got[:n], want) {
			t.Fatalf("read %d: %d bytes of %s at %d: got %d, %v", i, len(got), f.Path, off, n, err)
		}
	}
}
