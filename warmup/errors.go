package warmup

import (
	"io/fs"
)

// Refusal is what is not done, with the cure; it is fs.ErrPermission.
type Refusal string

// Error is the text.
func (r Refusal) Error() string { return string(r) }

// Unwrap makes it fs.ErrPermission.
func (Refusal) Unwrap() error { return fs.ErrPermission }

// Unknown is what there is not; it is fs.ErrNotExist.
type Unknown string

// Error is the text.
func (u Unknown) Error() string { return string(u) }

// Unwrap makes it fs.ErrNotExist.
func (Unknown) Unwrap() error { return fs.ErrNotExist }
