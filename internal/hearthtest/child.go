package hearthtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spawn starts a command that dies with this process, however this process ends.
//
// The kernel sends a child its Pdeathsig when the thread that forked it ends. A thread of Go ends
// with a goroutine that is locked to it, whatever ran on it before. So the thread that forks
// belongs to one goroutine until the child has ended.
func Spawn(c *exec.Cmd) error {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // it may be the parent of other children, too, which were started without Spawn
		err := c.Start()
		started <- err
		for again := err == nil; again; {
			// The child is not reaped here: Wait tells the caller how it ended.
			err = unix.Waitid(unix.P_PID, c.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
			again = errors.Is(err, unix.EINTR)
		}
	}()
	return <-started
}

// Output runs a command that dies with this process, however this process ends. It returns what the
// command printed, to standard error too.
func Output(c *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := Spawn(c); err != nil {
		return nil, err
	}
	err := c.Wait()
	return out.Bytes(), err
}

// StartChild is Spawn for a command that is waited for. exited is closed when the command has
// ended. output returns the end of what it printed.
func StartChild(c *exec.Cmd) (exited <-chan struct{}, output func() string, err error) {
	var out tail
	if c.Stdout == nil {
		c.Stdout = &out
	}
	if c.Stderr == nil {
		c.Stderr = &out
	}
	if err := Spawn(c); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Wait() // only its end matters
	}()
	return done, out.String, nil
}

// tail keeps the last 16 KiB written to it.
type tail struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - 16<<10; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// Stopped reports whether all of a process's threads have stopped after SIGSTOP. A request right
// after the signal is sometimes still answered.
func Stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(name string) bool {
		stat, err := os.ReadFile(name)
		// A thread in state D waits in the kernel, and stops before it comes back from there.
		return err == nil && (bytes.Contains(stat, []byte(") R ")) || bytes.Contains(stat, []byte(") S ")))
	})
}
