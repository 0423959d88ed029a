package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hearthfs/hearth/node/admin"
)

// The exit codes of every command.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitPartly      = 3
	ExitNotFound    = 4
	ExitUnreachable = 5
	ExitUnhealthy   = 6
	ExitTimeout     = 7
	ExitRefused     = 8
	ExitInterrupted = 130
)

// ExitError ends the command with a code. Without an Err nothing is printed, since the reason has
// been printed already.
type ExitError struct {
	Code int
	Err  error
}

// Error is the line that people read.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns what went wrong. nil means that it has been printed.
func (e *ExitError) Unwrap() error { return e.Err }

// Lines are the lines that an error prints, one thing each. Joined errors have a line each. An
// error that only ends the command with a code has none.
func Lines(err error) (all []string) {
	var exit *ExitError
	switch joined, several := err.(interface{ Unwrap() []error }); {
	case err == nil:
	case several && err.Error() == errors.Join(joined.Unwrap()...).Error(): // nothing is wrapped around them
		for _, e := range joined.Unwrap() {
			all = append(all, Lines(e)...)
		}
	case errors.As(err, &exit) && err == error(exit):
		return Lines(exit.Err)
	default:
		all = append(all, err.Error())
	}
	return all
}

// Usagef is an error of the user who typed the command, or wrote the file that it reads.
func Usagef(format string, args ...any) error {
	return &ExitError{ExitUsage, fmt.Errorf(format, args...)}
}

// ErrInterrupted is the cause of a context that Ctrl-C or SIGTERM ended.
var ErrInterrupted = errors.New("interrupted")

// ExitCode is the one place that turns an error into an exit code.
func ExitCode(err error) int {
	var exit *ExitError
	var said *admin.Error
	switch {
	case err == nil:
		return ExitDone
	case errors.As(err, &exit):
		return exit.Code
	case errors.Is(err, ErrInterrupted):
		return ExitInterrupted
	case errors.As(err, &said):
		return kindCode(said.Kind)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return ExitTimeout
	case errors.Is(err, fs.ErrNotExist):
		return ExitNotFound
	}
	return ExitFailed
}

func kindCode(k admin.Kind) int {
	switch k {
	case admin.KindUsage:
		return ExitUsage
	case admin.KindNotFound, admin.KindNoLink:
		return ExitNotFound
	case admin.KindRefused:
		return ExitRefused
	case admin.KindTimeout:
		return ExitTimeout
	case admin.KindUnreachable:
		return ExitUnreachable
	}
	return ExitFailed
}
