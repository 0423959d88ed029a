package nvmetcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

func TestEveryKindOfTarget(t *testing.T) {
	// Random reads, writes and discards by several goroutines give what a copy in memory gives, whatever sizes,
	// orders and digests the target likes.
	seed := hearthtest.Seed(t)
	for i, c := range []struct {
		story string
		set   func(f *fakeTarget, o *Options)
	}{
		{"all at once", func(*fakeTarget, *Options) {}},
		{"blocks of 512", func(f *fakeTarget, _ *Options) { f.blockBits = 9 }},
		{"nothing in capsules but a range", func(f *fakeTarget, _ *Options) { f.inline = 16 }},
		{"small PDUs and parts", func(f *fakeTarget, _ *Options) { f.maxData, f.part, f.inline = 4096, 12<<10, 4096 }},
		{"parts of 4 KiB with completions", func(f *fakeTarget, _ *Options) { f.part, f.noSuccess = 4096, true }},
		{"padding on both sides", func(f *fakeTarget, _ *Options) { f.cpda, f.pad = 31, 100 }},
		{"padding and digests", func(f *fakeTarget, o *Options) {
			f.cpda, f.pad, o.HeaderDigest, o.DataDigest = 7, 36, true, true
		}},
		{"header digests", func(_ *fakeTarget, o *Options) { o.HeaderDigest = true }},
		{"data digests, small parts", func(f *fakeTarget, o *Options) { o.DataDigest, f.part = true, 16<<10 }},
		{"flow control, depth 1", func(_ *fakeTarget, o *Options) { o.FlowControl, o.Depth = true, 1 }},
		{"8 KiB a command", func(f *fakeTarget, _ *Options) { f.mdts = 1 }},
		{"one queue of 3 entries of 4 asked", func(f *fakeTarget, o *Options) { f.queues, f.entries, o.Queues = 1, 32, 4 }},
		{"eight queues", func(_ *fakeTarget, o *Options) { o.Queues = 8 }},
	} {
		t.Run(c.story, func(t *testing.T) {
			f := newFakeTarget(t)
			f.tcp = true
			o := f.options()
			o.Queues, o.Patience = 2, time.Second // a target that does not understand us fails the test soon
			c.set(f, &o)
			n := f.open(t, o)
			var work sync.WaitGroup
			const share = 1 << 20
			for w := range int64(4) {
				r := rand.New(rand.NewPCG(seed+uint64(i), uint64(w)))
				work.Go(func() { workload(t, n, r, w*share, share) })
			}
			work.Wait()
			if s := n.Stats(); s.Connections != 1 || s.InFlight != 0 || s.Reads.Errors+s.Writes.Errors+s.Discards.Errors != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// workload uses a range of the namespace, and compares it with a copy.
func workload(t *testing.T, n *Namespace, r *rand.Rand, from, length int64) {
	block := int64(n.BlockSize())
	want := make([]byte, length)
	for range 16 {
		off := r.Int64N(length/block) * block
		size := min((1+r.Int64N(r.Int64N(64)+1))*block, length-off)
		b := make([]byte, size)
		var err error
		switch r.IntN(8) {
		case 0:
			clear(want[off:][:size])
			err = n.Discard(from+off, size)
		case 1:
			err = n.Flush()
		case 2, 3, 4:
			for i := 0; i < len(b); i += 8 {
				binary.LittleEndian.PutUint64(b[i:], r.Uint64())
			}
			copy(want[off:], b)
			_, err = n.WriteAt(b, from+off)
		default:
			_, err = n.ReadAt(b, from+off)
			if err == nil && !bytes.Equal(b, want[off:][:size]) {
				err = errors.New("wrong bytes")
			}
		}
		if err != nil {
			t.Errorf("%d at %d: %v", size, off, err)
			return
		}
	}
}

func TestNoMemoryPerCommand(t *testing.T) {
	// Reads and writes, in the capsule and by R2T, with and without digests, allocate nothing once they run.
	for _, digest := range []bool{false, true} {
		f := newFakeTarget(t)
		f.tcp = true
		o := f.options()
		o.HeaderDigest, o.DataDigest = digest, digest
		n := f.open(t, o)
		for _, size := range []int{4096, 64 << 10} {
			b := make([]byte, size)
			for name, do := range map[string]func([]byte, int64) (int, error){"read": n.ReadAt, "write": n.WriteAt} {
				run := func() {
					if _, err := do(b, 4096); err != nil {
						t.Error(err)
					}
				}
				run()
				if got := testing.AllocsPerRun(200, run); got != 0 {
					t.Errorf("%s of %d, digests %t: %v allocations", name, size, digest, got)
				}
			}
		}
	}
}

func TestNeverMoreThanTheQueueTakes(t *testing.T) {
	// With 50 readers and a queue of 5 entries, at most 4 commands are in flight, and all are answered.
	f := newFakeTarget(t)
	f.tcp, f.entries = true, 32
	var mu sync.Mutex
	var held []uint16
	most := 0
	f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
		if c.queue == 0 || sqe[0] != opRead {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		held = append(held, binary.LittleEndian.Uint16(sqe[2:]))
		most = max(most, len(held))
		if len(held) == 4 { // answered from the last to the first, now that no more can come
			for ; len(held) > 0; held = held[:len(held)-1] {
				_ = c.answer(held[len(held)-1], f.disk[:4096])
			}
		}
		return true
	}
	o := f.options()
	o.Depth = 4
	n := f.open(t, o)
	var work sync.WaitGroup
	for range 52 {
		work.Go(func() {
			if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if most != 4 {
		t.Errorf("%d in flight", most)
	}
}

func TestLateCompletionOfTheFormerCommand(t *testing.T) {
	// A completion of the command before in the same slot is not taken for that of the next one.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		var seen []uint16
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
			if c.queue == 0 || sqe[0] != opWrite {
				return false
			}
			if seen = append(seen, binary.LittleEndian.Uint16(sqe[2:])); len(seen) == 2 {
				_ = c.respond(seen[0], 0, 0)
				return true
			}
			return false
		}
		o := f.options()
		o.Depth = 1
		n := f.open(t, o)
		mustWrite(t, n, 0, 4096, 1)
		mustWrite(t, n, 4096, 4096, 2) // the target writes nothing at first
		mustRead(t, n, 4096, 4096, 2)
		if s := n.Stats(); s.Connections != 2 || s.Repeated != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestSetupCutAnywhere(t *testing.T) {
	// A target that ends the connection after any byte of a setup is an error of the path, and leaves nothing behind.
	f := newFakeTarget(t)
	f.ana = true
	n, err := Open(t.Context(), f.options())
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	whole := f.sent
	f.mu.Unlock()
	_ = n.Close()
	if whole < 3*identifyLen {
		t.Fatalf("a setup sends %d bytes", whole)
	}
	for cut := 0; cut < whole; cut++ {
		if cut > 500 && cut%127 != 0 && cut < whole-500 { // zeros of Identify pages, mostly
			continue
		}
		f.drop()
		f.mu.Lock()
		f.cut, f.sent = cut, 0
		f.mu.Unlock()
		n, err := Open(t.Context(), f.options())
		if err == nil {
			_ = n.Close() // what was cut came after the setup
			if cut < whole-500 {
				t.Errorf("open after %d bytes", cut)
			}
		} else if !errors.Is(err, ErrPath) {
			t.Errorf("after %d bytes: %v", cut, err)
		}
	}
}

func TestCommandsOutliveConnections(t *testing.T) {
	// Reads and writes whose connection ends in their midst are repeated on the next one, and answer the right bytes.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		left := 3
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
			if c.queue == 0 || left == 0 {
				return false
			}
			left--
			go f.drop()
			return true
		}
		n := f.open(t, f.options())
		mustWrite(t, n, 4096, 16<<10, 1)
		mustRead(t, n, 4096, 16<<10, 1)
		if s := n.Stats(); s.Repeated != 3 || s.Connections != 4 {
			t.Errorf("%+v", s)
		}
	})
}

func TestSilentTarget(t *testing.T) {
	// A target that accepts everything and answers no read costs a command Patience and Timeout, not for ever.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool { return c.queue != 0 && sqe[0] == opRead }
		n := f.open(t, f.options())
		begun := time.Now()
		_, err := n.ReadAt(make([]byte, 4096), 0)
		if !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), "no answer within 5s") {
			t.Error(err)
		}
		if took := time.Since(begun); took < defaultPatience || took > 2*(defaultPatience+defaultTimeout) {
			t.Errorf("it took %v", took)
		}
	})
}

func TestSilentConnections(t *testing.T) {
	// A port that accepts and sends no ICResp ends Open within the timeout.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		o := f.options()
		var ends []net.Conn
		o.Dial = func(context.Context, string, string) (net.Conn, error) {
			a, b := net.Pipe()
			ends = append(ends, b)
			go func() { _, _ = io.Copy(io.Discard, b) }()
			return a, nil
		}
		begun := time.Now()
		_, err := Open(t.Context(), o)
		if !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), "no ICResp: nothing within 5s") || time.Since(begun) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		for _, c := range ends {
			_ = c.Close()
		}
	})
}

func TestPatience(t *testing.T) {
	// A reader waits for a lost target as long as Patience says; later ones fail at once; all read again when it is
	// back. The pauses between connections grow to 2 s.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		n := f.open(t, f.options())
		mustWrite(t, n, 0, 4096, 1)
		f.refuse(errors.New("nobody there"))
		f.drop()
		begun := time.Now()
		_, err := n.ReadAt(make([]byte, 4096), 0)
		if took := time.Since(begun); !errors.Is(err, ErrPath) || took != defaultPatience {
			t.Errorf("after %v: %v", took, err)
		}
		for _, part := range []string{"fake:4420", "nqn.2014-08.org.example:fake", "no connection for more than 10s", "nobody there"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v: not a word of %s", err, part)
			}
		}
		begun = time.Now()
		if err := n.Flush(); !errors.Is(err, ErrPath) || time.Since(begun) != 0 {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		f.mu.Lock()
		dials := f.dials
		f.mu.Unlock()
		time.Sleep(time.Hour)
		f.mu.Lock()
		dials = f.dials - dials
		f.mu.Unlock()
		if dials < 1800 || dials > 3600 {
			t.Errorf("%d dials in an hour", dials)
		}
		f.refuse(nil)
		time.Sleep(maxPause)
		synctest.Wait()
		mustRead(t, n, 0, 4096, 1)
	})
}

func TestKeepAliveIsAnswered(t *testing.T) {
	// Keep-alives go out twice in their time; one that is not answered ends the controller.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		var mu sync.Mutex
		alive, deaf := 0, false
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
			mu.Lock()
			defer mu.Unlock()
			if c.queue == 0 && sqe[0] == opKeepAlive {
				alive++
				return deaf
			}
			return false
		}
		lost := make(chan error, 10)
		o := f.options()
		o.Events.Lost = func(err error) { lost <- err }
		n := f.open(t, o)
		time.Sleep(time.Minute)
		synctest.Wait()
		mu.Lock()
		if alive != 24 || n.Stats().Connections != 1 {
			t.Errorf("%d keep-alives in a minute, %+v", alive, n.Stats())
		}
		deaf = true
		mu.Unlock()
		if err := <-lost; !strings.Contains(err.Error(), "queue 0: no answer within 5s") {
			t.Error(err)
		}
		mu.Lock()
		deaf = false
		mu.Unlock()
	})
}

func TestFlushSaysWhatMayBeLost(t *testing.T) {
	// A Flush on another connection than the writes before it fails once; after a Flush there is nothing to lose.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		n := f.open(t, f.options())
		flush := func(want error) {
			t.Helper()
			if err := n.Flush(); !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("flush: %v, want %v", err, want)
			}
		}
		mustWrite(t, n, 0, 4096, 1)
		flush(nil)
		f.drop()
		flush(nil) // nothing was written since
		mustWrite(t, n, 0, 4096, 2)
		f.drop()
		mustRead(t, n, 0, 4096, 2)
		flush(ErrUnflushed)
		flush(nil)
		mustWrite(t, n, 0, 4096, 3)
		f.refuse(errors.New("away"))
		f.drop()
		flush(ErrPath)
		f.refuse(nil)
		time.Sleep(maxPause)
		synctest.Wait()
		flush(ErrUnflushed) // the failed Flush has not forgotten it
		flush(nil)
	})
}

func TestAnotherNamespaceInItsPlace(t *testing.T) {
	// After a restart the number may name another namespace, or one with other blocks. It is neither read nor written.
	for _, change := range []func(*fakeTarget){func(f *fakeTarget) { f.uuid = 2 }, func(f *fakeTarget) { f.blockBits = 9 }} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeTarget(t)
			n := f.open(t, f.options())
			f.refuse(errors.New("it restarts"))
			f.drop()
			f.work.Wait()
			change(f)
			f.refuse(nil)
			_, err := n.WriteAt(make([]byte, 4096), 0)
			if !errors.Is(err, ErrNamespace) || !errors.Is(err, ErrReplaced) || f.count(opWrite) != 0 {
				t.Errorf("%v, %d writes", err, f.count(opWrite))
			}
		})
	}
}

func TestEvents(t *testing.T) {
	// The target announces another size and another state of the path: both are asked for and hold from then on.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		f.ana = true
		sizes := make(chan int64, 10)
		o := f.options()
		o.Events.Changed = func(size int64, _ bool) { sizes <- size }
		n := f.open(t, o)
		mustWrite(t, n, 0, 4096, 0)
		f.mu.Lock()
		f.disk = append(f.disk, make([]byte, 4096)...)
		f.access = byte(nonOptimized)
		f.mu.Unlock()
		f.notice(infoNamespaces, logNamespaces)
		if got := <-sizes; got != 8<<20+4096 || n.Size() != got {
			t.Errorf("%d, %d", got, n.Size())
		}
		synctest.Wait()
		if s := n.Stats(); s.Access != "non-optimized" || s.Connections != 1 {
			t.Errorf("%+v", s)
		}
		f.notice(0xee, 0xee) // of which we know nothing
		synctest.Wait()
		f.mu.Lock()
		f.access = byte(inaccessible)
		f.mu.Unlock()
		f.notice(infoANA, logANA)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := n.Stats(); s.Down == nil || !strings.Contains(s.Down.Error(), "this path is inaccessible") {
			t.Errorf("%+v", s)
		}
		f.mu.Lock()
		f.access = byte(optimized)
		f.mu.Unlock()
		mustRead(t, n, 0, 4096, 0)
	})
}

func TestANamespaceThatChangedMeanwhile(t *testing.T) {
	// A namespace that has another size when its target comes back is announced as one that changed under our eyes.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		sizes := make(chan int64, 10)
		o := f.options()
		o.Events.Changed = func(size int64, _ bool) { sizes <- size }
		n := f.open(t, o)
		f.refuse(errors.New("it restarts"))
		f.drop()
		f.work.Wait()
		f.disk = f.disk[:4<<20]
		f.refuse(nil)
		if got := <-sizes; got != 4<<20 || n.Size() != got {
			t.Errorf("%d, %d", got, n.Size())
		}
		if _, err := n.ReadAt(make([]byte, 4096), 4<<20); !errors.Is(err, ErrRange) {
			t.Errorf("beyond the end: %v", err)
		}
	})
}

func TestErrorsNameAPortalOnce(t *testing.T) {
	// When no portal can be reached the error has each address and the subsystem once, though net repeats addresses.
	var portals []string
	var listeners []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		portals = append(portals, l.Addr().String())
		listeners = append(listeners, l)
		go func() {
			if c, err := l.Accept(); err == nil {
				_ = c.(*net.TCPConn).SetLinger(0) // which resets it
				_ = c.Close()
			}
		}()
	}
	for _, listening := range []bool{true, false} {
		if !listening {
			for _, l := range listeners {
				_ = l.Close() // connections are refused from here on
			}
		}
		_, err := Open(t.Context(), Options{Portals: portals, SubsystemNQN: "nqn.2014-08.org.example:once"})
		if !errors.Is(err, ErrPath) {
			t.Fatal(err)
		}
		for _, once := range append(portals, "nqn.2014-08.org.example:once") {
			if strings.Count(err.Error(), once) != 1 {
				t.Errorf("%s in: %v", once, err)
			}
		}
	}
}

func TestPathStatus(t *testing.T) {
	// A status that blames the path ends the controller, and the command is repeated; one of the data does not.
	synctest.Test(t, func(t *testing.T) {
		f := newFakeTarget(t)
		answers := []uint16{0x300, 0x302, 0x082}
		f.command = func(c *fakeConn, sqe []byte, _ []byte) bool {
			if c.queue == 0 || len(answers) == 0 {
				return false
			}
			_ = c.respond(binary.LittleEndian.Uint16(sqe[2:]), answers[0], 0)
			answers = answers[1:]
			return true
		}
		n := f.open(t, f.options())
		if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
			t.Error(err)
		}
		answers = []uint16{0x281}
		var status *StatusError
		if _, err := n.ReadAt(make([]byte, 4096), 0); !errors.As(err, &status) || status.Status != 0x281 || !errors.Is(err, ErrData) {
			t.Error(err)
		}
		if s := n.Stats(); s.Connections != 4 || s.Repeated != 3 || s.Reads.Errors != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestClose(t *testing.T) {
	// Close ends what waits: a command in flight, and one that waits for a connection. Nothing works afterwards.
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeTarget(t)
			f.command = func(c *fakeConn, sqe []byte, _ []byte) bool { return c.queue != 0 }
			n := f.open(t, f.options())
			if away {
				f.refuse(errors.New("away"))
				f.drop()
			}
			failed := make(chan error)
			go func() {
				_, err := n.ReadAt(make([]byte, 4096), 0)
				failed <- err
			}()
			synctest.Wait()
			if err := n.Close(); err != nil {
				t.Error(err)
			}
			if err := <-failed; !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if _, err := n.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if err := n.Close(); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
}

func TestRanges(t *testing.T) {
	// Offsets and lengths are whole blocks inside the namespace; the target is asked for nothing else.
	f := newFakeTarget(t)
	n := f.open(t, f.options())
	for _, c := range []struct {
		off, length int64
		ok          bool
	}{
		{0, 0, true}, {8 << 20, 0, true}, {8<<20 - 4096, 4096, true}, {8<<20 - 4096, 8192, false}, {8 << 20, 4096, false},
		{-4096, 4096, false}, {512, 4096, false}, {0, 512, false}, {1<<63 - 4096, 4096, false},
	} {
		_, read := n.ReadAt(make([]byte, c.length), c.off)
		_, write := n.WriteAt(make([]byte, c.length), c.off)
		for _, err := range []error{read, write, n.Discard(c.off, c.length)} {
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrRange) {
				t.Errorf("%d at %d: %v", c.length, c.off, err)
			}
		}
	}
	if err := n.Discard(0, -4096); !errors.Is(err, ErrRange) {
		t.Error(err)
	}
	if reads := f.count(opRead); reads != 1 {
		t.Errorf("%d reads", reads)
	}
}

func TestOptions(t *testing.T) {
	// The zero value of each option but the two names works; a wrong one is refused with what would be right.
	o, err := Options{Portals: []string{"a", "b:1", "[::1]", "::1", "[::1]:9"}, SubsystemNQN: "s"}.withDefaults()
	if err != nil || fmt.Sprint(o.Portals) != "[a:4420 b:1 [::1]:4420 [::1]:4420 [::1]:9]" || !strings.HasPrefix(o.HostNQN, "nqn.2014-08.org.nvmexpress:uuid:") {
		t.Errorf("%+v %v", o, err)
	}
	for words, o := range map[string]Options{
		"no portal":               {SubsystemNQN: "s"},
		"no subsystem":            {Portals: []string{"a"}},
		"stunnel":                 {Portals: []string{"tls://a:4420"}, SubsystemNQN: "s"},
		"WireGuard":               {Portals: []string{"a:4420?tls=1"}, SubsystemNQN: "s"},
		"without \"tcp://\"":      {Portals: []string{"tcp://a:4420"}, SubsystemNQN: "s"},
		"is no portal":            {Portals: []string{"a:0"}, SubsystemNQN: "s"},
		"at most 223 bytes":       {Portals: []string{"a"}, SubsystemNQN: strings.Repeat("x", 224)},
		"none of them zero":       {Portals: []string{"a"}, SubsystemNQN: "s", HostNQN: "a\x00b"},
		"or a blank":              {Portals: []string{"a"}, SubsystemNQN: "a b"},
		"1 to 64 are possible":    {Portals: []string{"a"}, SubsystemNQN: "s", Queues: 65},
		"1 to 1024 are possible":  {Portals: []string{"a"}, SubsystemNQN: "s", Depth: -1},
		"1s to 1h are possible":   {Portals: []string{"a"}, SubsystemNQN: "s", KeepAlive: time.Millisecond},
		"neither can be negative": {Portals: []string{"a"}, SubsystemNQN: "s", Patience: -1},
		"means all of them":       {Portals: []string{"a"}, SubsystemNQN: "s", NSID: 1<<32 - 1},
	} {
		if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %s", err, words)
		}
	}
}
