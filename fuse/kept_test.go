package fuse

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// keepIn sends what keeps a mount into a socket of packets.
func keepIn(socket int) func(*Kept) {
	return func(k *Kept) {
		text, err := json.Marshal(k)
		if err == nil {
			err = unix.Sendmsg(socket, text, unix.UnixRights(int(k.Conn.Fd()), int(k.Table.Fd())), nil, 0)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "the mount is not kept:", err)
		}
	}
}

// kept receives what keeps a mount.
func kept(t testing.TB, socket *os.File) *Kept {
	t.Helper()
	text, control := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(8))
	n, c, _, _, err := unix.Recvmsg(int(socket.Fd()), text, control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	k := &Kept{}
	if err := json.Unmarshal(text[:n], k); err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:c])
	if err != nil || len(messages) != 1 {
		t.Fatal(len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 2 {
		t.Fatal(len(fds), err)
	}
	k.Conn, k.Table = os.NewFile(uintptr(fds[0]), "/dev/fuse"), os.NewFile(uintptr(fds[1]), "opens")
	t.Cleanup(func() { _, _ = k.Conn.Close(), k.Table.Close() })
	return k
}

// readAcross reads files by descriptors, mappings and directories that it opened at its start, and by new ones, until its
// standard input ends. It prints how often it did and the longest time that a read took.
func readAcross(args []string) (string, error) {
	var files []file
	for ; len(args) > 0; args = args[4:] {
		files = append(files, parseFile(args))
	}
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = io.Copy(io.Discard, os.Stdin) // it says nothing
	}()
	var work sync.WaitGroup
	var mu sync.Mutex
	rounds, longest := 0, time.Duration(0)
	errs := make([]error, len(files))
	for i, f := range files {
		work.Go(func() {
			x, err := openAcross(f)
			if err != nil {
				errs[i] = err
				return
			}
			defer func() {
				if x != nil {
					x.close()
				}
			}()
			for rng := draws(i); ; {
				if rng.IntN(10) == 0 { // so that it is open by each process in turn
					x.close()
					if x, errs[i] = openAcross(f); errs[i] != nil {
						return
					}
				}
				began := time.Now()
				if errs[i] = x.read(rng.Int64N(f.size)); errs[i] != nil {
					errs[i] = fmt.Errorf("%s: %w", f.key, errs[i])
					return
				}
				mu.Lock()
				rounds, longest = rounds+1, max(longest, time.Since(began))
				mu.Unlock()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	work.Wait()
	return fmt.Sprintf("%d %d", rounds, longest.Milliseconds()), errors.Join(errs...)
}

// across is a file that is open all the time.
type across struct {
	file
	plain, direct, dir *os.File
	mapped, aligned    []byte
	names              int
}

func openAcross(f file) (x *across, err error) {
	x = &across{file: f}
	if x.plain, err = os.Open(f.path); err != nil {
		return nil, err
	}
	if x.direct, err = os.OpenFile(f.path, os.O_RDONLY|unix.O_DIRECT, 0); err != nil {
		return nil, err
	}
	if x.dir, err = os.Open(filepath.Dir(f.path)); err != nil {
		return nil, err
	}
	names, err := x.dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	x.names = len(names)
	if x.aligned, err = unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, err
	}
	x.mapped, err = unix.Mmap(int(x.plain.Fd()), 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED)
	return x, err
}

func (x *across) close() {
	for _, f := range []*os.File{x.plain, x.direct, x.dir} {
		_ = f.Close()
	}
	_, _ = unix.Munmap(x.mapped), unix.Munmap(x.aligned)
}

// read reads at an offset in each way. The page cache is asked to forget the file, so that reads come to us.
func (x *across) read(off int64) error {
	_ = unix.Fadvise(int(x.plain.Fd()), 0, 0, unix.FADV_DONTNEED)
	_ = unix.Madvise(x.mapped, unix.MADV_DONTNEED)
	off &^= 4095
	for how, f := range map[string]*os.File{"open": x.plain, "O_DIRECT": x.direct} {
		n, err := f.ReadAt(x.aligned, off)
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s at %d: %w", how, off, err)
		}
		if err := x.check(x.aligned[:n], off); err != nil {
			return fmt.Errorf("%s: %w", how, err)
		}
	}
	if err := x.check(x.mapped[off:min(x.size, off+5000)], off); err != nil {
		return fmt.Errorf("mapped: %w", err)
	}
	if _, err := x.dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if names, err := x.dir.Readdirnames(-1); err != nil || len(names) != x.names {
		return fmt.Errorf("%d names of %d: %w", len(names), x.names, err)
	}
	again, err := os.ReadFile(x.path)
	if err != nil {
		return err
	}
	return x.check(again, 0)
}

func TestAMountOutlivesItsProcess(t *testing.T) {
	// The process that serves a mount is killed ten times under readers with open, mapped, O_DIRECT and directory
	// handles. The next one serves what the last one had taken. Nobody gets an error or wrong bytes.
	for _, open := range []string{"none", "plain", "passthrough"} {
		t.Run(open, func(t *testing.T) {
			c := setup{Open: open}
			if open == "plain" {
				c.Without = []string{"open"}
			}
			outlives(t, c, func(*mounted) {})
		})
	}
}

func TestADrainedMountOutlivesItsProcess(t *testing.T) {
	// Where the kernel does not ask again, a process answers all that it has taken before it ends, also while readers keep
	// it busy. What they ask meanwhile waits for the next one.
	for _, open := range []string{"none", "passthrough"} {
		t.Run(open, func(t *testing.T) {
			outlives(t, setup{Open: open, Without: []string{"resend"}}, func(m *mounted) { m.do(command{Do: "drain"}) })
		})
	}
}

// outlives has a mount's process killed ten times, after before was called, under readers who get no error.
func outlives(t *testing.T, c setup, before func(*mounted)) {
	ours, theirs := packets(t)
	c.Files, c.Many, c.Keep, c.Dir, c.Local = standardFiles(), 1000, true, t.TempDir(), true
	m, err := tryMount(t, c, nil, theirs)
	if err != nil {
		t.Fatal(err)
	}
	k := kept(t, ours)
	if !k.Resends() && !slices.Contains(c.Without, "resend") {
		t.Skip("the kernel does not ask again (6.9 or later does)")
	}
	var args []string
	for _, f := range standardFiles() {
		if f.Size > 0 {
			args = append(args, f.args(m)...)
		}
	}
	reader := m.start("across", args...)
	in, _ := reader.StdinPipe()
	var out, complaint strings.Builder
	reader.Stdout, reader.Stderr = &out, &complaint
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	c.Kept = k
	for range 10 {
		m.until("reads", func(r reply) bool { return r.Stats.Requests["read"] > 20 })
		before(m)
		m.kill()
		if m, err = tryMount(t, c, nil, theirs, k.Conn, k.Table); err != nil {
			t.Fatal(err)
		}
	}
	_ = in.Close()
	var exit *exec.ExitError
	if err := reader.Wait(); errors.As(err, &exit) {
		t.Fatalf("a reader: %s", complaint.String())
	}
	t.Logf("rounds and the longest in ms: %s", out.String())
}

func TestAShortFirstRequestIsOfferedAgain(t *testing.T) {
	// The INIT of Linux before 5.17 ends behind its first flags. Each process is offered what the kernel was granted of them.
	k := &Kept{Init: make([]byte, initInFlags+4), Answer: make([]byte, initOutSize)}
	binary.NativeEndian.PutUint32(k.Init[initInFlags:], 0b1110)
	binary.NativeEndian.PutUint32(k.Answer[initOutFlags:], 0b0111)
	init, err := k.granted()
	if err != nil || len(init) != len(k.Init) || binary.NativeEndian.Uint32(init[initInFlags:]) != 0b0110 {
		t.Errorf("%x, %v", init, err)
	}
	k.Init = k.Init[:initInFlags]
	if _, err := k.granted(); err == nil {
		t.Error("an INIT without flags is offered")
	}
}

// packets is a socket for what keeps a mount.
func packets(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	t.Cleanup(func() { _, _ = theirs.Close(), ours.Close() })
	return ours, theirs
}

func TestAKeptListingEndsWithItsProcess(t *testing.T) {
	// The kernel keeps a directory's listing until it is told to drop it. Names that changed while no process served the
	// mount are seen once one does.
	ours, theirs := packets(t)
	c := setup{Files: standardFiles(), Keep: true, Dir: t.TempDir()}
	m, err := tryMount(t, c, nil, theirs)
	if err != nil {
		t.Fatal(err)
	}
	k := kept(t, ours)
	list := func() string { return m.read("list", m.path("dir")) }
	if got := list(); got != "large page whole" || list() != got {
		t.Fatal(got)
	}
	c.Kept = k
	for _, c.Files = range [][]fileSpec{append(standardFiles(), fileSpec{"dir/new", 1, 10, false}), standardFiles()} {
		m.kill()
		if m, err = tryMount(t, c, nil, theirs, k.Conn, k.Table); err != nil {
			t.Fatal(err)
		}
		m.until("the listing is dropped", func(r reply) bool { return r.Stats.Outcomes["news_told"] > 0 })
		want := "large page whole"
		if len(c.Files) > len(standardFiles()) {
			want = "large new page whole"
		}
		if got := list(); got != want || list() != want { // the kernel keeps it by this process now
			t.Errorf("the directory has %s, not %s", got, want)
		}
	}
}

func TestAProcessIsReplacedAmidANotification(t *testing.T) {
	// A look-up waits for a process that stands still, and a notification for the lock that the look-up holds. The process
	// is killed, and ends at once, since another one notifies. The next one answers the look-up, and the notification ends.
	ours, theirs := packets(t)
	c := setup{Files: standardFiles(), Keep: true, Dir: t.TempDir()}
	m, err := tryMount(t, c, nil, theirs)
	if err != nil {
		t.Fatal(err)
	}
	k := kept(t, ours)
	if !k.Resends() {
		t.Skip("the kernel does not ask again (6.9 or later does)")
	}
	_ = m.read("list", m.path("dir")) // so that the kernel knows it
	mine, its := packets(t)
	told := make(chan struct{})
	go func() {
		Tell(k.Conn, its)
		close(told)
	}()
	if err := m.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	looks := m.start("stat", m.path("dir/nothing"))
	if err := looks.Start(); err != nil {
		t.Fatal(err)
	}
	waitIn(t, strconv.Itoa(looks.Process.Pid), "request_wait_answer") // with the directory's lock
	x := &teller{find: func() (*os.File, error) { return mine, nil }}
	answered := make(chan gofuse.Status, 1)
	go func() { answered <- x.EntryNotify(6, "nothing") }() // dir
	waitIn(t, "self", "fuse_reverse_inval_entry")
	m.kill() // returns once it has ended
	select {
	case <-answered:
		t.Error("the notification did not wait")
	default:
	}
	c.Kept = k
	if _, err := tryMount(t, c, nil, theirs, k.Conn, k.Table); err != nil {
		t.Fatal(err)
	}
	if s := <-answered; s != gofuse.OK {
		t.Error(s)
	}
	if err := looks.Wait(); err == nil {
		t.Error("a name that is not there was found")
	}
	x.close()
	<-told
}

func TestANotificationFindsAnotherProcess(t *testing.T) {
	// Another one is looked for where there is none, or it has gone. While nobody is found, this process notifies the kernel.
	k := &fakeKernel{}
	x := &teller{kernel: k}
	asked := 0
	x.find = func() (*os.File, error) {
		mine, its := packets(t)
		switch asked++; asked {
		case 1, 5: // it answers one notification, and goes
			go func() {
				_, _ = readPacket(int(its.Fd()), make([]byte, 100))
				_, _ = its.Write([]byte{1})
				_ = its.Close()
			}()
		case 2, 4: // it goes
			_ = its.Close()
		case 3:
			return nil, errors.New("there is none")
		}
		return mine, nil
	}
	for i, want := range []int{1, 2, 3, 5} { // told; gone, and so is another one; none; gone, and another one
		if s := x.EntryNotify(1, "name"); s != gofuse.OK || asked != want {
			t.Errorf("notification %d: %v, asked for another process %d times, not %d", i, s, asked, want)
		}
	}
	if told := k.all(); len(told) != 2 {
		t.Errorf("this process told %q", told)
	}
	x.close()
}

// waitIn waits until a thread of a process waits in a function of the kernel.
func waitIn(t *testing.T, process, function string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		all, _ := filepath.Glob("/proc/" + process + "/task/*/stack") // the pattern is right
		for _, name := range all {
			if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), function) {
				return
			}
		}
	}
	t.Fatalf("nobody waits in %s", function)
}

func TestRequestsAreReadIntoMemoryThatIsThere(t *testing.T) {
	// Each buffer that go-fuse takes from its pool, the first one, too, has all its pages.
	s := &Server{}
	s.files = newFileSystem(&s.o)
	end, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	init := make([]byte, 104)
	for at, v := range map[int]uint32{0: 104, 4: 26, 8: 2, inHeader: 7, inHeader + 4: 45} { // length, INIT, unique, 7.45
		binary.NativeEndian.PutUint32(init[at:], v)
	}
	raw, err := s.speak(end, init, masks{}, func([]byte) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Serve() // which reads nothing, and closes
	pool := (*sync.Pool)(unsafe.Pointer(reflect.ValueOf(raw).Elem().FieldByName("readPool").UnsafeAddr()))
	for i := range 4 {
		b := pool.Get().([]byte)
		page := os.Getpagesize()
		b = b[page-int(uintptr(unsafe.Pointer(&b[0]))%uintptr(page)):]
		b = b[:len(b)/page*page]
		if n := resident(t, slices.Collect(slices.Chunk(b, page))); n != len(b)/page {
			t.Errorf("buffer %d: %d of %d pages are there", i, n, len(b)/page)
		}
	}
}

func TestWhatTheKernelMayHold(t *testing.T) {
	// Of another process's time each id may be held until the kernel forgets it. What this process told counts besides,
	// and no id that the kernel may hold is given up.
	for _, c := range []struct {
		story string
		do    func(h *holds, id uint64)
		has   bool
	}{
		{"nothing happened", func(*holds, uint64) {}, true},
		{"forgotten", func(h *holds, id uint64) { h.drop(id, 3) }, false},
		{"told, and forgotten with what was before", func(h *holds, id uint64) { h.add(id); h.drop(id, 3) }, true},
		{"the same, and once more", func(h *holds, id uint64) { h.add(id); h.drop(id, 3); h.drop(id, 1) }, false},
		{"told, and perhaps that alone forgotten", func(h *holds, id uint64) { h.add(id); h.drop(id, 1) }, true},
		{"and then the rest", func(h *holds, id uint64) { h.add(id); h.drop(id, 1); h.drop(id, 1) }, false},
		{"forgotten, then told", func(h *holds, id uint64) { h.drop(id, 1); h.add(id) }, true},
		{"forgotten, told, forgotten", func(h *holds, id uint64) { h.drop(id, 1); h.add(id); h.drop(id, 1) }, false},
	} {
		for _, id := range []uint64{2, 65_535, 65_536, 200_000} {
			h := newHolds()
			h.inherit(200_000, time.Time{})
			if c.do(h, id); h.has(id) != c.has {
				t.Errorf("%s: %d is held: %v", c.story, id, !c.has)
			}
		}
	}
	h := newHolds()
	h.inherit(200_000, time.Time{})
	h.add(200_001)
	if h.drop(200_001, 1); h.has(200_001) || h.has(300_000) {
		t.Error("an id of this process's time is held")
	}
}

func TestAForgetThatWasQueuedBeforeATakeOver(t *testing.T) {
	// The kernel looks a name up that is another file's by now, gives that answer's reference up, looks the name up again, and the file is
	// opened. The process is killed before it has read of the first. The next one reads it: the file stays open, to be written and read.
	// A FORGET of more than one reference is of all, and so is one of one reference that comes later.
	w := newWriter(t)
	node, handle := w.opened("a", "hello", syscall.O_RDWR)
	w = w.next()
	w.holds.sure = time.Now().Add(queuedForgets)
	w.Forget(node, 1)
	w.is("rows", w.held(node), 1)
	w.is("write", w.put(node, 0, "J"), ok)
	w.is("close", w.flush(node), ok)
	w.release(node, handle)
	w.is("rows", w.held(node), 0)
	w.is("the bucket has", w.bucket.has("a"), "Jello")
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			n    uint64
			wait time.Duration
			held bool
		}{{1, 0, true}, {2, 0, false}, {1, queuedForgets, false}} {
			h := newHolds()
			h.inherit(9, time.Now().Add(queuedForgets))
			time.Sleep(c.wait)
			if h.drop(7, c.n); h.has(7) != c.held {
				t.Errorf("%d references after %v: %v", c.n, c.wait, !c.held)
			}
		}
	})
}
