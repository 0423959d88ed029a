package origin

import (
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// canned serves one answer of 100 KiB for every request, at the least cost that
// there is, so that what is measured is the client.
func canned(b *testing.B, size int) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	answer := []byte("HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nLast-Modified: Tue, 15 Nov 1994 12:45:26 GMT\r\nContent-Range: bytes 0-" + strconv.Itoa(size-1) + "/" + strconv.Itoa(size) +
		"\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n" + strings.Repeat("x", size))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				request := make([]byte, 8192)
				for {
					if _, err := c.Read(request); err != nil {
						return
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// cpu is the process's CPU time in ns.
func cpu() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkGet(b *testing.B) {
	// CPU of both sides for a GET into a View; the server's side is one read and
	// one write. The minio row is its Core over the same transport.
	const size = 100 << 10
	b.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	b.Setenv("AWS_SECRET_ACCESS_KEY", "secretsecretsecret")
	endpoint := canned(b, size)
	o, err := Open(b.Context(), Config{URL: "s3://bucket", Endpoint: endpoint, Region: "us-east-1"})
	if err != nil {
		b.Fatal(err)
	}
	defer hearthtest.Close(b, o.(*S3))
	pool := hearth.NewPool(64 << 20)
	object := o.(*S3).object("d1/class0001/000123.bin", "e", size, time.Time{})
	b.Run("hearth", func(b *testing.B) {
		source := NewBucket(pool, func(string) Origin { return o })
		b.ReportAllocs()
		start := cpu()
		for b.Loop() {
			v, err := source.Get(b.Context(), object.Block(0), 0, size)
			if err != nil {
				b.Fatal(err)
			}
			v.Release()
		}
		b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/op")
	})
	b.Run("minio", func(b *testing.B) {
		core, err := minio.NewCore(strings.TrimPrefix(endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4("AKIDEXAMPLE", "secretsecretsecret", ""),
			Region: "us-east-1", Transport: o.(*S3).transport, MaxRetries: 1})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		start := cpu()
		for b.Loop() {
			v, err := pool.Alloc(b.Context(), size)
			if err != nil {
				b.Fatal(err)
			}
			var opts minio.GetObjectOptions
			_ = opts.SetRange(0, size-1)
			_ = opts.SetMatchETag("e")
			body, _, _, err := core.GetObject(b.Context(), "bucket", object.Key, opts)
			if err == nil {
				err = fill(v, body)
				body.Close()
			}
			if err != nil {
				b.Fatal(err)
			}
			v.Release()
		}
		b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/op")
	})
}
