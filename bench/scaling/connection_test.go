package scaling

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/peer/wire"
)

func BenchmarkConnection(b *testing.B) {
	// What an encrypted connection between two nodes that has brought a block takes of heap and
	// stacks while it waits for the next, of both ends together: connBytes of it at each are in
	// the RAM budget.
	const many = 200
	for b.Loop() {
		before := taken()
		r := newRig(b)
		for i := range many {
			r.connect(b, i)
		}
		b.ReportMetric(float64(taken()-before)/many, "bytes/connection")
		r.close()
	}
}

// taken is what is in use of heap and stacks, in bytes.
func taken() int64 {
	for range 2 { // what pools of the first lose, the second takes
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// rig is a server, and peers that have one connection each.
type rig struct {
	ctx    context.Context
	cancel context.CancelFunc
	own    *secret.Identity // of who answers
	asker  *secret.Identity
	server *wire.Server
	pool   *hearth.Pool
	listen net.Listener
	peers  []*wire.Peer
	work   sync.WaitGroup
}

func newRig(b *testing.B) *rig {
	b.Helper()
	k, err := secret.Parse(key)
	if err != nil {
		b.Fatal(err)
	}
	c, err := k.Cluster(Ring)
	if err != nil {
		b.Fatal(err)
	}
	r := &rig{pool: hearth.NewPool(64 << 20)}
	for id, own := range map[string]**secret.Identity{"owner": &r.own, "reader": &r.asker} {
		if *own, err = c.Identity(id, secret.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	if r.listen, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		b.Fatal(err)
	}
	r.ctx, r.cancel = context.WithCancel(b.Context())
	r.server = wire.NewServer(wire.ServerOptions{Pool: r.pool, Handler: wire.Handler{Fill: func(ctx context.Context, _ hearth.Block, _, n int) (*hearth.View, error) { return r.pool.Alloc(ctx, n) }}})
	return r
}

// connect has one more peer read a piece, by which all buffers have grown.
func (r *rig) connect(b *testing.B, i int) {
	b.Helper()
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.listen.Addr().String())
		if err != nil {
			return nil, err
		}
		safe, _, err := r.asker.Client(ctx, conn, r.own.ID())
		return safe, err
	}
	r.work.Go(func() {
		conn, err := r.listen.Accept()
		if err != nil {
			return
		}
		if safe, _, err := r.own.Server(r.ctx, conn); err == nil {
			_ = r.server.Serve(r.ctx, safe, fmt.Sprint(i)) // the peer says what was wrong
		}
	})
	p := wire.NewPeer("node", wire.PeerOptions{Dial: dial, Pool: r.pool})
	r.peers = append(r.peers, p)
	v, err := p.Fill(b.Context(), hearthtest.NewObject("object", hearth.PieceSize, 0).Block(0), 0, hearth.PieceSize)
	if err != nil {
		b.Fatal(err)
	}
	v.Release()
}

func (r *rig) close() {
	for _, p := range r.peers {
		p.Close()
	}
	r.cancel()
	_ = r.listen.Close()
	r.work.Wait()
}
