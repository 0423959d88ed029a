package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestThePlainProgramsDoAllOfIt(t *testing.T) {
	// More keys than two pages hold, and an object of two whole parts and a rest: the downloader's
	// files are byte for byte the set's, and both listers name each key once. Pages and parts are small,
	// since a thousand files took ten seconds to make and read.
	const page, part = 10, 4 << 10
	s := hearthtest.StartS3(t)
	set := hearthtest.DataSet{Name: "plain", Groups: []hearthtest.Group{
		{Dir: "p/dir", Dirs: 3, Files: 11, Min: 1, Max: 300},
		{Dir: "p/large", Dirs: 1, Files: 1, Min: 2*part + 1, Max: 2*part + 1}}}
	o := plainOrigin{S3: s.S3, Bucket: s.Bucket(t, "plain"), Prefix: "p/", Page: page, Part: part}
	if err := s.Load(t.Context(), o.Bucket, set, hearthtest.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutBytes(t.Context(), o.Bucket, "other", []byte("not below the prefix")); err != nil {
		t.Fatal(err)
	}
	files, bytes := set.Count()
	all := plainSum{Files: int64(files), Bytes: bytes}
	for _, connections := range []int{1, 16} {
		o.Connections, o.Client = connections, plainClient(connections)
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			defer o.Client.CloseIdleConnections()
			dir, listing := t.TempDir(), filepath.Join(t.TempDir(), "listing")
			if sum, err := o.Download(t.Context(), dir); err != nil || sum != all {
				t.Errorf("downloaded %+v of %+v, %v", sum, all, err)
			}
			if sum, err := o.List(t.Context(), listing); err != nil || sum != all {
				t.Errorf("listed %+v of %+v, %v", sum, all, err)
			}
			text, err := os.ReadFile(listing)
			if err != nil {
				t.Fatal(err)
			}
			for f := range set.Files() {
				data, err := os.ReadFile(filepath.Join(dir, f.Path))
				if err != nil || int64(len(data)) != f.Size || hearthtest.Check(data, f.Path, 0, 0) != nil {
					t.Fatalf("%s: %d bytes of %d, %v, %v", f.Path, len(data), f.Size, err, hearthtest.Check(data, f.Path, 0, 0))
				}
				if n := strings.Count(string(text), fmt.Sprintf("%d\t%s\n", f.Size, f.Path)); n != 1 {
					t.Fatalf("%s is listed %d times", f.Path, n)
				}
			}
		})
	}
}

func TestThePlainDownloaderFailsWithItsOrigin(t *testing.T) {
	// It tries nothing again: a bucket that is not there, and a server that is gone, are errors.
	s := hearthtest.StartS3(t)
	o := plainOrigin{S3: s.S3, Bucket: "none", Connections: 4}
	o.Client = plainClient(4)
	defer o.Client.CloseIdleConnections()
	if _, err := o.Download(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "NoSuchBucket") {
		t.Errorf("no bucket: %v", err)
	}
	s.Stop()
	if _, err := o.Download(t.Context(), t.TempDir()); err == nil {
		t.Error("no server: no error")
	}
}
