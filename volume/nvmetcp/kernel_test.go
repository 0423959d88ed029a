package nvmetcp

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// kernel is a guest with a target.
type kernel struct {
	t     testing.TB
	guest *hearthtest.KernelTarget
	port  []string // addresses
}

// bootKernel starts a guest with so many ports. It ends with the test.
func bootKernel(t testing.TB, ports int, args ...string) *kernel {
	t.Helper()
	guest := hearthtest.BootKernel(t, ports, args...)
	return &kernel{t, guest, guest.Ports}
}

func (k *kernel) must(verb string, args ...string) {
	k.t.Helper()
	k.guest.Must(k.t, verb, args...)
}

// nt runs the guest's helper.
func (k *kernel) nt(args ...string) {
	k.t.Helper()
	k.must("exec", append([]string{"nt"}, args...)...)
}

const kernelNQN = hearthtest.KernelNQN

// watched is what the events of a Namespace said.
type watched struct {
	lost, connected chan string
	changed         chan string
}

// open connects with timeouts for an emulated machine on busy cores.
func (k *kernel) open(o Options) (*Namespace, *watched) {
	k.t.Helper()
	w := &watched{make(chan string, 1000), make(chan string, 1000), make(chan string, 1000)}
	if len(o.Portals) == 0 {
		o.Portals = k.port
	}
	o.SubsystemNQN = either(o.SubsystemNQN, kernelNQN)
	o.Timeout = either(o.Timeout, 20*time.Second)
	o.Patience = either(o.Patience, time.Minute)
	o.KeepAlive = either(o.KeepAlive, 20*time.Second)
	o.Events = Events{Lost: func(err error) { k.t.Log("lost:", err); w.lost <- err.Error() }, Connected: func(p string) { w.connected <- p },
		Changed: func(size int64, ro bool) { w.changed <- fmt.Sprint(size, " ", ro) }}
	n, err := Open(k.t.Context(), o)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = n.Close() })
	<-w.connected
	return n, w
}

// wait returns what comes, within a time that only a hang takes.
func wait[T any](t testing.TB, from chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(2 * time.Minute):
		t.Fatalf("no %s", what)
		panic("")
	}
}

// page is what a block of 4 KiB at an offset holds after a write of a generation.
func page(off int64, generation uint64) []byte {
	r := rand.New(rand.NewPCG(uint64(off), generation))
	b := make([]byte, 4096)
	for i := 0; i < len(b); i += 8 {
		v := r.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	return b
}

func pages(off int64, length int, generation uint64) []byte {
	var b []byte
	for i := 0; i < length; i += 4096 {
		b = append(b, page(off+int64(i), generation)...)
	}
	return b
}

func mustWrite(t testing.TB, n *Namespace, off int64, length int, generation uint64) {
	t.Helper()
	if done, err := n.WriteAt(pages(off, length, generation), off); err != nil || done != length {
		t.Fatalf("write of %d at %d: %d %v", length, off, done, err)
	}
}

func mustRead(t testing.TB, n *Namespace, off int64, length int, generation uint64) {
	t.Helper()
	b := make([]byte, length)
	if done, err := n.ReadAt(b, off); err != nil || done != length {
		t.Fatalf("read of %d at %d: %d %v", length, off, done, err)
	}
	if !bytes.Equal(b, pages(off, length, generation)) {
		t.Fatalf("read of %d at %d: wrong bytes", length, off)
	}
}

func TestKernelReadsAndWrites(t *testing.T) {
	// What is written in every size, with every setting of digests, flow control and queues, is read again. A guest for
	// each block size and number of queues reads at most 20 MiB: 4 MiB with each setting of digests, in turn with and
	// without flow control, and 1 MiB with three of the other four rows, the fourth of which changes.
	for i, block := range []string{"512", "4096"} {
		for k, queues := range []int{1, 2, 8} {
			t.Run(fmt.Sprintf("blocks of %s on %d queues", block, queues), func(t *testing.T) {
				guest := bootKernel(t, 1, "--block", block)
				generation := hearthtest.Seed(t)
				for row := range uint64(8) {
					o := Options{Queues: queues, FlowControl: row&4 != 0, HeaderDigest: row&2 != 0, DataDigest: row&1 != 0}
					sizes := []int{4 << 10, 16 << 10, 20 << 10}
					switch largest := (bits.OnesCount64(row)+i+k)%2 == 0; {
					case largest:
						sizes = append(sizes, 4<<20)
					case int(row/2) != i+k:
						sizes = append(sizes, 1<<20)
					}
					story := fmt.Sprintf("digests %t %t, flow control %t", o.HeaderDigest, o.DataDigest, o.FlowControl)
					t.Run(story, func(t *testing.T) {
						inside := *guest
						inside.t = t
						n, _ := inside.open(o)
						if n.Size() != 64<<20 || strconv.Itoa(n.BlockSize()) != block {
							t.Fatalf("%d bytes in blocks of %d", n.Size(), n.BlockSize())
						}
						rounds(t, n, sizes, generation+row)
					})
				}
			})
		}
	}
}

// rounds writes and reads ranges of each size beside one another, all at the same time.
func rounds(t *testing.T, n *Namespace, sizes []int, generation uint64) {
	var work sync.WaitGroup
	off := int64(0)
	for _, size := range sizes {
		for range 2 {
			at := off
			off += int64(size)
			work.Go(func() {
				if _, err := n.WriteAt(pages(at, size, generation), at); err != nil {
					t.Error(err)
				}
			})
		}
	}
	work.Wait()
	if err := n.Flush(); err != nil {
		t.Error(err)
	}
	off = 0
	for _, size := range sizes {
		for i := range 2 {
			at := off
			off += int64(size)
			if i == 0 {
				work.Go(func() {
					b := make([]byte, size)
					if _, err := n.ReadAt(b, at); err != nil || !bytes.Equal(b, pages(at, size, generation)) {
						t.Errorf("%d at %d: %v, or wrong bytes", size, at, err)
					}
				})
			}
		}
	}
	work.Wait()
	if s := n.Stats(); s.Connections != 1 || s.Repeated != 0 {
		t.Errorf("%+v", s)
	}
}
