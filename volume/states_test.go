package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache/record"
	"github.com/hearthfs/hearth/internal/fakenvmet"
)

// over makes a Set of volumes that are attached already.
func over(copies int, all ...*Volume) *Set {
	s := NewSet(SetOptions{Copies: copies})
	var as []*Attachment
	for i, v := range all {
		a := &Attachment{Spec: Spec{Address: Address{text: fmt.Sprint("/v", i)}}, set: s}
		a.volume.Store(v)
		as = append(as, a)
	}
	s.all.Store(&as)
	return s
}

func TestACheckKnowsWhatItDidNotRead(t *testing.T) {
	// What a read did not give, and what a volume out of use may have, is neither missing nor corrupt: the error says
	// that it could not be read, which volume that concerns, and why. What another node wrote over is not there, and
	// not corrupt; that is counted. What is on no volume is not there, without an error.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 5000)
	s := over(1, r.v)
	b, _ := r.block(1, 5000)
	none, _ := r.block(2, 5000)
	is := func(b hearth.Block, held bool, want error, text string) {
		t.Helper()
		got, err := s.Verify(t.Context(), b)
		if got != held || !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), text) || errors.Is(err, record.ErrMismatch) {
			t.Errorf("held %v, %v; want %v, %v", got, err, held, want)
		}
	}
	is(b, true, nil, "")
	is(none, false, nil, "")
	broken := errors.New("medium error")
	r.dev.fails(func(string, int64) error { return broken })
	is(b, false, ErrUnread, "volume /v0: it could not be read: medium error")
	r.dev.fails(nil)
	is(b, true, nil, "")
	hold := errors.New("hold")
	r.dev.fails(func(string, int64) error { return hold }) // it does not come back meanwhile
	r.v.leave(errors.New("the path is down"))
	is(b, false, ErrUnread, "volume /v0: it could not be read: it is out of use: the path is down")
	is(none, false, ErrUnread, "the path is down")
	r.dev.fails(nil)
	for r.known(); r.v.reading.Load() > 0; {
		<-r.told
	}
	is(b, true, nil, "")
	p, _ := r.v.index.Get(b.ID(), nil)
	page := make([]byte, pageSize)
	if _, err := r.dev.ReadAt(page, r.v.g.offset(p.Slot)); err != nil {
		t.Fatal(err)
	}
	h, ok := parseHeader(page)
	if !ok {
		t.Fatal("no header")
	}
	h.salt, h.node, h.generation = h.salt+2, [16]byte{77}, h.generation+1
	h.put(page)
	blank := make([]byte, r.v.g.segment)
	copy(blank, page)
	if _, err := r.dev.WriteAt(blank, r.v.g.offset(p.Slot)); err != nil {
		t.Fatal(err)
	}
	is(b, false, errOver, "another node wrote over it")
	is(b, false, nil, "")
	if n := r.v.Stats().Strangers; n != 1 {
		t.Errorf("%d segments of others", n)
	}
}

func TestACheckLeavesASlowDeviceInUse(t *testing.T) {
	// A device gives 10 MiB/s, and a check asks for 48 MiB at once: all of it is read, none of it waits for so long
	// that the device counts as one that hangs.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 20, func(o *Options) { o.Patience = 2 * time.Second })
		const blocks = 48
		for i := range blocks {
			r.mustKeep(i, hearth.BlockSize)
		}
		turn := make(chan struct{}, 1)
		r.dev.fails(func(op string, _ int64) error {
			turn <- struct{}{}
			<-time.After(100 * time.Millisecond)
			<-turn
			return nil
		})
		var work sync.WaitGroup
		for i := range blocks {
			b, _ := r.block(i, hearth.BlockSize)
			work.Go(func() {
				if held, err := r.v.verify(t.Context(), b); !held || err != nil {
					t.Errorf("block %d: %v, %v", i, held, err)
				}
			})
		}
		work.Wait()
		if s := r.v.Stats(); s.Outages != 0 || s.Hits != 0 {
			t.Errorf("%+v", s)
		}
		r.dev.fails(nil)
	})
}

func TestASlowVolumeIsToldOf(t *testing.T) {
	// Reads that take most of the patience are slow, and no misses: the volume stays in use. The second of them is
	// told of, for ten seconds.
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 4, func(o *Options) { o.Patience = 2 * time.Second })
		r.mustKeep(1, 5000)
		b, _ := r.block(1, 5000)
		r.dev.fails(func(string, int64) error {
			<-time.After(1700 * time.Millisecond)
			return nil
		})
		for range 3 {
			view, err := r.v.Get(t.Context(), b, 0, 5000)
			if err != nil {
				t.Fatal(err)
			}
			view.Release()
		}
		if s, x := r.v.Stats(), r.v.State(); s.Waited < time.Second || s.Misses != 0 || s.Hits != 3 || x.Away != nil {
			t.Errorf("%+v, %+v", s, x)
		}
		r.dev.fails(nil)
		<-time.After(11 * time.Second)
		if s := r.v.Stats(); s.Waited != 0 {
			t.Errorf("later: %v", s.Waited)
		}
	})
}

func TestCopiesAreWrittenAtOnce(t *testing.T) {
	// A write to one of two volumes does not come back. The copy for the other one is written meanwhile, whichever of
	// them is the slow one.
	for slow := range 2 {
		rigs := []*rig{newRig(t, 4, nil), newRig(t, 4, nil)}
		s := over(2, rigs[0].v, rigs[1].v)
		begun, hold := make(chan struct{}, 100), make(chan struct{})
		rigs[slow].dev.fails(func(op string, _ int64) error {
			if op == "write" {
				begun <- struct{}{}
				<-hold
			}
			return nil
		})
		b, data := rigs[0].block(1, 5000)
		view, err := rigs[0].pool.Alloc(t.Context(), 5000)
		if err != nil {
			t.Fatal(err)
		}
		copy(view.Bytes(), data)
		ended := make(chan error, 1)
		go func() { ended <- s.Keep(context.Background(), b, view) }()
		<-begun
		for other := rigs[1-slow]; !other.held(1, 5000); {
			select {
			case err := <-ended:
				t.Fatalf("kept without one of the copies: %v", err)
			case <-time.After(time.Millisecond): // it asks again
			}
		}
		close(hold)
		if err := <-ended; err != nil || !rigs[slow].held(1, 5000) {
			t.Error(err)
		}
		view.Release()
	}
}

func TestAFlushEndsNoPauseOfWrites(t *testing.T) {
	// A full file system flushes what it cannot write. That is no sign that it takes writes; a write is.
	r := newRig(t, 4, nil)
	r.mustKeep(1, 5000)
	full := errors.New("no space left")
	r.dev.fails(func(op string, _ int64) error {
		if op == "write" {
			return full
		}
		return nil
	})
	for range failures {
		if r.keep(2, 100) == nil {
			t.Fatal("it was written")
		}
		if err := r.v.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.v.State(); !errors.Is(s.Stopped, full) {
		t.Errorf("%+v", s)
	}
	r.dev.fails(nil)
	for range 1000 { // of a millisecond each
		r.o.Now()
	}
	if r.mustKeep(2, 100); r.v.State().Stopped != nil {
		t.Errorf("%+v", r.v.State())
	}
}

func TestAFileThatWasMadeSmaller(t *testing.T) {
	// A file that is attached loses its end. The first read behind it takes the volume out of use, with both sizes,
	// and there it stays, though the beginning can be read, until the file is whole again.
	r := newSet(t, 1)
	name := r.file("f", 4)
	a := r.attach(name)
	for i := range 8 {
		if err := r.keep(i, hearth.BlockSize); err != nil {
			t.Fatal(err)
		}
	}
	whole := a.Stats().Info.Size
	if err := os.Truncate(name, firstSegment+minSegment); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		r.held(i, hearth.BlockSize)
	}
	s := a.Stats()
	if !errors.Is(s.State.Away, errSmaller) {
		t.Fatalf("%v", s.State.Away)
	}
	want := fmt.Sprintf("the device ends at %d, and the volume needs %d: it was made smaller", firstSegment+minSegment, whole)
	for !strings.Contains(a.Stats().State.Away.Error(), want) { // it was tried again
		<-r.told
	}
	if err := os.Truncate(name, whole); err != nil {
		t.Fatal(err)
	}
	for a.Stats().State.Away != nil {
		<-r.told
	}
	r.known(a)
	if err := r.keep(20, 5000); err != nil || a.Stats().Stats.Outages != 1 {
		t.Errorf("%v, %+v", err, a.Stats().Stats)
	}
}

func TestANamespaceChanges(t *testing.T) {
	// A namespace is protected from writes when it is attached: the volume says so at once, and takes writes once the
	// target says that it may be written. It is made smaller: the volume is out of use before anybody reads from it,
	// and in use again once it has its size.
	target, err := fakenvmet.New(fakenvmet.Options{Namespaces: []fakenvmet.NamespaceOptions{{Size: 64 << 20, Backing: fakenvmet.NewMemory(64 << 20)}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	r := newSet(t, 1)
	address, err := ParseAddress(Scheme + target.Address() + "/" + fakenvmet.NQN + "?queues=1")
	if err != nil {
		t.Fatal(err)
	}
	r.formatted(address)
	target.Namespace(1).Protect(true)
	a := r.attach(address.String())
	if s := a.Stats().State; !errors.Is(s.Stopped, ErrReadOnly) || s.Away != nil || r.keep(1, 5000) == nil {
		t.Errorf("%+v", s)
	}
	until := func(what string, is func(State) bool) {
		t.Helper()
		for !is(a.Stats().State) {
			select {
			case <-r.told:
			case <-time.After(time.Minute):
				t.Fatalf("%s: %+v", what, a.Stats().State)
			}
		}
	}
	target.Namespace(1).Protect(false)
	until("writes", func(s State) bool { return s.Stopped == nil })
	if err := r.keep(1, 5000); err != nil {
		t.Error(err)
	}
	target.Namespace(1).Protect(true)
	until("protected", func(s State) bool { return errors.Is(s.Stopped, ErrReadOnly) })
	target.Namespace(1).Protect(false)
	until("writes again", func(s State) bool { return s.Stopped == nil })
	if err := target.Namespace(1).Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	until("smaller", func(s State) bool { return errors.Is(s.Away, errSmaller) })
	if err := target.Namespace(1).Resize(64 << 20); err != nil {
		t.Fatal(err)
	}
	until("whole", func(s State) bool { return s.Away == nil })
	if r.known(a); !r.held(1, 5000) {
		t.Error("a block is lost")
	}
}

// loop makes a block device of a file, with sectors of so many bytes, for as long as the test runs.
func loop(t *testing.T, file string, sector int) string {
	t.Helper()
	why := func(err error) {
		if err != nil {
			t.Skipf("no loop device here: %v", err)
		}
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	why(err)
	defer func() { _ = control.Close() }()
	back, err := os.OpenFile(file, os.O_RDWR, 0)
	why(err)
	defer func() { _ = back.Close() }()
	for range 10 { // another may take the free one
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		why(err)
		name := fmt.Sprintf("/dev/loop%d", n)
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
		why(err)
		err = unix.IoctlLoopConfigure(fd, &unix.LoopConfig{Fd: uint32(back.Fd()), Size: uint32(sector)})
		if err == unix.EBUSY {
			_ = unix.Close(fd)
			continue
		}
		if err != nil {
			_ = unix.Close(fd)
			t.Skipf("no loop device here: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0); err != nil {
				t.Error(err)
			}
			_ = unix.Close(fd)
		})
		return name
	}
	t.Skip("no loop device is free")
	return ""
}

func TestABlockDevice(t *testing.T) {
	// A block device with sectors of 512 bytes, and one with 4096, is formatted, attached and checked as a file is.
	// What it was given outlives the node. While a node has it attached nobody formats it.
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			r := newSet(t, 1)
			file := r.file("back", 4)
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
			const size = firstSegment + 4*minSegment + 2*pageSize
			if err := os.Truncate(file, size); err != nil {
				t.Fatal(err)
			}
			name := loop(t, file, sector)
			address, err := ParseAddress(name)
			if err != nil {
				t.Fatal(err)
			}
			r.formatted(address)
			a := r.attach(name)
			for i := range 4 {
				if err := r.keep(i, 700_000); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.set.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			dev, err := OpenFile(name)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = dev.Close() }()
			if dev.BlockSize() != sector || dev.Size() != size {
				t.Errorf("%d bytes in sectors of %d", dev.Size(), dev.BlockSize())
			}
			if _, err := MakeVolume(dev, FormatOptions{Cluster: cluster, Force: true}); !errors.Is(err, ErrInUse) {
				t.Errorf("formatted under a node: %v", err)
			}
			r.set.Detach(a)
			if sum, found := checked(t, dev, false); len(found) > 0 || sum.Good != 4 {
				t.Errorf("a check: %+v, %+v", sum, found)
			}
			r.attach(name)
			for i := range 4 {
				if !r.held(i, 700_000) {
					t.Errorf("block %d is lost", i)
				}
			}
		})
	}
}
