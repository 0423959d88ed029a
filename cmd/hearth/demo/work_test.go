package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// directories are nodes whose mounts are plain directories with the same files.
func directories(t *testing.T, nodes, files int) (all []*mounted, set []file) {
	t.Helper()
	for i := range files {
		text := fmt.Sprint("file ", i)
		set = append(set, file{name: fmt.Sprintf("f%03d", i), size: int64(len(text)), hash: sha256.Sum256([]byte(text))})
	}
	for n := range nodes {
		m := &mounted{name: fmt.Sprintf("node-%d", n+1), dir: t.TempDir()}
		for i, f := range set {
			if err := os.WriteFile(filepath.Join(m.dir, f.name), fmt.Append(nil, "file ", i), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, m)
	}
	return all, set
}

func every(set []file) (order []int) {
	for i := range set {
		order = append(order, i)
	}
	return order
}

func TestTheOthersReadWhatAKilledNodeDidNot(t *testing.T) {
	// A node is killed half-way: errors of its readers do not count, and each file is read once.
	nodes, set := directories(t, 3, 400)
	w := &work{files: set, left: every(set), nodes: nodes}
	killed := 0
	w.half = func() error {
		killed++
		nodes[2].killed.Store(true)
		return os.RemoveAll(nodes[2].dir)
	}
	if err := w.run(t.Context()); err != nil || w.done != len(set) || len(w.left) > 0 || len(w.bad) > 0 || killed != 1 || w.slowest <= 0 {
		t.Errorf("%v: %d of %d read, %d left, %d wrong, %d killed", err, w.done, len(set), len(w.left), len(w.bad), killed)
	}
}

func TestAFailureOfANodeThatLivesIsOne(t *testing.T) {
	// A file that one node lacks ends the epoch with that error, and so does a cancelled context. A
	// file with a wrong byte is named.
	nodes, set := directories(t, 2, 50)
	for _, m := range nodes {
		if err := os.Remove(filepath.Join(m.dir, "f007")); err != nil {
			t.Fatal(err)
		}
	}
	w := &work{files: set, left: every(set), nodes: nodes}
	if err := w.run(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, m := range nodes {
		if err := os.WriteFile(filepath.Join(m.dir, "f007"), []byte("FILE 7"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w = &work{files: set, left: every(set), nodes: nodes}
	if err := w.run(t.Context()); err != nil || len(w.bad) != 1 || w.bad[0] != "f007" {
		t.Errorf("a wrong byte: %v, %q", err, w.bad)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w = &work{files: set, left: every(set), nodes: nodes}
	if err := w.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestPortsComeInPairs(t *testing.T) {
	// The address and the next port are free. The kernel cannot give either to another connection
	// before a node listens there.
	at, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	a, err := net.ResolveTCPAddr("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	if low := givenOut(); a.Port+1 >= low {
		t.Errorf("ports %d and the next: connections get those from %d on", a.Port, low)
	}
	for _, port := range []int{a.Port, a.Port + 1} {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}

func TestOptionsOfADemo(t *testing.T) {
	// A demo without anything to read, or with more nodes than a machine holds, is refused before
	// anything is made.
	for _, o := range []Options{{Nodes: 3}, {Images: 1}, {Images: 1, Nodes: MostNodes + 1}, {Images: -1, Large: 2, Nodes: 1}} {
		if err := Run(t.Context(), o); !errors.Is(err, ErrNothing) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	d := &demo{Options: Options{Nodes: 3, Dir: t.TempDir()}, files: []file{{size: 900 << 20}}}
	if err := d.ring.prepare(d); err != nil || d.room() != 450<<20 {
		t.Fatalf("%v, room for %d", err, d.room())
	}
	if text := d.ring.config(2); !strings.HasPrefix(text, "node: {name: node-3, listen: \""+d.ring.gossip[2]+"\"}\njoin: [127.0.0.1:") || !strings.Contains(text, "cluster: {name: demo, key_file: ") {
		t.Errorf("%s", text)
	}
	alone := &demo{Options: Options{Nodes: 1, Dir: t.TempDir()}}
	if err := alone.ring.prepare(alone); err != nil || alone.ring.config(0) != "" || alone.room() != 4<<30 {
		t.Errorf("one node: %v, %q", err, alone.ring.config(0))
	}
}

func TestADemoThatDoesNotFit(t *testing.T) {
	// A demo that would fill the disk is refused before anything is uploaded, with what to do about it.
	d := &demo{Options: Options{Nodes: 3, Dir: t.TempDir()}, files: []file{{size: 1 << 50}}}
	if err := d.fits(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "takes up to 2560.0 TiB, and "+d.Dir+" has ") || !strings.Contains(err.Error(), "--dir") {
		t.Errorf("%v", err)
	}
	d.Dir = filepath.Join(d.Dir, "gone")
	if err := d.fits(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestAnotherNodeReadsTheCheckpoint(t *testing.T) {
	// The first node that is not the writer and lives reads the checkpoint. Bytes that are not those that were written are an error,
	// as is a name that is not seen in time.
	nodes, set := directories(t, 3, 1)
	d := &demo{Options: Options{Out: io.Discard}, nodes: nodes}
	nodes[1].killed.Store(true)
	if err := os.Remove(filepath.Join(nodes[1].dir, set[0].name)); err != nil {
		t.Fatal(err)
	}
	if err := d.readCheckpoint(t.Context(), &set[0]); err != nil {
		t.Error(err)
	}
	wrong := set[0]
	wrong.hash[0]++
	if err := d.readCheckpoint(t.Context(), &wrong); !errors.Is(err, ErrMismatch) {
		t.Errorf("other bytes: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.readCheckpoint(ctx, &file{name: "none"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a name that is not there: %v", err)
	}
}
