package secret

import (
	"net"
	"testing"
)

func BenchmarkHandshake(b *testing.B) {
	// This is the work of both sides, with a new connection over loopback. "connect" is
	// that alone.
	encA, encB := nodes(b, Options{})
	plainA, plainB := nodes(b, Options{Plain: true})
	for _, x := range []struct {
		name           string
		client, server *Identity
	}{{"connect", nil, nil}, {"plain", plainA, plainB}, {"encrypted", encA, encB}} {
		b.Run(x.name, func(b *testing.B) { benchmarkHandshake(b, x.client, x.server) })
	}
}

func benchmarkHandshake(b *testing.B, client, server *Identity) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	b.ReportAllocs()
	for b.Loop() {
		near, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		if client != nil {
			if c, s := shake(b.Context(), near, far, client, server); c.err != nil || s.err != nil {
				b.Fatal(c.err, s.err)
			}
		}
		near.Close()
		far.Close()
	}
}

func BenchmarkCluster(b *testing.B) {
	// This is the cost of a start, and at most that of a guess at the key.
	for _, x := range []struct{ name, text string }{{"key", keyHex}, {"phrase", phrase}} {
		k, err := Parse(x.text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(x.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := k.Cluster("test"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIdentity(b *testing.B) {
	c := cluster(b, keyHex, "test")
	for b.Loop() {
		if _, err := c.Identity("a", Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
