package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/device"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// openReal opens a Store over real areas, closed at the test's end.
func openReal(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Pool == nil {
		t.Cleanup(func() { goleak.VerifyNone(t) })
		o.Pool = hearthtest.Pool(t, 64<<20)
	}
	o.Dirs = slices.Clone(o.Dirs)
	for i := range o.Dirs {
		if o.Dirs[i].Floor == 0 {
			o.Dirs[i].Floor = -1
		}
	}
	if o.Check == 0 {
		o.Check = 5 * time.Millisecond
	}
	o.RetryAfter = 20 * time.Millisecond
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func TestStoreSuite(t *testing.T) {
	// The disk tier does what every Store does, over one directory and over three.
	pool := hearthtest.Pool(t, 128<<20)
	t.Cleanup(func() { goleak.VerifyNone(t) })
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			hearthtest.StoreSuite(t, func() hearth.Store {
				o := Options{Pool: pool}
				for range n {
					o.Dirs = append(o.Dirs, DirOptions{Path: t.TempDir(), Budget: 200 << 20, Floor: -1})
				}
				s, err := Open(o)
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
}

// sizes are what the tests below mix: packed small ones, whole ones, and one that
// is too large for a file of its own at a budget of 48 MiB.
func mixed(i int) *hearth.Object {
	size := []int64{1, 700, 4096, 30_000, 100_000, 300_000, hearth.BlockSize, 2<<20 + 5, 3 << 20, 20 << 20}[i%10]
	return hearthtest.NewObject(fmt.Sprintf("mixed/%d", i), size, 1)
}

func TestOursOfALargeFileStay(t *testing.T) {
	// All of a large file is here, the last two blocks as their owner's and the others as copies: only these make room for what is ours.
	large := hearthtest.NewObject("large", 18<<20, 1)
	s := openReal(t, Options{
		Dirs: []DirOptions{{Path: t.TempDir(), Budget: 80 << 20}},
		Owns: func(id hearth.ID) bool { return id.Version != large.Version || id.Index >= hearth.ExtentBlocks },
	})
	pool := s.dirs[0].opt.Pool
	take := func(b hearth.Block) {
		t.Helper()
		v := hearthtest.View(t, pool, b, 1)
		defer v.Release()
		if err := errors.Join(s.Put(b, v), s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		if !s.Has(b.ID()) {
			t.Fatalf("block %v is not kept: %+v", b.ID(), s.Stats())
		}
	}
	for i := range large.Blocks() {
		take(large.Block(i))
	}
	for i := range 70 {
		take(hearthtest.NewObject(fmt.Sprint(i), hearth.BlockSize, 1).Block(0))
	}
	if s.Has(large.Block(0).ID()) || !s.Has(large.Block(16).ID()) || !s.Has(large.Block(17).ID()) {
		t.Errorf("of a large file a copy is held: %v, what is ours: %v, %v; %+v", s.Has(large.Block(0).ID()), s.Has(large.Block(16).ID()), s.Has(large.Block(17).ID()), s.Stats())
	}
}

func TestBudgetHoldsUnderLoad(t *testing.T) {
	// Eight goroutines put, keep and get ten times the budget; what the files really occupy never exceeds it by more than a write unit, and no byte is wrong.
	const budget, offered, enough = 48 << 20, 500, 40 // objects, of 1 MB on average, and blocks
	dir := t.TempDir()
	s := openReal(t, Options{Dirs: []DirOptions{{Path: dir, Budget: budget}}})
	pool := s.dirs[0].opt.Pool
	var most, kept, next atomic.Int64
	stop := make(chan struct{})
	var measure, work sync.WaitGroup
	measure.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				most.Store(max(most.Load(), device.Usage(dir)))
			}
		}
	})
	for g := range 8 {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for next.Load() < offered || kept.Load() < enough && next.Load() < 20*offered {
				o := mixed(int(next.Add(1)))
				for i := range min(o.Blocks(), 4) {
					v := hearthtest.View(t, pool, o.Block(i), 1)
					if g%2 == 0 {
						if err := s.Keep(t.Context(), o.Block(i), v); err == nil {
							kept.Add(1)
						} else {
							t.Log(err)
						}
					} else {
						_ = s.Put(o.Block(i), v) // a decline is what is tested
					}
					v.Release()
				}
				b := mixed(int(rng.Int64N(next.Load()) + 1)).Block(0)
				hearthtest.CheckGet(t, s, b, 0, b.Len(), 1)
			}
		})
	}
	work.Wait()
	close(stop)
	measure.Wait()
	st := s.Stats().Dirs[0]
	t.Logf("most %.1f MiB of %d, kept %d, %+v", float64(most.Load())/(1<<20), budget>>20, kept.Load(), st)
	if most.Load() > budget+writeUnit {
		t.Errorf("%d bytes on disk, budget %d", most.Load(), budget)
	}
	if kept.Load() < enough || st.Evicted == 0 {
		t.Errorf("nothing much was kept: %d, %+v", kept.Load(), st)
	}
	if st.Used > budget || st.Errors > 0 || st.Corrupt > 0 {
		t.Errorf("%+v", st)
	}
}

func TestTinyBlocksAreEvicted(t *testing.T) {
	// A budget filled with blocks that share pages can still be filled with others.
	s := openReal(t, Options{Dirs: []DirOptions{{Path: t.TempDir(), Budget: 12 << 20}}})
	pool := s.dirs[0].opt.Pool
	tiny := func(i int) *hearth.Object { return hearthtest.NewObject(fmt.Sprintf("tiny/%d", i), 900, 1) }
	for i := range 16_000 {
		v := hearthtest.View(t, pool, tiny(i).Block(0), 1)
		err := s.Put(tiny(i).Block(0), v)
		for errors.Is(err, errFull) {
			if err := s.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			err = s.Put(tiny(i).Block(0), v)
		}
		v.Release()
	}
	failed := 0
	var work sync.WaitGroup
	var mu sync.Mutex // guards failed
	for g := range 4 {
		work.Go(func() {
			for i := range 200 {
				o := tiny(100_000 + 1000*g + i)
				v := hearthtest.View(t, pool, o.Block(0), 1)
				if err := s.Keep(t.Context(), o.Block(0), v); err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
					t.Log(err)
				}
				v.Release()
			}
		})
	}
	work.Wait()
	if failed > 0 {
		t.Errorf("%d of 800 were not kept; %+v", failed, s.Stats())
	}
}

func TestReopenKeepsAll(t *testing.T) {
	// What was put is there after Close and Open, with the node's id.
	pool := hearthtest.Pool(t, 64<<20)
	o := Options{Pool: pool, Dirs: []DirOptions{{Path: t.TempDir(), Budget: 300 << 20}, {Path: t.TempDir(), Budget: 150 << 20}}}
	var node string
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			s := openReal(t, o)
			if round == 0 {
				node = s.NodeID()
			}
			if len(node) != 32 || s.NodeID() != node {
				t.Fatalf("node id %q, then %q", node, s.NodeID())
			}
			for i := range 40 {
				for n := range mixed(i).Blocks() {
					b := mixed(i).Block(n)
					if round == 0 {
						v := hearthtest.View(t, pool, b, 1)
						if err := s.Keep(t.Context(), b, v); err != nil {
							t.Fatal(err)
						}
						v.Release()
					} else if !s.Has(b.ID()) || hearthtest.CheckGet(t, s, b, 0, b.Len(), 1) {
						t.Fatalf("%s block %d is lost", b.Object.Key, n)
					}
				}
			}
		})
	}
}

const childEnv = "HEARTH_DISK_CHILD"

// TestMain is also the child of the crash and lock tests: it fills a directory
// and says after each Flush how far it came, until it is killed. With readyEnv it
// is that of million_test.go.
func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if n, err := strconv.Atoi(os.Getenv(readyEnv)); err == nil {
		if err := beReady(dir, n); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	pool := hearth.NewPool(64 << 20)
	s, err := Open(Options{Pool: pool, Dirs: []DirOptions{{Path: dir, Budget: 2 << 30, Floor: -1}}})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	for i := 0; ; i++ {
		o := crashObject(i)
		for n := range o.Blocks() {
			v, err := pool.Alloc(context.Background(), o.Block(n).Len())
			if err == nil {
				hearthtest.Fill(v.Bytes(), o.Key, o.Block(n).Offset(), 1)
				err = s.Put(o.Block(n), v)
				v.Release()
			}
			if errors.Is(err, errFull) {
				_ = s.Flush(context.Background()) // or the queue is full once more
				i--
				break
			}
			if err != nil {
				fmt.Println("error", err)
				os.Exit(1)
			}
		}
		if i%16 == 15 {
			if err := s.Flush(context.Background()); err != nil {
				fmt.Println("error", err)
				os.Exit(1)
			}
			fmt.Println("flushed", i)
		}
	}
}

func crashObject(i int) *hearth.Object {
	size := []int64{3000, 100_000, 900, 250_000, 3<<20 + 1}[i%5]
	return hearthtest.NewObject(fmt.Sprintf("crash/%d", i), size, 1)
}

// child starts this binary as a process that fills dir; more are variables that
// say with what.
func child(t testing.TB, dir string, more ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(append(os.Environ(), childEnv+"="+dir), more...)
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill() // it may be dead already
		_ = c.Wait()
	})
	return c, bufio.NewScanner(out)
}

func TestKillKeepsWhatWasFlushed(t *testing.T) {
	// A process is killed while it fills, again and again on one directory; each time all that it had flushed is there, and nothing is wrong.
	dir := t.TempDir()
	for round := range 4 {
		c, lines := child(t, dir)
		want := -1
		for n := 0; n < 2+3*round && lines.Scan(); n++ {
			if _, err := fmt.Sscanf(lines.Text(), "flushed %d", &want); err != nil {
				t.Fatalf("the child says %q", lines.Text())
			}
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // killed
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			s := openReal(t, Options{Dirs: []DirOptions{{Path: dir, Budget: 2 << 30}}})
			for i := range want + 1 {
				o := crashObject(i)
				for n := range o.Blocks() {
					if hearthtest.CheckGet(t, s, o.Block(n), 0, o.Block(n).Len(), 1) {
						t.Fatalf("object %d block %d of %d flushed is lost", i, n, want)
					}
				}
			}
			if used := device.Usage(filepath.Join(dir, segmentsDir)) + device.Usage(filepath.Join(dir, objectsDir)); used < s.Stats().Dirs[0].Used || used > s.Stats().Dirs[0].Used+64<<10 {
				t.Errorf("%d bytes on disk, %d counted", used, s.Stats().Dirs[0].Used)
			}
		})
	}
}

func TestLockedByAnotherProcess(t *testing.T) {
	// A directory that another process uses is refused, with its pid and the cure.
	dir := t.TempDir()
	c, lines := child(t, dir)
	if !lines.Scan() {
		t.Fatal("the child says nothing")
	}
	_, err := Open(Options{Pool: hearth.NewPool(0), Dirs: []DirOptions{{Path: dir}}})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", c.Process.Pid)) {
		t.Fatalf("open of a locked directory: %v", err)
	}
	goleak.VerifyNone(t)
}

func TestDirectoryRemovedUnderUs(t *testing.T) {
	// The cache directory is removed while the node runs: no error reaches a reader, its space is given back, and soon it is a cache again.
	dir := filepath.Join(t.TempDir(), "cache")
	s := openReal(t, Options{Dirs: []DirOptions{{Path: dir, Budget: 100 << 20}}})
	pool := s.dirs[0].opt.Pool
	keep := func(i int) error {
		b := mixed(i).Block(0)
		v := hearthtest.View(t, pool, b, 1)
		defer v.Release()
		return s.Keep(t.Context(), b, v)
	}
	for i := range 20 {
		if err := keep(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool {
		for i := range 20 {
			b := mixed(i).Block(0)
			hearthtest.CheckGet(t, s, b, 0, b.Len(), 1)
		}
		_, err := os.Stat(filepath.Join(dir, LabelFile))
		return err == nil && !s.Stats().Dirs[0].Ejected
	}) {
		t.Fatalf("the directory did not come back: %+v", s.Stats())
	}
	if used := s.Stats().Dirs[0].Used; used > 4<<20 {
		t.Errorf("%d bytes used in a new directory", used)
	}
	if err := keep(1); err != nil {
		t.Fatal(err)
	}
	if hearthtest.CheckGet(t, s, mixed(1).Block(0), 0, 700, 1) {
		t.Error("a block that was kept after the return is missed")
	}
}

func TestRealFullDisk(t *testing.T) {
	// A file system of 24 MiB under a budget of 1 GiB fills up, or runs out of inodes: blocks are declined, readers see no error, nothing is ejected.
	for _, options := range []string{"size=24m", "size=256m,nr_inodes=14"} {
		t.Run(options, func(t *testing.T) {
			dir := hearthtest.Tmpfs(t, options)
			s := openReal(t, Options{Dirs: []DirOptions{{Path: dir, Budget: 1 << 30}}})
			pool := s.dirs[0].opt.Pool
			declined := 0
			for i := range 300 {
				o := mixed(i)
				for n := range min(o.Blocks(), 2) {
					v := hearthtest.View(t, pool, o.Block(n), 1)
					if i%2 == 0 {
						if s.Keep(t.Context(), o.Block(n), v) != nil {
							declined++
						}
					} else if s.Put(o.Block(n), v) != nil {
						declined++
					}
					v.Release()
				}
				hearthtest.CheckGet(t, s, o.Block(0), 0, o.Block(0).Len(), 1)
				hearthtest.CheckGet(t, s, mixed(i/2).Block(0), 0, 1, 1)
			}
			st := s.Stats().Dirs[0]
			t.Logf("%d declined; %+v", declined, st)
			if st.Ejected || declined == 0 && st.Evicted == 0 {
				t.Errorf("a full disk: %d declined, %+v", declined, st)
			}
		})
	}
}

func TestLastTenthStaysFree(t *testing.T) {
	// Told nothing about a floor, a cache with a far larger budget fills its file system up to the last tenth, and never takes of that.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	dir := hearthtest.Tmpfs(t, "size=64m")
	pool := hearthtest.Pool(t, 64<<20)
	s, err := Open(Options{Pool: pool, Dirs: []DirOptions{{Path: filepath.Join(dir, "cache"), Budget: 1 << 30}}, Check: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, s)
	var fs unix.Statfs_t
	left := int64(1 << 62) // the least that was free
	for i := range 200 {
		o := mixed(i)
		for n := range min(o.Blocks(), 2) {
			v := hearthtest.View(t, pool, o.Block(n), 1)
			if i%2 == 0 {
				_ = s.Keep(t.Context(), o.Block(n), v) // it is kept, or there is no room: the room is what is tested
			} else {
				_ = s.Put(o.Block(n), v)
			}
			v.Release()
		}
		if err := unix.Statfs(dir, &fs); err != nil {
			t.Fatal(err)
		}
		left = min(left, int64(fs.Bavail)*fs.Bsize)
	}
	tenth := int64(fs.Blocks) * fs.Bsize / 10
	t.Logf("%d bytes were free at least, a tenth is %d; %+v", left, tenth, s.Stats().Dirs[0])
	if left < tenth || left > tenth+writeUnit {
		t.Errorf("%d bytes were free at least; a tenth is %d", left, tenth)
	}
}

func TestRealDeviceDies(t *testing.T) {
	// The file system answers everything with EIO: readers get misses, the directory is ejected and named; mounted again, it returns with all that it held.
	image := filepath.Join(t.TempDir(), "image")
	dir := t.TempDir()
	if os.WriteFile(image, nil, 0o600) != nil || os.Truncate(image, 128<<20) != nil {
		t.Fatal("cannot make an image")
	}
	if out, err := exec.Command("mkfs.ext4", "-q", image).CombinedOutput(); err != nil {
		t.Skipf("no mkfs.ext4: %v: %s", err, out)
	}
	mount := func() error { return exec.Command("mount", "-o", "loop", image, dir).Run() }
	if err := mount(); err != nil {
		t.Skipf("no right to mount: %v", err)
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", dir).Run(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	s := openReal(t, Options{Dirs: []DirOptions{{Path: dir, Budget: 64 << 20}}})
	pool := s.dirs[0].opt.Pool
	keep := func(i int) error {
		v := hearthtest.View(t, pool, mixed(i).Block(0), 1)
		defer v.Release()
		return s.Keep(t.Context(), mixed(i).Block(0), v)
	}
	for i := range 9 {
		if err := keep(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	shutdown(t, dir)
	read := func() (missed int) {
		for i := range 9 {
			if hearthtest.CheckGet(t, s, mixed(i).Block(0), 0, mixed(i).Block(0).Len(), 1) {
				missed++
			}
		}
		return missed
	}
	if read() == 0 {
		t.Fatal("a dead device was read")
	}
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { _, _ = keep(20), read(); return s.Stats().Dirs[0].Ejected }) {
		t.Fatalf("not ejected: %+v", s.Stats())
	}
	if st := s.Stats().Dirs[0]; !strings.Contains(st.Cause, unix.EIO.Error()) && !strings.Contains(st.Cause, "shut down") {
		t.Errorf("the cause is not named: %q", st.Cause)
	}
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return exec.Command("umount", dir).Run() == nil }) {
		t.Fatal("an ejected directory keeps its file system from being unmounted")
	}
	if st := s.Stats().Dirs[0]; !st.Ejected {
		t.Errorf("the cache was made anew below the mount point: %+v", st)
	}
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return mount() == nil }) {
		t.Fatal("not mounted again")
	}
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool { return read() == 0 && !s.Stats().Dirs[0].Ejected }) {
		t.Fatalf("%d of 9 are missed after the return: %+v", read(), s.Stats())
	}
}

// shutdown makes an ext4 file system answer EIO, as after a device's death.
func shutdown(t *testing.T, dir string) {
	t.Helper()
	const ext4Shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), ext4Shutdown, 1); err != nil { // 1: log flushed
		t.Skipf("cannot shut the file system down: %v", err)
	}
}

func TestLocalFileOfAWholeObject(t *testing.T) {
	// A whole large object is handed out as a file with its bytes; a small one, and one that lacks a block, are not.
	s := openReal(t, Options{Dirs: []DirOptions{{Path: t.TempDir(), Budget: 64 << 20}}})
	pool := s.dirs[0].opt.Pool
	o := hearthtest.NewObject("whole", 5<<20+99, 1)
	for i := range o.Blocks() {
		if _, _, err := s.LocalFile(o); !errors.Is(err, hearth.ErrMiss) {
			t.Fatalf("local file of %d of %d blocks: %v", i, o.Blocks(), err)
		}
		v := hearthtest.View(t, pool, o.Block(i), 1)
		if err := s.Keep(t.Context(), o.Block(i), v); err != nil {
			t.Fatal(err)
		}
		v.Release()
	}
	var file *os.File
	var release func()
	if !hearthtest.Eventually(t.Context(), watchdog, func() bool {
		var err error
		file, release, err = s.LocalFile(o)
		return err == nil
	}) {
		t.Fatal("a whole object is never handed out")
	}
	got, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil || int64(len(got)) != o.Size || hearthtest.Check(got, o.Key, 0, 1) != nil {
		t.Errorf("the file handed out has %d bytes, %v", len(got), err)
	}
	_ = file.Close()
	release()
	if _, _, err := s.LocalFile(small(0, 1000)); !errors.Is(err, hearth.ErrMiss) {
		t.Errorf("local file of a small object: %v", err)
	}
}
