package s3gw

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/s3gw/fault"
	"github.com/hearthfs/hearth/s3gw/request"
)

const (
	// seenWithin is how long an answer waits until what was written is known here.
	seenWithin = 5 * time.Second
	// mostAsked keys of a write are asked for one by one, so many at a time; of a directory
	// with more of them the names are listed again.
	mostAsked, atOnce = 16, 8
)

// write sends a request on and has the tree ask again for what it wrote, before the answer
// goes out.
func (x *exchange) write() error {
	keys, err := x.touched()
	if err != nil {
		return err
	}
	return x.passThen(nil, func(answer *http.Response, err error) {
		if answer == nil && err == nil || answer != nil && answer.StatusCode >= 400 && answer.StatusCode < 500 {
			return // nothing was written
		}
		// The client may be gone, and what it wrote is there.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), seenWithin)
		defer cancel()
		x.written(ctx, keys)
		if x.o.Settle != nil {
			x.o.Settle(ctx)
		}
	})
}

// touched are the keys that a write may change. Rights of those in a body are looked at here.
func (x *exchange) touched() ([]string, error) {
	switch x.asks.Touches {
	case request.Nothing:
		return nil, nil
	case request.TheKey, request.Below:
		return []string{x.asks.Key}, nil
	case request.Listed:
		return x.listed()
	}
	return nil, nil
}

// listed are the keys of a DeleteObjects, whose body is read and sent on from memory.
func (x *exchange) listed() ([]string, error) {
	body, err := io.ReadAll(io.LimitReader(x.who.Payload(), request.MaxDeletesBytes+1))
	if err != nil {
		return nil, err
	}
	keys, err := request.Deletes(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if !(request.Need{Bucket: x.asks.Bucket, Key: key, Write: true}).Granted(func(n request.Need) bool { return x.may(n) && x.shows(n) }) {
			return nil, fault.New("AccessDenied", "Access Denied: %q.", key)
		}
	}
	x.body = body
	return keys, nil
}

// written has the tree ask again for keys.
func (x *exchange) written(ctx context.Context, keys []string) {
	byDir := map[string][]string{}
	for _, key := range keys {
		dir := key[:strings.LastIndexByte(key, '/')+1]
		byDir[dir] = append(byDir[dir], key)
	}
	var work sync.WaitGroup
	defer work.Wait()
	room := make(chan struct{}, atOnce)
	for dir, all := range byDir {
		if len(all) > mostAsked {
			x.listAgain(ctx, dir)
			all = all[:1] // and the directory's own name
		}
		for _, key := range all {
			room <- struct{}{}
			work.Go(func() {
				defer func() { <-room }()
				for i := range x.links {
					if strings.HasPrefix(key, x.links[i].Prefix) {
						x.o.Tree.Written(ctx, x.links[i].Name, key)
					}
				}
			})
		}
	}
}

// listAgain has the tree list a directory that it knows.
func (x *exchange) listAgain(ctx context.Context, dir string) {
	for i := range x.links {
		l := &x.links[i]
		if !strings.HasPrefix(dir, l.Prefix) {
			continue
		}
		if n, err := x.o.Tree.Prefix(ctx, l.Name, dir); err == nil {
			_ = x.o.Tree.Refresh(ctx, n.ID, x.o.Tree.Now()+1) // else its bound will do
		}
	}
}

// headOf asks the origin for the headers of a version.
func headOf(ctx context.Context, l *Link, o *hearth.Object) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, headWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodHead, "/", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("If-Match", `"`+o.ETag+`"`)
	r.Header.Set("X-Amz-Checksum-Mode", "ENABLED")
	answer, err := l.Origin.Forward(ctx, r, l.Bucket, escape(o.Key))
	if err != nil {
		return nil, err
	}
	_ = answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		if strings.Trim(answer.Header.Get("Etag"), `"`) != o.ETag || answer.ContentLength != o.Size {
			return nil, hearth.ErrStale // it ignores If-Match
		}
		return answer.Header, nil
	case http.StatusPreconditionFailed, http.StatusNotFound:
		return nil, hearth.ErrStale
	}
	return nil, errors.New("the origin answers a HEAD with " + answer.Status)
}

// headWithin is how long the headers of an object are waited for.
const headWithin = 30 * time.Second

// escape writes a key as S3 has it in a path.
func escape(key string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_.~/", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
	return b.String()
}
