package share

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/peer/wire"
)

// many is a Tree of many names, made beforehand.
type many struct {
	noTree
	page []hearth.Object
}

func (m many) Names(_ context.Context, _ hearth.Directory, _ string, _ time.Duration, each func(*hearth.Object) bool) (hearth.Told, error) {
	for i := range m.page {
		if !each(&m.page[i]) {
			break
		}
	}
	return hearth.Told{}, nil
}

// BenchmarkNames measures a page of a thousand names over one loopback connection: it is asked for,
// written, sent, read and checked, and versions are computed.
func BenchmarkNames(b *testing.B) {
	pool := hearth.NewPool(64 << 20)
	dir := hearth.Directory{Link: "/", Identity: "s3 endpoint bucket", Prefix: "imagenet/train/n01440764/"}
	var tree many
	for i := range pageNames {
		tree.page = append(tree.page, hearth.Object{Key: fmt.Sprintf("%sn01440764_%05d.JPEG", dir.Prefix, i), ETag: fmt.Sprintf("%032x", i), Size: 100 << 10, ModTime: time.Unix(1700000000, 0)})
	}
	owner := New(Options{Pool: pool, Owner: func([16]byte) (string, bool) { return "owner", true }})
	owner.Serve(tree)
	server := wire.NewServer(wire.ServerOptions{Pool: pool, Handler: wire.Handler{Calls: owner.Calls()}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if conn, err := l.Accept(); err == nil {
			_ = server.Serve(ctx, conn, "asker")
		}
	})
	peer := wire.NewPeer("owner", wire.PeerOptions{Pool: pool, Connections: 1, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}})
	defer func() { peer.Close(); stop(); l.Close(); work.Wait() }()
	asker := New(Options{Pool: pool, Owner: func([16]byte) (string, bool) { return "owner", false },
		Call: func(ctx context.Context, _ string, number uint16, body *hearth.View) (*hearth.View, error) {
			return peer.Call(ctx, number, body)
		}}).Over(newBucket())
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if _, err := asker.Names(ctx, dir, "", time.Minute, func(*hearth.Object) bool { n++; return true }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "names/s")
}
