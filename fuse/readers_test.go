package fuse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

type hearthObject = hearth.Object

// runReader is a process that reads a mount in one way; it prints what the test
// wants to know and fails when a byte is wrong.
func runReader(name string, args []string) int {
	out, err := readersByName()[name](args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(out)
	return 0
}

func readersByName() map[string]func(args []string) (string, error) {
	return map[string]func([]string) (string, error){
		"whole": readWhole, "past": readPast, "mmap": readMapped, "direct": readDirect, "sendfile": readSendfile,
		"splice": readSplice, "threads": readThreads, "exec": runProgram, "random": readRandom,
		"list": listNames, "stat": statFile, "xattr": getXattr, "xattrs": listXattrs, "write": tryWrites,
		"statfs": statFS, "held": readHeld, "first": readFirst, "walk": walk, "epoch": epoch, "hold": hold,
		"seek": seekNames, "listrace": listWhileChanging, "nap": nap, "napdirect": napDirect, "again": readAgain, "drop": drop,
		"hold600": hold600, "across": readAcross, "kinds": readKinds, "statlate": statLate,
	}
}

// draws is what a reader draws from. It is a process of its own, without a test that could
// name a seed, and takes the one that its environment names.
func draws(reader int) *rand.Rand {
	seed, _ := strconv.ParseUint(os.Getenv(hearthtest.SeedVariable), 10, 64)
	return rand.New(rand.NewPCG(seed, uint64(reader)))
}

// file is what a reader expects: path, key, version, size.
type file struct {
	path, key string
	version   int
	size      int64
}

func parseFile(args []string) file {
	version, _ := strconv.Atoi(args[2])
	size, _ := strconv.ParseInt(args[3], 10, 64)
	return file{args[0], args[1], version, size}
}

func (f file) check(p []byte, off int64) error { return hearthtest.Check(p, f.key, off, f.version) }

// readKinds reads one file in several ways.
func readKinds(args []string) (string, error) {
	for kind := range strings.SplitSeq(args[0], ",") {
		if _, err := readersByName()[kind](args[1:]); err != nil {
			return "", fmt.Errorf("%s: %w", kind, err)
		}
	}
	return "", nil
}

func readWhole(args []string) (string, error) {
	f := parseFile(args)
	data, err := os.ReadFile(f.path)
	if err != nil {
		return "", err
	}
	if int64(len(data)) != f.size {
		return "", fmt.Errorf("%d bytes, not %d", len(data), f.size)
	}
	return "", f.check(data, 0)
}

func readPast(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	for _, off := range []int64{max(0, f.size-100), f.size, f.size + 1, f.size + 1<<20} {
		p := make([]byte, 8192)
		n, err := h.ReadAt(p, off)
		if !errors.Is(err, io.EOF) || int64(n) != max(0, min(8192, f.size-off)) {
			return "", fmt.Errorf("pread at %d of %d: %d, %v", off, f.size, n, err)
		}
		if err := f.check(p[:n], off); err != nil {
			return "", err
		}
	}
	return "", nil
}

func readMapped(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	data, err := unix.Mmap(int(h.Fd()), 0, int(f.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Munmap(data) }()
	_ = h.Close()
	rng := draws(0)
	for i := 0; i < 20; i++ {
		off := rng.Int64N(f.size)
		if err := f.check(data[off:min(f.size, off+5000)], off); err != nil {
			return "", err
		}
	}
	if err := f.check(data, 0); err != nil {
		return "", err
	}
	return "", nil
}

func readDirect(args []string) (string, error) {
	f := parseFile(args)
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	p, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", err
	}
	for off := int64(0); off < f.size; {
		n, err := unix.Pread(fd, p, off)
		if err != nil || n == 0 {
			return "", fmt.Errorf("O_DIRECT at %d: %d, %w", off, n, err)
		}
		if err := f.check(p[:n], off); err != nil {
			return "", err
		}
		off += int64(n)
	}
	return "", nil
}

func readSendfile(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	l, err := net.Listen("unix", "")
	if err != nil {
		return "", err
	}
	defer l.Close()
	var got bytes.Buffer
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(&got, c)
		}
		done <- err
	}()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		return "", err
	}
	raw, _ := c.(*net.UnixConn).File()
	if err := unix.SetNonblock(int(raw.Fd()), false); err != nil {
		return "", err
	}
	for off := int64(0); off < f.size; {
		n, err := unix.Sendfile(int(raw.Fd()), int(h.Fd()), &off, 1<<20)
		if err != nil || n == 0 {
			return "", fmt.Errorf("sendfile at %d: %d, %w", off, n, err)
		}
	}
	if err := raw.Close(); err != nil {
		return "", err
	}
	c.Close()
	if err := <-done; err != nil {
		return "", err
	}
	if int64(got.Len()) != f.size {
		return "", fmt.Errorf("%d bytes by sendfile, not %d", got.Len(), f.size)
	}
	return "", f.check(got.Bytes(), 0)
}

func readSplice(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	for off := int64(0); off < f.size; {
		at := off
		n, err := unix.Splice(int(h.Fd()), &off, int(w.Fd()), nil, 65536, 0)
		if err != nil || n == 0 {
			return "", fmt.Errorf("splice at %d: %d, %w", at, n, err)
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(r, p); err != nil {
			return "", err
		}
		if err := f.check(p, at); err != nil {
			return "", err
		}
	}
	return "", nil
}

func readThreads(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	var group sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		group.Go(func() {
			p, rng := make([]byte, 40_000), draws(i)
			for range 5 {
				off := rng.Int64N(f.size)
				n, err := h.ReadAt(p, off)
				if err != nil && !errors.Is(err, io.EOF) {
					errs[i] = err
				} else if int64(n) != min(int64(len(p)), f.size-off) {
					errs[i] = fmt.Errorf("%d bytes at %d", n, off)
				} else if err := f.check(p[:n], off); err != nil {
					errs[i] = err
				}
			}
		})
	}
	group.Wait()
	return "", errors.Join(errs...)
}

func readRandom(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	p, rng := make([]byte, 128<<10), draws(0)
	for range 50 {
		off := rng.Int64N(f.size)
		n, err := h.ReadAt(p, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		if err := f.check(p[:n], off); err != nil {
			return "", err
		}
	}
	return "", nil
}

func runProgram(args []string) (string, error) {
	out, err := exec.Command(args[0], args[1:]...).Output()
	return strings.TrimSpace(string(out)), err
}

func listNames(args []string) (string, error) {
	entries, err := os.ReadDir(args[0])
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " "), err
}

func statFile(args []string) (string, error) {
	var s unix.Stat_t
	if err := unix.Lstat(args[0], &s); err != nil {
		return "", err
	}
	return fmt.Sprintf("mode=%o size=%d blocks=%d nlink=%d uid=%d gid=%d mtime=%d", s.Mode, s.Size, s.Blocks, s.Nlink, s.Uid, s.Gid, s.Mtim.Sec), nil
}

func getXattr(args []string) (string, error) {
	p := make([]byte, 4096)
	n, err := unix.Getxattr(args[0], args[1], p)
	if err != nil {
		return "", err
	}
	return string(p[:n]), nil
}

func listXattrs(args []string) (string, error) {
	p := make([]byte, 4096)
	n, err := unix.Listxattr(args[0], p)
	if err != nil {
		return "", err
	}
	names := strings.Split(strings.TrimRight(string(p[:n]), "\x00"), "\x00")
	sort.Strings(names)
	return strings.Join(names, " "), nil
}

// tryWrites prints the errno of each way to change something.
func tryWrites(args []string) (string, error) {
	dir, name := args[0], filepath.Join(args[0], args[1])
	errno := func(err error) string {
		var e syscall.Errno
		if errors.As(err, &e) {
			return unix.ErrnoName(e)
		}
		return fmt.Sprint(err)
	}
	_, create := os.Create(filepath.Join(dir, "new"))
	_, open := os.OpenFile(name, os.O_RDWR, 0)
	all := []error{
		create, open, os.Mkdir(filepath.Join(dir, "d"), 0o755), os.Remove(name), os.Rename(name, name+"2"),
		os.Chmod(name, 0o777), os.Truncate(name, 1), os.Symlink("x", filepath.Join(dir, "l")), os.Link(name, name+"3"),
		os.Chtimes(name, time.Now(), time.Now()), unix.Setxattr(name, "user.x", []byte("y"), 0),
	}
	set := map[string]bool{}
	for _, err := range all {
		set[errno(err)] = true
	}
	var names []string
	for n := range set {
		names = append(names, n)
	}
	return strings.Join(names, " "), nil
}

func statFS(args []string) (string, error) {
	var s unix.Statfs_t
	err := unix.Statfs(args[0], &s)
	return fmt.Sprintf("bsize=%d namelen=%d readonly=%v free=%v", s.Bsize, s.Namelen, s.Flags&unix.ST_RDONLY != 0, s.Bavail > 0), err
}

// readFirst reads the first bytes and prints how long that took, in ms.
func readFirst(args []string) (string, error) {
	began := time.Now()
	h, err := os.Open(args[0])
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	_, err = h.Read(make([]byte, 10))
	return strconv.FormatInt(time.Since(began).Milliseconds(), 10), err
}

// hold opens a file, reads it, says so, and waits for its stdin to end.
func hold(args []string) (string, error) {
	f := parseFile(args)
	h, err := os.Open(f.path)
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	check := func() error {
		data := make([]byte, f.size)
		if _, err := h.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		return f.check(data, 0)
	}
	if err := check(); err != nil {
		return "", err
	}
	fmt.Println("holding")
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return "", err
	}
	return "", check()
}

// readHeld opens a file and keeps it, then reads on each line of its stdin and
// prints the version it met, or the errno.
func readHeld(args []string) (string, error) {
	h, err := os.Open(args[0])
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	fmt.Println("open")
	line := make([]byte, 100)
	for {
		if _, err := os.Stdin.Read(line); err != nil {
			return "", nil
		}
		if err := unix.Fadvise(int(h.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return "", err
		}
		fmt.Println(versionIn(h, args[1]))
	}
}

func versionIn(h *os.File, key string) string {
	p := make([]byte, hearthtest.PageSize)
	_, err := h.ReadAt(p, 0)
	var e syscall.Errno
	if errors.As(err, &e) {
		return unix.ErrnoName(e)
	}
	if err != nil {
		return err.Error()
	}
	v, ok := hearthtest.VersionAt(p, key, 0)
	if !ok {
		return "garbage"
	}
	return "v" + strconv.Itoa(v)
}

// readAgain opens, reads a page and closes, args[2] times, printing what it met.
func readAgain(args []string) (string, error) {
	n, _ := strconv.Atoi(args[2])
	var met []string
	for range n {
		h, err := os.Open(args[0])
		if err != nil {
			return "", err
		}
		met = append(met, versionIn(h, args[1]))
		_ = h.Close()
	}
	return strings.Join(met, " "), nil
}

// drop has the kernel give up a file's pages.
func drop(args []string) (string, error) {
	h, err := os.Open(args[0])
	if err != nil {
		return "", err
	}
	defer func() { _ = h.Close() }()
	return "", unix.Fadvise(int(h.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// hold600 reads a file at 600 places at once, past the page cache, and prints
// how many reads came to be.
func hold600(args []string) (string, error) {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return "", err
	}
	p, err := unix.Mmap(-1, 0, 600*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", err
	}
	var good atomic.Int64
	var group sync.WaitGroup
	for i := range 600 {
		group.Go(func() {
			if n, err := unix.Pread(fd, p[i*4096:][:4096], int64(i)*65536); n == 4096 && err == nil {
				good.Add(1)
			}
		})
	}
	fmt.Println("reading")
	group.Wait()
	return strconv.FormatInt(good.Load(), 10), nil
}

func statLate(args []string) (string, error) {
	fmt.Println("looking")
	_, err := os.Lstat(args[0])
	return fmt.Sprint(err), nil
}

// nap reads a file and prints what the system call returned, while others send signals.
func nap(args []string) (string, error) {
	return napOpen(args[0], 0)
}

func napDirect(args []string) (string, error) { return napOpen(args[0], unix.O_DIRECT) }

func napOpen(name string, flags int) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|flags, 0)
	if err != nil {
		return "", err
	}
	p, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return "", err
	}
	fmt.Println("reading")
	n, err := unix.Pread(fd, p, 0) // which Go does not retry
	return fmt.Sprint(n, " ", err), nil
}

func walk(args []string) (string, error) {
	n := 0
	began := time.Now()
	err := filepath.WalkDir(args[0], func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if _, err := d.Info(); err != nil {
			return err
		}
		n++
		return nil
	})
	return fmt.Sprintf("%d %.2f", n, float64(time.Since(began).Microseconds())/float64(max(1, n))), err
}

// getdents reads the raw entries of one call.
func getdents(fd int, p []byte, each func(name string, off int64)) (int, error) {
	n, err := unix.Getdents(fd, p)
	for at := 0; at < n; {
		d := (*unix.Dirent)(unsafe.Pointer(&p[at]))
		raw := p[at+int(unsafe.Offsetof(d.Name)) : at+int(d.Reclen)]
		name, _, _ := bytes.Cut(raw, []byte{0})
		each(string(name), d.Off)
		at += int(d.Reclen)
	}
	return n, err
}

// seekNames seeks to offsets that it was given, in random order, and checks that
// each resumes behind its name.
func seekNames(args []string) (string, error) {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	type at struct {
		name string
		off  int64
	}
	var all []at
	p := make([]byte, 4096)
	for {
		n, err := getdents(fd, p, func(name string, off int64) { all = append(all, at{name, off}) })
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
	}
	rng := draws(0)
	for range 100 {
		i := rng.IntN(len(all) - 1)
		if _, err := unix.Seek(fd, all[i].off, 0); err != nil {
			return "", err
		}
		var next string
		if _, err := getdents(fd, p, func(name string, _ int64) {
			if next == "" {
				next = name
			}
		}); err != nil {
			return "", err
		}
		if next != all[i+1].name {
			return "", fmt.Errorf("behind %s comes %s, not %s", all[i].name, next, all[i+1].name)
		}
	}
	return strconv.Itoa(len(all)), nil
}

// listWhileChanging lists slowly, by small steps with a word to its stdout after
// each, and prints how many of the names m/NNNNN it met.
func listWhileChanging(args []string) (string, error) {
	fd, err := unix.Open(args[0], unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	met := map[string]int{}
	p := make([]byte, 16384)
	for {
		n, err := getdents(fd, p, func(name string, _ int64) { met[name]++ })
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
	}
	stable := 0
	for name, n := range met {
		if n != 1 {
			return "", fmt.Errorf("%s comes %d times", name, n)
		}
		if len(name) == 5 {
			stable++
		}
	}
	return strconv.Itoa(stable), nil
}

// epoch opens, reads and closes each file of a tree in random order with some
// threads, and prints us per file.
func epoch(args []string) (string, error) {
	threads, _ := strconv.Atoi(args[1])
	rounds, _ := strconv.Atoi(args[2])
	var files []string
	err := filepath.WalkDir(args[0], func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, p)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	var out []string
	rng := draws(0)
	for range rounds {
		rng.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
		us, err := epochOnce(files, threads)
		if err != nil {
			return "", err
		}
		out = append(out, fmt.Sprintf("%.1f", us))
		for _, name := range files {
			if slices.Contains(args[3:], "drop") {
				if _, err := drop([]string{name}); err != nil {
					return "", err
				}
			}
		}
	}
	return strings.Join(out, " "), nil
}

func epochOnce(files []string, threads int) (float64, error) {
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, threads)
	began := time.Now()
	for i := range threads {
		group.Go(func() {
			p := make([]byte, 1<<20)
			for {
				n := int(next.Add(1)) - 1
				if n >= len(files) {
					return
				}
				if err := readOne(files[n], p); err != nil {
					errs[i] = err
				}
			}
		})
	}
	group.Wait()
	return float64(time.Since(began).Microseconds()) / float64(len(files)), errors.Join(errs...)
}

func readOne(name string, p []byte) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Read(fd, p)
		if err != nil || n == 0 {
			return err
		}
	}
}
