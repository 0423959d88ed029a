package watch

import (
	"context"
	"errors"
	"io/fs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/origin"
)

// Explained turns an origin's error into one line with the cure. Other errors are returned as they are.
func Explained(err error) error {
	var asked *origin.Error
	if err == nil || !errors.As(err, &asked) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	kind := admin.KindFailed
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		kind = admin.KindTimeout
	case asked.Code == "InvalidBucketName":
		kind = admin.KindUsage
	}
	return &admin.Error{Kind: kind, Message: origin.Explain(err), Cause: err}
}

// FailureOfNames returns the failure of a question for names. It is nil if there was no error.
func FailureOfNames(err error) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Says: Explained(err).Error()}
}

// FailureOf returns the failure of a fetch. An answer about the key, and not about the caller, is a denial. An
// odd answer is believed to concern this key alone, since the origin was well when it was probed. That an
// object is archived is certain.
func FailureOf(b hearth.Block, err error) *Failure {
	f := &Failure{Says: Explained(err).Error(), Block: b, Denied: origin.OfOne(err)}
	f.Archived = errors.Is(err, hearth.ErrArchived)
	f.OneKey = f.Archived || origin.Odd(err)
	return f
}
