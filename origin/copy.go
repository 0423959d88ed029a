package origin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth"
)

// This file copies objects at the origin; no byte of them passes here. A copy is looked at from three
// sides: before it is sent, HEADs of both keys, since servers ignore conditions of copies more often than
// those of a PUT; what it answers; and a HEAD of what it made.

// Copy is hearth.Uploader's. An object of more than 5 GiB is copied by parts. It then has a
// draft in its metadata, if it had none.
func (s *S3) Copy(ctx context.Context, u *hearth.Upload, from *hearth.Object) (o hearth.Object, err error) {
	to := *u
	to.Draft, to.Copies = "", true
	w := &write{op: "copy", key: u.Key, upload: &to, names: true, header: s.begins(&to), lost: u.Again}
	if u.Size != from.Size {
		return o, s.wrap(w.op, u.Key, fmt.Errorf("a copy of %d bytes cannot have %d: %w", from.Size, u.Size, fs.ErrInvalid))
	}
	maps.Copy(w.header, s.copies(from))
	w.header.Set("X-Amz-Metadata-Directive", "COPY")
	if err := s.condition(ctx, w); err != nil {
		return o, err
	}
	w.again = true // the same copy twice does no harm
	var source http.Header
	w.asks = func(ctx context.Context) (hearth.Object, error) { return s.copied(ctx, &to, from, source) }
	expected := w.check
	w.check = func(ctx context.Context) (err error) {
		if w.lost && source == nil {
			if source, err = s.before(ctx, from, nil); err != nil {
				return err
			}
		}
		if w.lost {
			if o, err := w.asks(ctx); err == nil {
				w.found = &o
				return nil
			}
		}
		source, err = s.before(ctx, from, expected)
		return err
	}
	if u.Size > s.out.atOnce {
		if err := w.check(ctx); err != nil {
			return o, s.wrap(w.op, u.Key, err)
		}
		if w.found != nil {
			return *w.found, nil
		}
		return s.copyByParts(ctx, &to, from, source)
	}
	err = s.do(ctx, w, func(ctx context.Context, _ *attempt) error {
		s.out.counts.copies.Add(1)
		info, err := s.out.core.CopyObject(ctx, anyBucket, anyKey, anyBucket, anyKey, nil, minio.CopySrcOptions{}, minio.PutObjectOptions{})
		if err == nil {
			o = s.object(u.Key, bareETag(info.ETag), u.Size, info.LastModified)
		}
		return err
	})
	switch {
	case err != nil:
		return hearth.Object{}, s.whose(ctx, w, from, err)
	case w.found != nil:
		return *w.found, nil
	}
	return s.sure(ctx, &to, o)
}

// before looks whether a copy may be sent: the source is as it was, and so is the new key, by a check; nil: it
// may be anything. It returns the source's headers.
func (s *S3) before(ctx context.Context, from *hearth.Object, expected func(context.Context) error) (http.Header, error) {
	var (
		wait     sync.WaitGroup
		conflict error
	)
	if expected != nil {
		wait.Go(func() { conflict = expected(ctx) })
	}
	now, h, err := s.head(ctx, from.Key)
	wait.Wait()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = &Error{Err: fmt.Errorf("%w: %s is gone", hearth.ErrStale, from.Key)}
	case err == nil && (now.ETag != from.ETag || now.Size != from.Size):
		err = &Error{Err: fmt.Errorf("%w: %s is ETag %s", hearth.ErrStale, from.Key, now.ETag)}
	}
	return h, cmp.Or(err, conflict)
}

// copied is the object of a key after an answer was lost, if it is the copy (else ErrConflict). It has the
// source's size, and its ETag where copies keep that. Else it has the source's metadata: with a draft among
// it the bytes are the same. Without one it must be newer than what a condition expected there, and that was asked for by this process.
func (s *S3) copied(ctx context.Context, u *hearth.Upload, from *hearth.Object, source http.Header) (hearth.Object, error) {
	now, h, err := s.head(ctx, u.Key)
	if err == nil && now.Size == from.Size {
		newer := !u.Again && (u.IfNone || u.IfMatch != "" && now.ETag != u.IfMatch)
		alike := maps.EqualFunc(belongings(h), belongings(source), slices.Equal)
		if now.ETag == from.ETag || alike && (newer || h.Get(draftHeader) != "") {
			return now, nil
		}
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = s.wrap("head", u.Key, &Error{Err: fmt.Errorf("%w: it is not the copy", hearth.ErrConflict)})
	}
	return hearth.Object{}, err
}

// belongings are the headers of a HEAD that go with an object.
func belongings(h http.Header) http.Header {
	own := http.Header{}
	for name, values := range h {
		switch name {
		case "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Expires":
			own[name] = values
		}
		if strings.HasPrefix(name, "X-Amz-Meta-") {
			own[name] = values
		}
	}
	return own
}

// whose makes the refusal of a condition ErrConflict, if it was not that of the source: the answer does
// not say which of the two has failed.
func (s *S3) whose(ctx context.Context, w *write, from *hearth.Object, err error) error {
	var e *Error
	conditional := w.upload.IfNone || w.upload.IfMatch != ""
	if conditional && errors.Is(err, hearth.ErrStale) && !errors.Is(err, hearth.ErrUnanswered) && errors.As(err, &e) {
		if _, asked := s.before(ctx, from, nil); asked == nil {
			e.Err = hearth.ErrConflict
		}
	}
	return err
}

// sure is what a HEAD says of a copy that was answered. The error is ErrUnanswered if that is another
// object: somebody has replaced it since, or the origin has not done what it said.
func (s *S3) sure(ctx context.Context, u *hearth.Upload, o hearth.Object) (hearth.Object, error) {
	now, h, err := s.head(ctx, u.Key)
	if err == nil {
		if now.Size == o.Size && (o.ETag == "" || now.ETag == o.ETag || u.Draft != "" && h.Get(draftHeader) == u.Draft) {
			return now, nil
		}
		err = fmt.Errorf("the copy is ETag %s of %d bytes, and a HEAD says %s of %d", o.ETag, o.Size, now.ETag, now.Size)
	}
	return hearth.Object{}, s.wrap("copy", u.Key, &Error{Err: fmt.Errorf("%w: %w", hearth.ErrUnanswered, err)})
}

// copyByParts copies an object that is too large for one copy, given its headers.
func (s *S3) copyByParts(ctx context.Context, u *hearth.Upload, from *hearth.Object, source http.Header) (o hearth.Object, err error) {
	u.Draft = cmp.Or(source.Get(draftHeader), rand.Text()) // tells a lost answer of Complete
	header := belongings(source)
	maps.Copy(header, s.begins(u))
	if n := source.Get("X-Amz-Tagging-Count"); n != "" && n != "0" {
		if err := s.tags(ctx, from, header); err != nil {
			return o, err
		}
	}
	before, unlisted := s.Uploads(ctx, u.Key)
	id, err := s.begin(ctx, u, header)
	if err != nil {
		if errors.Is(err, hearth.ErrUnanswered) && unlisted == nil {
			err = s.abortNew(ctx, u, before, err)
		}
		return o, err
	}
	parts, err := s.copyParts(ctx, u, id, from)
	if err == nil {
		o, err = s.Complete(ctx, u, id, parts)
	}
	if err != nil {
		if left := s.Abort(context.WithoutCancel(ctx), u, id); left != nil {
			err = fmt.Errorf("%w; its parts are left, since: %v", err, left)
		}
		return hearth.Object{}, err
	}
	return s.sure(ctx, u, o)
}

// abortNew aborts the uploads of a key that were begun since: one of them is that of a begin that was not answered with
// err, which it returns.
func (s *S3) abortNew(ctx context.Context, u *hearth.Upload, before []hearth.Begun, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.silence.Said)
	defer cancel()
	now, left := s.Uploads(ctx, u.Key)
	for _, b := range now {
		if !slices.ContainsFunc(before, func(x hearth.Begun) bool { return x.ID == b.ID }) {
			left = errors.Join(left, s.Abort(ctx, u, b.ID))
		}
	}
	if left != nil {
		return fmt.Errorf("%w; an upload may be left, since: %v", err, left)
	}
	return err
}

// tags gives the headers of a copy the source's tags, which parts do not take along.
func (s *S3) tags(ctx context.Context, from *hearth.Object, header http.Header) error {
	w := &write{op: "copy", key: from.Key, again: true}
	return s.do(ctx, w, func(ctx context.Context, _ *attempt) error {
		all, err := s.out.core.GetObjectTagging(ctx, anyBucket, anyKey, minio.GetObjectTaggingOptions{})
		if err == nil {
			header.Set("X-Amz-Tagging", all.String())
		}
		return err
	})
}

// copyParts makes all parts of an upload of ranges of an object, as many at once as there may be writes. The error
// is that of the first that failed.
func (s *S3) copyParts(ctx context.Context, u *hearth.Upload, id string, from *hearth.Object) (parts []hearth.Part, first error) {
	var (
		all  errgroup.Group
		once sync.Once // guards first
	)
	size := s.PartSize(u.Size)
	parts = make([]hearth.Part, (u.Size+size-1)/size)
	all.SetLimit(cap(s.out.slots))
	each, stop := context.WithCancel(ctx)
	defer stop()
	for i := range parts {
		all.Go(func() error {
			err := context.Cause(each)
			if off := int64(i) * size; err == nil {
				parts[i], err = s.CopyPart(each, u, id, i+1, from, off, min(size, u.Size-off))
			}
			if err != nil {
				once.Do(func() { first = err; stop() })
			}
			return nil
		})
	}
	_ = all.Wait() // none returns an error: errgroup's own way would give all of them the same one, and each is wrapped
	return parts, first
}
