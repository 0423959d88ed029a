package disk

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/evict"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// fakeArea keeps blocks in a map; its device can be made to fail or stall.
type fakeArea struct {
	mu      sync.Mutex
	held    map[hearth.ID][]byte
	states  map[hearth.ID]uint32
	clock   clock
	size    int64         // allocated for held
	spared  int64         // blocks that no index knows, all pinned
	fail    error         // of get and put
	putFail error         // of put
	ill     error         // of sync
	stall   chan struct{} // of put
	hang    chan struct{} // of get, until it is closed
	asked   int
	leaving int64       // allocated for what was evicted, and is still read
	leaves  func() bool // whether it has gone; nil: at once
}

func newFakeArea() *fakeArea {
	return &fakeArea{held: map[hearth.ID][]byte{}, states: map[hearth.ID]uint32{}}
}

func (a *fakeArea) setClock(c clock) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clock = c
}

func (a *fakeArea) setFail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = err
}

func (a *fakeArea) setPutFail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.putFail = err
}

func (a *fakeArea) setHang(c chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hang = c
}

func (a *fakeArea) setStates(state uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.states {
		a.states[id] = state
	}
}

func (a *fakeArea) gets() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

func (a *fakeArea) get(_ context.Context, b hearth.Block, off, n int) (*hearth.View, error) {
	a.mu.Lock()
	a.asked++
	hang := a.hang
	a.mu.Unlock()
	if hang != nil {
		<-hang
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail != nil {
		return nil, a.fail
	}
	data := a.held[b.ID()]
	if data == nil {
		return nil, hearth.ErrMiss
	}
	a.states[b.ID()] = evict.Touch(a.states[b.ID()], a.clock.seconds())
	return hearth.NewView(data[off : off+n]), nil
}

func (a *fakeArea) has(id hearth.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[id] != nil
}

func (a *fakeArea) put(items []queueItem) error {
	if a.stall != nil {
		<-a.stall
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := cmp.Or(a.fail, a.putFail); err != nil {
		return err
	}
	for i := range items {
		id := items[i].Block.ID()
		a.keepLocked(id, bytes.Clone(items[i].View.Bytes()))
	}
	return nil
}

func (a *fakeArea) keepLocked(id hearth.ID, data []byte) {
	a.dropLocked(id)
	a.held[id] = data
	a.states[id] = evict.Fresh(a.clock.seconds())
	a.size += allocated(len(data))
}

func (a *fakeArea) dropLocked(id hearth.ID) bool {
	data, ok := a.held[id]
	if ok {
		a.size -= allocated(len(data))
		delete(a.held, id)
	}
	if ok && a.leaves != nil {
		a.leaving += allocated(len(data))
	}
	return ok
}

func (a *fakeArea) unindexed() (blocks, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spared, a.spared * 4096
}

func (a *fakeArea) recall(context.Context) error { return nil }

func (a *fakeArea) shed(pinned func(hearth.ID) bool) (blocks int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pinned == nil {
		blocks, a.spared = a.spared, 0
	}
	return blocks
}

func (a *fakeArea) sample(_ uint64, n int, each func(entry)) {
	a.mu.Lock()
	var drawn []entry
	for id, data := range a.held {
		if len(drawn) == n {
			break
		}
		drawn = append(drawn, entry{id, allocated(len(data)), a.states[id]})
	}
	a.mu.Unlock()
	for _, e := range drawn {
		each(e)
	}
}

func (a *fakeArea) evict(id hearth.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dropLocked(id)
}

func (a *fakeArea) forget(version [16]byte, blocks int64) {
	for i := range blocks {
		a.evict(hearth.ID{Version: version, Index: i})
	}
}

func (a *fakeArea) used() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaves == nil || a.leaves() {
		a.leaving = 0
	}
	return a.size + a.leaving
}

func (a *fakeArea) sync() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ill
}

func (a *fakeArea) close() error     { return nil }
func (a *fakeArea) stats() areaStats { return areaStats{} }

// rig is a Store over fakes, with a file system whose free space is told.
type rig struct {
	*Store
	t     *testing.T
	pool  *hearth.Pool
	paths []string
	areas map[string]*fakeArea // by path, the one of the last opening
	free  atomic.Int64
	mu    sync.Mutex // guards events, areas
	said  []string
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	r := &rig{t: t, areas: map[string]*fakeArea{}}
	before := goleak.IgnoreCurrent() // who waits for the end of a bubble, too
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	r.pool = hearthtest.Pool(t, 64<<20)
	r.free.Store(1 << 40)
	o.Pool = r.pool
	if len(o.Dirs) == 0 {
		o.Dirs = []DirOptions{{Budget: 16 << 20}}
	}
	for i := range o.Dirs {
		o.Dirs[i].Path = t.TempDir()
		if o.Dirs[i].Floor == 0 {
			o.Dirs[i].Floor = -1
		}
		r.paths = append(r.paths, o.Dirs[i].Path)
		r.areas[o.Dirs[i].Path] = newFakeArea()
	}
	o.Check = 5 * time.Millisecond
	o.RetryAfter = 20 * time.Millisecond
	o.open = func(d *directory) (*volume, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.areas[d.path].setClock(d.clock)
		return newVolume(r.areas[d.path], newFakeArea()), nil
	}
	o.statfs = func(_ string, st *unix.Statfs_t) error {
		free := uint64(max(r.free.Load(), 0)) / 4096
		*st = unix.Statfs_t{Bsize: 4096, Blocks: 1 << 40 / 4096, Bfree: free, Bavail: free}
		return nil
	}
	o.Events = Events{
		Ejected:  func(string, error) { r.say("ejected") },
		Returned: func(string) { r.say("returned") },
		Full:     func(string, error) { r.say("full") },
		Short:    func(_ string, limit, budget int64) { r.say(fmt.Sprintf("short: %v", limit < budget)) },
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	r.Store = s
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func (r *rig) say(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, what)
}

func (r *rig) heard(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, s := range r.said {
		if s == what {
			n++
		}
	}
	return n
}

func (r *rig) area(i int) *fakeArea { return r.areas[r.paths[i]] }

// watchdog ends a test whose fact never comes: hundreds of times what it takes.
const watchdog = 2 * time.Minute

func (r *rig) until(fact string, is func() bool) {
	r.t.Helper()
	if !hearthtest.Eventually(r.t.Context(), watchdog, is) {
		r.t.Fatalf("never: %s; %+v", fact, r.Stats())
	}
}

// small is the i-th object of one block of n bytes.
func small(i, n int) *hearth.Object {
	return hearthtest.NewObject(fmt.Sprintf("small/%d", i), int64(n), 1)
}

func (r *rig) put(o *hearth.Object) error {
	v := hearthtest.View(r.t, r.pool, o.Block(0), 1)
	defer v.Release()
	return r.Put(o.Block(0), v)
}

func (r *rig) keep(ctx context.Context, o *hearth.Object) error {
	v := hearthtest.View(r.t, r.pool, o.Block(0), 1)
	defer v.Release()
	return r.Keep(ctx, o.Block(0), v)
}

// holds checks the bytes if the object is held.
func (r *rig) holds(o *hearth.Object) bool {
	r.t.Helper()
	return !hearthtest.CheckGet(r.t, r.Store, o.Block(0), 0, int(o.Size), 1)
}

func (r *rig) flush() {
	r.t.Helper()
	if err := r.Flush(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func isFull(err error) bool { return errors.Is(err, ErrFull) }
