package sparse

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
)

// fillDir names, in the environment of a child, the directory that it fills.
const fillDir = "SPARSE_TEST_FILL"

// fill puts blocks of a few objects for ever, and names each after its Put.
func fill(dir string) {
	f, err := Open(Options{Dir: dir, Pool: hearth.NewPool(64 << 20)})
	if err != nil {
		panic(err)
	}
	for round := uint64(0); ; round++ {
		o, data := sample(round, 5*mib+123)
		for _, i := range rand.New(rand.NewPCG(round, 1)).Perm(6) {
			if err := f.Put(o, int64(i), blockOf(o, data, int64(i))); err != nil {
				panic(err)
			}
			fmt.Println(round, i)
		}
	}
}

func TestKilledWriterKeepsWhatItAcknowledged(t *testing.T) {
	// A process is killed while it fills. The next one serves what the first had acknowledged, and
	// nothing else is wrong.
	for acks := 3; acks <= 23; acks += 10 {
		dir := t.TempDir()
		child := exec.Command(os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), fillDir+"="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		type block struct {
			round uint64
			index int64
		}
		var kept []block
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var b block
			if n, _ := fmt.Sscan(lines.Text(), &b.round, &b.index); n == 2 {
				kept = append(kept, b)
			}
			if len(kept) == acks {
				if err := child.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := child.Wait(); child.ProcessState.ExitCode() >= 0 {
			t.Errorf("the writer ended by itself: %v", err)
		}
		x := start(t, Options{Dir: dir})
		x.checkUsed()
		for _, b := range kept {
			o, data := sample(b.round, 5*mib+123)
			if !x.has(o, data, b.index) {
				t.Errorf("block %d of object %d was acknowledged and is gone", b.index, b.round)
			}
		}
		if s := x.Stats(); len(kept) < acks || s.Damaged > 0 {
			t.Errorf("%d blocks were acknowledged, stats %+v", len(kept), s)
		}
	}
}

// write is one write to one of an object's two files.
type write struct {
	sums bool
	off  int64
	data []byte
}

func TestCutAndGrownFilesLoseBlocksOnly(t *testing.T) {
	// Either file is truncated or grown. What remains is served, the rest can be put again, and the
	// file has its size again.
	x := start(t, Options{})
	o, data := sample(1, 3*mib+777)
	for _, test := range []struct {
		sums bool
		size int64
		held int64
	}{
		{false, 0, 0}, {false, 1, 0}, {false, mib, 1}, {false, 2*mib + 5, 2}, {false, o.Size - 1, 3}, {false, o.Size + 1, 4},
		{false, 9 * mib, 4},
		{true, 0, 0}, {true, 63, 0}, {true, headerSize, 0}, {true, headerSize + recordSize, 1},
		{true, headerSize + 3*recordSize + 100, 3}, {true, 1 << 20, 4},
	} {
		x.putAll(o, data)
		x.stop()
		name := x.dataFile(o)
		if test.sums {
			name = x.sumsFile(o)
		}
		if err := os.Truncate(name, test.size); err != nil {
			t.Fatal(err)
		}
		x.reopen()
		held := int64(0)
		for i := range o.Blocks() {
			if x.has(o, data, i) {
				held++
			}
		}
		if held != test.held {
			t.Fatalf("%+v: %d blocks held", test, held)
		}
		x.checkUsed()
		x.putAll(o, data)
		for i := range o.Blocks() {
			if !x.has(o, data, i) {
				t.Fatalf("%+v: block %d is not held again", test, i)
			}
		}
		if st, err := os.Stat(x.dataFile(o)); err != nil || st.Size() != o.Size {
			t.Fatalf("%+v: size %d %v", test, st.Size(), err)
		}
	}
}

func TestDamageFoundWhileHandedOutWaits(t *testing.T) {
	// A reader finds damage in a lent file. The block is lost to readers, and the file keeps its
	// bytes until the release. Then the block can be put again.
	x := start(t, Options{})
	o, data := sample(1, 2*mib)
	x.putAll(o, data)
	release := x.local(o, data)
	file, err := os.OpenFile(x.dataFile(o), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt([]byte{^data[100]}, 100); err != nil {
		t.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	if x.has(o, data, 0) || !x.has(o, data, 1) || x.Stats().Damaged != 1 {
		t.Fatalf("stats %+v", x.Stats())
	}
	var st unix.Stat_t
	if err := unix.Stat(x.dataFile(o), &st); err != nil || allocated(&st) < 2*mib {
		t.Fatal("a handed-out file was holed")
	}
	if x.local(o, data) != nil || x.Put(o, 0, blockOf(o, data, 0)) == nil || x.EvictExtent(o.Block(1).ID()) != 0 {
		t.Fatal("a handed-out file was handed out, written or punched")
	}
	release()
	x.put(o, data, 0)
	if release = x.local(o, data); release == nil {
		t.Fatal("healed, and not handed out")
	}
	release()
}

func TestUnreadableBlockIsToldAndLost(t *testing.T) {
	// The device cannot read a block. The error says so, the next Get is a miss and not another
	// attempt, and the block can be put again.
	x := start(t, Options{})
	o, data := sample(1, 3*mib)
	x.putAll(o, data)
	ill, err := unix.Open("/proc/self/mem", unix.O_RDONLY, 0) // page 0 gives EIO
	if err != nil {
		t.Skip("no /proc")
	}
	x.mu.Lock()
	h := x.objects[o.Version].handle
	x.mu.Unlock()
	saved, _ := unix.FcntlInt(uintptr(h.data), unix.F_DUPFD_CLOEXEC, 0)
	if err := unix.Dup3(ill, h.data, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(ill)
	_, err = x.Get(context.Background(), o.Block(0), 0, 1)
	if err := unix.Dup3(saved, h.data, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(saved)
	if !errors.Is(err, unix.EIO) {
		t.Fatalf("got %v", err)
	}
	if x.has(o, data, 0) || !x.has(o, data, 1) {
		t.Fatal("the block is still held, or another is not")
	}
	x.put(o, data, 0)
	if !x.has(o, data, 0) {
		t.Fatal("the block cannot be put again")
	}
}

func TestRottenSidecarDoesNotHoleAnOpenFile(t *testing.T) {
	// A file is lent, its sidecar loses half of its records, and the index is read again. The
	// blocks are misses, and the file keeps every byte.
	x := start(t, Options{})
	o, data := sample(1, 6*mib)
	x.putAll(o, data)
	file, release, err := x.LocalFile(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(x.sumsFile(o), recordOffset(3)); err != nil {
		t.Fatal(err)
	}
	x.mu.Lock()
	x.dropIndexLocked(x.objects[o.Version])
	x.mu.Unlock()
	if x.has(o, data, 4) || !x.has(o, data, 2) || x.local(o, data) != nil {
		t.Fatal("the index was not read again")
	}
	x.inspect(file, data)
	_ = file.Close()
	release()
	x.checkUsed()
}

func TestRemovedFilesAreForgotten(t *testing.T) {
	// Somebody removes files by hand, with the descriptors open or not. There are misses, and the
	// bytes no longer count.
	x := start(t, Options{MaxOpen: 1})
	o, data := sample(1, 2*mib)
	other, more := sample(2, 2*mib)
	x.putAll(o, data)
	x.putAll(other, more)
	for _, name := range []string{x.dataFile(o), x.dataFile(other)} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if x.has(o, data, 0) {
		t.Fatal("a removed file was read")
	}
	if _, _, err := x.LocalFile(other); err == nil {
		t.Fatal("a removed file was handed out")
	}
	if x.Used() != 0 || x.onDevice() != 0 {
		t.Fatalf("%d used, %d on the device", x.Used(), x.onDevice())
	}
}

func FuzzSidecar(f *testing.F) {
	// Any bytes stand as a sidecar. There is no panic, and an accepted record is byte for byte what
	// the encoder writes.
	o, data := sample(1, 2*mib+5)
	valid := header{formatVersion, o.Version, o.Size}.encode()
	for i := range o.Blocks() {
		sums := sumsOf(blockOf(o, data, i))
		record := make([]byte, recordSize)
		encodeRecord(record, o.Block(i).ID(), &sums)
		valid = append(valid, record...)
	}
	f.Add(valid)
	f.Add(valid[:len(valid)-1])
	f.Add(append(bytes.Clone(valid[:headerSize]), make([]byte, 300)...))
	f.Add(valid[:20])
	f.Add(append(header{formatVersion + 1, o.Version, o.Size}.encode(), valid[headerSize:]...)) // newer
	f.Add([]byte("hearthsg, and nothing of a sidecar: what lies here is foreign, and longer than a header"))
	f.Fuzz(func(t *testing.T, sidecar []byte) {
		h, err := decodeHeader(sidecar)
		if err != nil || h.format > formatVersion {
			return
		}
		if !bytes.Equal(h.encode()[:40], sidecar[:40]) {
			t.Fatal("a header is not what it says")
		}
		last := int64(-1)
		_, err = readRecords(bytes.NewReader(sidecar), h.version, blocksOf(h.size), func(i int64) {
			if i <= last || i >= blocksOf(h.size) {
				t.Fatalf("block %d of %d after %d", i, blocksOf(h.size), last)
			}
			last = i
			id := hearth.ID{Version: h.version, Index: i}
			var sums sums
			got := sidecar[recordOffset(i):][:recordSize]
			if !decodeRecord(got, id, &sums) {
				t.Fatal("a record is valid only sometimes")
			}
			want := make([]byte, recordSize)
			encodeRecord(want, id, &sums)
			if !bytes.Equal(got, want) {
				t.Fatal("a record is not what it says")
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzFormat(f *testing.F) {
	for _, text := range []string{"hearth sparse 1\n", "hearth sparse", "hearth sparse 2\n", "hearth sparse 0\n", "SQLite format 3\x00", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		// Any bytes stand as FORMAT. A newer format is refused and left as it is. Any other
		// directory is opened, and then opened again.
		dir := t.TempDir()
		name := filepath.Join(dir, formatName)
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var newer *FormatError
		switch err := checkFormat(dir, nil); {
		case errors.As(err, &newer):
			if left, err := os.ReadFile(name); err != nil || !bytes.Equal(left, text) || newer.Format <= formatVersion {
				t.Fatalf("%q: refused as format %d and left as %q, %v", text, newer.Format, left, err)
			}
		case err != nil:
			t.Fatal(err)
		default:
			if err := checkFormat(dir, nil); err != nil {
				t.Fatalf("%q: the second time: %v", text, err)
			}
		}
	})
}

func TestWhatLiesInAnothersPlaceIsNobodys(t *testing.T) {
	// A block's bytes and record are copied into its neighbour's place, and the files of two
	// objects swap names. Nothing of that is served, and the two objects are dropped.
	x := start(t, Options{})
	moved, text := sample(1, 2*mib)
	x.putAll(moved, text)
	a, aText := sample(2, 2*mib)
	b, bText := sample(3, 2*mib)
	x.putAll(a, aText)
	x.putAll(b, bText)
	x.stop()
	for name, n := range map[string]int64{x.dataFile(moved): mib, x.sumsFile(moved): recordSize} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := int64(len(content)) - 2*n
		copy(content[at:], content[at+n:])
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, of := range []func(*hearth.Object) string{x.dataFile, x.sumsFile} {
		if err := errors.Join(os.Rename(of(a), of(a)+"x"), os.Rename(of(b), of(a)), os.Rename(of(a)+"x", of(b))); err != nil {
			t.Fatal(err)
		}
	}
	x.reopen()
	if x.has(moved, text, 0) || !x.has(moved, text, 1) {
		t.Error("a copied block is held, or the one that it is of is not")
	}
	if x.has(a, aText, 0) || x.has(b, bText, 1) || x.Stats().Objects != 1 {
		t.Errorf("of exchanged objects something is held: %+v", x.Stats())
	}
}
