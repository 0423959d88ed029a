package namespace

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
)

// flat is an origin of n keys in one directory. It generates them, and keeps none in memory.
type flat struct{ n int }

func (f flat) object(i int) hearth.Object {
	key := fmt.Sprintf("train/n%08d_%05d.JPEG", i/1000*37, i)
	sum := md5.Sum([]byte(key))
	o := hearth.Object{Link: "/", Key: key, ETag: hex.EncodeToString(sum[:]), Size: 50_000 + int64(sum[0])<<9 + int64(sum[1]),
		ModTime: time.Unix(1700000000+int64(i/100), 0)}
	o.Version = hearth.VersionOf("test", o.Key, o.ETag, o.Size)
	return o
}

func (f flat) Head(context.Context, string) (hearth.Object, error) { return hearth.Object{}, errDown }

func (f flat) List(_ context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	if q.Prefix == "" {
		return each(hearth.Object{Key: "train/", Size: hearth.PrefixSize})
	}
	for i := range f.n {
		if err := each(f.object(i)); err != nil || q.Limit > 0 {
			return err
		}
	}
	return nil
}

func loaded(b *testing.B, n int) (*Tree, Node) {
	tree, err := Open(Options{Dir: b.TempDir() + "/names", Links: []Link{{Path: "/", Name: "/", Origin: flat{n}, Identity: "test",
		Freshness: Freshness{Mode: Immutable}}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tree.Close(); err != nil {
			b.Error(err)
		}
	})
	dir, err := tree.Resolve(context.Background(), "/train")
	if err != nil {
		b.Fatal(err)
	}
	return tree, dir
}

func readAll(b *testing.B, tree *Tree, dir Node) (n int) {
	err := tree.ReadDir(context.Background(), dir.ID, "", func(Node) bool { n++; return true })
	if err != nil {
		b.Fatal(err)
	}
	return n
}

const benchNames = 200_000

func BenchmarkLoad(b *testing.B) {
	// Names listed cold into the database, with node ids and reverse records.
	for range b.N {
		tree, dir := loaded(b, benchNames)
		start := time.Now()
		if n := readAll(b, tree, dir); n != benchNames {
			b.Fatal(n)
		}
		b.ReportMetric(benchNames/time.Since(start).Seconds(), "names/s")
		if err := tree.db.Compact(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(tree.db.Stats().TableBytes)/benchNames, "B/name")
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapSys)/1e6, "heapMB")
	}
}

func BenchmarkHot(b *testing.B) {
	tree, dir := loaded(b, benchNames)
	readAll(b, tree, dir)
	ctx := context.Background()
	names := make([]string, 2_000) // what is hot
	ids := make([]uint64, len(names))
	for i := range names {
		names[i] = flat{}.object(i * 3).Key[len("train/"):]
		n, err := tree.Lookup(ctx, dir.ID, names[i])
		if err != nil {
			b.Fatal(err)
		}
		ids[i] = n.ID
	}
	b.Run("Lookup", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			if _, err := tree.Lookup(ctx, dir.ID, names[i*31%len(names)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Absent", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if _, err := tree.Lookup(ctx, dir.ID, "no such name"); err == nil {
				b.Fatal("found")
			}
		}
	})
	b.Run("Node", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			if _, err := tree.Node(ctx, ids[i*31%len(ids)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ReadDir", func(b *testing.B) {
		b.ReportAllocs()
		for left := b.N; left > 0; { // one name is one operation
			err := tree.ReadDir(ctx, dir.ID, "", func(Node) bool {
				left--
				return left > 0
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
