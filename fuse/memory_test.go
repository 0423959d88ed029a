package fuse

import (
	"context"
	"os"
	"testing"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/cache"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// resident is how many of some buffers have a page of their own in memory.
func resident(t *testing.T, bufs [][]byte) (n int) {
	t.Helper()
	page := uintptr(os.Getpagesize())
	for _, b := range bufs {
		at, pages := uintptr(unsafe.Pointer(unsafe.SliceData(b))), make([]byte, len(b)/int(page))
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, at, uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(pages)))); at%page != 0 || errno != 0 {
			t.Fatalf("buffer at %x: %v", at, errno)
		}
		for _, p := range pages {
			if p&1 != 0 {
				n++
				break
			}
		}
	}
	return n
}

func TestReadsThatWaitTakeNoMemory(t *testing.T) {
	// 200 READs of 1 MiB, each in a buffer that was used before, wait for a silent origin; half of them lie in two blocks. Few buffers
	// are in memory meanwhile, as few once all are answered, and each answer has its bytes.
	const n = 200
	tree := newFakeTree(0)
	tree.pool = hearthtest.Pool(t, 64<<20)
	tree.put("slow", 1, (n+1)*hearth.BlockSize)
	gate := make(chan struct{})
	tree.stalled["slow"] = gate
	f := newFileSystem(&Options{Tree: tree, Reads: reads(tree), Root: 1, Reader: cache.ReaderOptions{Has: func(hearth.ID) bool { return false }, Ahead: -1}})
	node, err := tree.Lookup(context.Background(), 1, "slow")
	if err != nil {
		t.Fatal(err)
	}
	all := make([][]byte, n)
	for i := range all {
		all[i] = make([]byte, hearth.BlockSize)
		for at := range all[i] {
			all[i][at] = 0xaa
		}
	}
	type answered struct {
		off int64
		a   gofuse.ReadResult
		gofuse.Status
	}
	answers := make(chan answered)
	for i, buf := range all {
		go func() {
			off := int64(i)*hearth.BlockSize + int64(i%2)*12345
			in := &gofuse.ReadIn{InHeader: gofuse.InHeader{NodeId: node.ID}, Offset: uint64(off), Size: uint32(len(buf))}
			a, status := f.Read(nil, in, buf)
			answers <- answered{off, a, status}
		}()
	}
	if !hearthtest.Eventually(t.Context(), time.Minute, func() bool { return tree.waiting.Load() == n }) {
		t.Fatalf("%d READs wait", tree.waiting.Load())
	}
	if m := resident(t, all); m > fewReads {
		t.Errorf("while all wait %d buffers are in memory", m)
	}
	close(gate)
	for range all {
		x := <-answers
		if x.Status != gofuse.OK {
			t.Fatal(x.Status)
		}
		pieces, _ := x.a.(*answer).Slices()
		if err := hearthtest.Check(pieces[0], "slow", x.off, 1); err != nil || len(pieces[0]) != hearth.BlockSize {
			t.Errorf("%d bytes at %d: %v", len(pieces[0]), x.off, err)
		}
		x.a.Done()
	}
	f.readers.close()
	if m := resident(t, all); m > fewReads {
		t.Errorf("once all are answered %d buffers are in memory", m)
	}
}
