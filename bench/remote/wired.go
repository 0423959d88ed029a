package remote

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/peer/secret"
	"github.com/hearthfs/hearth/peer/wire"
)

// wired reads by Hearth's block protocol, between nodes that have shaken hands as
// those of a cluster do.
type wired struct{}

// key of a cluster that has nothing to hide.
const key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func identity(id string, w Work) (*secret.Identity, error) {
	k, err := secret.Parse(key)
	if err != nil {
		return nil, err
	}
	c, err := k.Cluster("bench")
	if err != nil {
		return nil, err
	}
	return c.Identity(id, secret.Options{Plain: !w.TLS})
}

// held is the one object that is read.
func held() *hearth.Object { return hearthtest.NewObject(name, blocks*hearth.BlockSize, 0) }

// Serve is Program's.
func (wired) Serve(ctx context.Context, l net.Listener, w Work) error {
	own, err := identity("owner", w)
	if err != nil {
		return err
	}
	machine.Processors(0, false) // the runtime is a node's
	memory, err := newMemory(ctx, w.Size)
	if err != nil {
		return err
	}
	defer memory.release()
	server := wire.NewServer(wire.ServerOptions{Pool: memory.pool, Handler: wire.Handler{Ready: memory.ready, Fill: memory.fill}})
	return accept(ctx, l, func(conn net.Conn) {
		c, id, err := own.Server(ctx, conn)
		if err == nil {
			_ = server.Serve(ctx, c, id) // the reader's side says what was wrong
		}
	})
}

// memory holds the blocks, as plainly as the other programs do: what a node's RAM tier
// costs is not the wire's. Each range that is read is a View as a small object's is there: the
// sums of its pieces are made once.
type memory struct {
	pool *hearth.Pool
	size int                    // of a View
	held [blocks][]*hearth.View // of each block
	id   [16]byte               // the object's version
}

func newMemory(ctx context.Context, size int) (*memory, error) {
	m := &memory{pool: hearth.NewPool(2 * blocks * hearth.BlockSize), size: size, id: held().Version}
	for i := range m.held {
		v, err := m.pool.Alloc(ctx, hearth.BlockSize)
		if err != nil {
			return nil, err
		}
		hearthtest.Fill(v.Bytes(), name, int64(i)*hearth.BlockSize, 0)
		for off := 0; off+size <= hearth.BlockSize; off += size {
			m.held[i] = append(m.held[i], v.Slice(off, size))
		}
		v.Release()
	}
	return m, nil
}

func (m *memory) ready(b hearth.Block, off, n int) *hearth.View {
	if b.Object.Version != m.id {
		return nil
	}
	return m.held[b.Index][off/m.size].Retain()
}

func (m *memory) fill(_ context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	v := m.ready(b, off, n)
	if v == nil {
		return nil, hearth.ErrMiss
	}
	return v, nil
}

func (m *memory) release() {
	for _, views := range m.held {
		for _, v := range views {
			v.Release()
		}
	}
}

// wiredReader is a node as it reads from another.
type wiredReader struct {
	peer     *wire.Peer
	object   *hearth.Object
	size     int
	inFlight int
}

// Open is Program's.
func (wired) Open(_ context.Context, address string, w Work) (Reader, error) {
	own, err := identity("reader", w)
	if err != nil {
		return nil, err
	}
	machine.Processors(0, false)
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		c, _, err := own.Client(ctx, conn, "owner")
		return c, err
	}
	// On a busy machine the other side may stand still for longer than a node would wait.
	peer := wire.NewPeer("owner", wire.PeerOptions{Dial: dial, Pool: hearth.NewPool(128 * hearth.BlockSize), Silence: time.Minute})
	return &wiredReader{peer, held(), w.Size, w.InFlight}, nil
}

// Read is Reader's: each read in flight has a goroutine, as a node's readers have.
func (r *wiredReader) Read(ctx context.Context, places []Place, took []time.Duration) error {
	return r.each(ctx, places, func(i int, _ *hearth.View, d time.Duration) {
		if took != nil {
			took[i] = d
		}
	})
}

// Wrong is Reader's.
func (r *wiredReader) Wrong(ctx context.Context, places []Place) (int64, error) {
	var wrong atomic.Int64
	err := r.each(ctx, places, func(i int, v *hearth.View, _ time.Duration) {
		if !right(v.Bytes(), places[i]) {
			wrong.Add(int64(v.Len()))
		}
	})
	return wrong.Load(), err
}

func (r *wiredReader) each(ctx context.Context, places []Place, do func(i int, v *hearth.View, took time.Duration)) error {
	var next atomic.Int64
	var readers sync.WaitGroup
	failed := make([]error, r.inFlight)
	for reader := range r.inFlight {
		readers.Go(func() {
			for {
				i := int(next.Add(1) - 1)
				if i >= len(places) {
					return
				}
				start := time.Now()
				v, err := r.peer.Fill(ctx, r.object.Block(places[i].block()), places[i].off(), r.size)
				if err != nil {
					failed[reader] = err
					return
				}
				do(i, v, time.Since(start))
				v.Release()
			}
		})
	}
	readers.Wait()
	return errors.Join(failed...)
}

// Close is Reader's.
func (r *wiredReader) Close() { r.peer.Close() }
