package nvmetcp

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rewrite flushes, and writes again what the target may have lost.
func rewrite(t testing.TB, n *Namespace, off int64, length int, generation uint64) {
	t.Helper()
	for {
		mustWrite(t, n, off, length, generation)
		err := n.Flush()
		if err == nil {
			return
		}
		if !errors.Is(err, ErrUnflushed) {
			t.Fatal(err)
		}
	}
}

// writers has writes in flight in a range of the namespace, in the capsule and by R2T, until the function that it
// returns is called. That function expects each write to be there, or to have failed. Each goes to a place of its
// own, since one whose path died may still take effect.
func writers(t *testing.T, n *Namespace, from, length int64) (end func()) {
	stop := make(chan struct{})
	type writer struct {
		size int
		from int64
		done int64 // writes
		err  error // of the one behind
		over chan struct{}
	}
	var all []*writer
	for i, size := range []int{4096, 4096, 20 << 10, 20 << 10} {
		w := &writer{size: size, from: from + int64(i)*length/4, over: make(chan struct{})}
		all = append(all, w)
		go func() {
			defer close(w.over)
			for room := length / 4 / int64(size); w.err == nil; {
				off := w.from + min(w.done, room-1)*int64(size) // at last the same again
				if _, w.err = n.WriteAt(pages(off, size, 7), off); w.err == nil {
					w.done = min(w.done+1, room)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	return func() {
		t.Helper()
		close(stop)
		for _, w := range all {
			wait(t, w.over, "end of a writer")
			if w.err != nil {
				t.Logf("a write failed after %d: %v", w.done, w.err)
			} else if w.done == 0 {
				t.Error("a writer wrote nothing")
			}
			for i := max(w.done-16, 0); i < w.done; i++ { // the last was in flight when the path was lost
				mustRead(t, n, w.from+i*int64(w.size), w.size, 7)
			}
		}
	}
}

func TestKernelConnectionsLost(t *testing.T) {
	// However the target is lost, commands wait, are repeated on the next controller, and answer the right bytes;
	// writes that were in flight are there afterwards.
	k := bootKernel(t, 1, "--persist", filepath.Join(t.TempDir(), "disk"))
	for _, c := range []struct {
		story     string
		harm, end func()
		o         Options
	}{
		{"drop", func() { k.nt("drop") }, func() {}, Options{}},
		{"port off, on", func() { k.nt("port-off", "1") }, func() { k.nt("port-on", "1") }, Options{}},
		{"killed, restarted", func() { k.guest.Kill(t) }, func() { k.must("start", "again") }, Options{}},
		{"paused longer than the timeout", func() { k.must("pause") }, func() { k.must("resume") }, Options{Timeout: 2 * time.Second}},
		{"link down, up", func() { k.must("link", "down") }, func() { k.must("link", "up") }, Options{Timeout: 2 * time.Second}},
	} {
		t.Run(c.story, func(t *testing.T) {
			inside := *k
			inside.t = t
			n, w := inside.open(c.o)
			mustWrite(t, n, 0, 256<<10, 1)
			if err := n.Flush(); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, n, 1<<20, 64<<10, 2)
			written := writers(t, n, 2<<20, 60<<20)
			c.harm()
			read := make(chan error, 2)
			for i := range 2 { // one in flight or waiting while the target is away
				go func() {
					b := make([]byte, 128<<10)
					_, err := n.ReadAt(b, int64(i)<<17)
					if err == nil && string(b) != string(pages(int64(i)<<17, 128<<10, 1)) {
						err = errors.New("wrong bytes")
					}
					read <- err
				}()
			}
			if s := wait(t, w.lost, "loss"); !strings.HasPrefix(s, ErrPath.Error()) {
				t.Errorf("lost: %s", s)
			}
			c.end()
			wait(t, w.connected, "connection")
			for range 2 {
				if err := wait(t, read, "answer"); err != nil {
					t.Error(err)
				}
			}
			written()
			if err := n.Flush(); !errors.Is(err, ErrUnflushed) {
				t.Errorf("flush after the loss: %v", err)
			}
			rewrite(t, n, 1<<20, 64<<10, 3)
			mustRead(t, n, 1<<20, 64<<10, 3)
			t.Logf("%+v", n.Stats())
		})
	}
}

func TestKernelPausedShortly(t *testing.T) {
	// A target that is silent for less than the timeout answers everything afterwards, on the same connections.
	k := bootKernel(t, 1)
	n, _ := k.open(Options{})
	mustWrite(t, n, 0, 4096, 1)
	k.must("pause")
	read := make(chan error, 1)
	go func() {
		_, err := n.ReadAt(make([]byte, 4096), 0)
		read <- err
	}()
	k.must("resume")
	if err := wait(t, read, "answer"); err != nil || n.Stats().Connections != 1 {
		t.Errorf("%v %+v", err, n.Stats())
	}
}

func TestKernelImpatience(t *testing.T) {
	// Commands fail with a path error once Patience is over, and at once from then on; they work again afterwards.
	k := bootKernel(t, 1)
	n, w := k.open(Options{Patience: time.Second, Timeout: 5 * time.Second})
	k.nt("port-off", "1")
	_, err := n.ReadAt(make([]byte, 4096), 0)
	if !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), k.port[0]) || !strings.Contains(err.Error(), kernelNQN) {
		t.Errorf("%v", err)
	}
	if s := n.Stats(); s.Down == nil || s.Portal != "" {
		t.Errorf("%+v", s)
	}
	if err := n.Flush(); !errors.Is(err, ErrPath) {
		t.Errorf("%v", err)
	}
	t.Log(err)
	k.nt("port-on", "1")
	wait(t, w.connected, "connection")
	if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

func TestKernelKeepAlive(t *testing.T) {
	// An idle controller lives longer than its keep-alive time. Cut off for longer, the target gives it up, and a
	// new one is made.
	k := bootKernel(t, 1)
	n, w := k.open(Options{KeepAlive: 2 * time.Second})
	k.must("exec", "sleep", "7")
	if s := n.Stats(); s.Connections != 1 {
		t.Errorf("idle for three times the keep-alive: %+v", s)
	}
	k.must("link", "down")
	k.must("exec", "sleep", "9")
	k.must("link", "up")
	if lost := wait(t, w.lost, "loss"); !strings.Contains(lost, "connection ended") && !strings.Contains(lost, "reset") {
		t.Errorf("lost: %s", lost)
	}
	wait(t, w.connected, "connection")
	if _, err := n.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

func TestKernelNamespaceChanges(t *testing.T) {
	// A namespace that is disabled is waited for; one that is removed is an error after Patience; both come back.
	k := bootKernel(t, 1, "--ns", "2", "--size", "16")
	n, w := k.open(Options{})
	mustWrite(t, n, 0, 4096, 1)
	k.nt("ns-off", "1")
	wait(t, w.lost, "loss")
	k.nt("ns-on", "1")
	wait(t, w.connected, "connection")
	mustRead(t, n, 0, 4096, 1)

	two, seen := k.open(Options{NSID: 2, Patience: 3 * time.Second})
	k.nt("ns-remove", "2")
	wait(t, seen.lost, "loss")
	_, err := two.ReadAt(make([]byte, 4096), 0)
	if !errors.Is(err, ErrNamespace) || !strings.Contains(err.Error(), "has namespaces [1]") {
		t.Errorf("removed: %v", err)
	}
	k.nt("ns-add", "2", "16")
	wait(t, seen.connected, "connection")
	if _, err := two.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

func TestKernelResize(t *testing.T) {
	// Growth and shrinking are announced, and hold for the next commands; protection is the target's answer.
	k := bootKernel(t, 1, "--persist", filepath.Join(t.TempDir(), "disk"), "--size", "16")
	n, w := k.open(Options{})
	k.must("resize", "1", "24")
	if got := wait(t, w.changed, "growth"); got != "25165824 false" || n.Size() != 24<<20 {
		t.Errorf("%s, %d", got, n.Size())
	}
	mustWrite(t, n, 20<<20, 4096, 1)
	mustRead(t, n, 20<<20, 4096, 1)
	k.must("resize", "1", "16")
	if got := wait(t, w.changed, "shrinking"); got != "16777216 false" {
		t.Error(got)
	}
	if _, err := n.ReadAt(make([]byte, 4096), 20<<20); !errors.Is(err, ErrRange) {
		t.Errorf("beyond the end: %v", err)
	}
	k.must("protect", "1", "on")
	if _, err := n.WriteAt(make([]byte, 4096), 0); !errors.Is(err, ErrNamespace) || !strings.Contains(err.Error(), "0/20h") {
		t.Errorf("protected: %v", err)
	}
	k.must("protect", "1", "off")
	mustWrite(t, n, 0, 4096, 2)
}

func TestKernelBadSectors(t *testing.T) {
	// A bad sector fails what touches it, and nothing else; the connection stays.
	k := bootKernel(t, 1, "--size", "16")
	n, _ := k.open(Options{})
	mustWrite(t, n, 0, 64<<10, 1)
	k.nt("bad", "1", "64", "71") // the block at 32 KiB
	done, err := n.ReadAt(make([]byte, 4096), 32<<10)
	if !errors.Is(err, ErrData) || errors.Is(err, ErrPath) || done != 0 {
		t.Errorf("%d %v", done, err)
	}
	mustRead(t, n, 0, 32<<10, 1)
	mustRead(t, n, 36<<10, 28<<10, 1)
	k.nt("good", "1", "64", "71")
	if _, err := n.ReadAt(make([]byte, 4096), 32<<10); err != nil {
		t.Error(err)
	}
	if s := n.Stats(); s.Connections != 1 || s.Reads.Errors != 1 {
		t.Errorf("%+v", s)
	}
}

func TestKernelDiscards(t *testing.T) {
	// Discarded blocks of a RAM disk read as zeros, those beside them as before.
	k := bootKernel(t, 1, "--size", "16")
	n, _ := k.open(Options{})
	mustWrite(t, n, 0, 64<<10, 1)
	if err := n.Discard(16<<10, 16<<10); err != nil {
		t.Fatal(err)
	}
	mustRead(t, n, 0, 16<<10, 1)
	mustRead(t, n, 32<<10, 32<<10, 1)
	b := make([]byte, 16<<10)
	if _, err := n.ReadAt(b, 16<<10); err != nil || string(b) != string(make([]byte, len(b))) {
		t.Errorf("%v, or bytes are left", err)
	}
}

func TestKernelRefusals(t *testing.T) {
	// A wrong name, a host that is not let in, and a namespace that is not there are refused with names and cures.
	k := bootKernel(t, 1, "--host-nqn", "nqn.2014-08.org.nvmexpress:hearth-friend")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, c := range []struct {
		o     Options
		class error
		words string
	}{
		{Options{SubsystemNQN: "nqn.2014-08.org.example:wrong"}, ErrRefused, "Connect Invalid Parameters (1/82h"},
		{Options{SubsystemNQN: kernelNQN + "-locked", HostNQN: "nqn.2014-08.org.example:stranger"}, ErrRefused, "let the host nqn.2014-08.org.example:stranger into the subsystem, or give the address the name of a host that is (host_nqn=)"},
		{Options{SubsystemNQN: kernelNQN, NSID: 7}, ErrNamespace, "the subsystem has namespaces [1]"},
	} {
		c.o.Portals, c.o.Timeout = k.port, 20*time.Second
		_, err := Open(ctx, c.o)
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), k.port[0]) {
			t.Errorf("%v, want %s", err, c.words)
		}
	}
	n, _ := k.open(Options{SubsystemNQN: kernelNQN + "-locked", HostNQN: "nqn.2014-08.org.nvmexpress:hearth-friend"})
	mustWrite(t, n, 0, 4096, 1)
}

func TestKernelFewerQueues(t *testing.T) {
	// A target that grants fewer queues gets fewer connections, also when it changes its mind.
	k := bootKernel(t, 1, "--queues", "2")
	n, w := k.open(Options{Queues: 8})
	if s := n.Stats(); s.Queues != 2 {
		t.Errorf("%+v", s)
	}
	rounds(t, n, []int{4096, 20 << 10}, 1)
	k.nt("queues", "1") // 6.12 ends every controller with that
	k.nt("drop")
	for wait(t, w.connected, "connection"); n.Stats().Queues != 1; {
		wait(t, w.connected, "connection with one queue")
	}
	mustRead(t, n, 0, 4096, 1)
}

func TestKernelVolatileCache(t *testing.T) {
	// Unflushed writes are lost with the target's power, and Flush says so; flushed ones are kept.
	k := bootKernel(t, 1, "--persist", filepath.Join(t.TempDir(), "disk"), "--volatile", "--size", "16")
	// Linux writes back by itself what exceeds the device's share of all dirty pages, which starts at nothing and
	// grows with what was written back, as each processor counts it.
	k.must("exec", "echo 90 >/sys/block/vda/bdi/min_ratio")
	n, w := k.open(Options{})
	mustWrite(t, n, 0, 64<<10, 1)
	if err := n.Flush(); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, n, 1<<20, 64<<10, 2)
	k.must("exec", "grep -q 'Dirty: *64 kB' /proc/meminfo")
	k.guest.Kill(t)
	wait(t, w.lost, "loss")
	k.must("start", "again")
	wait(t, w.connected, "connection")
	mustRead(t, n, 0, 64<<10, 1)
	b := make([]byte, 64<<10)
	if _, err := n.ReadAt(b, 1<<20); err != nil || string(b) == string(pages(1<<20, 64<<10, 2)) {
		t.Errorf("%v, or nothing was lost, which this test is about", err)
	}
	if err := n.Flush(); !errors.Is(err, ErrUnflushed) {
		t.Errorf("flush: %v", err)
	}
	if err := n.Flush(); err != nil {
		t.Errorf("a second flush: %v", err)
	}
}

func TestKernelPortals(t *testing.T) {
	// Of two portals the one with the better path is used; I/O goes on when it is lost, and each write is there.
	k := bootKernel(t, 2, "--size", "16")
	k.nt("ana", "1", "non-optimized")
	n, w := k.open(Options{})
	if s := n.Stats(); s.Portal != k.port[1] || s.Access != "optimized" {
		t.Fatalf("%+v", s)
	}
	mustWrite(t, n, 0, 16<<10, 1)
	k.nt("ana", "2", "inaccessible")
	if got := wait(t, w.connected, "connection"); got != k.port[0] || n.Stats().Access != "non-optimized" {
		t.Errorf("%s, %+v", got, n.Stats())
	}
	mustRead(t, n, 0, 16<<10, 1)
	k.nt("ana", "2", "optimized")
	if got := wait(t, w.connected, "better path"); got != k.port[1] {
		t.Error(got)
	}
	reads := make(chan error, 32)
	read := func() {
		for i := range int64(cap(reads)) {
			go func() {
				b := make([]byte, 4096)
				_, err := n.ReadAt(b, i%4<<12)
				if err == nil && string(b) != string(page(i%4<<12, 1)) {
					err = errors.New("wrong bytes")
				}
				reads <- err
			}()
		}
	}
	for i, c := range []struct {
		change string
		uses   int
	}{{"port-off 2", 0}, {"port-on 2", 1}, {"ana 2 persistent-loss", 0}, {"ana 2 optimized", 1}, {"ana 2 change", 0}} {
		read() // some are in flight, some wait
		written := writers(t, n, int64(1+2*i)<<20, 2<<20)
		k.nt(strings.Fields(c.change)...)
		if got := wait(t, w.connected, "connection"); got != k.port[c.uses] {
			t.Errorf("%s: %s", c.change, got)
		}
		for range cap(reads) {
			if err := wait(t, reads, "answer"); err != nil {
				t.Errorf("%s: %v", c.change, err)
			}
		}
		written()
		mustRead(t, n, 0, 16<<10, 1)
	}
}

func TestKernelDiscovery(t *testing.T) {
	// The target's discovery service names both subsystems at the port that was asked, and they open from there.
	k := bootKernel(t, 1)
	found, err := Discover(t.Context(), Options{Portals: k.port, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	seen := ""
	for _, s := range found {
		if s.Portal != k.port[0] || !strings.HasPrefix(s.Advertised, "0.0.0.0:") && !strings.HasPrefix(s.Advertised, "10.0.2.15:") {
			t.Errorf("%+v", s)
		}
		seen += s.NQN + " "
	}
	if !strings.Contains(seen, kernelNQN+" ") {
		t.Errorf("%s", seen)
	}
	n, _ := k.open(Options{Portals: []string{found[0].Portal}, SubsystemNQN: kernelNQN})
	mustWrite(t, n, 0, 4096, 1)
}

// hosts is where the target keeps what it knows of hosts.
const hosts = "/sys/kernel/config/nvmet/hosts/"

func TestKernelAuthentication(t *testing.T) {
	// A host with the right secret gets in; with a wrong one, or none, it is told so.
	const host = "nqn.2014-08.org.nvmexpress:hearth-friend"
	asked := bootKernel(t, 1, "--host-nqn", host)
	out, err := asked.guest.Run("exec", "test -e "+hosts+host+"/dhchap_key")
	asked.must("stop")
	if err != nil {
		t.Skipf("this kernel's target cannot authenticate (it is built without NVME_TARGET_AUTH) %s", out)
	}
	key, other := []byte(strings.Repeat("0123456789abcdef", 2)), []byte(strings.Repeat("x", 32))
	for hash, group := range map[string]string{"00": "null", "01": "ffdhe2048"} {
		k := bootKernel(t, 1, "--host-nqn", host, "--dhchap", secretOf(key, hash))
		k.must("exec", "echo '"+group+"' >"+hosts+host+"/dhchap_dhgroup")
		o := Options{SubsystemNQN: kernelNQN + "-locked", HostNQN: host, Secret: secretOf(key, hash), Queues: 2}
		n, _ := k.open(o)
		mustWrite(t, n, 0, 20<<10, 1)
		mustRead(t, n, 0, 20<<10, 1)
		for secret, words := range map[string]string{"": "configure the secret of host " + host, secretOf(other, hash): "are the host's NQN and its secret right?"} {
			o.Portals, o.Timeout, o.Secret = k.port, 20*time.Second, secret
			_, err := Open(t.Context(), o)
			if err == nil || secret == "" && !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, want %s", err, words)
			}
		}
	}
}

func TestKernelThrottled(t *testing.T) {
	// A slow medium answers late, and costs no connection.
	k := bootKernel(t, 1, "--persist", filepath.Join(t.TempDir(), "disk"), "--size", "16")
	n, _ := k.open(Options{Depth: 4})
	mustWrite(t, n, 0, 64<<10, 1)
	k.must("throttle", "1", "20", "0")
	read := make(chan error, 16)
	for i := range int64(16) {
		go func() {
			b := make([]byte, 4096)
			_, err := n.ReadAt(b, i<<12)
			if err == nil && string(b) != string(page(i<<12, 1)) {
				err = errors.New("wrong bytes")
			}
			read <- err
		}()
	}
	for range 16 {
		if err := wait(t, read, "answer"); err != nil {
			t.Error(err)
		}
	}
	if s := n.Stats(); s.Connections != 1 {
		t.Errorf("%+v", s)
	}
}
