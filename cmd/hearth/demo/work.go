package demo

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// readers is how many readers work at once, as a data loader's workers do. They are divided among
// the nodes.
const readers = 8

// work is an epoch: the readers of all nodes take its files one by one.
type work struct {
	files []file
	nodes []*mounted
	half  func() error // called once when half is done; nil means that nothing is called

	mu      sync.Mutex // guards the rest
	left    []int
	done    int
	bad     []string // names of files with a wrong hash
	slowest time.Duration
}

// run reads all files that are left. It ends early at an error that is a fault.
func (w *work) run(ctx context.Context) error {
	for len(w.left) > 0 && ctx.Err() == nil {
		// Readers of a killed node may give files back after the others have ended.
		if err := w.round(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (w *work) round(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range w.nodes {
		for range max(2, readers/len(w.nodes)) {
			group.Go(func() error { return w.read(ctx, group, m) })
		}
	}
	return group.Wait()
}

// read takes files and reads them through a node, until none is left or the node was killed. A file
// that fails because of the kill is left to the other nodes.
func (w *work) read(ctx context.Context, group *errgroup.Group, m *mounted) error {
	buf := make([]byte, 1<<20)
	for ctx.Err() == nil && !m.killed.Load() {
		i, ok := w.take()
		if !ok {
			return nil
		}
		f := &w.files[i]
		began := time.Now()
		hash, err := m.hash(ctx, f, buf)
		if err != nil {
			w.giveBack(i)
			if m.killed.Load() {
				return nil
			}
			return err
		}
		if f.hash == ([sha256.Size]byte{}) {
			f.hash = hash // the user's own bucket: the first epoch sets the hash
		}
		if w.finish(f, hash == f.hash, time.Since(began)) && w.half != nil {
			group.Go(w.half)
		}
	}
	return ctx.Err()
}

func (w *work) take() (int, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.left) == 0 {
		return 0, false
	}
	i := w.left[len(w.left)-1]
	w.left = w.left[:len(w.left)-1]
	return i, true
}

func (w *work) giveBack(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = append(w.left, i)
}

// finish notes a file that was read, and reports whether exactly half are done now.
func (w *work) finish(f *file, right bool, took time.Duration) (half bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !right {
		w.bad = append(w.bad, f.name)
	}
	w.slowest = max(w.slowest, took)
	w.done++
	return w.done == (len(w.files)+1)/2
}
