package clients

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// Bucket is where the objects lie.
const Bucket = "bench"

const (
	// smallDirs directories of smallFiles each are as many keys as are listed, pageKeys at
	// a time.
	smallDirs, smallFiles = 100, 100
	pageKeys              = 1000
	smallSize             = 16 << 10  // bytes
	largeSize             = 256 << 20 // bytes
)

// Data is a MinIO with small objects and large ones in which ranges lie.
type Data struct {
	MinIO *hearthtest.Server
	paths []string // of the small ones
	large []hearthtest.File
}

// Start runs a MinIO over dir with a share of the small objects, and two large ones.
func Start(ctx context.Context, dir string, share float64) (*Data, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	minio, err := hearthtest.Run(ctx, hearthtest.ServerOptions{Dir: dir, MinIO: true})
	if err != nil {
		return nil, fmt.Errorf("start MinIO: %w", err)
	}
	d := &Data{MinIO: minio}
	small := hearthtest.DataSet{Name: "W5", Groups: []hearthtest.Group{{Dir: "small/class", Dirs: max(2, int(share*smallDirs)), Files: smallFiles, Min: smallSize, Max: smallSize}}}
	large := hearthtest.DataSet{Name: "W5 large", Groups: []hearthtest.Group{{Dir: "large", Dirs: 1, Files: 2, Min: largeSize, Max: largeSize}}}
	err = minio.CreateBucket(ctx, Bucket)
	for _, s := range []hearthtest.DataSet{small, large} {
		if err == nil {
			err = minio.Load(ctx, Bucket, s, hearthtest.LoadOptions{})
		}
	}
	if err != nil {
		minio.Stop()
		return nil, err
	}
	for f := range small.Files() {
		d.paths = append(d.paths, f.Path)
	}
	for f := range large.Files() {
		d.large = append(d.large, f)
	}
	return d, nil
}

// Gets are GETs of all small files, in a seeded random order.
func (d *Data) Gets(seed uint64) (asks []Ask) {
	for _, i := range rand.New(rand.NewPCG(seed, 5)).Perm(len(d.paths)) {
		asks = append(asks, Ask{Key: d.paths[i]})
	}
	return asks
}

// Ranges are aligned ones of the large files, each once, in a seeded random order.
func (d *Data) Ranges(size int64, seed uint64) (asks []Ask) {
	for _, f := range d.large {
		for off := int64(0); off < f.Size; off += size {
			asks = append(asks, Ask{Key: f.Path, Off: off, Len: size})
		}
	}
	rand.New(rand.NewPCG(seed, 6)).Shuffle(len(asks), func(i, j int) { asks[i], asks[j] = asks[j], asks[i] })
	return asks
}

// Pages are those of a listing of all small keys. Tokens are each server's own, so that each page
// says behind which key it begins.
func (d *Data) Pages() (asks []Ask) {
	for at := 0; at < len(d.paths); at += pageKeys {
		q := url.Values{"list-type": {"2"}, "prefix": {"small/"}, "max-keys": {strconv.Itoa(pageKeys)}}
		if at > 0 {
			q.Set("start-after", d.paths[at-1])
		}
		asks = append(asks, Ask{Query: q.Encode()})
	}
	return asks
}
