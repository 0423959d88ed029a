package origin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	"github.com/hearthfs/hearth"
)

// write is a request that changes the bucket.
type write struct {
	op, key string
	header  http.Header // beside those of minio-go
	// upload is what a Put, Complete or Copy writes; nil: another request.
	upload *hearth.Upload
	// asks asks for the object that was to be written: the error is ErrConflict if the key does not have
	// it. nil: it cannot be told from others.
	asks func(context.Context) (hearth.Object, error)
	// names says that it changes a name, so that it matters whether it was done. A part that was sent
	// for nothing does not.
	names bool
	// again says that it may be sent again though the origin may have acted on it.
	again bool
	// check is made before each attempt, where the origin knows no conditions; nil: none. No attempt is
	// made if it sets found.
	check func(context.Context) error
	// sum is the checksum of the last attempt.
	sum checksum
	// version is that which is to be removed for good; "": none.
	version string
	// made is the version that was made, of an object or a marker of deletion; "" where the bucket keeps none.
	made string

	at    *place // where an answer redirected it to; nil: the bucket's place
	lost  bool   // the origin may have acted on an attempt that failed
	found *hearth.Object
}

// do sends a write until it is answered or the budget is spent. send asks minio-go's client for it. The
// object is in w.found if the answer was lost, and it was found to be written.
func (s *S3) do(ctx context.Context, w *write, send func(context.Context, *attempt) error) error {
	release, err := acquire(ctx, s.out.slots)
	if err != nil {
		return s.wrap(w.op, w.key, err)
	}
	defer release()
	b := &budget{Retry: s.retry}
	for renewed, moved, simpler, vacant := 0, 0, 0, 0; ; {
		a, err := s.try(ctx, w, send)
		if err == nil {
			return nil
		}
		if at := s.elsewhere(err, w.at, a.query); at != nil && moved < mostMoves {
			moved++
			w.at = at
			continue
		}
		err = s.sentOn(err, w.at)
		if renewed < 2 && s.renew(ctx, err, &a.used) {
			renewed++
			continue
		}
		if simpler < 2 && a.sent && w.sums() && s.unlearn(w.sum, err) {
			simpler++
			continue
		}
		if s.vacant(ctx, w, err) {
			if vacant++; vacant > 1 { // the first time somebody may have removed it just now
				w.header.Del(ifNone)
				w.again, w.check = w.op != "put", func(ctx context.Context) error { return s.still(ctx, w.key, "") }
			}
			continue
		}
		s.failed(w.op, w.key, err)
		if a.acted(err) && w.names {
			w.lost = true
			if !w.again && !s.undone(ctx, w, err) {
				return s.giveUp(ctx, w, err)
			}
		}
		if last := b.spend(ctx, err); last != nil {
			return s.giveUp(ctx, w, last)
		}
		s.counts.retries.Add(1)
	}
}

// vacant reports whether a name was taken for one that has an object, and has none: some servers do so where it was removed and they
// keep its versions.
func (s *S3) vacant(ctx context.Context, w *write, err error) bool {
	able := s.out.probed.Load()
	var e *Error
	return able != nil && able.versions && w.upload != nil && w.op != "copy" && !w.lost && w.header.Get(ifNone) != "" &&
		errors.As(err, &e) && e.Status == http.StatusPreconditionFailed && s.still(ctx, w.key, "") == nil
}

// sums reports whether a write names a checksum's algorithm.
func (w *write) sums() bool { return w.op == "put" || w.op == "begin" || w.op == "part" }

// try makes one attempt.
func (s *S3) try(ctx context.Context, w *write, send func(context.Context, *attempt) error) (*attempt, error) {
	a := &attempt{s: s, w: w}
	if w.check != nil {
		if err := w.check(ctx); err != nil || w.found != nil {
			return a, err
		}
	}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	err := send(context.WithValue(a.ctx, attemptKey{}, a), a)
	if err != nil {
		err = a.failure(err)
	}
	a.cancel(nil)
	a.parcel.end()
	return a, err
}

// undone reports whether the origin is known not to have done a write, whose sending again could undo
// another's. It has answered that it failed, and does not have it.
func (s *S3) undone(ctx context.Context, w *write, err error) bool {
	var e *Error
	if !errors.As(err, &e) || e.Status != http.StatusInternalServerError || w.asks == nil {
		return false
	}
	o, err := w.asks(ctx)
	if err == nil {
		w.found = &o
	}
	return errors.Is(err, hearth.ErrConflict)
}

// giveUp is how a write ends that was refused, or not answered. Nil means that it was done after all.
func (s *S3) giveUp(ctx context.Context, w *write, err error) error {
	if w.found != nil {
		return nil
	}
	if !w.lost {
		return s.wrap(w.op, w.key, w.refused(err))
	}
	if w.asks != nil && ctx.Err() == nil {
		o, asked := w.asks(ctx)
		if asked == nil {
			w.found = &o
			return nil
		}
		if refused := w.refused(err); errors.Is(asked, hearth.ErrConflict) && w.spoken(refused) {
			return s.wrap(w.op, w.key, refused) // the attempt before was not done, nor will it be
		}
	}
	e := new(Error)
	if !errors.As(err, &e) {
		e = &Error{Err: err}
	}
	told := *e
	told.Err = fmt.Errorf("%w: %w", hearth.ErrUnanswered, e.Err)
	return s.wrap(w.op, w.key, &told)
}

// spoken reports whether a refusal shows that no attempt at a write can be done any more: another
// object has the name, or the upload is gone.
func (w *write) spoken(err error) bool {
	return errors.Is(err, hearth.ErrConflict) || w.op == "complete" && errors.Is(err, fs.ErrNotExist)
}

// refused gives a refusal of a condition the error of uploads.
func (w *write) refused(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	gone := e.Status == http.StatusNotFound && e.Code != "NoSuchUpload" && e.Code != "NoSuchBucket"
	switch {
	case w.op == "copy" && gone:
		e.Err = hearth.ErrStale
	case w.op == "copy":
	case w.names && (e.Status == http.StatusPreconditionFailed || gone && w.header.Get("If-Match") != "" && w.op != "delete"):
		e.Err = hearth.ErrConflict
	}
	return err
}

// asking asks for an Upload's object, which is known by its draft.
func (s *S3) asking(u *hearth.Upload) func(context.Context) (hearth.Object, error) {
	if u.Draft == "" {
		return nil
	}
	return func(ctx context.Context) (hearth.Object, error) { return s.Written(ctx, u) }
}

// Written is hearth.Uploader's.
func (s *S3) Written(ctx context.Context, u *hearth.Upload) (hearth.Object, error) {
	o, h, err := s.head(ctx, u.Key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return o, s.wrap("head", u.Key, &Error{Err: fmt.Errorf("%w: there is none", hearth.ErrConflict)})
	case err != nil:
		return o, err
	case u.Draft == "" || h.Get(draftHeader) != u.Draft:
		return o, s.wrap("head", u.Key, &Error{Err: fmt.Errorf("%w: it is ETag %s", hearth.ErrConflict, o.ETag)})
	}
	return o, nil
}
