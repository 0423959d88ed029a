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

// askHead asks for the file.
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

// askList asks for the directory.
func (q *inquiry) askList(ctx context.Context) (a answer) {
	defer q.recovered(&a.err)
	prefix := q.d.prefix() + q.segment + "/"
	q.t.stats.probes.Add(1)
	err := q.d.link.Origin.List(ctx, hearth.Listing{Prefix: prefix, Limit: 1, Recursive: true}, func(hearth.Object) error {
		a.found = true
		return nil
	})
	return q.told(ctx, a, question{prefix, true}, err) // a bucket that is there always has a page
}

// told completes an answer with what came of its question. That an origin can have no such key
// (fs.ErrInvalid) is an answer: MinIO refuses what lies behind two slashes, where S3A and consoles
// look beside a directory's marker. Of what is denied the listing of the
// directory tells whether it is there, to who may list that: without s3:ListBucket for all of a
// bucket, S3 denies each key that it does not have.
func (q *inquiry) told(ctx context.Context, a answer, asked question, err error) answer {
	switch {
	case err == nil:
		q.t.answered(q.d.link, asked)
		return a
	case errors.Is(err, fs.ErrInvalid):
		q.t.well(q.d.link)
		return a
	case errors.Is(err, fs.ErrNotExist) && a.file:
		return a // the bucket may be gone, which a HEAD does not tell, and a LIST does
	case errors.Is(err, fs.ErrPermission) && q.listedAlone(ctx, &a):
		return a
	}
	a.err = fmt.Errorf("look up %s: %w", asked.of, err)
	return a
}

// listedAlone asks the directory's listing for one name, and reports whether it told.
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

// before is what a listing begins behind to have a key first: of what sorts between the two, no
// bucket has anything.
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

// recovered makes a panic of an origin an error for all who wait.
func (q *inquiry) recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("look up %s: panic: %v", q.d.prefix()+q.segment, r)
	}
}
