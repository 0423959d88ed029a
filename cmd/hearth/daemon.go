package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
)

// This file runs a command in the background, detached from its terminal.

// quietly is the ReadyVariable of a daemon's node: its keeper tells the parent.
const quietly = "-1"

// isDaemon reports whether startDaemon started this process, or the keeper of a daemon.
func isDaemon() bool { return os.Getenv(settings.ReadyVariable) != "" }

// startDaemon starts this command again as a child, and returns once the child says that the mount
// answers. Until then both share their output, so errors are printed where the user typed the
// command. The child's exit code is ours. They share their process group, too: while an automount
// point waits for the mount, the kernel lets only that group through.
func startDaemon() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this binary: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = r.Close() }() // it was only read
	child := exec.Command(self, os.Args[1:]...)
	child.Args[0] = os.Args[0] // mount.hearth stays mount.hearth
	child.Env = append(os.Environ(), settings.ReadyVariable+"=3")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{w}
	err = child.Start()
	_ = w.Close() // the daemon has it now
	if err != nil {
		return fmt.Errorf("start the daemon: %w", err)
	}
	if word, err := io.ReadAll(r); err == nil && len(word) > 0 {
		return child.Process.Release()
	}
	var exit *exec.ExitError
	switch err := child.Wait(); {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return &cli.ExitError{Code: exit.ExitCode()} // it has said why
	case err != nil:
		return fmt.Errorf("the daemon ended before the mount answered: %w", err)
	}
	return nil
}

// detach leaves the terminal, begins a session of its own (setsid) and tells the parent that the
// mount answers. In a process that is no daemon it does nothing.
func detach() error {
	fd, err := strconv.Atoi(os.Getenv(settings.ReadyVariable))
	if err != nil {
		return nil
	}
	if fd >= 0 {
		_ = os.Unsetenv(settings.ReadyVariable) // it cannot fail for this name
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	defer func() { _ = null.Close() }() // its copies stay open
	if fd >= 0 {                        // a keeper's node works where its keeper was started, as the next one does
		if err := os.Chdir("/"); err != nil {
			return fmt.Errorf("detach: %w", err)
		}
	}
	for std := range 3 {
		if err := unix.Dup2(int(null.Fd()), std); err != nil {
			return fmt.Errorf("detach: %w", err)
		}
	}
	if unix.Getpgrp() != os.Getpid() { // else it leads a group, or a session, already: its keeper has started it so
		if _, err := unix.Setsid(); err != nil {
			return fmt.Errorf("detach: %w", err)
		}
	}
	if fd < 0 {
		return nil
	}
	word := os.NewFile(uintptr(fd), "ready")
	defer func() { _ = word.Close() }() // the word is in the pipe
	if _, err := word.WriteString("ready"); err != nil {
		return fmt.Errorf("tell the parent: %w", err)
	}
	return nil
}
