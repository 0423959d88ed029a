package origin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hearthfs/hearth"
)

func TestTheRestOfALyingAnswerFailsNoOtherRequest(t *testing.T) {
	// A page says that it is shorter than it is. Its rest comes on the kept connection, as the
	// answer to a read: that read asks again elsewhere, and has its bytes. Where nothing but such
	// rests comes it fails after three attempts, and nobody takes the origin for one that is away.
	const page = "<ListBucketResult><Name>b</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
	const says, data = 77, "0123456789"
	var rests atomic.Int64
	var always atomic.Bool
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer l.Close()
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer conn.Close()
				rest := ""
				for in := bufio.NewReader(conn); ; {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if always.Load() {
						rest = page[says:]
					}
					if rest != "" {
						rests.Add(1)
					}
					text := rest
					if rest = ""; r.URL.Query().Has("list-type") {
						text += fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", says, page[:says])
						rest = page[says:]
					} else {
						text += fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Range: bytes 0-9/10\r\nContent-Length: %d\r\n\r\n%s", len(data), data)
					}
					if _, err := io.WriteString(conn, text); err != nil {
						return
					}
				}
			})
		}
	})
	o := open(t, Config{URL: "s3://b", Endpoint: "http://" + l.Addr().String(), Anonymous: true})
	defer o.(*S3).transport.CloseIdleConnections()
	if err := o.List(t.Context(), hearth.Listing{}, func(hearth.Object) error { return nil }); !errors.Is(err, errLied) {
		t.Errorf("the listing: %v", err)
	}
	object := hearth.Object{Key: "k", ETag: "e", Size: int64(len(data))}
	read := func() (string, error) {
		in, err := o.Read(t.Context(), &object, 0, object.Size)
		if err != nil {
			return "", err
		}
		text, err := io.ReadAll(in)
		return string(text), errors.Join(err, in.Close())
	}
	if text, err := read(); err != nil || text != data || rests.Load() != 1 {
		t.Errorf("%d rests, read %q: %v", rests.Load(), text, err)
	}
	if gateway := (&Error{Op: "get", Where: "b/malformed HTTP k", Status: 502, Message: "malformed HTTP response", Err: errors.New("Bad Gateway")}); !Away(gateway) {
		t.Errorf("a gateway whose origin is not there: %v", gateway)
	}
	always.Store(true)
	if _, err := read(); err == nil || !strings.Contains(err.Error(), "malformed HTTP ") || Away(err) || rests.Load() != 4 {
		t.Errorf("nothing but rests, %d in all: %v", rests.Load(), err)
	}
}
