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

// This file asks a mount whether it answers.
//
// The mount may be one that this very process serves. Then the thread that asks must not
// hold the connection, /dev/fuse, open: a process that is killed while its own request is
// in its hands would wait for itself. The kernel ends a request once the last descriptor
// of its connection is closed, and a thread that waits for one, which no signal ends,
// closes nothing: the mount stays, and the process, its memory and its locks with it, until somebody
// writes to /sys/fs/fuse/connections/N/abort. So the thread asks with a table of
// descriptors of its own, which has none of them.

// Answers returns nil once what is mounted at dir has answered, and else an error that
// names dir: of the answer, such as ENOTCONN where its process has died, or
// of ctx. Asking for its figures opens nothing and reads nothing. Nothing waits for a
// thread that gets no answer.
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

// alone runs ask on a thread that has no descriptor in common with any other, and
// that ends with it. Where the kernel grants no table of its own - seccomp may forbid it
// - it asks all the same.
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

// closeAll closes what this thread has open, but for what Go's scheduler wakes
// others with.
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
