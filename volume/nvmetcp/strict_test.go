package nvmetcp

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// startFake starts the in-process target that knows the rules by itself. It must find no fault with its host.
func startFake(t testing.TB, o fakenvmet.Options) *fakenvmet.Target {
	t.Helper()
	target, err := fakenvmet.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		target.Close()
		if v := target.Violations(); len(v) > 0 {
			t.Errorf("the host broke rules: %q", v)
		}
	})
	return target
}

func openFake(t testing.TB, target *fakenvmet.Target, o Options) *Namespace {
	t.Helper()
	o.Portals, o.SubsystemNQN = []string{target.Address()}, target.NQN()
	o.Queues = either(o.Queues, 2)
	n, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func TestStrictTarget(t *testing.T) {
	// A target that knows every rule, and likes every size that they allow, finds no fault with us; all bytes are right.
	seed := hearthtest.Seed(t)
	for i, c := range []struct {
		story  string
		target fakenvmet.Options
		o      Options
	}{
		{"plain", fakenvmet.Options{}, Options{}},
		{"digests", fakenvmet.Options{}, Options{HeaderDigest: true, DataDigest: true}},
		{"header digest, padding", fakenvmet.Options{CPDA: 31}, Options{HeaderDigest: true}},
		{"success flags", fakenvmet.Options{Success: true}, Options{DataDigest: true}},
		{"flow control, asked for", fakenvmet.Options{}, Options{FlowControl: true, Depth: 3}},
		{"flow control, though asked off", fakenvmet.Options{FlowControl: true, Success: true}, Options{Depth: 7}},
		{"small everything", fakenvmet.Options{MaxData: 4096, R2T: 12 << 10, C2HData: 4096, MDTS: 3, InCapsule: 4096, QueueSize: 32}, Options{}},
		{"small and with digests", fakenvmet.Options{MaxData: 4096, R2T: 5000 &^ 3, C2HData: 512, InCapsule: -1, CPDA: 3}, Options{HeaderDigest: true, DataDigest: true}},
		{"blocks of 512", fakenvmet.Options{Namespaces: []fakenvmet.NamespaceOptions{{BlockSize: 512, Volatile: true}}}, Options{Queues: 8}},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := startFake(t, c.target)
			n := openFake(t, target, c.o)
			var work sync.WaitGroup
			for w := range int64(4) {
				r := rand.New(rand.NewPCG(seed+uint64(i), uint64(w)))
				work.Go(func() { workload(t, n, r, w<<20, 1<<20) })
			}
			work.Wait()
			if s := n.Stats(); s.Connections != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestHostileTarget(t *testing.T) {
	// A target that does one wrong thing now and then costs connections, never a wrong byte or an answer that is
	// not given.
	for _, c := range []struct {
		story string
		harm  func(p *fakenvmet.PDU)
	}{
		{"wrong header digests", func(p *fakenvmet.PDU) { p.BadHeaderDigest = true }},
		{"wrong data digests", func(p *fakenvmet.PDU) { p.BadDataDigest = true }},
		{"doubles", func(p *fakenvmet.PDU) { p.Then = []*fakenvmet.PDU{p.Clone()} }},
		{"another's identifier", func(p *fakenvmet.PDU) { p.SetCID(p.CID + 1) }},
		{"a longer PDU than it is", func(p *fakenvmet.PDU) { p.SetPLEN(1 << 30) }},
		{"a cut", func(p *fakenvmet.PDU) { p.Cut = p.Len() / 2 }},
		{"the end", func(p *fakenvmet.PDU) { p.End = true }},
		{"padding", func(p *fakenvmet.PDU) {
			if len(p.Data) > 0 {
				p.Pad = 64
			}
		}},
		{"an offset beyond the data", func(p *fakenvmet.PDU) {
			if p.Type == fakenvmet.C2HData || p.Type == fakenvmet.R2T {
				p.SetOffset(1 << 31)
			}
		}},
		{"a length of 4 GiB", func(p *fakenvmet.PDU) {
			if p.Type == fakenvmet.C2HData || p.Type == fakenvmet.R2T {
				p.SetLength(1<<32 - 1)
			}
		}},
		{"drops", func(p *fakenvmet.PDU) { p.Drop = true }},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := startFake(t, fakenvmet.Options{R2T: 16 << 10, C2HData: 16 << 10})
			o := Options{HeaderDigest: true, DataDigest: true, Patience: time.Minute}
			if c.story == "drops" {
				o.Timeout = time.Second // the others end at once
			}
			n := openFake(t, target, o)
			var sent, harmed atomic.Int64
			target.SetFault(func(p *fakenvmet.PDU) {
				if p.QID != 0 && p.Opcode != 0x7f && sent.Add(1)%29 == 0 && harmed.Add(1) <= 5 {
					c.harm(p)
				}
			})
			for i := range int64(40) {
				mustWrite(t, n, i<<17, 64<<10, uint64(i))
				mustRead(t, n, i<<17, 64<<10, uint64(i))
			}
			target.SetFault(nil)
			t.Logf("%+v", n.Stats())
			if harmed.Load() < 5 {
				t.Errorf("%d harms", harmed.Load())
			}
		})
	}
}

func TestAReadOfHalfAPageCache(t *testing.T) {
	// A read that ends in Internal Error is asked once more in pages, whatever its Do Not Retry says: a buffered target
	// of Linux says so of what its page cache has a part of. A page that fails, too, is an error; so are other
	// statuses and writes, at once.
	const internal = fakenvmet.InternalError | fakenvmet.DNR
	for _, c := range []struct {
		story  string
		block  int
		status fakenvmet.Status
		fails  func(nth int64) bool
		write  bool
		asked  int64
		class  error
	}{
		{"the first fails", 4096, internal, func(n int64) bool { return n == 1 }, false, 1 + 3, nil},
		{"blocks of 512", 512, internal, func(n int64) bool { return n == 1 }, false, 1 + 4, nil},
		{"the second page fails, too", 4096, internal, func(n int64) bool { return n == 1 || n == 3 }, false, 1 + 2, ErrData},
		{"a bad medium that says so", 4096, fakenvmet.UnrecoveredRead | fakenvmet.DNR, func(int64) bool { return true }, false, 1, ErrData},
		{"a write", 4096, internal, func(int64) bool { return true }, true, 1, ErrData},
	} {
		t.Run(c.story, func(t *testing.T) {
			target := startFake(t, fakenvmet.Options{Namespaces: []fakenvmet.NamespaceOptions{{BlockSize: c.block}}})
			n := openFake(t, target, Options{})
			const size = 12 << 10
			off := int64(4096)
			if c.block == 512 {
				off += 512 // which is in the midst of a page
			}
			want := pages(0, size, 1)
			if _, err := n.WriteAt(want, off); err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int64
			target.SetFault(func(p *fakenvmet.PDU) {
				if p.QID != 0 && p.Type == fakenvmet.CapsuleResp && c.fails(asked.Add(1)) {
					p.SetStatus(c.status)
				}
			})
			b, do := make([]byte, size), n.ReadAt
			if c.write {
				b, do = want, n.WriteAt
			}
			_, err := do(b, off)
			if !errors.Is(err, c.class) || err == nil && !bytes.Equal(b, want) {
				t.Errorf("%v, want %v, or wrong bytes", err, c.class)
			}
			if got := asked.Load(); got != c.asked || n.Stats().Connections != 1 {
				t.Errorf("asked %d times, want %d; %+v", got, c.asked, n.Stats())
			}
		})
	}
}

func TestCompletionsOutOfOrder(t *testing.T) {
	// Answers that come late, after those of later commands, are those of their commands.
	target := startFake(t, fakenvmet.Options{Success: true}) // no completion overtakes its data
	n := openFake(t, target, Options{Queues: 1})
	mustWrite(t, n, 0, 256<<10, 1)
	hold := make(chan struct{})
	var held atomic.Int64
	target.SetFault(func(p *fakenvmet.PDU) {
		if p.QID != 0 && p.Type == fakenvmet.C2HData && p.Length() == 8192 {
			p.Until = hold
			held.Add(1)
		}
	})
	read := make(chan error)
	go func() {
		b := make([]byte, 8192)
		_, err := n.ReadAt(b, 64<<10)
		if err == nil && !bytes.Equal(b, pages(64<<10, 8192, 1)) {
			err = errors.New("wrong bytes")
		}
		read <- err
	}()
	for held.Load() == 0 {
		mustRead(t, n, 0, 4096, 1)
	}
	for i := range int64(32) {
		mustRead(t, n, i<<12, 4096, 1)
	}
	close(hold)
	if err := <-read; err != nil {
		t.Error(err)
	}
}

func TestFakeAuthentication(t *testing.T) {
	// A secret is proven with both groups; a wrong one is refused.
	key := bytes.Repeat([]byte("0123456789abcdef"), 2)
	for _, group := range []bool{false, true} {
		target := startFake(t, fakenvmet.Options{Secret: secretOf(key, "00"), FFDHE: group})
		n := openFake(t, target, Options{Secret: secretOf(key, "00")})
		mustWrite(t, n, 0, 20<<10, 1)
		mustRead(t, n, 0, 20<<10, 1)
		for _, wrong := range []string{"", secretOf(bytes.ToUpper(key), "00")} {
			_, err := Open(t.Context(), Options{Portals: []string{target.Address()}, SubsystemNQN: target.NQN(), Secret: wrong})
			if err == nil || !strings.Contains(err.Error(), "secret") {
				t.Errorf("%v", err)
			}
		}
	}
}

func TestFakeChanges(t *testing.T) {
	// The namespace's size, protection, bad blocks and disappearance, and the port's state, are what we say they are.
	target := startFake(t, fakenvmet.Options{Listen: []string{"127.0.0.1:0", "127.0.0.1:0"}})
	changes := make(chan string, 100)
	connected := make(chan string, 100)
	lost := make(chan string, 100)
	n, err := Open(t.Context(), Options{Portals: []string{target.Address(), target.Port(1).Address()}, SubsystemNQN: target.NQN(), Patience: time.Minute,
		Events: Events{Changed: func(size int64, ro bool) { changes <- fmt.Sprint(size, " ", ro) }, Connected: func(p string) { connected <- p },
			Lost: func(err error) { lost <- err.Error() }}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	<-connected
	mustWrite(t, n, 0, 64<<10, 1)
	space := target.Namespace(1)
	if err := space.Resize(32 << 20); err != nil {
		t.Fatal(err)
	}
	if got := wait(t, changes, "shrinking"); got != "33554432 false" {
		t.Error(got)
	}
	space.Protect(true)
	if _, err := n.WriteAt(make([]byte, 4096), 0); !errors.Is(err, ErrNamespace) {
		t.Error(err)
	}
	space.Protect(false)
	space.Bad(2, 2, 0x281)
	if _, err := n.ReadAt(make([]byte, 4096), 2<<12); !errors.Is(err, ErrData) {
		t.Error(err)
	}
	space.Good()
	mustRead(t, n, 0, 64<<10, 1)
	target.Port(0).SetANA(fakenvmet.Inaccessible)
	if got := wait(t, connected, "the other path"); got != target.Port(1).Address() {
		t.Error(got)
	}
	mustRead(t, n, 0, 64<<10, 1)
	target.Port(0).SetANA(fakenvmet.Optimized)
	target.Port(1).Off()
	if got := wait(t, connected, "the first path"); got != target.Address() {
		t.Error(got)
	}
	mustRead(t, n, 0, 64<<10, 1)
	wait(t, lost, "loss of the first path")
	wait(t, lost, "loss of the second")
	space.Enable(false)
	read := make(chan error, 1)
	go func() {
		_, err := n.ReadAt(make([]byte, 4096), 0)
		read <- err
	}()
	wait(t, lost, "loss")
	space.Enable(true)
	if err := wait(t, read, "answer"); err != nil {
		t.Error(err)
	}
}

func TestFakeDiscovery(t *testing.T) {
	// The discovery service of the strict target is read by its rules.
	target := startFake(t, fakenvmet.Options{Listen: []string{"127.0.0.1:0", "127.0.0.1:0"}})
	found, err := Discover(t.Context(), Options{Portals: []string{target.Port(1).Address()}})
	if err != nil || len(found) != 2 || found[0].NQN != target.NQN() || found[0].Portal != target.Address() {
		t.Errorf("%+v %v", found, err)
	}
}
