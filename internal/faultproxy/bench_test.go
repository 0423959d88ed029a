package faultproxy_test

import (
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hearthfs/hearth/internal/faultproxy"
)

func BenchmarkRelay(b *testing.B) {
	// CPU of client and server alone, and with the proxy between: the difference is
	// what the proxy costs a GET of 100 KiB.
	const size = 100 << 10
	answer := "HTTP/1.1 206 Partial Content\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n" + strings.Repeat("x", size)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
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
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	p, err := faultproxy.Start(faultproxy.Options{Target: l.Addr().String()})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(p.Close)
	for name, address := range map[string]string{"direct": l.Addr().String(), "proxy": strings.TrimPrefix(p.URL(), "http://")} {
		b.Run(name, func(b *testing.B) {
			c, err := net.Dial("tcp", address)
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, len(answer))
			start := cpu()
			for b.Loop() {
				if _, err := io.WriteString(c, "GET /b/k HTTP/1.1\r\nHost: x\r\nRange: bytes=0-102399\r\n\r\n"); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is the process's CPU time in ns.
func cpu() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}
