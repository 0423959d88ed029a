package listing

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"strconv"
	"strings"
)

// maxHeld is how many names of a directory are kept while those before them are walked. So a
// directory of directories is not listed again for each of them, and the names take little memory
// beside a page.
const maxHeld = 64

// last is the last character of Unicode. Keys are UTF-8, so a name with last behind it sorts after
// all keys that begin with the name.
const last = "\U0010FFFF"

// walk writes one page: a depth-first walk of the directories, in the order of keys.
type walk struct {
	names Names
	q     Query
	// body holds the keys, groups the common prefixes, each as XML elements.
	body, groups []byte
	// tail ends the element of each key of the bucket's storage class.
	tail []byte
	// bucket is the one that was asked for. other is the tail for class, the last storage class of
	// its own that a key had.
	bucket Bucket
	class  string
	other  []byte
	// count is of keys and groups together, at most q.Max.
	count     int
	truncated bool
	// asked is how many directories the origin was asked for. lately is how many keys the last
	// walked directory had, at least 1; 0 means that none was walked yet.
	asked, lately int
	// dir and entry are the last that was written: the cursor of the next page.
	dir   string
	entry Entry
	err   error
}

// run walks from the start of the page to its end.
func (w *walk) run(ctx context.Context) error {
	prefix := w.q.Prefix
	at := strings.LastIndexByte(prefix, '/') + 1
	dir, only := prefix[:at], prefix[at:]
	after := w.q.behind()
	switch {
	case !strings.HasPrefix(after, prefix) && after > prefix:
		return nil // all keys of the prefix lie before it
	case !strings.HasPrefix(after, prefix):
		return w.begin(ctx, dir, before(only), only)
	case w.q.Delimiter == "":
		return w.behind(ctx, after, at, only)
	}
	name, rest, inside := strings.Cut(after[at:], "/")
	if inside && (rest != "" || w.q.Version == 2 && w.q.Token == "") {
		// Amazon does not document whether the rest of a group is listed again, and MinIO and
		// versitygw may differ from Amazon.
		return ErrUnsure
	}
	return w.begin(ctx, dir, place{name: name, dir: inside, set: true}, only)
}

// behind lists all that follows a key, below the directory that is its first n bytes. It begins
// with the innermost directory.
func (w *walk) behind(ctx context.Context, key string, n int, only string) error {
	name, _, inside := strings.Cut(key[n:], "/")
	if inside {
		if err := w.behind(ctx, key, n+len(name)+1, ""); err != nil || w.truncated {
			return err
		}
	}
	return w.begin(ctx, key[:n], place{name: name, dir: inside, set: true}, only)
}

// begin calls list for a directory in which the walk begins.
func (w *walk) begin(ctx context.Context, dir string, from place, only string) error {
	if w.q.Delimiter == "" && w.names.Asks(dir, false) {
		if w.left() == 0 {
			return fmt.Errorf("list %q: too many directories are not known: %w", dir, ErrUnsure)
		}
		w.asked++
	}
	return w.list(ctx, dir, from, only)
}

// left returns how many directories the origin may still be asked for.
func (w *walk) left() int {
	if w.q.Asks == 0 {
		return maxKeys
	}
	return w.q.Asks - w.asked
}

// ask begins to ask the origin for the next directory and for those behind it. They are as many as
// fill the page if they are like the last one. If these are too many, the page fails before it
// waits for any. What was begun will be known to the next listing.
func (w *walk) ask(dir string, entries []Entry) error {
	need, unknown, left := 1, 0, w.left()
	if w.lately > 0 {
		need += (w.q.Max - w.count) / w.lately
	}
	for i := 0; i < len(entries) && need > 0; i++ {
		if !entries[i].Dir {
			continue
		}
		need--
		if w.names.Asks(dir+entries[i].Name+"/", unknown < min(left, maxAhead)) {
			unknown++
		}
	}
	if unknown > left {
		return fmt.Errorf("list %q: %d and more directories are not known: %w", dir, unknown, ErrUnsure)
	}
	w.asked += min(unknown, maxAhead)
	return nil
}

// list writes what a directory has behind a place: the names that begin with only. Without a
// delimiter it walks into the directories among them.
func (w *walk) list(ctx context.Context, dir string, from place, only string) error {
	if len(dir) > maxKey {
		return ErrUnsure
	}
	l := &level{walk: w, dir: dir, only: only, at: from}
	for l.more = true; l.more; {
		l.more, l.seen, l.held = false, false, l.held[:0]
		err := w.names.Dir(ctx, dir, l.at.after(), l.each)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // it was removed since its name was listed, or never existed: no keys
		}
		if err != nil {
			return fmt.Errorf("list %q: %w", dir, err)
		}
		for i, e := range l.held {
			if w.err != nil || w.truncated {
				break
			}
			if !e.Dir {
				w.add(dir, e)
			} else if err := w.inside(ctx, dir, l.held[i:]); err != nil {
				return err
			}
		}
		if w.err != nil || w.truncated {
			return w.err
		}
	}
	return nil
}

// inside writes the contents of the first of a directory's entries, which is itself a directory.
func (w *walk) inside(ctx context.Context, dir string, entries []Entry) error {
	child, count := dir+entries[0].Name+"/", w.count
	if w.names.Asks(child, false) {
		if err := w.ask(dir, entries); err != nil {
			return err
		}
	}
	err := w.list(ctx, child, place{}, "")
	w.lately = max(1, w.count-count)
	return err
}

// level is the state of one directory under way.
type level struct {
	*walk
	dir, only string
	// at is the last name that came; seen means that this call of Dir gave any.
	at   place
	seen bool
	// held are names in order, from the first directory on; more means that others may follow.
	held []Entry
	more bool
}

// each takes a name, and reports whether the next is wanted.
func (l *level) each(e Entry) bool {
	if !l.at.less(e) {
		if !l.seen {
			return true // the name at which the walk begins, or one before it
		}
		l.err = fmt.Errorf("%q in %q is not in order: %w", e.Name, l.dir, ErrUnsure)
		return false
	}
	if strings.IndexByte(e.Name, '/') >= 0 || e.Dir != (e.Object == nil) {
		l.err = fmt.Errorf("%q in %q is no name: %w", e.Name, l.dir, ErrUnsure)
		return false
	}
	l.at, l.seen = place{name: e.Name, dir: e.Dir, set: true}, true
	if !strings.HasPrefix(e.Name, l.only) {
		return e.Name < l.only
	}
	if l.q.Delimiter == "" && (e.Dir || len(l.held) > 0) {
		l.held = append(l.held, e)
		l.more = len(l.held) > min(maxHeld-1, l.q.Max-l.count)
		return !l.more
	}
	return l.add(l.dir, e)
}

// add writes a key or a group, and reports whether the next is wanted.
func (w *walk) add(dir string, e Entry) bool {
	if w.count == w.q.Max {
		w.truncated = true
		return false
	}
	n := len(dir) + len(e.Name)
	if e.Dir {
		n++
	}
	switch {
	case n > maxKey || !e.Dir && strings.HasPrefix(e.Object.ETag, "W/"):
		w.err = fmt.Errorf("%q in %q: %w", e.Name, dir, ErrUnsure)
	case e.Dir:
		w.groups = append(w.groups, "<CommonPrefixes><Prefix>"...)
		w.groups = w.key(w.key(w.groups, dir), e.Name)
		w.groups = append(w.groups, "/</Prefix></CommonPrefixes>"...)
	default:
		w.object(dir, e)
	}
	w.count++
	w.dir, w.entry = dir, e
	return w.err == nil
}

func (w *walk) object(dir string, e Entry) {
	b := append(w.body, "<Contents><Key>"...)
	b = w.key(w.key(b, dir), e.Name)
	b = append(b, "</Key><LastModified>"...)
	b = appendTime(b, e.Object.ModTime)
	b = append(b, "</LastModified><ETag>"...)
	if e.Object.ETag != "" {
		b = append(b, "&#34;"...)
		b = w.text(b, e.Object.ETag)
		b = append(b, "&#34;"...)
	}
	b = append(b, "</ETag><Size>"...)
	b = strconv.AppendInt(b, e.Object.Size, 10)
	w.body = append(b, w.end(e.Object.Class)...)
}

// end returns the tail for a key of a storage class; "" means the bucket's class.
func (w *walk) end(class string) []byte {
	if class == "" {
		return w.tail
	}
	if class != w.class {
		b := w.bucket
		b.Class, w.class = class, class
		w.other = tail(b, w.q)
	}
	return w.other
}

// tail returns the end of each key's element, from its size on.
func tail(b Bucket, q Query) []byte {
	t := append(make([]byte, 0, 256), "</Size>"...)
	if b.Owner.ID != "" && (q.Version == 1 || q.Owner) {
		t = appendOwner(t, b.Owner)
	}
	if b.Class != "" {
		t = append(t, "<StorageClass>"...)
		t, _ = appendText(t, b.Class) // it came in XML or in a header
		t = append(t, "</StorageClass>"...)
	}
	return append(t, "</Contents>"...)
}

// head appends the part of the document before the keys.
func (w *walk) head(b []byte, bucket string) []byte {
	q := &w.q
	b = append(b, open...)
	b = append(b, `<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>`...)
	b = append(w.text(b, bucket), "</Name><Prefix>"...)
	b = append(w.key(b, q.Prefix), "</Prefix>"...)
	if q.Version == 1 {
		b = append(b, "<Marker>"...)
		b = append(w.key(b, q.After), "</Marker>"...)
		// Amazon sends it only with a delimiter; without one, the last key serves as the marker.
		if w.truncated && q.Delimiter != "" {
			b = append(b, "<NextMarker>"...)
			b = w.key(w.key(b, w.dir), w.entry.Name)
			if w.entry.Dir {
				b = append(b, '/')
			}
			b = append(b, "</NextMarker>"...)
		}
	} else {
		b = w.pages(b)
	}
	b = append(b, "<MaxKeys>"...)
	b = strconv.AppendInt(b, int64(q.Max), 10)
	b = append(b, "</MaxKeys>"...)
	if q.Delimiter != "" {
		b = append(b, "<Delimiter>/</Delimiter>"...)
	}
	b = append(b, "<IsTruncated>"...)
	b = strconv.AppendBool(b, w.truncated)
	return append(b, "</IsTruncated>"...)
}

// pages appends the elements of version 2 about the start of this page and of the next.
func (w *walk) pages(b []byte) []byte {
	if w.q.After != "" {
		b = append(b, "<StartAfter>"...)
		b = append(w.key(b, w.q.After), "</StartAfter>"...)
	}
	if w.q.Token != "" {
		b = append(b, "<ContinuationToken>"...)
		b = append(w.text(b, w.q.Token), "</ContinuationToken>"...)
	}
	if w.truncated {
		b = append(b, "<NextContinuationToken>"...)
		b = w.token(b)
		b = append(b, "</NextContinuationToken>"...)
	}
	b = append(b, "<KeyCount>"...)
	b = strconv.AppendInt(b, int64(w.count), 10)
	return append(b, "</KeyCount>"...)
}

// token appends the continuation token for the page behind the last entry.
func (w *walk) token(b []byte) []byte {
	var room [4 + maxKey + 1]byte
	key := append(append(room[:4], w.dir...), w.entry.Name...)
	if w.entry.Dir {
		key = append(key, '/')
	}
	sum := crc32.ChecksumIEEE(key[4:])
	key[0], key[1], key[2], key[3] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
	return base64.RawURLEncoding.AppendEncode(append(b, tokenTag...), key)
}

// key appends a key, or a part of one that is cut at "/", in the encoding that the query wants.
func (w *walk) key(b []byte, s string) []byte {
	if w.q.URL {
		return appendURL(b, s)
	}
	return w.text(b, s)
}

// text appends a text that is not a key.
func (w *walk) text(b []byte, s string) []byte {
	b, ok := appendText(b, s)
	if !ok && w.err == nil {
		w.err = fmt.Errorf("%q in XML: %w", s, ErrUnsure)
	}
	return b
}

// place is a position in a directory: at a file, or, with dir, at the end of a directory. If set is
// false it is before all.
type place struct {
	name     string
	dir, set bool
}

// before returns a place close before all names that begin with s.
func before(s string) place {
	if s == "" {
		return place{}
	}
	head, c := s[:len(s)-1], s[len(s)-1]
	switch c {
	case 0:
		return place{name: head, set: true}
	case '/' + 1:
		return place{name: head, dir: true, set: true}
	}
	return place{name: head + string([]byte{c - 1}) + last, set: true}
}

// after returns the place in the form that Names.Dir takes.
func (p place) after() string {
	if p.dir {
		return p.name + "/"
	}
	return p.name
}

// less reports whether an entry lies behind the place.
func (p place) less(e Entry) bool {
	if !p.set {
		return true
	}
	n := min(len(p.name), len(e.Name))
	switch c := strings.Compare(p.name[:n], e.Name[:n]); {
	case c != 0:
		return c < 0
	case len(p.name) == len(e.Name):
		return !p.dir && e.Dir
	case len(p.name) == n:
		return !p.dir || '/' < e.Name[n]
	}
	return e.Dir && p.name[n] < '/'
}
