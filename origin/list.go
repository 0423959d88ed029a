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

	"github.com/hearthfs/hearth"
)

// pageKeys is the most that S3 puts into one page.
const pageKeys = 1000

// List streams a listing by ListObjectsV2, one page in memory at a time. Names
// come in byte order where the server sends pages in order, which all but
// directory buckets do.
func (s *S3) List(ctx context.Context, q hearth.Listing, each func(hearth.Object) error) error {
	from := cursor{after: q.After}
	left := q.Limit
	for {
		want := pageKeys
		if q.Limit > 0 {
			want = min(want, left)
		}
		p, err := s.page(ctx, q, from, want)
		if err != nil {
			return err
		}
		for i := range p.entries {
			o, ok := s.entry(&p.entries[i], q)
			if !ok {
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

// entry makes an Object of a line in a page. Names that were not asked for, up to
// After or outside Prefix, are left out.
func (s *S3) entry(e *entry, q hearth.Listing) (hearth.Object, bool) {
	if e.key <= q.After && q.After != "" || !strings.HasPrefix(e.key, q.Prefix) {
		return hearth.Object{}, false
	}
	if e.prefix {
		return hearth.Object{Link: s.link, Key: e.key, Size: hearth.PrefixSize}, true
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
		s.failed(err)
		if last := b.spend(ctx, err); last != nil {
			return nil, s.wrap("list", q.Prefix, last)
		}
		s.counts.retries.Add(1)
	}
}

// readAll reads a page under the watch.
func (s *S3) readAll(a *answer) ([]byte, error) {
	text := make([]byte, 0, max(16<<10, a.resp.ContentLength+1))
	for {
		if len(text) == cap(text) {
			text = slices.Grow(text, cap(text))
		}
		a.watch.Reset(s.timeout)
		n, err := a.resp.Body.Read(text[len(text):cap(text)])
		a.watch.Stop()
		text = text[:len(text)+n]
		s.counts.bytes.Add(int64(n))
		if err == io.EOF {
			return text, nil
		}
		if err != nil {
			if cause := context.Cause(a.ctx); cause != nil {
				err = cause
			}
			return nil, err
		}
	}
}

// query is sorted and encoded as signatures want it.
func query(q hearth.Listing, from cursor, want int) string {
	if !q.Recursive && strings.HasSuffix(from.after, "/") {
		// Behind a group, not behind its first key: else the group comes again, and
		// with a small Limit it is the whole page.
		from.after += "\U0010FFFF"
	}
	var b strings.Builder
	if from.token != "" {
		b.WriteString("continuation-token=" + encode(from.token, false) + "&")
	}
	if !q.Recursive {
		b.WriteString("delimiter=%2F&")
	}
	b.WriteString("encoding-type=url&list-type=2&max-keys=" + strconv.Itoa(want))
	b.WriteString("&prefix=" + encode(q.Prefix, false))
	if from.token == "" && from.after != "" {
		b.WriteString("&start-after=" + encode(from.after, false))
	}
	return b.String()
}

// finish undoes encoding-type=url, if the server says that it did it, and
// merges groups and keys, which come in two lists.
func (p *page) finish(encoded bool) error {
	if encoded {
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
	encoded := false
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
				encoded = string(value) == "url"
			}
		}
		return nil
	}, func(name []byte) error {
		switch string(name) {
		case "Contents", "CommonPrefixes":
			if e.key == "" {
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
	return p, p.finish(encoded)
}
