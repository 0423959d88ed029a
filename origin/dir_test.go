package origin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// soon fails the test if what is asked of a directory hangs, as the open of a pipe does.
func soon(t *testing.T, what string, ask func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); ask() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}

// opened counts the opens of paths from now on, by whoever.
func opened(t *testing.T, paths ...string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) }) // it was only read
	for _, path := range paths {
		if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	return func() int {
		buf := make([]byte, 1<<16)
		n, err := unix.Read(fd, buf)
		if err != nil && err != unix.EAGAIN {
			t.Fatal(err)
		}
		return max(n, 0) / unix.SizeofInotifyEvent // these events have no name
	}
}

// oddities puts a pipe, a socket, a device and links to them into a directory, and links that lead nowhere.
func oddities(t *testing.T, dir string) (names, paths []string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hearthtest.Close(t, l) })
	if err := errors.Join(unix.Mkfifo(at("pipe"), 0o600), os.Symlink("pipe", at("to-pipe")), os.Symlink("socket", at("to-socket")),
		os.Symlink("nothing", at("dangling")), os.Symlink("loop", at("loop")), os.Symlink("/etc/passwd", at("out")), os.Symlink("/etc", at("far"))); err != nil {
		t.Fatal(err)
	}
	names, paths = []string{"pipe", "socket", "to-pipe", "to-socket", "dangling", "loop", "out", "far"}, []string{at("pipe"), at("socket")}
	if err := unix.Mknod(at("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err == nil { // only root may
		names, paths = append(names, "device"), append(paths, at("device"))
	}
	return names, paths
}

func TestWhatIsNoFileIsNotThere(t *testing.T) {
	// A look-up of a pipe, a socket, a device or a link that leads nowhere asks two questions. Neither hangs, fails or opens it.
	dir := t.TempDir()
	names, paths := oddities(t, dir)
	o := open(t, Config{URL: "file://" + dir})
	count := opened(t, paths...)
	for _, name := range names {
		for _, key := range []string{name, name + "/below"} {
			soon(t, key, func() {
				if _, err := o.Head(t.Context(), key); !errors.Is(err, fs.ErrNotExist) || Away(err) {
					t.Errorf("head %s: %v", key, err)
				}
				if got, hidden := listing(t, o, hearth.Listing{Prefix: key + "/", Limit: 1, Recursive: true}); len(got)+len(hidden) > 0 {
					t.Errorf("list %s/: %q, hidden %q", key, got, hidden)
				}
				x := hearth.Object{Key: key, ETag: "any", Size: 1}
				if _, err := o.Read(t.Context(), &x, 0, 1); !errors.Is(err, hearth.ErrStale) {
					t.Errorf("read %s: %v", key, err)
				}
			})
		}
	}
	if n := count(); n > 0 || o.Stats().Errors > 0 {
		t.Errorf("%d opens of what is no file, %d errors", n, o.Stats().Errors)
	}
	for _, name := range []string{"pipe", "socket", "dangling"} {
		soon(t, name, func() {
			if o, err := Open(t.Context(), Config{URL: "file://" + filepath.Join(dir, name)}); err == nil {
				t.Errorf("%s is an origin: %v", name, o)
			}
		})
	}
}

func TestAFileThatBecomesAPipeAndBack(t *testing.T) {
	// Somebody puts a pipe, a directory and the file in each other's place as fast as he can: a read gives the file's bytes, or
	// says that it is gone; a listing has the file, what is in the directory, or neither. None hangs.
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	o := open(t, Config{URL: "file://" + dir, Link: "/l"})
	if err := errors.Join(os.WriteFile(at("k"), content("k", 5000, 1), 0o600), unix.Mkfifo(at("pipe"), 0o600),
		os.Mkdir(at("d"), 0o700), os.WriteFile(at("d/in"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	x, err := o.Head(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	swapped := make(chan error, 1)
	go func() {
		var err error
		for i := 0; ctx.Err() == nil && err == nil; i++ {
			other := []string{"pipe", "d"}[i/2%2]
			err = unix.Renameat2(unix.AT_FDCWD, at("k"), unix.AT_FDCWD, at(other), unix.RENAME_EXCHANGE)
		}
		swapped <- err
	}()
	defer func() {
		cancel()
		if err := <-swapped; err != nil {
			t.Error(err)
		}
	}()
	gone, read := 0, 0
	soon(t, "a read or a listing", func() {
		for i := 0; i < 3000; i++ {
			// A rename sets ctime, so each look finds another version.
			if x, err = o.Head(t.Context(), "k"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("head: %v", err)
			} else if err == nil {
				switch err := readCheck(t.Context(), o, &x, 0, 5000, 1); {
				case err == nil:
					read++
				case errors.Is(err, hearth.ErrStale):
					gone++
				default:
					t.Errorf("read: %v", err)
				}
			}
			if got, _ := listing(t, o, hearth.Listing{Prefix: "k/", Limit: 1, Recursive: true}); len(got) > 1 || len(got) == 1 && got[0] != "k/in" {
				t.Errorf("list: %q", got)
			}
		}
	})
	t.Logf("%d reads, %d were told that it is gone", read, gone)
}

func TestAFileThatSomebodyHasLeased(t *testing.T) {
	// An open breaks a lease, as file servers hold them. The read waits until the lease is given back, or its context's end.
	dir := t.TempDir()
	path := filepath.Join(dir, "k")
	if err := os.WriteFile(path, content("k", 5000, 1), 0o600); err != nil {
		t.Fatal(err)
	}
	o := open(t, Config{URL: "file://" + dir})
	x, err := o.Head(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer hearthtest.Close(t, f)
	lease := func(kind int) {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind); err != nil {
			t.Fatalf("lease: %v", err)
		}
	}
	lease(unix.F_WRLCK)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	soon(t, "a read of a leased file", func() {
		if body, err := o.Read(ctx, &x, 0, 1); !errors.Is(err, context.Canceled) || errors.Is(err, hearth.ErrStale) {
			t.Errorf("cancelled: %v, %v", body, err)
		}
	})
	read := make(chan error, 1)
	go func() { read <- readCheck(t.Context(), o, &x, 0, 5000, 1) }()
	lease(unix.F_UNLCK)
	if err := <-read; err != nil {
		t.Error(err)
	}
}

func TestWhatMayNotBeRead(t *testing.T) {
	// Without the right to it a file is there and its read is denied, a directory's listing is denied, and those beside them are read.
	if os.Getuid() != 0 {
		t.Skip("only root can take a user's rights for a thread")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755), os.WriteFile(at("mine"), []byte("x"), 0o600),
		os.WriteFile(at("open"), content("open", 5000, 1), 0o644), os.Mkdir(at("closed"), 0o700), os.WriteFile(at("closed/k"), []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	o := open(t, Config{URL: "file://" + dir})
	soon(t, "a directory of another user", func() {
		runtime.LockOSThread() // it ends with the thread, whose rights come back to nobody
		if err := unix.Setfsuid(65534); err != nil {
			t.Error(err)
			return
		}
		if got, _ := listing(t, o, hearth.Listing{}); strings.Join(got, " ") != "closed/ mine open" {
			t.Errorf("listed %q", got)
		}
		x, err := o.Head(t.Context(), "mine")
		if err != nil {
			t.Errorf("head: %v", err)
		}
		if _, err := o.Read(t.Context(), &x, 0, 1); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read: %v", err)
		}
		err = o.List(t.Context(), hearth.Listing{Prefix: "closed/"}, func(hearth.Object) error { return nil })
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("list: %v", err)
		}
		if x, err = o.Head(t.Context(), "open"); err != nil {
			t.Errorf("head: %v", err)
		}
		if err := readCheck(t.Context(), o, &x, 0, 5000, 1); err != nil {
			t.Error(err)
		}
	})
}
