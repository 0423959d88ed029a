package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cache/disk"
)

// This file is how a client reaches a node: a Unix socket that few users may open, and a pipe within the
// process. Over the socket an owner may send a descriptor with a request (SCM_RIGHTS), of a directory to which
// the node cannot walk.

// ErrAnother says that another node answers at a socket.
const ErrAnother = refusal("another node answers")

// listen opens the admin socket with mode 0660, and gives it to the group hearth if that may ask. A socket at
// which nobody answers is removed. If one answers, another node runs there. made says that listen made the
// socket's directory.
func listen(socket string) (l net.Listener, made bool, err error) {
	// A node that ends removes the directory that it made, perhaps between two steps of this loop.
	for range 1000 {
		if made, err = makeSocketDir(filepath.Dir(socket)); err == nil {
			l, err = listenIn(socket)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return l, made, err
}

func makeSocketDir(dir string) (made bool, err error) {
	mode := os.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755 // the group must reach the socket
	}
	err = os.MkdirAll(filepath.Dir(dir), mode)
	if err == nil {
		if err = os.Mkdir(dir, mode); err == nil {
			err = os.Chmod(dir, mode) // a service's umask must not keep the group out
		}
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return false, fmt.Errorf("make the admin socket's directory: %w", err)
	}
	return err == nil, nil
}

func listenIn(socket string) (net.Listener, error) {
	if err := Trusted(filepath.Dir(socket)); err != nil {
		return nil, err
	}
	// Two nodes that start at once must not remove each other's socket.
	lock, err := os.Open(filepath.Dir(socket))
	if err != nil {
		return nil, fmt.Errorf("lock the admin socket: %w", err)
	}
	defer func() { _ = lock.Close() }() // the lock goes with the descriptor
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the admin socket: %w", err)
	}
	if c, err := dial(context.Background(), socket); err == nil {
		c.Close()
		return nil, fmt.Errorf("%w at %s (choose another socket with --admin-socket)", ErrAnother, socket)
	} else if deserted(err) {
		_ = os.Remove(socket) // if it stays, Listen fails
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen on the admin socket: %w", err)
	}
	if gid, ok := groupID(); ok {
		// Without the right to do this, the socket stays its owner's alone.
		_ = os.Chown(socket, -1, gid)
	}
	if err := os.Chmod(socket, 0o660); err != nil {
		l.Close()
		return nil, fmt.Errorf("protect the admin socket: %w", err)
	}
	return l, nil
}

// Trusted refuses a directory in which another user could put a socket in the place of a node's. The name of a
// default directory below /tmp can be guessed by anybody.
func Trusted(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil // nothing is there, and the caller's next step says so
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		if err := unix.Stat(dir, &st); err != nil {
			return nil
		}
	}
	ours := st.Uid == 0 || int(st.Uid) == os.Geteuid()
	if ours && (st.Mode&0o022 == 0 || st.Mode&unix.S_ISVTX != 0 || st.Mode&0o002 == 0) {
		return nil
	}
	return refusal(dir + ", the admin socket's directory, belongs to or is writable for others: " +
		"set XDG_RUNTIME_DIR, or choose another socket with --admin-socket")
}

// dial connects to a node's socket. The error is also that of a deserted socket if the node was killed and
// cannot end, because one of its threads is stuck in the kernel. The kernel still accepts connections for such
// a node, but nobody will ever answer.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if cred := credentials(c); cred != nil && disk.ParseLockHolder(strconv.Itoa(int(cred.Pid))).Defunct() {
		c.Close()
		return nil, fmt.Errorf("dial unix %s: its process was killed: %w", socket, syscall.ECONNREFUSED)
	}
	return c, nil
}

// deserted reports whether an error of dial says that nobody listens at the socket.
func deserted(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// note leaves the Asker in a connection's context. By a pipe it is the process itself, by a Unix socket the
// user that the kernel names, and by any other way a stranger.
func note(ctx context.Context, c net.Conn) context.Context {
	switch c := c.(type) {
	case within:
		return With(ctx, self())
	case *placed:
		if c.handed != nil {
			ctx = context.WithValue(ctx, handedKey{}, c.handed)
		}
		return With(ctx, c.asker)
	}
	return With(ctx, Asker{})
}

// credentials returns the peer's credentials. nil means that the kernel does not know them.
func credentials(c net.Conn) *unix.Ucred {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}) != nil || err != nil {
		return nil
	}
	return cred
}
