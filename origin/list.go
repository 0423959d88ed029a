package origin

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/sign"
)

// pageKeys is the most that S3 puts into one page.
const pageKeys = 1000

// pageBytes is the most that a page is read of: 1,000 keys of 1,024 bytes, three
// times as long in their encoding, take a fifth of it. A body that goes on and on
// must end, and must not fill the memory.
const pageBytes = 16 << 20

// manner is how a server answers, as far as it has shown it.
type manner struct {
	plain     atomic.Bool  // it refuses If-Match, whatever that says
	misgroups atomic.Bool  // it groups keys wrongly
	fractions atomic.Bool  // it tells fractions of seconds
	spelling  atomic.Int32 // how it writes keys
}

// How a server writes keys.
const (
	asItSays = iota // nothing else has been seen
	encoded
	plain
)

// List streams a listing by ListObjectsV2, one page in memory at a time. Names
// come in byte order where the server sends pages in order, which all but
// directory buckets do.
//
// A server that groups keys wrongly at "/" (gofakes3 takes the "/" of "/lead"
// away) would hide keys. Once a page shows that, this origin's listings are flat,
// grouped here, and go on behind a group at each page's end.
//
// A page that is the last one by its IsTruncated and yet has a token, or does not say whether it is,
// is followed by one more: that brings names, or none behind the last.
func (s *S3) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	from := cursor{after: q.After}
	left, last := q.Limit, ""
	for doubtful, again := false, false; ; { // of the page before, and of any
		want := pageKeys
		if q.Limit > 0 {
			want = min(want, left)
		}
		asked := q
		asked.Recursive = q.Recursive || s.shown.misgroups.Load()
		p, err := s.page(ctx, asked, from.behind(q), want)
		if err != nil {
			return err
		}
		if !asked.Recursive && p.Misgrouped(q.Prefix) {
			s.shown.misgroups.Store(true)
			from.token = ""
			continue
		}
		if !s.shown.fractions.Load() && slices.ContainsFunc(p.Entries, func(e listEntry) bool { return e.Modified.Nanosecond() != 0 }) {
			s.shown.fractions.Store(true)
		}
		behind := last
		for i := range p.Entries {
			o, ok := s.entry(&p.Entries[i], q)
			if !ok || o.IsPrefix() && o.Key == last || again && o.Key <= behind {
				continue
			}
			if last = o.Key; p.Garbles(o.Key) {
				q.Hide(o.Key)
				continue
			}
			if err := each(o); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
		next := cursor{token: p.Token, after: p.Last()}
		if group, ok := deeper(q.Prefix, next.after); ok && asked.Recursive && !q.Recursive {
			next = cursor{after: group}
		}
		if doubtful && last == behind {
			return nil
		}
		doubtful = !p.Truncated && (p.Token != "" || !p.Said && len(p.Entries) > 0)
		switch {
		case !p.Truncated && (!doubtful || next == from):
			return nil
		case next == from || next.token == "" && next.after == "":
			return s.wrap("list", q.Prefix, fmt.Errorf("%w: a page that does not end and leads nowhere", errLied))
		}
		from, again = next, again || doubtful
	}
}

// cursor is where a listing goes on: at the server's token, else behind a name.
type cursor struct{ token, after string }

// behind is the cursor behind a group, not behind its first key: else the group
// comes again, and with a small Limit it is the whole page.
func (c cursor) behind(q hearth.Listing) cursor {
	if !q.Recursive && strings.HasSuffix(c.after, "/") {
		c.after += "\U0010FFFF"
	}
	return c
}

// entry makes an Object of a line in a page. Names that were not asked for, up to
// After or outside Prefix, are left out.
func (s *S3) entry(e *listEntry, q hearth.Listing) (hearth.Object, bool) {
	key, group := e.Key, e.Prefix
	if !q.Recursive && !group {
		if in, ok := deeper(q.Prefix, key); ok {
			key, group = in, true
		}
	}
	if key <= q.After && q.After != "" || !strings.HasPrefix(key, q.Prefix) || group && key == q.Prefix {
		return hearth.Object{}, false
	}
	if group {
		return hearth.Object{Link: s.link, Key: key, Size: hearth.PrefixSize}, true
	}
	o := s.object(e.Key, bareETag(e.ETag), e.Size, e.Modified)
	o.Class, o.Exact = e.Class, e.Modified.Nanosecond() == 0 && s.shown.fractions.Load()
	return o, true
}

// page fetches and reads one page.
func (s *S3) page(ctx context.Context, q hearth.Listing, from cursor, want int) (*listPage, error) {
	p, err := s.written(ctx, q, from, want)
	if err != nil {
		return nil, err
	}
	how := s.shown.spelling.Load()
	if how == asItSays {
		if how, err = s.spelled(ctx, p); err != nil {
			return nil, err
		}
	}
	if err := p.Undo(how == encoded || how == asItSays && p.Encoded); err != nil {
		return nil, s.wrap("list", q.Prefix, fmt.Errorf("%w: %w", errLied, err))
	}
	return p, nil
}

// spelled finds out how the server writes keys from a page in which that makes a difference. Some
// leave encoding-type=url alone and say that they did it, or do it and do not say so: a key
// that is then another one would be no file, or be another file. So one is looked for in both ways, once for
// all pages.
func (s *S3) spelled(ctx context.Context, p *listPage) (int32, error) {
	key, decoded, bare := p.Ambiguous()
	if bare {
		s.shown.spelling.Store(plain)
		return plain, nil
	}
	if key == "" {
		return asItSays, nil
	}
	for _, x := range []struct {
		how    int32
		prefix string
	}{{plain, key}, {encoded, decoded}} { // what is encoded has not its own encoding as its prefix
		found, err := s.has(ctx, x.prefix, key)
		if err != nil {
			return asItSays, err
		}
		if found {
			s.shown.spelling.Store(x.how)
			return x.how, nil
		}
	}
	return asItSays, nil // it is gone by now
}

// has reports whether what has a prefix begins with a name, as the server writes it.
func (s *S3) has(ctx context.Context, prefix, name string) (bool, error) {
	p, err := s.written(ctx, hearth.Listing{Prefix: prefix, Recursive: true}, cursor{}, 1)
	return err == nil && len(p.Entries) > 0 && (p.Entries[0].Key == name || strings.HasSuffix(name, "/") && strings.HasPrefix(p.Entries[0].Key, name)), err
}

// written fetches one page, whose keys are as the server wrote them. A page that breaks off is
// asked for again.
func (s *S3) written(ctx context.Context, q hearth.Listing, from cursor, want int) (*listPage, error) {
	release, err := acquire(ctx, s.meta)
	if err != nil {
		return nil, err
	}
	defer release()
	c := &call{op: "list", method: http.MethodGet, query: query(q, from, want)}
	b := &budget{Retry: s.retry}
	for {
		a, err := s.ask(ctx, c, b)
		if err != nil {
			return nil, err
		}
		text, err := s.readAll(a)
		a.close()
		if err == nil {
			p, err := parsePage(text)
			if err != nil {
				err = s.wrap("list", q.Prefix, fmt.Errorf("%w: %w", errLied, err))
			}
			return p, err
		}
		s.failed("list", q.Prefix, err)
		if last := b.spend(ctx, err); last != nil {
			return nil, s.wrap("list", q.Prefix, last)
		}
		s.counts.retries.Add(1)
	}
}

// readAll reads a page under the watch.
func (s *S3) readAll(a *answer) ([]byte, error) {
	text := make([]byte, 0, min(max(16<<10, a.resp.ContentLength+1), pageBytes))
	for {
		if len(text) >= pageBytes {
			return nil, fmt.Errorf("%w: a page of more than %d bytes", errLied, pageBytes)
		}
		if len(text) == cap(text) {
			text = slices.Grow(text, cap(text))
		}
		a.watch.Reset(s.silence.Read)
		n, err := a.resp.Body.Read(text[len(text):cap(text)])
		a.watch.Stop()
		text = text[:len(text)+n]
		s.counts.bytes.Add(int64(n))
		s.counts.names.Add(int64(n))
		if err == io.EOF {
			return text, nil
		}
		if err != nil {
			return nil, a.cause(err)
		}
	}
}

// query is sorted and encoded as signatures want it.
func query(q hearth.Listing, from cursor, want int) string {
	var b strings.Builder
	if from.token != "" {
		b.WriteString("continuation-token=" + sign.Encode(from.token, false) + "&")
	}
	if !q.Recursive {
		b.WriteString("delimiter=%2F&")
	}
	b.WriteString("encoding-type=url&list-type=2&max-keys=" + strconv.Itoa(want))
	b.WriteString("&prefix=" + sign.Encode(q.Prefix, false))
	if from.token == "" && from.after != "" {
		b.WriteString("&start-after=" + sign.Encode(from.after, false))
	}
	return b.String()
}

// deeper is the group below prefix that holds key; "" and false: none does.
func deeper(prefix, key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	i := strings.IndexByte(rest, '/')
	if !ok || i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+1], true
}
