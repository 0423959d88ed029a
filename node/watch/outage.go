package watch

import (
	"context"
	"errors"
	"io/fs"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/origin"
)

// Explained puts what an origin said into one line with the cure; other errors
// stay what they are.
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

// FailureOfNames is an error of a question; nil: none.
func FailureOfNames(err error) *Failure {
	if err == nil {
		return nil
	}
	return &Failure{Says: Explained(err).Error()}
}

// FailureOf is what a fetch failed with. An answer about the key, and not about who asks, is a
// denial. One that is odd is believed to be of this key alone, since the origin was found well
// when it was first asked; that it is archived is sure.
func FailureOf(b hearth.Block, err error) *Failure {
	f := &Failure{Says: Explained(err).Error(), Block: b, Denied: origin.OfOne(err)}
	f.Archived = errors.Is(err, hearth.ErrArchived)
	f.OneKey = f.Archived || origin.Odd(err)
	return f
}
