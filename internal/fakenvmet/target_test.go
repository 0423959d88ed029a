package fakenvmet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestWalk(t *testing.T) {
	// A host connects, looks around, writes in the capsule and by R2T, reads it back, flushes and
	// deallocates: with every choice of digests, block sizes, flow control and alignment.
	for _, block := range []int{512, 4096} {
		for digests := range byte(4) {
			for _, noFlow := range []bool{false, true} {
				t.Run(fmt.Sprint(block, digests, noFlow), func(t *testing.T) {
					target := start(t, Options{CPDA: 3, MaxData: 8192, C2HData: 12288, R2T: 20480, Success: noFlow,
						Namespaces: []NamespaceOptions{{BlockSize: block}}})
					walk(t, target, connect(t, target, how{digests: digests, noFlow: noFlow, r2ts: 2}), block)
					clean(t, target)
				})
			}
		}
	}
}

func walk(t *testing.T, target *Target, a *association, block int) {
	small, large := random(1, 8192), random(2, 20<<12)
	q := a.io[0]
	if c := q.write(16, block, small); c.status() != 0 {
		t.Fatalf("write in the capsule: %x", c.status())
	}
	if asked, c := q.writeR2T(64, block, large); c.status() != 0 || asked != 4 {
		t.Fatalf("write by %d R2Ts: %x", asked, c.status())
	}
	if got, c := q.get(16, len(small)/block, block); c.status() != 0 || !bytes.Equal(got, small) {
		t.Fatalf("read: %x, right %t", c.status(), bytes.Equal(got, small))
	}
	if got, c := q.get(64, len(large)/block, block); c.status() != 0 || !bytes.Equal(got, large) {
		t.Fatalf("read in several C2HData: %x, right %t", c.status(), bytes.Equal(got, large))
	}
	if _, c := q.do(q.entry(0, 1, 0, 0x5A), nil); c.status() != 0 {
		t.Fatalf("flush: %x", c.status())
	}
	deallocate := make([]byte, 4096) // more than its one range takes, as Linux sends it
	set32(deallocate, 4, 1)
	set64(deallocate, 8, 17)
	e := q.entry(9, 1, 4096, 0x01)
	set32(e, 44, 4)
	if _, c := q.do(e, deallocate); c.status() != 0 {
		t.Fatalf("deallocate: %x", c.status())
	}
	zeroes := q.rw(8, 18, 1, 0, 0x5A)
	if _, c := q.do(zeroes, nil); c.status() != 0 {
		t.Fatalf("write zeroes: %x", c.status())
	}
	want := bytes.Clone(small)
	if block == 512 {
		clear(want[512:1536])
	} else {
		clear(want[4096:]) // the written zeros are beyond it
	}
	if got, _ := q.get(16, len(small)/block, block); !bytes.Equal(got, want) {
		t.Fatal("deallocated blocks are not zeros, or others are")
	}
	s := target.Stats()
	if s.IO[OpRead] != 3 || s.IO[OpWrite] != 2 || s.IO[OpFlush] != 1 || s.IO[OpDatasetManagement] != 1 || s.R2Ts != 4 ||
		s.BytesWritten != int64(len(small)+len(large)) || s.Queues != 2 || s.IOQueues != 1 || s.Controllers != 1 {
		t.Errorf("counted %+v", s)
	}
}

func TestIdentify(t *testing.T) {
	// What a host learns stands where the specification says: capabilities, limits, names, sizes.
	target := start(t, Options{MDTS: 5, InCapsule: 8192, QueueSize: 64, Namespaces: []NamespaceOptions{
		{ID: 1, Size: 8 << 20, BlockSize: 512, ReadOnly: true}, {ID: 7, Volatile: true}}})
	a := connect(t, target, how{})
	for _, p := range []struct {
		offset, size int
		want         uint64
	}{{0x00, 1, 63 | 1<<16 | 15<<24 | 1<<37}, {0x08, 0, 0x10400}, {0x14, 0, 0x460001}, {0x1C, 0, 1}} {
		if _, c := a.do(a.property(4, p.offset, p.size), nil); c.status() != 0 || c.result() != p.want {
			t.Errorf("property %02xh is %x with status %x, want %x", p.offset, c.result(), c.status(), p.want)
		}
	}
	b, _ := a.identify(1, 0)
	for _, f := range []struct {
		name           string
		at, size, want int
	}{
		{"MDTS", 77, 1, 5}, {"CNTLID", 78, 2, a.id}, {"VER", 80, 4, 0x10400}, {"CNTRLTYPE", 111, 1, 1}, {"AERL", 259, 1, 3},
		{"KAS", 320, 2, 1}, {"SQES", 512, 1, 0x66}, {"CQES", 513, 1, 0x44}, {"MAXCMD", 514, 2, 64}, {"NN", 516, 4, 1024}, {"ONCS", 520, 2, 12}, {"VWC", 525, 1, 1},
		{"SGLS", 536, 4, 1 | 1<<20}, {"IOCCSZ", 1792, 4, (64 + 8192) / 16}, {"IORCSZ", 1796, 4, 1}, {"ICDOFF", 1800, 2, 0},
	} {
		got := 0
		for i := range f.size {
			got |= int(b[f.at+i]) << (8 * i)
		}
		if got != f.want {
			t.Errorf("%s is %x, want %x", f.name, got, f.want)
		}
	}
	if name := string(bytes.TrimRight(b[768:1024], "\x00")); name != NQN || bytes.IndexByte(b[4:72], 0) >= 0 {
		t.Errorf("SUBNQN %q, SN MN FR %q", name, b[4:72])
	}
	list, _ := a.identify(2, 0)
	after, _ := a.identify(2, 1)
	if u32(list, 0) != 1 || u32(list, 4) != 7 || u32(list, 8) != 0 || u32(after, 0) != 7 || u32(after, 4) != 0 {
		t.Errorf("active namespaces % x, after 1: % x", list[:12], after[:8])
	}
	ns, _ := a.identify(0, 1)
	if u32(ns, 0) != 16384 || u32(ns, 8) != 16384 || ns[25] != 0 || ns[26] != 0 || ns[130] != 9 || ns[99] != 1 || u32(ns, 92) != 1 {
		t.Errorf("namespace 1: % x", ns[:132])
	}
	if ns, _ := a.identify(0, 7); ns[130] != 12 || ns[99] != 0 || u32(ns, 0) != 16384 {
		t.Errorf("namespace 7: % x", ns[:132])
	}
	if ns, c := a.identify(0, 5); c.status() != 0 || !bytes.Equal(ns, make([]byte, 4096)) {
		t.Errorf("an inactive namespace: %x % x", c.status(), ns[:16])
	}
	if _, c := a.identify(0, 0xFFFFFFFF); c.status() != 0x400B {
		t.Errorf("namespace FFFFFFFFh: %x", c.status())
	}
	if d, _ := a.identify(3, 7); d[0] != 3 || d[1] != 16 || bytes.Equal(d[4:20], make([]byte, 16)) || d[20] != 0 {
		t.Errorf("descriptors % x", d[:24])
	}
	if _, c := a.identify(3, 5); c.status() != 0x400B {
		t.Errorf("descriptors of namespace 5: %x", c.status())
	}
	if _, c := a.identify(6, 0); c.status() != 0x4002 {
		t.Errorf("CNS 06h: %x", c.status())
	}
	clean(t, target)
}

func TestFeatures(t *testing.T) {
	// The target grants what it has, and remembers what it was told.
	target := start(t, Options{Queues: 3})
	a := connect(t, target, how{kato: 600_000})
	for _, f := range []struct {
		opcode    byte
		id, value int
		result    uint64
		status    uint16
	}{
		{9, 7, 1<<16 | 1, 2<<16 | 2, 0}, {10, 7, 0, 2<<16 | 2, 0}, {9, 7, 0xFFFF, 0, 0x4002},
		{10, 0x0F, 0, 600_000, 0}, {9, 0x0F, 500_000, 0, 0}, {10, 0x0F, 0, 500_000, 0},
		{9, 0x0B, 0x900, 0x900, 0}, {10, 0x0B, 0, 0x900, 0}, {10, 6, 0, 0, 0}, {9, 0x55, 0, 0, 0x4002},
	} {
		if c := a.feature(f.opcode, f.id, f.value); c.result() != f.result || c.status() != f.status {
			t.Errorf("feature %02xh: %x, status %x, want %x, %x", f.id, c.result(), c.status(), f.result, f.status)
		}
	}
	target.SetQueues(1)
	if c := a.feature(9, 7, 7<<16|7); c.result() != 0 {
		t.Errorf("one queue is granted as %x", c.result())
	}
	q := dial(t, target.Address(), 0, 1)
	if _, c := q.do(q.connectEntry(2, 31, false), connectBytes(a.id, NQN, testHost)); c.status() != 0x4182 || c.result() != 42 {
		t.Errorf("queue 2 of 1: %x, %x", c.status(), c.result())
	}
	if _, c := a.do(a.entry(0x18, 0, 0, 0x5A), nil); c.status() != 0 {
		t.Errorf("keep alive: %x", c.status())
	}
	e := a.entry(8, 0, 0, 0x5A)
	if _, c := a.do(e, nil); c.status() != 0 || c.result()&1 != 1 {
		t.Errorf("abort: %x, %x", c.status(), c.result())
	}
	if _, c := a.do(a.entry(0x55, 0, 0, 0x5A), nil); c.status() != 0x4001 {
		t.Errorf("unknown opcode: %x", c.status())
	}
	clean(t, target)
}

func TestConnectRefusals(t *testing.T) {
	// Each wrong Connect is refused by its own status, which names the field, and the next one succeeds.
	target := start(t, Options{Hosts: []string{testHost}, QueueSize: 32})
	a := connect(t, target, how{})
	for _, c := range []struct {
		story  string
		qid    int
		change func(entry, data []byte)
		status uint16
		result uint64
	}{
		{"another subsystem", 0, func(_, d []byte) { d[256+5] = 'x' }, 0x4182, 1<<16 | 256},
		{"a host that is not allowed", 0, func(_, d []byte) { d[512+40] = 'x' }, 0x4184, 1<<16 | 512},
		{"a static controller", 0, func(_, d []byte) { set16(d, 16, 1) }, 0x4182, 1<<16 | 16},
		{"another format", 0, func(e, _ []byte) { e[40] = 1 }, 0x4180, 0},
		{"a queue too large", 0, func(e, _ []byte) { set16(e, 44, 32) }, 0x4182, 44},
		{"a queue of one entry", 0, func(e, _ []byte) { set16(e, 44, 0) }, 0x4182, 44},
		{"an unknown controller", 1, func(_, d []byte) { set16(d, 16, 999) }, 0x4182, 1<<16 | 16},
		{"another host's controller", 1, func(_, d []byte) { d[512+40] = 'x' }, 0x4182, 1<<16 | 512},
		{"another host identifier", 1, func(_, d []byte) { d[0] = 'x' }, 0x4182, 1 << 16},
		{"a queue that is connected", 1, func(_, _ []byte) {}, 0x4182, 42},
		{"a queue beyond the limit", 9, func(_, _ []byte) {}, 0x4182, 42},
	} {
		q := dial(t, target.Address(), 3, 1)
		id := a.id
		if c.qid == 0 {
			id = 0xFFFF
		}
		e, d := q.connectEntry(c.qid, 31, false), connectBytes(id, NQN, testHost)
		c.change(e, d)
		if _, got := q.do(e, d); got.status() != c.status || got.result() != c.result {
			t.Errorf("%s: status %x, result %x, want %x, %x", c.story, got.status(), got.result(), c.status, c.result)
		}
		if _, got := q.do(q.connectEntry(0, 31, false), connectBytes(0xFFFF, NQN, testHost)); got.status() != 0 {
			t.Errorf("%s: then a right one: %x", c.story, got.status())
		}
	}
	early := dial(t, target.Address(), 0, 1)
	_, c := early.do(early.connectEntry(0, 31, false), connectBytes(0xFFFF, NQN, testHost))
	q := dial(t, target.Address(), 0, 1)
	if _, c := q.do(q.connectEntry(1, 31, false), connectBytes(int(c.result()), NQN, testHost)); c.status() != 0x400C {
		t.Errorf("an I/O queue before the controller is ready: %x", c.status())
	}
	clean(t, target)
}

func TestEvents(t *testing.T) {
	// A change is reported once, until its log page was read; the page says what changed.
	target := start(t, Options{Listen: []string{"127.0.0.1:0", "127.0.0.1:0"}})
	a, b := connect(t, target, how{}), connect(t, target, how{port: 1})
	wait := func(h *association) int {
		e := h.entry(0x0C, 0, 0, 0x5A)
		h.send(h.capsule(e, nil))
		return u16(e, 2)
	}
	target.Namespace(1).Protect(true) // before anybody asked: not enabled, not reported
	for _, h := range []*association{a, b} {
		h.feature(9, 0x0B, 1<<8|1<<11)
		h.logPage(4, 0, 4096)
	}
	first, other := wait(a), wait(b)
	for range 3 {
		wait(a)
	}
	if _, c := a.do(a.entry(0x0C, 0, 0, 0x5A), nil); c.status() != 0x4105 {
		t.Errorf("a fifth Async Event Request: %x", c.status())
	}
	if _, err := target.AddNamespace(NamespaceOptions{ID: 3, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, c := a.finish(first, 0); c.result() != 0x040002 {
		t.Errorf("event %x, want a changed namespace", c.result())
	}
	if _, c := b.finish(other, 0); c.result() != 0x040002 {
		t.Errorf("event of the other host: %x", c.result())
	}
	if err := target.Namespace(1).Resize(32 << 20); err != nil { // masked
		t.Fatal(err)
	}
	if page, _ := a.logPage(4, 0, 4096); u32(page, 0) != 1 || u32(page, 4) != 3 || u32(page, 8) != 0 {
		t.Errorf("changed namespaces % x", page[:12])
	}
	target.RemoveNamespace(3)
	if _, c := a.finish(first+1, 0); c.result() != 0x040002 {
		t.Errorf("event %x after the page was read", c.result())
	}
	target.Port(0).SetANA(Inaccessible)
	if _, c := a.finish(first+2, 0); c.result() != 0x0C0302 {
		t.Errorf("event %x, want an ANA change", c.result())
	}
	page, _ := a.logPage(0x0C, 0, 52)
	if u16(page, 8) != 1 || u32(page, 16) != 1 || u32(page, 20) != 1 || page[32] != 3 || u32(page, 48) != 1 {
		t.Errorf("ANA page % x", page)
	}
	if page, _ := b.logPage(0x0C, 16, 32); page[16] != 1 {
		t.Errorf("ANA page of the other port, its descriptor % x", page)
	}
	if _, c := a.io[0].get(0, 1, 4096); c.status() != 0x302 {
		t.Errorf("read through an inaccessible path: %x", c.status())
	}
	if _, c := b.io[0].get(0, 1, 4096); c.status() != 0 {
		t.Errorf("read through the other path: %x", c.status())
	}
	if s := target.Stats(); s.Events != 4 {
		t.Errorf("%d events, want 4", s.Events)
	}
	clean(t, target)
}

func TestNamespaceStates(t *testing.T) {
	// What is wrong with a namespace is what its status says; only DNR forbids to try again.
	target := start(t, Options{Namespaces: []NamespaceOptions{{Size: 1 << 20}}})
	q, n := connect(t, target, how{}).io[0], target.Namespace(1)
	read := func() uint16 { _, c := q.get(8, 2, 4096); return c.status() }
	write := func() uint16 { return q.write(8, 4096, make([]byte, 8192)).status() }
	asked := func() (uint16, int) { k, c := q.writeR2T(8, 4096, make([]byte, 20480)); return c.status(), k }
	expect := func(story string, reads, writes uint16) {
		t.Helper()
		if r, w := read(), write(); r != reads || w != writes {
			t.Errorf("%s: read %x, write %x, want %x, %x", story, r, w, reads, writes)
		}
		if w, k := asked(); w != writes || writes != 0 && k != 0 {
			t.Errorf("%s: large write %x after %d R2Ts, want %x", story, w, k, writes)
		}
	}
	expect("as it began", 0, 0)
	n.Enable(false)
	expect("disabled", 0x300, 0x300)
	n.Enable(true)
	n.Protect(true)
	expect("protected", 0, 0x4020)
	n.Protect(false)
	n.Bad(9, 9, 0)
	expect("bad", 0x4281, 0x4280)
	n.Good()
	n.Bad(9, 20, 0x4006)
	expect("bad as Linux says it", 0x4006, 0x4006)
	n.Good()
	expect("good", 0, 0)
	if err := n.Resize(9 * 4096); err != nil {
		t.Fatal(err)
	}
	expect("shrunk", 0x4080, 0x4080)
	if err := n.Resize(1 << 20); err != nil {
		t.Fatal(err)
	}
	expect("grown", 0, 0)
	for _, p := range []struct {
		state  ANA
		status uint16
	}{{NonOptimized, 0}, {Inaccessible, 0x302}, {PersistentLoss, 0x301}, {Change, 0x303}, {Optimized, 0}} {
		target.Port(0).SetANA(p.state)
		expect(fmt.Sprint("ANA state ", p.state), p.status, p.status)
	}
	target.RemoveNamespace(1)
	expect("removed", 0x400B, 0x400B)
	clean(t, target)
}

func TestPowerLoss(t *testing.T) {
	// A volatile namespace loses what was not flushed, and keeps what was, or was forced. The ports refuse
	// meanwhile, and are the same afterwards.
	for _, kind := range []string{"memory", "file"} {
		t.Run(kind, func(t *testing.T) {
			o := NamespaceOptions{Size: 1 << 20, Volatile: true}
			if kind == "file" {
				f, err := os.Create(filepath.Join(t.TempDir(), "ns"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = f.Close() })
				o.Backing = f
			}
			target := start(t, Options{Namespaces: []NamespaceOptions{o}})
			a := connect(t, target, how{})
			q := a.io[0]
			old, young := random(1, 4096), random(2, 4096)
			for i := range 3 {
				q.write(i, 4096, old)
			}
			q.do(q.entry(0, 1, 0, 0x5A), nil)
			q.write(0, 4096, young)
			forced := q.rw(1, 1, 1, 4096, 0x01)
			set32(forced, 48, 1<<30)
			q.do(forced, young)
			if got, _ := q.get(0, 1, 4096); !bytes.Equal(got, young) || target.Namespace(1).Unflushed() != 4096 {
				t.Errorf("an unflushed write reads wrong, or %d bytes are unflushed", target.Namespace(1).Unflushed())
			}
			address := target.Address()
			target.Kill()
			q.ended()
			a.ended()
			if _, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a killed target: %v, want refused", err)
			}
			if err := target.Restart(); err != nil || target.Address() != address {
				t.Fatal(err, target.Address())
			}
			q = connect(t, target, how{}).io[0]
			for i, want := range [][]byte{old, young, old} {
				if got, _ := q.get(i, 1, 4096); !bytes.Equal(got, want) {
					t.Errorf("block %d is wrong after the power loss", i)
				}
			}
			clean(t, target)
		})
	}
}

func TestAssociationEnds(t *testing.T) {
	// Each end of one queue ends all of its controller, and of no other; a new one can be made at once.
	for _, c := range []struct {
		story string
		end   func(*Target, *association)
	}{
		{"an I/O queue is closed in the midst of a PDU", func(_ *Target, a *association) {
			a.io[0].send(a.io[0].write4()[:100])
			_ = a.io[0].conn.Close()
		}},
		{"the host closes the admin queue", func(_ *Target, a *association) { _ = a.conn.Close() }},
		{"no Keep Alive", func(_ *Target, a *association) { a.feature(9, 0x0F, 100) }},
		{"drop", func(t *Target, _ *association) { t.Drop() }},
		{"the port goes", func(t *Target, _ *association) { t.Port(0).Off() }},
		{"a broken rule", func(_ *Target, a *association) { a.io[0].send(make([]byte, 8)) }},
	} {
		target := start(t, Options{Listen: []string{"127.0.0.1:0", "127.0.0.1:0"}})
		other := connect(t, target, how{port: 1})
		a := connect(t, target, how{queues: 3})
		c.end(target, a)
		for _, q := range append([]*fakeHost{a.fakeHost}, a.io...) {
			q.ended()
		}
		if err := target.Port(0).On(); err != nil {
			t.Fatal(err)
		}
		connect(t, target, how{})
		if c.story != "drop" {
			if _, got := other.io[0].get(0, 1, 4096); got.status() != 0 {
				t.Errorf("%s: another controller's read: %x", c.story, got.status())
			}
		}
		if s := target.Stats(); (s.Expired == 1) != (c.story == "no Keep Alive") {
			t.Errorf("%s: %d expired", c.story, s.Expired)
		}
	}
}

func TestHostClosesAQueue(t *testing.T) {
	// A host closes an I/O queue between two PDUs: the others go on, and the queue can be connected again.
	target := start(t, Options{})
	a := connect(t, target, how{queues: 2})
	_ = a.io[0].conn.Close()
	for target.Stats().IOQueues > 1 {
		if _, c := a.io[1].get(0, 1, 4096); c.status() != 0 {
			t.Fatalf("the other queue: %x", c.status())
		}
	}
	q := dial(t, target.Address(), 0, 1)
	if _, c := q.do(q.connectEntry(1, 31, false), connectBytes(a.id, NQN, testHost)); c.status() != 0 {
		t.Errorf("Connect again: %x", c.status())
	}
	a.feature(10, 7, 0)
	clean(t, target)
}

func TestPause(t *testing.T) {
	// A paused target is silent, and answers everything afterwards. Its keep-alive timer stands still.
	target := start(t, Options{})
	a := connect(t, target, how{kato: 100_000})
	a.feature(9, 0x0B, 1<<8)
	event := a.entry(0x0C, 0, 0, 0x5A)
	a.send(a.capsule(event, nil))
	a.identify(1, 0)
	target.Pause()
	q := a.io[0]
	e := q.rw(2, 0, 1, 4096, 0x5A)
	q.send(q.capsule(e, nil))
	target.Namespace(1).Enable(false)
	target.Namespace(1).Enable(true)
	_ = q.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := q.conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a paused target answers: %d bytes, %v", n, err)
	}
	target.Resume()
	if _, c := q.finish(u16(e, 2), 4096); c.status() != 0 {
		t.Errorf("after the pause: %x", c.status())
	}
	if _, c := a.finish(u16(event, 2), 0); c.result() != 0x040002 {
		t.Errorf("the event of the pause: %x", c.result())
	}
	target.Pause() // Close ends it
}

func TestDiscovery(t *testing.T) {
	// The discovery controller names each port that is on, and has no namespaces and no I/O queues.
	target := start(t, Options{Listen: []string{"127.0.0.1:0", "127.0.0.2:0", "127.0.0.1:0"}})
	target.Port(2).Off()
	h := dial(t, target.Address(), 0, 1)
	_, c := h.do(h.connectEntry(0, 31, false), connectBytes(0xFFFF, "nqn.2014-08.org.nvmexpress.discovery", testHost))
	a := &association{fakeHost: h, id: int(c.result() & 0xFFFF)}
	a.enable()
	if b, _ := a.identify(1, 0); b[111] != 2 || !strings.HasPrefix(string(b[768:]), "nqn.2014-08.org.nvmexpress.discovery\x00") {
		t.Errorf("CNTRLTYPE %d, SUBNQN %q", b[111], b[768:820])
	}
	page, _ := a.logPage(0x70, 0, 3072)
	if u32(page, 8) != 2 || u16(page, 16) != 0 {
		t.Fatalf("NUMREC %d, RECFMT %d", u32(page, 8), u16(page, 16))
	}
	for i := range 2 {
		e := page[1024*(i+1):]
		address := net.JoinHostPort(strings.TrimRight(string(e[512:768]), " "), strings.TrimRight(string(e[32:64]), " "))
		if address != target.Port(i).Address() || e[0] != 3 || e[1] != 1 || e[2] != 2 || u16(e, 4) != i+1 || u16(e, 6) != 0xFFFF ||
			strings.TrimRight(string(e[256:512]), "\x00") != NQN {
			t.Errorf("entry %d: %s % x", i, address, e[:12])
		}
	}
	if tail, _ := a.logPage(0x70, 2048, 1024); !bytes.Equal(tail, page[2048:]) {
		t.Error("the log page from an offset is another")
	}
	q := dial(t, target.Address(), 0, 1)
	if _, c := q.do(q.connectEntry(1, 31, false), connectBytes(a.id, NQN, testHost)); c.status() != 0x4182 {
		t.Errorf("an I/O queue of a discovery controller: %x", c.status())
	}
	clean(t, target)
}

func TestQueuesTogether(t *testing.T) {
	// Eight queues write and read their own blocks at the same time, with commands in flight.
	target := start(t, Options{})
	a := connect(t, target, how{queues: 8, digests: 2})
	done := make(chan error, 8)
	for n, q := range a.io {
		go func() {
			for round := range 20 {
				data := random(byte(n*20+round), 8*4096)
				var burst []byte
				for i := range 8 {
					burst = append(burst, q.capsule(q.rw(1, n*8+i, 1, 4096, 0x01), data[i*4096:][:4096])...)
				}
				for i := range 8 {
					burst = append(burst, q.capsule(q.rw(2, n*8+i, 1, 4096, 0x5A), nil)...)
				}
				if _, err := q.conn.Write(burst); err != nil {
					done <- err
					return
				}
				for got := 0; got < 16; {
					p, err := q.read()
					if err != nil {
						done <- err
						return
					}
					if p.kind == 5 && p.status() == 0 {
						got++
					} else if i := (int(p.cid()) - 2) % 16; p.kind != 7 || !bytes.Equal(p.data, data[(i-8)*4096:][:4096]) {
						done <- fmt.Errorf("queue %d: a PDU of type %d, or wrong bytes", n, p.kind)
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range a.io {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	clean(t, target)
}
