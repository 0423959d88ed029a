package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hearthfs/hearth/node"
)

// The exit codes of every command.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitPartly      = 3
	exitNotFound    = 4
	exitUnreachable = 5
	exitUnhealthy   = 6
	exitTimeout     = 7
	exitRefused     = 8
	exitInterrupted = 130
)

// exitError ends the command with a code. Without an error nothing is printed:
// what there was to say has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// errInterrupted is the cause of a context that Ctrl-C or SIGTERM ended.
var errInterrupted = errors.New("interrupted")

// exitCode is the one place that turns an error into an exit code.
func exitCode(err error) int {
	var exit *exitError
	var answer *node.Error
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &answer):
		return kindCode(answer.Kind)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return exitTimeout
	case errors.Is(err, fs.ErrNotExist):
		return exitNotFound
	}
	return exitFailed
}

func kindCode(k node.Kind) int {
	switch k {
	case node.KindUsage:
		return exitUsage
	case node.KindNotFound, node.KindNoLink:
		return exitNotFound
	case node.KindRefused:
		return exitRefused
	case node.KindTimeout:
		return exitTimeout
	case node.KindUnreachable:
		return exitUnreachable
	}
	return exitFailed
}
