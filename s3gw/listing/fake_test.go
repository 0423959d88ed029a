package listing

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hearthfs/hearth"
)

// tree is Names over a set of keys, and counts what it is asked.
type tree struct {
	dirs map[string][]named
	// told counts entries that were listed, asked counts calls.
	told, asked int
	// fail, if set, is called before each call, and may return its error.
	fail func(prefix string) error
	// known, if set, holds the directories that the origin is not asked for. requests are those
	// that it was asked for. waits counts how often all requests in flight were waited for.
	known    map[string]bool
	running  map[string]bool
	requests []string
	waits    int
}

type named struct {
	sort string // name, or name and "/"
	Entry
}

func treeOf(objects ...*hearth.Object) *tree {
	t := &tree{dirs: map[string][]named{"": nil}}
	for _, o := range objects {
		for i := 0; ; {
			dir := o.Key[:i]
			n := strings.IndexByte(o.Key[i:], '/')
			if n < 0 {
				t.dirs[dir] = append(t.dirs[dir], named{o.Key[i:], Entry{Name: o.Key[i:], Object: o}})
				break
			}
			if _, known := t.dirs[o.Key[:i+n+1]]; !known {
				t.dirs[o.Key[:i+n+1]] = nil
				t.dirs[dir] = append(t.dirs[dir], named{o.Key[i : i+n+1], Entry{Name: o.Key[i : i+n], Dir: true}})
			}
			i += n + 1
		}
	}
	for _, entries := range t.dirs {
		slices.SortFunc(entries, func(a, b named) int { return cmp.Compare(a.sort, b.sort) })
	}
	return t
}

func treeOfKeys(keys ...string) *tree {
	var objects []*hearth.Object
	for _, key := range keys {
		objects = append(objects, object(key))
	}
	return treeOf(objects...)
}

func object(key string) *hearth.Object {
	return &hearth.Object{Key: key, ETag: "0123456789abcdef0123456789abcdef", Size: int64(len(key)), ModTime: time.Unix(1700000000, 123456789)}
}

func (t *tree) Dir(ctx context.Context, prefix, after string, each func(Entry) bool) error {
	t.asked++
	t.learn(prefix)
	if n := strings.IndexByte(after, '/'); n >= 0 && n < len(after)-1 || prefix != "" && prefix[len(prefix)-1] != '/' {
		panic(fmt.Sprintf("Dir(%q, %q)", prefix, after))
	}
	if t.fail != nil {
		if err := t.fail(prefix); err != nil {
			return err
		}
	}
	entries, known := t.dirs[prefix]
	if !known {
		return fs.ErrNotExist
	}
	from := 0
	if after != "" {
		from, _ = slices.BinarySearchFunc(entries, after+"\x00", func(e named, s string) int { return cmp.Compare(e.sort, s) })
	}
	for _, e := range entries[from:] {
		t.told++
		if !each(e.Entry) {
			break
		}
	}
	return ctx.Err()
}

// Asks uses known, and the requests in flight.
func (t *tree) Asks(prefix string, ahead bool) bool {
	if t.known == nil || t.known[prefix] || t.running[prefix] {
		return false
	}
	if ahead {
		t.running[prefix] = true
		t.requests = append(t.requests, prefix)
	}
	return true
}

// learn waits until a directory is known, and with it all that are in flight at the time.
func (t *tree) learn(prefix string) {
	if t.known == nil || t.known[prefix] {
		return
	}
	t.Asks(prefix, true)
	t.waits++
	t.arrive()
}

// arrive makes known all directories in flight.
func (t *tree) arrive() {
	for under := range t.running {
		t.known[under] = true
	}
	clear(t.running)
}

// cold makes the tree forget everything.
func (t *tree) cold() *tree {
	t.known, t.running = map[string]bool{}, map[string]bool{}
	return t
}

// page is a document as a client parses it.
type page struct {
	Name, Prefix          string
	Marker, NextMarker    string
	StartAfter            string
	ContinuationToken     string
	NextContinuationToken string
	KeyCount, MaxKeys     int
	Delimiter             string
	IsTruncated           bool
	Contents              []struct {
		Key, LastModified, ETag string
		Size                    int64
		Owner                   struct{ ID, DisplayName string }
		StorageClass            string
	}
	CommonPrefixes []struct{ Prefix string }
	EncodingType   string
}

// fataler is testing's T, or rapid's.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

func read(t fataler, document []byte) (p page) {
	t.Helper()
	if err := xml.Unmarshal(document, &p); err != nil {
		t.Fatalf("%v in %s", err, document)
	}
	return p
}

func (p page) keys() (keys []string) {
	for _, c := range p.Contents {
		keys = append(keys, c.Key)
	}
	return keys
}

func (p page) groups() (groups []string) {
	for _, c := range p.CommonPrefixes {
		groups = append(groups, c.Prefix)
	}
	return groups
}

// decoded is read for a page of percent-encoded keys.
func decoded(t fataler, document []byte) page {
	t.Helper()
	p := read(t, document)
	for _, s := range []*string{&p.Prefix, &p.Marker, &p.NextMarker, &p.StartAfter} {
		*s = unescaped(t, *s)
	}
	for i := range p.Contents {
		p.Contents[i].Key = unescaped(t, p.Contents[i].Key)
	}
	for i := range p.CommonPrefixes {
		p.CommonPrefixes[i].Prefix = unescaped(t, p.CommonPrefixes[i].Prefix)
	}
	return p
}

func unescaped(t fataler, s string) string {
	t.Helper()
	text, err := url.QueryUnescape(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return text
}
