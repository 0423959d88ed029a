package volume

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// kernelBlocks is the size of the blocks, and how many are kept at a time: 1 MiB together.
const kernelBlock, kernelBlocks = 100 << 10, 10

// kernelVolume boots a target, formats its namespace, and attaches it.
func kernelVolume(t *testing.T, args ...string) (*setRig, *hearthtest.KernelTarget, *Attachment) {
	t.Helper()
	k := hearthtest.BootKernel(t, 1, args...)
	r := newSet(t, 1)
	r.set.o.Patience = 20 * time.Second // an emulated machine on busy cores
	return r, k, r.make(Scheme + k.Ports[0] + "/" + hearthtest.KernelNQN + "?timeout=20s&queues=2")
}

// keepAll keeps blocks from one number on, and expects them to be held.
func (r *setRig) keepAll(from int) {
	r.Helper()
	for i := range kernelBlocks {
		if err := r.keep(from+i, kernelBlock); err != nil {
			r.Fatalf("block %d: %v", from+i, err)
		}
		if !r.held(from+i, kernelBlock) {
			r.Errorf("block %d was kept and is not held", from+i)
		}
	}
}

// count reads blocks from one number on, each of which is right or a miss.
func (r *setRig) count(from int) (n int) {
	r.Helper()
	for i := range kernelBlocks {
		if r.held(from+i, kernelBlock) {
			n++
		}
	}
	return n
}

// has is how many blocks from one number on are said to be there.
func (r *setRig) has(from int) (n int) {
	for i := range kernelBlocks {
		if b, _ := r.block(from+i, kernelBlock); r.set.Has(b.ID()) {
			n++
		}
	}
	return n
}

// back waits until the target's namespace is connected again, and the volume in use and known.
func (r *setRig) back(a *Attachment, connections int64) {
	r.Helper()
	if !hearthtest.Eventually(r.Context(), 5*time.Minute, func() bool {
		s := a.Stats()
		if s.Why == nil && s.State.Away == nil && s.Remote != nil && s.Remote.Connections <= connections {
			r.count(0) // which waits for the connection
		}
		return s.Why == nil && s.State.Away == nil && s.Remote != nil && s.Remote.Connections > connections && s.Remote.Down == nil && s.State.Learned == s.State.All
	}) {
		s := a.Stats()
		r.Fatalf("not back: %v, %v, %+v", s.Why, s.State.Away, s.Remote)
	}
}

func TestKernelVolumeKeepsWhatWasFlushed(t *testing.T) {
	// A volume over the kernel's target with a volatile cache: power is lost. What was flushed is there. What was
	// not is said to be lost by the next Flush, is held no more from then on, and can be kept again. Another node
	// that attaches the volume finds the same.
	r, k, a := kernelVolume(t, "--persist", filepath.Join(t.TempDir(), "disk"), "--volatile", "--size", "32")
	r.keepAll(0)
	if err := r.set.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.keepAll(100)
	before := a.Stats().Remote.Connections
	k.Restart(t)
	r.back(a, before)
	if n := r.count(0); n != kernelBlocks {
		t.Errorf("%d blocks of %d that were flushed", n, kernelBlocks)
	}
	if n := r.count(100); n == kernelBlocks {
		t.Error("nothing was lost, which this test is about")
	}
	lost, _ := r.block(100, kernelBlock)
	err := r.set.Flush(t.Context())
	var unflushed hearth.Unflushed
	if !errors.As(err, &unflushed) {
		t.Fatalf("flush: %v", err)
	}
	if n := r.has(100); n != 0 {
		t.Errorf("%d lost blocks are said to be there after the flush that said so: %v", n, unflushed.Concerns(lost.ID()))
	}
	if n := r.count(0); n != kernelBlocks {
		t.Errorf("%d blocks of %d that were flushed, after the flush that failed", n, kernelBlocks)
	}
	r.keepAll(100)
	if err := r.set.Flush(t.Context()); err != nil {
		t.Errorf("a second flush: %v", err)
	}
	address := a.Address.String()
	r.set.Detach(a)
	k.Restart(t)
	other := newSet(t, 1)
	other.set.o.Patience = 20 * time.Second
	other.attach(address)
	if x, y := other.count(0), other.count(100); x != kernelBlocks || y != kernelBlocks {
		t.Errorf("another node finds %d and %d of %d blocks that were flushed", x, y, kernelBlocks)
	}
}

func TestKernelVolumeIsGoneWithItsMemory(t *testing.T) {
	// A target that keeps its namespace in memory comes back empty. No block is claimed, the reason is said, and
	// the volume works again once somebody has formatted it.
	r, k, a := kernelVolume(t, "--size", "32")
	r.keepAll(0)
	if err := r.set.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.Restart(t)
	r.out(a, ErrNoVolume)
	if n := r.has(0) + r.count(0); n != 0 {
		t.Errorf("%d blocks are claimed", n)
	}
	if err := r.keep(200, kernelBlock); err == nil || !strings.Contains(err.Error(), ErrNoVolume.Error()) {
		t.Errorf("keep: %v", err)
	}
	r.formatted(a.Address)
	r.known(a)
	r.keepAll(200)
	if err := r.set.Flush(t.Context()); err != nil || r.count(0) != 0 {
		t.Errorf("formatted anew: %v", err)
	}
}
