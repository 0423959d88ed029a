package admin

import (
	"context"
	"errors"
	"io/fs"
	"os"
)

// This file has the errors with which a node refuses a request: a kind that the caller can act on, and a line
// for people.

// Error is the admin API's answer when it does not do what was asked. It has a kind, which a command turns
// into its exit code, and one line for people.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"error"`
	// Cause is the error that the line was made of. It is nil if the Error came from another process.
	Cause error `json:"-"`
}

// Error returns the line for people.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the Cause.
func (e *Error) Unwrap() error { return e.Cause }

// Kind is the class of an Error; its text is part of the API.
type Kind string

// The kinds of errors.
const (
	KindFailed      Kind = "failed"
	KindUsage       Kind = "usage"
	KindNotFound    Kind = "not_found"
	KindNoLink      Kind = "no_link" // the node has no link to this origin
	KindRefused     Kind = "refused"
	KindTimeout     Kind = "timeout"
	KindUnreachable Kind = "unreachable"
)

// KindOf sorts any error of ours into a Kind.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, fs.ErrNotExist):
		return KindNotFound
	case errors.Is(err, fs.ErrPermission):
		return KindRefused
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return KindTimeout
	}
	return KindFailed
}
