package powercut

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification and answer are the kernel's seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// watcher records what a process does below a directory.
type watcher struct {
	root  string
	mem   *os.File
	disk  *disk // the current state
	trace Trace
}

// watch records a child's system calls until it has ended, and lets it do each.
func watch(from *os.File, pid int, root string) (*Trace, error) {
	fd, err := receive(from)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, fmt.Errorf("see the child's memory: %w", err)
	}
	defer func() { _ = mem.Close() }() // it was only read
	w := &watcher{root: root, mem: mem, disk: newDisk()}
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && err != unix.EINTR {
			return nil, fmt.Errorf("wait for the child: %w", err)
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents&unix.POLLHUP != 0 {
				return &w.trace, nil
			}
			continue
		}
		var n notification
		if err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); err != nil {
			if err == unix.ENOENT || err == unix.EINTR { // the child's thread has ended
				continue
			}
			return nil, fmt.Errorf("receive a call: %w", err)
		}
		if err := w.note(&n); err != nil {
			return nil, err
		}
		a := answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if err := ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)); err != nil && err != unix.ENOENT {
			return nil, fmt.Errorf("let a call go on: %w", err)
		}
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// receive gets the descriptor that listen sends.
func receive(from *os.File) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := unix.Recvmsg(int(from.Fd()), make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return 0, fmt.Errorf("the child did not begin to be watched: %w", errors.Join(err, io.ErrUnexpectedEOF))
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil {
			return 0, err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return 0, err
		}
		return fds[0], nil
	}
}

func (w *watcher) add(op Op) error {
	w.trace.Ops = append(w.trace.Ops, op)
	if op.Kind == Mark {
		return nil
	}
	return w.disk.apply(&op)
}

// note records what a call is about to do.
func (w *watcher) note(n *notification) error {
	a := n.args
	if runtime.GOARCH == "amd64" { // elsewhere other calls have these numbers
		switch n.nr {
		case oldOpen:
			return w.opens(w.at(n, atCWD, a[0]), a[1])
		case oldUnlink:
			return w.unlinks(n, atCWD, a[0])
		case oldRename:
			return w.renames(w.at(n, atCWD, a[0]), w.at(n, atCWD, a[1]))
		}
	}
	switch uint32(n.nr) {
	case unix.SYS_OPENAT:
		return w.opens(w.at(n, a[0], a[1]), a[2])
	case unix.SYS_MKDIRAT:
		return w.fresh(Mkdir, w.at(n, a[0], a[1]))
	case unix.SYS_UNLINKAT:
		return w.unlinks(n, a[0], a[1])
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		return w.renames(w.at(n, a[0], a[1]), w.at(n, a[2], a[3]))
	case unix.SYS_TRUNCATE:
		return w.known(Op{Kind: Truncate, N: int64(a[1])}, w.at(n, atCWD, a[0]))
	case unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE:
		return w.refuses(n)
	case unix.SYS_SYNC:
		return w.add(Op{Kind: SyncAll})
	}
	return w.onFile(n)
}

// onFile records a call whose first argument is a descriptor.
func (w *watcher) onFile(n *notification) error {
	a := n.args
	name, ours := w.below(w.descriptor(n, a[0]))
	if !ours {
		return nil
	}
	switch uint32(n.nr) {
	case unix.SYS_WRITE, unix.SYS_WRITEV:
		off, err := w.position(n, name)
		if err != nil {
			return err
		}
		return w.writes(n, name, off, uint32(n.nr) == unix.SYS_WRITEV)
	case unix.SYS_PWRITE64:
		return w.writes(n, name, int64(a[3]), false)
	case unix.SYS_PWRITEV, unix.SYS_PWRITEV2:
		return w.writes(n, name, int64(a[3]), true)
	case unix.SYS_FTRUNCATE:
		return w.known(Op{Kind: Truncate, N: int64(a[1])}, name)
	case unix.SYS_FALLOCATE:
		if a[1] != unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE {
			return fmt.Errorf("fallocate of %s in mode %d is not in the model", name, a[1])
		}
		return w.known(Op{Kind: Punch, Off: int64(a[2]), N: int64(a[3])}, name)
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		return w.known(Op{Kind: Sync}, name)
	case unix.SYS_SYNCFS:
		return w.add(Op{Kind: SyncAll})
	}
	return fmt.Errorf("system call %d of %s is not in the model", n.nr, name)
}

// known records an operation on a file that has a name. Other files do not matter to a cut.
func (w *watcher) known(op Op, name string) error {
	if op.Name = name; w.disk.now[name] == nil {
		return nil
	}
	return w.add(op)
}

// fresh records that a name is made, if it does not exist.
func (w *watcher) fresh(kind Kind, name string) error {
	if name == "" || w.disk.now[name] != nil {
		return nil
	}
	return w.add(Op{Kind: kind, Name: name})
}

func (w *watcher) opens(name string, flags uint64) error {
	there := w.disk.now[name] != nil
	switch {
	case name == "":
		return nil
	case flags&unix.O_TMPFILE == unix.O_TMPFILE:
		return fmt.Errorf("a file without a name in %s is not in the model", name)
	case !there && flags&unix.O_CREAT != 0:
		return w.fresh(Create, name)
	case there && flags&unix.O_TRUNC != 0 && flags&unix.O_EXCL == 0:
		return w.known(Op{Kind: Truncate}, name)
	}
	return nil
}

func (w *watcher) unlinks(n *notification, dir, path uint64) error {
	text := w.text(path)
	if mark, ok := strings.CutPrefix(text, markName); ok {
		return w.add(Op{Kind: Mark, Name: mark})
	}
	return w.known(Op{Kind: Remove}, w.at(n, dir, path))
}

func (w *watcher) renames(from, to string) error {
	if from == "" || to == "" {
		if from != to {
			return fmt.Errorf("a rename of %q to %q across the directory's border is not in the model", from, to)
		}
		return nil
	}
	return w.known(Op{Kind: Rename, To: to}, from)
}

// refuses returns an error for calls below the directory that the model does not cover.
func (w *watcher) refuses(n *notification) error {
	a, name := n.args, ""
	switch uint32(n.nr) {
	case unix.SYS_LINKAT:
		name = w.at(n, a[2], a[3])
	case unix.SYS_SYMLINKAT:
		name = w.at(n, a[1], a[2])
	case unix.SYS_SENDFILE:
		name, _ = w.below(w.descriptor(n, a[0]))
	default:
		name, _ = w.below(w.descriptor(n, a[2]))
	}
	if name != "" {
		return fmt.Errorf("system call %d on %s is not in the model", n.nr, name)
	}
	return nil
}

func (w *watcher) writes(n *notification, name string, off int64, vector bool) error {
	if w.disk.now[name] == nil {
		return nil
	}
	var data []byte
	if !vector {
		data = make([]byte, n.args[2])
		if err := w.read(n.args[1], data); err != nil {
			return err
		}
	} else {
		vec := make([]byte, 16*n.args[2])
		if err := w.read(n.args[1], vec); err != nil {
			return err
		}
		for ; len(vec) > 0; vec = vec[16:] {
			part := make([]byte, binary.LittleEndian.Uint64(vec[8:]))
			if err := w.read(binary.LittleEndian.Uint64(vec), part); err != nil {
				return err
			}
			data = append(data, part...)
		}
	}
	return w.add(Op{Kind: Write, Name: name, Off: off, Data: data})
}

// position is the offset of a write that names none.
func (w *watcher) position(n *notification, name string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", n.pid, int32(n.args[0])))
	if err != nil {
		return 0, err
	}
	var pos int64
	var flags uint64
	if _, err := fmt.Sscanf(string(text), "pos:\t%d\nflags:\t%o\n", &pos, &flags); err != nil {
		return 0, fmt.Errorf("read %q: %w", text, err)
	}
	if f := w.disk.now[name]; f != nil && flags&unix.O_APPEND != 0 {
		pos = f.size()
	}
	return pos, nil
}

const atCWD = uint64(1<<64 - 100) // AT_FDCWD

// at returns the path below the directory that a call names. "" means that it lies elsewhere.
func (w *watcher) at(n *notification, dir, path uint64) string {
	text := w.text(path)
	if !filepath.IsAbs(text) {
		text = filepath.Join(w.descriptor(n, dir), text)
	}
	name, _ := w.below(text)
	return name
}

func (w *watcher) below(path string) (name string, ours bool) {
	rel, err := filepath.Rel(w.root, path)
	if err != nil || !filepath.IsAbs(path) || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", false
	}
	return rel, true
}

// descriptor is the path of an open file. It ends in "(deleted)" if the file has no name.
func (w *watcher) descriptor(n *notification, fd uint64) string {
	link := "cwd"
	if int32(fd) != unix.AT_FDCWD {
		link = "fd/" + strconv.Itoa(int(int32(fd)))
	}
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/%s", n.pid, link))
	return path
}

func (w *watcher) read(at uint64, p []byte) error {
	if _, err := w.mem.ReadAt(p, int64(at)); err != nil {
		return fmt.Errorf("read %d bytes of the child's memory: %w", len(p), err)
	}
	return nil
}

// text reads a path from the child's memory.
func (w *watcher) text(at uint64) string {
	buf := make([]byte, unix.PathMax)
	n, _ := w.mem.ReadAt(buf, int64(at)) // the memory may end before
	if end := bytes.IndexByte(buf[:n], 0); end >= 0 {
		n = end
	}
	return string(buf[:n])
}
