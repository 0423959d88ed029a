package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hearthfs/hearth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDevice is a device in memory with a write cache that a power cut loses.
type fakeDevice struct {
	mu      sync.Mutex
	durable []byte
	cached  map[int64][]byte // pages written since the last flush
	flushes int
	reads   int
	fail    func(op string, off int64) error // asked before each operation, without the lock; may wait
}

func newDevice(size int64) *fakeDevice {
	return &fakeDevice{durable: make([]byte, size), cached: map[int64][]byte{}}
}

func (d *fakeDevice) before(op string, off int64) error {
	d.mu.Lock()
	fail := d.fail
	d.mu.Unlock()
	if fail != nil {
		return fail(op, off)
	}
	return nil
}

func (d *fakeDevice) fails(f func(op string, off int64) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

func (d *fakeDevice) ReadAt(p []byte, off int64) (int, error) {
	if err := d.before("read", off); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reads++
	if off < 0 || off+int64(len(p)) > int64(len(d.durable)) || off%512 != 0 || len(p)%512 != 0 {
		return 0, fmt.Errorf("read %d at %d: %w", len(p), off, io.ErrUnexpectedEOF)
	}
	copy(p, d.durable[off:])
	for at := off &^ (pageSize - 1); at < off+int64(len(p)); at += pageSize {
		if page, ok := d.cached[at]; ok {
			from := max(off, at)
			copy(p[from-off:], page[from-at:])
		}
	}
	return len(p), nil
}

func (d *fakeDevice) WriteAt(p []byte, off int64) (int, error) {
	if err := d.before("write", off); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if off < 0 || off+int64(len(p)) > int64(len(d.durable)) || off%pageSize != 0 || len(p)%pageSize != 0 {
		return 0, fmt.Errorf("write %d at %d: %w", len(p), off, io.ErrShortWrite)
	}
	for at := 0; at < len(p); at += pageSize {
		d.cached[off+int64(at)] = bytes.Clone(p[at : at+pageSize])
	}
	return len(p), nil
}

func (d *fakeDevice) Flush() error {
	if err := d.before("flush", 0); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes++
	d.flushLocked(1, nil)
	return nil
}

// flushLocked makes a share of the cached pages durable.
func (d *fakeDevice) flushLocked(share float64, r *rand.Rand) {
	for at, page := range d.cached {
		if r == nil || r.Float64() < share {
			copy(d.durable[at:], page)
		}
	}
	clear(d.cached)
}

// cutPower loses what was not flushed, but for some pages of it.
func (d *fakeDevice) cutPower(r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushLocked(r.Float64(), r)
}

func (d *fakeDevice) Discard(off, n int64) error { return d.before("discard", off) }
func (d *fakeDevice) Size() int64                { return int64(len(d.durable)) }
func (d *fakeDevice) BlockSize() int             { return 512 }

var cluster = [16]byte{1, 2, 3}

// rig is a device with a volume, and the node that has it attached.
type rig struct {
	*testing.T
	dev  *fakeDevice
	pool *hearth.Pool
	v    *Volume
	o    Options
	now  time.Time
	told chan State
	// noise is what blocks are cut from.
	noise []byte
}

// newRig makes a volume of so many segments of 4 MiB, and attaches it.
func newRig(t *testing.T, segments int, change func(*Options)) *rig {
	t.Helper()
	r := &rig{T: t, dev: newDevice(firstSegment + int64(segments)*minSegment + pageSize), pool: hearth.NewPool(64 << 20),
		now: time.Unix(1800000000, 0), told: make(chan State, 1000), noise: make([]byte, 2*hearth.BlockSize)}
	_, _ = rand.NewChaCha8([32]byte{}).Read(r.noise)
	if _, err := MakeVolume(r.dev, FormatOptions{Cluster: cluster, Label: "test", Segment: minSegment}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	r.o = Options{Pool: r.pool, Cluster: cluster, Node: [16]byte{9}, Patience: time.Minute, Changed: func(s State) { r.told <- s }, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		r.now = r.now.Add(time.Millisecond)
		return r.now
	}}
	if change != nil {
		change(&r.o)
	}
	r.attach()
	t.Cleanup(func() {
		if r.v != nil {
			_ = r.v.Close()
		}
		if s := r.pool.Stats(); s.Used != s.Idle || s.Views != 0 {
			t.Errorf("memory is not given back: %+v", s)
		}
	})
	return r
}

// attach attaches the volume, and waits until it is learned.
func (r *rig) attach() {
	r.Helper()
	v, err := Attach(r.dev, r.o)
	if err != nil {
		r.Fatal(err)
	}
	r.v = v
	r.known()
}

func (r *rig) known() {
	r.Helper()
	for s := range r.told {
		if s.Learned == s.All && s.Away == nil {
			return
		}
	}
}

func (r *rig) close() {
	r.Helper()
	if err := r.v.Close(); err != nil {
		r.Fatal(err)
	}
	r.v = nil
}

// block is the i-th block, whose bytes tell that it is.
func (r *rig) block(i, size int) (hearth.Block, []byte) {
	o := &hearth.Object{ETag: "e", Key: fmt.Sprint(i), Size: int64(size), Version: hearth.VersionOf("test", fmt.Sprint(i), "e", int64(size))}
	at := i * 7919 % hearth.BlockSize
	return o.Block(0), r.noise[at : at+size : at+size]
}

// keep keeps a block.
func (r *rig) keep(i, size int) error {
	b, data := r.block(i, size)
	view, err := r.pool.Alloc(r.Context(), size)
	if err != nil {
		return err
	}
	defer view.Release()
	copy(view.Bytes(), data)
	return r.v.Keep(r.Context(), b, view)
}

func (r *rig) mustKeep(i, size int) {
	r.Helper()
	if err := r.keep(i, size); err != nil {
		r.Fatalf("block %d: %v", i, err)
	}
}

// held reads a block, and reports whether it is there. Wrong bytes are a failure.
func (r *rig) held(i, size int) bool {
	r.Helper()
	b, data := r.block(i, size)
	for _, part := range [][2]int{{0, size}, {size / 2, size - size/2}, {size - 1, 1}} {
		view, err := r.v.Get(context.Background(), b, part[0], part[1])
		if errors.Is(err, hearth.ErrMiss) {
			return false
		}
		if err != nil {
			r.Fatalf("block %d: %v", i, err)
		}
		if !bytes.Equal(view.Bytes(), data[part[0]:part[0]+part[1]]) {
			r.Errorf("block %d: wrong bytes in [%d, +%d)", i, part[0], part[1])
		}
		view.Release()
	}
	return true
}

func blockID(i byte) hearth.ID { return hearth.ID{Version: [16]byte{i, 1, 2}, Index: int64(i)} }
