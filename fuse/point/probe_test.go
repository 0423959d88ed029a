package point

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The process that serves the fake mount is another one: it is killed.
const roleEnv = "HEARTH_PROBE_DIR"

// fakeServer mounts at dir, asks its own mount, and says so once the request is in
// its hands, which it never answers. (Formats: linux/fuse.h.)
func fakeServer(dir string) error {
	const header, statfs = 40, 17
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Mount("fake", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		return err
	}
	request := make([]byte, 1<<20)
	if n, err := unix.Read(fd, request); err != nil || n < header+16 {
		return fmt.Errorf("%d bytes of INIT: %w", n, err)
	}
	const initOut = 64
	reply := binary.NativeEndian.AppendUint32(nil, 16+initOut)
	reply = append(reply, 0, 0, 0, 0)
	reply = append(reply, request[8:16]...) // the request's number
	reply = append(reply, make([]byte, initOut)...)
	copy(reply[16:], request[header:header+8]) // the kernel's own version
	binary.NativeEndian.PutUint32(reply[16+20:], 4096)
	if _, err := unix.Write(fd, reply); err != nil {
		return err
	}
	go func() { _ = Answers(context.Background(), dir) }()
	for {
		if _, err := unix.Read(fd, request); err != nil {
			return err
		}
		if binary.NativeEndian.Uint32(request[4:]) == statfs {
			fmt.Println("asked")
			_, _ = io.Copy(io.Discard, os.Stdin) // until the test has ended
			return nil
		}
	}
}

func TestAKilledProcessDoesNotWaitForItself(t *testing.T) {
	// A process that is killed while it asks its own mount is gone at once, and
	// the mount says that it is dead.
	if os.Geteuid() != 0 {
		t.Skip("mounting in a namespace of our own needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
	runtime.LockOSThread() // the child ends with the thread that started it
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	defer func() { _ = in.Close() }()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewScanner(out)
	if !said.Scan() || said.Text() != "asked" {
		t.Errorf("the server says %q", said.Text())
	}
	_ = cmd.Process.Kill()
	stuck := time.AfterFunc(10*time.Second, func() {
		t.Error("the killed process waits for itself")
		abortAll(t, cmd.Process.Pid)
	})
	_ = cmd.Wait()
	stuck.Stop()
}

// abortAll ends the connections of a process that is stuck, by its mount table.
func abortAll(t *testing.T, pid int) {
	dir := t.TempDir()
	if err := unix.Mount("fusectl", dir, "fusectl", 0, ""); err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/mountinfo", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); strings.Contains(line, " - fuse fake ") {
				_, minor, _ := strings.Cut(f[2], ":")
				_ = os.WriteFile(filepath.Join(dir, minor, "abort"), []byte("1"), 0)
			}
		}
	}
}

func TestTheProcessKeepsItsDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if err := Answers(t.Context(), dir); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if _, err := w.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := r.Read(make([]byte, 8)); n != 1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Error(err)
	}
}

func TestErrorsNameTheMount(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if err := Answers(t.Context(), none); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), none) {
		t.Errorf("a directory that is not there: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 { // whichever is first
		if err := Answers(ended, "/"); err != nil && (!errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "does not answer")) {
			t.Errorf("in vain: %v", err)
		}
	}
}
