package origin

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
)

// WriteAbilities are what an origin was found to do for writes. A condition that it ignores or refuses is
// replaced by a HEAD before the write: a change between the two is then not seen.
type WriteAbilities struct {
	// IfNone: a PUT with If-None-Match: * replaces no object. IfMatch: one with If-Match replaces no other.
	IfNone, IfMatch bool
	// IfMatchDelete: a DELETE with If-Match removes no other.
	IfMatchDelete bool
	// Checksum is what bodies are verified by: CRC64NVME, CRC32C or MD5; "": nothing was written yet.
	Checksum string

	refuses  bool // conditions: a request that has one is an error
	versions bool // are kept of each object
}

// probeETag is no object's.
const probeETag = `"hearth-probe"`

const ifNone = "If-None-Match"

// probeTime is how long the origin may take to answer the requests of WriteAbilities, seven and fewer,.
const probeTime = time.Minute

// WriteAbilities finds out, once, which conditions the origin heeds: with an empty object below the
// prefix, ".hearth-probe-", a name of this node's own and a random one, that is removed again, also from a bucket that keeps versions.
// What a process leaves that is killed meanwhile, the next one removes. Amazon is known to heed all. Where that object is denied, no condition is
// relied on.
func (s *S3) WriteAbilities(ctx context.Context) (WriteAbilities, error) {
	s.out.probe.Lock()
	defer s.out.probe.Unlock()
	able := s.out.probed.Load()
	if able == nil {
		found := WriteAbilities{IfNone: true, IfMatch: true, IfMatchDelete: true}
		if !isAWS(s.place.Load().url()) {
			var err error
			// It is not the caller's: broken off, it would leave its object there, and the next one had to begin again.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
			defer cancel()
			found, err = s.probeWrites(ctx)
			if err != nil && !errors.Is(err, fs.ErrPermission) { // it may be allowed elsewhere: as far as it was found
				return found, err
			}
		}
		able = &found
		s.out.probed.Store(able)
	}
	told := *able
	if c := checksum(s.out.sum.Load()); c == onlyMD5 {
		told.Checksum = "MD5"
	} else if c.known() {
		told.Checksum = c.kind().String()
	}
	return told, nil
}

// prober is how the names of the node's objects begin, of this link: two links may be one place.
func (c *Config) prober() string {
	if c.Node == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(c.Node + " " + c.Link))
	return hex.EncodeToString(sum[:8]) + "-"
}

// sweep removes what a process of this node has left that was killed within the probe. That it cannot is no error.
func (s *S3) sweep(ctx context.Context) {
	if s.prober == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime/6)
	defer cancel()
	var left []string
	_ = s.List(ctx, hearth.Listing{Prefix: s.prefix + ".hearth-probe-" + s.prober, Limit: 100, Recursive: true}, func(o hearth.Object) error {
		left = append(left, o.Key)
		return nil
	})
	for _, key := range left {
		_ = s.remove(ctx, &write{op: "delete", key: key, again: true})
	}
}

// Unheeded says which conditions of writes of an object the origin is known to ignore; "": none, as far as was found. It asks nothing.
func (s *S3) Unheeded() string {
	able := s.out.probed.Load()
	if able == nil {
		return ""
	}
	var all []string
	for _, c := range []struct {
		heeded bool
		what   string
	}{{able.IfNone, "If-None-Match"}, {able.IfMatch, "If-Match"}} {
		if !c.heeded {
			all = append(all, c.what)
		}
	}
	return strings.Join(all, ", ")
}

func (s *S3) probeWrites(ctx context.Context) (a WriteAbilities, err error) {
	u := &hearth.Upload{Key: s.prefix + ".hearth-probe-" + s.prober + rand.Text()}
	s.sweep(ctx)
	var made []string // versions
	// asks sends a write under a condition, and tells whether it was heeded.
	asks := func(name, value string, send func(w *write) error) (heeded bool, err error) {
		err = send(&write{key: u.Key, header: http.Header{name: {value}}, again: true})
		var e *Error
		switch {
		case err == nil:
			return false, nil
		case !errors.As(err, &e):
		case e.Status == http.StatusPreconditionFailed, e.Status == http.StatusNotFound && e.Code != "NoSuchBucket":
			return true, nil
		case e.Status == http.StatusBadRequest, e.Status == http.StatusNotImplemented:
			a.refuses = true
			return false, nil
		}
		return false, err
	}
	put := func(w *write) error {
		w.op = "put"
		_, err := s.put(ctx, w, u, bytes.NewReader(nil))
		if w.made != "" {
			made = append(made, w.made)
		}
		return err
	}
	remove := func(w *write) error {
		w.op = "delete"
		err := s.remove(ctx, w)
		if w.made != "" {
			made = append(made, w.made)
		}
		return err
	}
	if err = put(&write{key: u.Key, header: http.Header{}, again: true}); err != nil {
		return a, err
	}
	a.versions = len(made) > 0
	defer func() {
		left := !a.versions
		for _, v := range made { // to do so is a right of its own
			left = remove(&write{key: u.Key, again: true, version: v}) != nil || left
		}
		if !left {
			_, e := s.Head(ctx, u.Key)
			left = !errors.Is(e, fs.ErrNotExist) // an answer was lost
		}
		if left {
			err = cmp.Or(err, remove(&write{key: u.Key, again: true}))
		}
	}()
	if a.IfMatch, err = asks("If-Match", probeETag, put); err != nil {
		return a, err
	}
	if a.IfNone, err = asks(ifNone, "*", put); err != nil {
		return a, err
	}
	a.IfMatchDelete, err = asks("If-Match", probeETag, remove)
	return a, err
}

// ProbeWrites finds out whether all may be done that a writable mount does: it begins an upload below the prefix, lists its parts
// and the uploads of its key, aborts it, and deletes an object that is not there. It writes nothing. The error is that of the first
// that failed; of a list of uploads, which some servers do not have, and of the deletion only a denial is one. If it is not "", the
// upload of the key left could not be aborted.
func (s *S3) ProbeWrites(ctx context.Context) (left string, err error) {
	u := &hearth.Upload{Key: s.prefix + ".hearth-probe-" + rand.Text()}
	id, err := s.Begin(ctx, u)
	if err != nil {
		return "", err
	}
	_, err = s.Parts(ctx, u, id)
	if _, e := s.Uploads(ctx, u.Key); errors.Is(e, fs.ErrPermission) { // how one is found of which the answer was lost
		err = cmp.Or(err, e)
	}
	if e := s.Abort(context.WithoutCancel(ctx), u, id); e != nil {
		left, err = u.Key, cmp.Or(err, e)
	}
	// Under a condition that no object meets, lest a versioned bucket gets a marker of it; some ignore it. Any answer but a denial will do.
	w := &write{op: "delete", key: u.Key, header: http.Header{"If-Match": {probeETag}}, again: true}
	e := s.remove(ctx, w)
	if w.made != "" {
		_ = s.remove(ctx, &write{op: "delete", key: u.Key, again: true, version: w.made}) // to do so is a right of its own
	}
	if err == nil && errors.Is(e, fs.ErrPermission) {
		err = e
	}
	return left, err
}

// condition puts an Upload's condition into a write, and decides whether it may be sent again: under a
// condition that the origin heeds it replaces nothing that it should not.
func (s *S3) condition(ctx context.Context, w *write) error {
	u := w.upload
	if u.IfMatch == "" && !u.IfNone {
		return nil
	}
	able, err := s.WriteAbilities(ctx)
	if err != nil {
		return err
	}
	name, value, heeded := "If-Match", `"`+u.IfMatch+`"`, able.IfMatch
	if u.IfNone {
		name, value, heeded = ifNone, "*", able.IfNone
	}
	w.again = heeded
	if heeded || !able.refuses {
		w.header.Set(name, value)
	}
	if !heeded || w.op != "put" { // one that heeds it for a PUT may ignore it elsewhere
		w.check = func(ctx context.Context) error {
			err := s.still(ctx, u.Key, u.IfMatch)
			if errors.Is(err, fs.ErrNotExist) {
				return &Error{Err: fmt.Errorf("%w: there is none", hearth.ErrConflict)}
			}
			return err
		}
	}
	return nil
}

// still asks whether a key has an ETag; "" means no object. The error is ErrConflict if it has another,
// and fs.ErrNotExist if there is no object.
func (s *S3) still(ctx context.Context, key, etag string) error {
	o, err := s.Head(ctx, key)
	switch {
	case errors.Is(err, fs.ErrNotExist) && etag == "":
		return nil
	case err != nil:
		return err
	case o.ETag != etag:
		return s.wrap("head", key, &Error{Err: fmt.Errorf("%w: it is ETag %s", hearth.ErrConflict, o.ETag)})
	}
	return nil
}
