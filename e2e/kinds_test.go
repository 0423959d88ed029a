package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// readersOfEveryKind read the same files by mmap, O_DIRECT, sendfile, splice,
// past the end and from 64 threads, and run a program that lies in the mount.
func readersOfEveryKind(mount ...string) func(e *env) {
	return func(e *env) {
		o := e.origin()
		small := hearthtest.File{Path: "kinds/small", Size: 100<<10 + 17}
		large := hearthtest.File{Path: "kinds/large", Size: 9<<20 + 4097}
		for _, f := range []hearthtest.File{small, large, {Path: "kinds/empty"}} {
			e.must(o.PutFile(e.ctx, o.bucket, "", f, 0), "put %s", f.Path)
		}
		program, err := os.ReadFile("/bin/true")
		e.must(err, "read a program")
		_, err = o.PutBytes(e.ctx, o.bucket, "kinds/program", program)
		e.must(err, "put a program")
		h := e.mount(o, settings{mount: append(mount, "--file-mode", "0555")})
		for _, f := range []hearthtest.File{small, large} {
			name := filepath.Join(h.dir, f.Path)
			e.must(mapped(name, f), "mmap of %s", f.Path)
			e.must(direct(name, f), "O_DIRECT of %s", f.Path)
			e.must(sent(e, name, f), "sendfile of %s", f.Path)
			e.must(spliced(name, f), "splice of %s", f.Path)
			e.must(manyThreads(name, f), "64 threads on %s", f.Path)
			e.must(pastTheEnd(name, f), "reading past the end of %s", f.Path)
		}
		if data, err := os.ReadFile(filepath.Join(h.dir, "kinds/empty")); err != nil || len(data) != 0 {
			e.Errorf("the empty file: %d bytes, %v", len(data), err)
		}
		if out, err := exec.Command(filepath.Join(h.dir, "kinds/program")).CombinedOutput(); err != nil {
			e.Errorf("run a program in the mount: %v: %s", err, out)
		}
		if err := os.WriteFile(filepath.Join(h.dir, "kinds/new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
			e.Errorf("a write: %v, expected a read-only file system", err)
		}
		e.attributes(filepath.Join(h.dir, small.Path), small)
		h.quit()
	}
}

func (e *env) attributes(name string, f hearthtest.File) {
	e.Helper()
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(name, "user.hearth.key", buf)
	if err != nil || string(buf[:max(n, 0)]) != f.Path {
		e.Errorf("user.hearth.key is %q, %v", buf[:max(n, 0)], err)
	}
	if _, err := unix.Getxattr(name, "user.nothing", buf); !errors.Is(err, unix.ENODATA) {
		e.Errorf("an attribute that is not there: %v", err)
	}
	var st unix.Stat_t
	e.must(unix.Stat(name, &st), "stat")
	if st.Nlink != 1 || st.Blocks != (f.Size+511)/512 || st.Mode&0o777 != 0o555 {
		e.Errorf("stat: %d links, %d blocks for %d bytes, mode %o", st.Nlink, st.Blocks, f.Size, st.Mode)
	}
	var sf unix.Statfs_t
	e.must(unix.Statfs(filepath.Dir(name), &sf), "statfs")
	if sf.Namelen < 255 || sf.Bsize == 0 {
		e.Errorf("statfs: %+v", sf)
	}
}

func mapped(name string, f hearthtest.File) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	data, err := syscall.Mmap(int(r.Fd()), 0, int(f.Size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return err
	}
	err = hearthtest.Check(data, f.Path, 0, 0)
	return errors.Join(err, syscall.Munmap(data))
}

func direct(name string, f hearthtest.File) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	raw := make([]byte, 256<<10+4096)
	skip := 4096 - int(uintptr(unsafe.Pointer(&raw[0]))%4096)
	buf := raw[skip : skip+256<<10]
	var off int64
	for {
		n, err := unix.Pread(fd, buf, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if err := hearthtest.Check(buf[:n], f.Path, off, 0); err != nil {
			return err
		}
		if off += int64(n); n == 0 {
			break
		}
	}
	if off != f.Size {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func sent(e *env, name string, f hearthtest.File) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	w, err := os.Create(e.path("sent"))
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	for left := int(f.Size); left > 0; {
		n, err := unix.Sendfile(int(w.Fd()), int(r.Fd()), nil, left)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		left -= n
	}
	return copyIs(e.path("sent"), f)
}

func copyIs(name string, f hearthtest.File) error {
	data, err := os.ReadFile(name)
	if err == nil && int64(len(data)) != f.Size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	return hearthtest.Check(data, f.Path, 0, 0)
}

func spliced(name string, f hearthtest.File) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	in, out := os.NewFile(uintptr(pipe[0]), "pipe"), os.NewFile(uintptr(pipe[1]), "pipe")
	defer func() { _ = in.Close() }()
	var data bytes.Buffer
	done := make(chan error, 1)
	go func() { _, err := io.Copy(&data, in); done <- err }()
	for left := f.Size; left > 0; {
		n, err := unix.Splice(int(r.Fd()), nil, int(out.Fd()), nil, int(min(left, 1<<20)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			_ = out.Close()
			return errors.Join(err, io.ErrUnexpectedEOF)
		}
		left -= n
	}
	_ = out.Close()
	if err := <-done; err != nil {
		return err
	}
	return hearthtest.Check(data.Bytes(), f.Path, 0, 0)
}

func manyThreads(name string, f hearthtest.File) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	failed := make(chan error, 64)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			buf := make([]byte, 70_001)
			for off := int64(i * 997); off < f.Size; off += 300_007 {
				n, err := r.ReadAt(buf, off)
				if err != nil && !errors.Is(err, io.EOF) {
					failed <- err
					return
				}
				if err := hearthtest.Check(buf[:n], f.Path, off, 0); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

func pastTheEnd(name string, f hearthtest.File) error {
	r, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	buf := make([]byte, 4096)
	n, err := r.ReadAt(buf, f.Size-100)
	if n != 100 || !errors.Is(err, io.EOF) {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	if n, err := r.ReadAt(buf, f.Size+1<<20); n != 0 || !errors.Is(err, io.EOF) {
		return errors.Join(err, io.ErrUnexpectedEOF)
	}
	return hearthtest.Check(buf[:100], f.Path, f.Size-100, 0)
}

// asNobody mounts as an ordinary user through fusermount3 and reads as that user.
func asNobody(e *env) {
	o := e.origin()
	list := e.load(o, e.few(2, 20)) // a process reads each
	user := e.user()
	h := e.mountAs(o, settings{user: user})
	e.readAs(user, h.dir, list)
	if _, err := os.Stat(h.dir); err == nil {
		e.Error("root may look into a user's mount without allow_other")
	}
	h.quit()
}

// user gives a user without privileges what it needs to mount here: this scenario's
// directory, the binary, and a /dev/fuse that it may open.
func (e *env) user() *syscall.Credential {
	e.Helper()
	e.must(os.Chmod(e.dir, os.ModeSticky|0o777), "let the user in")
	// Debian lets everybody open /dev/fuse; machines like this one may not. Ours
	// lies in this mount namespace only.
	device := e.path("fuse")
	e.must(unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))), "make a /dev/fuse")
	e.must(os.Chmod(device, 0o666), "let users open it")
	e.must(unix.Mount(device, "/dev/fuse", "", unix.MS_BIND, ""), "show it in its place")
	e.Cleanup(func() { _ = unix.Unmount("/dev/fuse", unix.MNT_DETACH) })
	for dir := filepath.Dir(e.hearth); strings.HasPrefix(dir, e.base); dir = filepath.Dir(dir) {
		e.must(os.Chmod(dir, 0o755), "let the user run the binary")
	}
	return &syscall.Credential{Uid: 65534, Gid: 65534}
}

// mountAs is mount for another user: what that user needs is given away first.
func (e *env) mountAs(o *server, set settings) *hearth {
	e.Helper()
	e.count++
	h := &hearth{e: e, dir: e.path("mnt-user")}
	e.must(os.MkdirAll(h.dir, 0o755), "make the mount point")
	h.config = e.writeConfig(o, set)
	for _, p := range []string{h.dir, h.config} {
		e.must(os.Chown(p, int(set.user.Uid), int(set.user.Gid)), "give %s to the user", p)
	}
	h.launch(o, set)
	return h
}

// twoMounts share one node: the second `hearth mount` attaches to it, ends alone,
// and the first goes on. Then the first ends, whose process carries the node, and the
// second goes on; the last one to end ends the node.
func twoMounts(e *env) {
	o := e.origin()
	list := e.load(o, e.set("D1", 2, 20, 4, 50))
	h := e.mount(o, settings{})
	second := e.path("mnt-second")
	e.must(os.MkdirAll(second, 0o755), "make the mount point")
	cmd := exec.Command(e.hearth, "mount", "--config", h.config, "s3://"+o.bucket, second)
	cmd.Env = e.environ(o)
	p := e.start(cmd)
	e.eventually("the second mount", func() bool { return len(mountsBelow(second)) > 0 })
	e.good("through the first mount", epoch(h.dir, list, 1, 4, 0))
	e.good("through the second mount", epoch(second, list, 2, 4, 0))
	if n := len(h.status().Mounts); n != 2 {
		e.Errorf("status shows %d mounts", n)
	}
	p.terminate(os.Interrupt)
	if len(mountsBelow(second)) > 0 {
		e.Error("Ctrl-C left the second mount")
	}
	e.good("through the first mount, alone", epoch(h.dir, list, 3, 4, 0))

	cmd = exec.Command(e.hearth, "mount", "--config", h.config, "s3://"+o.bucket, second)
	cmd.Env = e.environ(o)
	p = e.start(cmd)
	p.waitFor("Ctrl-C unmounts")
	e.must(h.Process.Signal(os.Interrupt), "Ctrl-C on the mount that carries the node")
	h.waitFor("still serving " + second + "; Ctrl-C again ends all")
	if left := mountsBelow(h.dir); len(left) > 0 {
		e.Errorf("Ctrl-C left the mount that carries the node: %v", left)
	}
	e.good("through the second mount, alone", epoch(second, list, 4, 4, 0))
	p.terminate(os.Interrupt)
	if code := h.exit(30 * time.Second); code != 0 || !strings.Contains(h.out.String(), "the last mount is gone") || len(mountsBelow(second)) > 0 {
		e.Errorf("after the last mount's end: exit %d, mounts %v:\n%s", code, mountsBelow(second), h.out)
	}
}
