package point

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Asking a mount whether it answers must not block this process for good.
//
// This very process may serve the mount. Then the thread that asks must not hold the connection,
// /dev/fuse, open: a process killed with its own request in hand would wait for itself. The kernel
// ends a request once the last descriptor of its connection is closed. A thread that waits for a
// request, which no signal ends, closes nothing. So the mount would stay, and the process with its
// memory and its locks, until somebody writes to /sys/fs/fuse/connections/N/abort. Therefore the
// thread asks with a descriptor table of its own, which has no descriptor of the connection.

// Answers returns nil once the mount at dir has answered. Otherwise it returns an error that names
// dir: the mount's own, such as ENOTCONN where its process has died, or that of ctx. It asks by
// statfs, which opens and reads nothing. Nothing waits for a thread that gets no answer.
func Answers(ctx context.Context, dir string) error {
	answer := make(chan error, 1)
	go func() { answer <- alone(func() error { var s unix.Statfs_t; return unix.Statfs(dir, &s) }) }()
	select {
	case err := <-answer:
		if err != nil {
			return fmt.Errorf("the mount at %s: %w", dir, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the mount at %s does not answer: %w", dir, ctx.Err())
	}
}

// alone runs ask on a thread that shares no descriptor with any other, and that ends with it. Where
// the kernel grants no descriptor table of its own (seccomp may forbid it), it asks all the same.
func alone(ask func() error) error {
	answer := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never undone: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			// /proc/self shows this thread's descriptors as the process's.
			answer <- alone(ask)
			runtime.UnlockOSThread()
			return
		}
		if unix.Unshare(unix.CLONE_FILES) == nil {
			closeAll()
		}
		answer <- ask()
	}()
	return <-answer
}

// closeAll closes this thread's descriptors, except those by which Go's scheduler wakes threads.
func closeAll() {
	const dir = "/proc/thread-self/fd"
	names, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if err != nil {
			continue
		}
		if to, _ := os.Readlink(dir + "/" + n.Name()); !strings.HasPrefix(to, "anon_inode:") {
			_ = unix.Close(fd)
		}
	}
}
