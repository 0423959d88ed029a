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

// pageBytes bounds the size of a page: 1,000 keys of 1,024 bytes, three
// times as long in their encoding, take a fifth of it. An endless body
// must end, and must not fill the memory.
const pageBytes = 16 << 20

// manner is what a server has shown of how it answers.
type manner struct {
	plain     atomic.Bool  // it refuses every If-Match
	misgroups atomic.Bool  // it groups keys wrongly
	fractions atomic.Bool  // it tells fractions of seconds
	spelling  atomic.Int32 // how it writes keys
}

// How a server writes keys.
const (
	asItSays = iota // as the page says: nothing has shown the contrary
	encoded
	plain
)

// List streams a listing with ListObjectsV2, one page in memory at a time. Names come in byte order
// where the server sends pages in order, which all but directory buckets do.
//
// A server that groups keys wrongly at "/" would hide keys (gofakes3 drops the "/" of "/lead"). Once a
// page shows that, this origin's listings are flat and grouped here, and each page begins after the
// last group of the one before.
//
// Some servers send a page with a token whose IsTruncated says that it is the last one, or a page
// without IsTruncated. Such a page is followed by one more request, which brings names or none.
func (s *S3) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	from := cursor{after: q.After}
	left, last := q.Limit, ""
	for doubtful, again := false, false; ; { // doubtful: the page before was; again: any page was
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

// cursor is where a listing continues: at the server's token, else after a name.
type cursor struct{ token, after string }

// behind moves the cursor past a whole group, not past its first key. Otherwise the group would come
// again, and with a small Limit it would be the whole page.
func (c cursor) behind(q hearth.Listing) cursor {
	if !q.Recursive && strings.HasSuffix(c.after, "/") {
		c.after += "\U0010FFFF"
	}
	return c
}

// entry makes an Object of an entry in a page. It leaves out names that were not asked for: up to
// After, or outside Prefix.
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

// spelled finds out how the server writes keys, from a page in which that makes a difference. Some
// servers ignore encoding-type=url and say that they followed it, or follow it and do not say so. Then
// a key would be misread as another one. So it looks up one key in both spellings, once for all pages.
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
	}{{plain, key}, {encoded, decoded}} { // an encoded key does not begin with its own encoding
		found, err := s.has(ctx, x.prefix, key)
		if err != nil {
			return asItSays, err
		}
		if found {
			s.shown.spelling.Store(x.how)
			return x.how, nil
		}
	}
	return asItSays, nil // the key is gone by now
}

// has reports whether the first key below a prefix is a name, as the server writes it.
func (s *S3) has(ctx context.Context, prefix, name string) (bool, error) {
	p, err := s.written(ctx, hearth.Listing{Prefix: prefix, Recursive: true}, cursor{}, 1)
	return err == nil && len(p.Entries) > 0 && (p.Entries[0].Key == name || strings.HasSuffix(name, "/") && strings.HasPrefix(p.Entries[0].Key, name)), err
}

// written fetches one page, with keys as the server wrote them. A page that is cut off is asked for
// again.
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

// readAll reads a page under the watchdog timer.
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

// query returns the query string, sorted and encoded as signatures need it.
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

// deeper returns the group below prefix that holds key. It returns false when key lies in no group.
func deeper(prefix, key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, prefix)
	i := strings.IndexByte(rest, '/')
	if !ok || i < 0 {
		return "", false
	}
	return key[:len(prefix)+i+1], true
}
