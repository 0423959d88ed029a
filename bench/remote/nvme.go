package remote

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/volume/nvmetcp"
)

// nvme reads a namespace of an in-process NVMe/TCP target by Hearth's initiator. A connection is a queue, and the
// reads in flight are shared out to them.
type nvme struct{}

// Serve is Program's, who never calls it: a target listens by itself.
func (nvme) Serve(context.Context, net.Listener, Work) error { return errors.ErrUnsupported }

// bind implements binder.
func (nvme) bind(ctx context.Context, address string, ready func(string) error) error {
	memory := fakenvmet.NewMemory(blocks * hearth.BlockSize)
	if _, err := memory.WriteAt(content(), 0); err != nil {
		return err
	}
	target, err := fakenvmet.New(fakenvmet.Options{Listen: []string{address}, Success: true,
		Namespaces: []fakenvmet.NamespaceOptions{{Size: blocks * hearth.BlockSize, Backing: memory}}})
	if err != nil {
		return err
	}
	defer target.Close()
	if err := ready(target.Address()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// content is all blocks.
func content() []byte {
	b := make([]byte, blocks*hearth.BlockSize)
	hearthtest.Fill(b, name, 0, 0)
	return b
}

// nvmeReader has a namespace, and a buffer for each read in flight.
type nvmeReader struct {
	namespace *nvmetcp.Namespace
	buffers   [][]byte
}

// Open is Program's.
func (nvme) Open(ctx context.Context, address string, w Work) (Reader, error) {
	n, err := nvmetcp.Open(ctx, nvmetcp.Options{Portals: []string{address}, SubsystemNQN: fakenvmet.NQN, Queues: w.Connections, Depth: w.InFlight / w.Connections})
	if err != nil {
		return nil, err
	}
	r := &nvmeReader{namespace: n}
	for range w.InFlight {
		r.buffers = append(r.buffers, device.Aligned(w.Size))
	}
	return r, nil
}

// Read is Reader's.
func (r *nvmeReader) Read(_ context.Context, places []Place, took []time.Duration) error {
	return together(len(r.buffers), places, took, func(reader int, p Place) error {
		_, err := r.namespace.ReadAt(r.buffers[reader], int64(p))
		return err
	})
}

// together has so many readers make the reads, each the next one that nobody has made.
func together(readers int, places []Place, took []time.Duration, read func(reader int, p Place) error) error {
	var next atomic.Int64
	var work sync.WaitGroup
	failed := make([]error, readers)
	for reader := range readers {
		work.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(places)) && failed[reader] == nil; i = next.Add(1) - 1 {
				start := time.Now()
				failed[reader] = read(reader, places[i])
				if took != nil {
					took[i] = time.Since(start)
				}
			}
		})
	}
	work.Wait()
	return errors.Join(failed...)
}

// Wrong is Reader's.
func (r *nvmeReader) Wrong(_ context.Context, places []Place) (wrong int64, err error) {
	for _, p := range places {
		if _, err := r.namespace.ReadAt(r.buffers[0], int64(p)); err != nil {
			return wrong, err
		}
		if !right(r.buffers[0], p) {
			wrong += int64(len(r.buffers[0]))
		}
	}
	return wrong, nil
}

// Close is Reader's.
func (r *nvmeReader) Close() { _ = r.namespace.Close() } // nothing was written
