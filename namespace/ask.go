package namespace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"unicode/utf8"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/namespace/record"
)

// askHead asks for the file, with a HEAD.
func (q *inquiry) askHead(ctx context.Context) (a answer) {
	a.file = true
	defer q.recovered(&a.err)
	key := q.d.prefix() + q.segment
	if key == "" {
		return a
	}
	q.t.stats.heads.Add(1)
	o, err := q.d.link.Origin.Head(ctx, key)
	a.object, a.found = o, err == nil
	return q.told(ctx, a, question{of: key}, err)
}

// askList asks for the directory, with a LIST of one key.
func (q *inquiry) askList(ctx context.Context) (a answer) {
	defer q.recovered(&a.err)
	prefix := q.d.prefix() + q.segment + "/"
	q.t.stats.probes.Add(1)
	err := q.d.link.Origin.List(ctx, hearth.Listing{Prefix: prefix, Limit: 1, Recursive: true}, func(hearth.Object) error {
		a.found = true
		return nil
	})
	return q.told(ctx, a, question{prefix, true}, err) // a bucket that exists always answers with a page
}

// told completes an answer with the result of its question. fs.ErrInvalid, that the origin cannot have
// such a key, is an answer. MinIO refuses keys with two slashes in a row, for which S3A and consoles
// ask beside a directory's marker.
//
// After fs.ErrPermission it asks the directory's listing, which tells whoever may list it whether the
// name is there. S3 denies each key that it does not have to clients without s3:ListBucket for all of a
// bucket.
func (q *inquiry) told(ctx context.Context, a answer, asked question, err error) answer {
	switch {
	case err == nil:
		q.t.answered(q.d.link, asked)
		return a
	case errors.Is(err, fs.ErrInvalid):
		q.t.well(q.d.link)
		return a
	case errors.Is(err, fs.ErrNotExist) && a.file:
		return a // not noted as an answer: a HEAD does not tell whether the bucket is gone, a LIST does
	case errors.Is(err, fs.ErrPermission) && q.listedAlone(ctx, &a):
		return a
	}
	a.err = fmt.Errorf("look up %s: %w", asked.of, err)
	return a
}

// listedAlone asks the directory's listing for one name, and reports whether it answered.
func (q *inquiry) listedAlone(ctx context.Context, a *answer) bool {
	prefix, sort := q.d.prefix(), q.segment
	if !a.file {
		sort += "/"
	}
	after, ok := before(prefix + sort)
	if !ok {
		return false
	}
	q.t.stats.probes.Add(1)
	err := q.d.link.Origin.List(ctx, hearth.Listing{Prefix: prefix, After: after, Limit: 1}, func(o hearth.Object) error {
		if a.found = o.Key == prefix+sort && o.IsPrefix() == record.IsDir(sort); a.found {
			a.object = o
		}
		return nil
	})
	if err != nil {
		return false
	}
	q.t.answered(q.d.link, question{prefix, true})
	return true
}

// before is the key after which a listing must start so that key comes first. No bucket has a key that
// sorts between the two.
func before(key string) (after string, ok bool) {
	last, n := utf8.DecodeLastRuneInString(key)
	switch {
	case last == utf8.RuneError, last == 0:
		return "", false
	case last == 0xe000:
		last = 0xd800 // surrogates are no runes
	}
	return key[:len(key)-n] + string(last-1) + string(utf8.MaxRune), true
}

// recovered turns a panic of an origin into an error for all who wait.
func (q *inquiry) recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("look up %s: panic: %v", q.d.prefix()+q.segment, r)
	}
}
