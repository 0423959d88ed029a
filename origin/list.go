package origin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/sign"
)

// pageKeys is the most that S3 puts into one page.
const pageKeys = 1000

// pageBytes is the most that a page is read of: 1,000 keys of 1,024 bytes, three
// times as long in their encoding, take a fifth of it. A body that goes on and on
// must end, and must not fill the memory.
const pageBytes = 16 << 20

// List streams a listing by ListObjectsV2, one page in memory at a time. Names
// come in byte order where the server sends pages in order, which all but
// directory buckets do.
//
// A server that groups keys wrongly at "/" (gofakes3 takes the "/" of "/lead"
// away) would hide keys. Once a page shows that, this origin's listings are flat,
// grouped here, and go on behind a group at each page's end.
func (s *S3) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	from := cursor{after: q.After}
	left, last := q.Limit, ""
	for {
		want := pageKeys
		if q.Limit > 0 {
			want = min(want, left)
		}
		asked := q
		asked.Recursive = q.Recursive || s.misgroups.Load()
		p, err := s.page(ctx, asked, from.behind(q), want)
		if err != nil {
			return err
		}
		if !asked.Recursive && p.misgrouped(q.Prefix) {
			s.misgroups.Store(true)
			from.token = ""
			continue
		}
		for i := range p.entries {
			o, ok := s.entry(&p.entries[i], q)
			if !ok || o.IsPrefix() && o.Key == last {
				continue
			}
			if last = o.Key; p.garbles(o.Key) {
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
		next := cursor{token: p.token, after: p.last()}
		if group, ok := deeper(q.Prefix, next.after); ok && asked.Recursive && !q.Recursive {
			next = cursor{after: group}
		}
		switch {
		case !p.truncated:
			return nil
		case next == from || next.token == "" && next.after == "":
			return s.wrap("list", q.Prefix, fmt.Errorf("%w: a page that does not end and leads nowhere", errLied))
		}
		from = next
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

// misgrouped reports whether a page of groups below prefix holds what can be none
// of them. A key may be there whose group was asked for: some servers list "t/"
// itself.
func (p *page) misgrouped(prefix string) bool {
	return slices.ContainsFunc(p.entries, func(e entry) bool {
		rest, ok := strings.CutPrefix(e.key, prefix)
		return !ok || e.prefix && (rest == "" || strings.IndexByte(rest, '/') != len(rest)-1)
	})
}

// garbles reports whether a key may be another one than the server holds: in an
// answer that is not URL-encoded, what XML cannot hold stands as U+FFFD.
func (p *page) garbles(key string) bool {
	return !p.encoded && strings.ContainsRune(key, utf8.RuneError)
}

// entry makes an Object of a line in a page. Names that were not asked for, up to
// After or outside Prefix, are left out.
func (s *S3) entry(e *entry, q hearth.Listing) (hearth.Object, bool) {
	key, group := e.key, e.prefix
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
	return s.object(e.key, bareETag(e.etag), e.size, e.modified), true
}

// page fetches and reads one page. A page that breaks off is asked for again.
func (s *S3) page(ctx context.Context, q hearth.Listing, from cursor, want int) (*page, error) {
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
		a.watch.Reset(s.timeout)
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

// finish undoes encoding-type=url, if the server says that it did it, and
// merges groups and keys, which come in two lists.
func (p *page) finish() error {
	if p.encoded {
		for i := range p.entries {
			e := &p.entries[i]
			if strings.IndexByte(e.key, '%') < 0 && strings.IndexByte(e.key, '+') < 0 {
				continue
			}
			key, err := url.QueryUnescape(e.key)
			if err != nil {
				return fmt.Errorf("key %q: %w", e.key, err)
			}
			e.key = key
		}
	}
	byKey := func(a, b entry) int { return strings.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(p.entries, byKey) {
		slices.SortFunc(p.entries, byKey)
	}
	return nil
}

func (p *page) last() string {
	if len(p.entries) == 0 {
		return ""
	}
	return p.entries[len(p.entries)-1].key
}

// parsePage reads a ListBucketResult.
func parsePage(text []byte) (*page, error) {
	if !bytes.Contains(text, []byte("ListBucketResult")) {
		return nil, errors.New("no ListBucketResult")
	}
	p := &page{}
	var e entry
	err := scanXML(text, func(parent, name, value []byte) error {
		switch string(parent) {
		case "Contents":
			return e.set(name, value)
		case "CommonPrefixes":
			if string(name) == "Prefix" {
				e.key, e.prefix = unescape(value), true
			}
		case "ListBucketResult":
			switch string(name) {
			case "IsTruncated":
				p.truncated = string(value) == "true"
			case "NextContinuationToken":
				p.token = unescape(value)
			case "EncodingType":
				p.encoded = string(value) == "url"
			}
		}
		return nil
	}, func(name []byte) error {
		switch string(name) {
		case "Contents", "CommonPrefixes":
			if e.key == "" && !e.prefix { // an empty group is one that was cut
				return errors.New("an entry without a key")
			}
			p.entries = append(p.entries, e)
			e = entry{}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, p.finish()
}
