package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hearthfs/hearth/internal/faultproxy"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestThePlainUploaderSendsEachByteOnce(t *testing.T) {
	// A file of two parts and a rest becomes one object with its bytes, over one connection and over several. So do small
	// ones, of which each is one request. The proxy counts the bodies: as many bytes as there are, and the list of parts.
	const part = 5 << 20
	s := hearthtest.StartS3(t)
	bucket := s.Bucket(t, "plain")
	p, err := faultproxy.Start(faultproxy.Options{Target: s.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	w := writing{To: filepath.Join(t.TempDir(), "file"), As: "file.tmp", Size: 2*part + 1}
	if did, err := w.file(pattern()); err != nil || did.bytes != w.Size {
		t.Fatalf("wrote %+v, %v", did, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(w.To), w.As)); !os.IsNotExist(err) {
		t.Errorf("the temporary name: %v", err)
	}
	small := writing{Dirs: 2, Files: 5, Small: 4 << 10}
	for _, connections := range []int{1, 4} {
		o := plainOrigin{S3: s.S3, Bucket: bucket, Connections: connections, Part: part}
		o.Endpoint, o.Client = p.URL(), plainClient(connections)
		p.Reset()
		if did, err := o.upload(t.Context(), "large", w.To); err != nil || did.bytes != w.Size {
			t.Fatalf("uploaded %+v, %v", did, err)
		}
		if n, list := p.Stats().Received-w.Size, int64(1000); n <= 0 || n > list {
			t.Errorf("%d bytes more than the file's were sent, and the list of parts has at most %d", n, list)
		}
		if wrong, err := wrongPattern(filepath.Join(s.Dir, bucket, "large")); err != nil || wrong > 0 {
			t.Errorf("%d wrong bytes, %v", wrong, err)
		}
		p.Reset()
		if _, err := o.put(t.Context(), "below/", small.set()); err != nil {
			t.Fatal(err)
		}
		if st := p.Stats(); st.Received != 10*small.Small || st.Other.Requests != 10 {
			t.Errorf("ten PUTs of 4 KiB were %d requests with %d bytes", st.Other.Requests, st.Received)
		}
		if wrong, err := wrongBytes(filepath.Join(s.Dir, bucket, "below"), pathsOf(small.set())); err != nil || wrong > 0 {
			t.Errorf("%d wrong bytes of small files, %v", wrong, err)
		}
		o.Client.CloseIdleConnections()
	}
}

func TestThePlainUploaderFailsWithItsOrigin(t *testing.T) {
	// A bucket that is not there is an error of the first request, and so are a server's later ones: nothing is made.
	s := hearthtest.StartS3(t)
	o := plainOrigin{S3: s.S3, Bucket: "none", Connections: 2, Part: 5 << 20}
	o.Client = plainClient(2)
	defer o.Client.CloseIdleConnections()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, 10), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := o.upload(t.Context(), "key", name); err == nil {
		t.Error("no bucket: no error")
	}
	if _, err := o.put(t.Context(), "", (&writing{Dirs: 1, Files: 1, Small: 10}).set()); err == nil {
		t.Error("no bucket: no error of a PUT")
	}
}

func TestSmallerFilesAreWholeParts(t *testing.T) {
	// At a small scale a large file has at least two parts, and never a piece of one: bytes per byte stay comparable.
	for scale, want := range map[float64]int64{1: writtenSize, 0.25: writtenSize / 4, 0.0001: 2 * uploadPart} {
		if n := (&bench{scale: scale}).sized(writtenSize); n != want {
			t.Errorf("at %g it has %d bytes, not %d", scale, n, want)
		}
	}
}
