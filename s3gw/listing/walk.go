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

// maxHeld is how many names of a directory are kept while those before them are walked: enough
// that a directory of directories is not asked anew for each, few beside a page.
const maxHeld = 64

// last is the last character of Unicode: behind a name it stands for all that begin so, as
// keys are UTF-8.
const last = "\U0010FFFF"

// walk writes one page.
type walk struct {
	names Names
	q     Query
	// body holds the keys, groups the groups, each as elements.
	body, groups []byte
	// tail is what ends each key's element.
	tail []byte
	// bucket as it was asked for, and the tail of keys of a class of their own, the last that came.
	bucket Bucket
	class  string
	other  []byte
	// count of keys and groups together, at most q.Max.
	count     int
	truncated bool
	// asked is how many directories the origin was asked for, lately how many keys the last
	// directory had that was walked, and at least 1; 0: none was.
	asked, lately int
	// The last that was written, and where.
	dir   string
	entry Entry
	err   error
}

// run walks from where the page begins to where it ends.
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
		// Whether the rest of a group is told again is not documented, and MinIO and versitygw
		// need not do as Amazon does.
		return ErrUnsure
	}
	return w.begin(ctx, dir, place{name: name, dir: inside, set: true}, only)
}

// behind lists what lies behind a key, from its directory, which are the first n bytes, on.
func (w *walk) behind(ctx context.Context, key string, n int, only string) error {
	name, _, inside := strings.Cut(key[n:], "/")
	if inside {
		if err := w.behind(ctx, key, n+len(name)+1, ""); err != nil || w.truncated {
			return err
		}
	}
	return w.begin(ctx, key[:n], place{name: name, dir: inside, set: true}, only)
}

// begin is list for a directory in which the walk begins.
func (w *walk) begin(ctx context.Context, dir string, from place, only string) error {
	if w.q.Delimiter == "" && w.names.Asks(dir, false) {
		if w.left() == 0 {
			return fmt.Errorf("list %q: too many directories are not known: %w", dir, ErrUnsure)
		}
		w.asked++
	}
	return w.list(ctx, dir, from, only)
}

// left is how many directories may still be asked for.
func (w *walk) left() int {
	if w.q.Asks == 0 {
		return maxKeys
	}
	return w.q.Asks - w.asked
}

// ask sees to it that a directory that is walked next may be read, and has those behind it that
// the page will need asked for: as many as fill it if they are like the last one. Where these
// are too many that is seen before they are waited for. Those that were begun will be known
// to the next who lists.
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

// list writes what lies in a directory behind a place: names that begin with only, and, unless
// they are groups, the directories among them.
func (w *walk) list(ctx context.Context, dir string, from place, only string) error {
	if len(dir) > maxKey {
		return ErrUnsure
	}
	l := &level{walk: w, dir: dir, only: only, at: from}
	for l.more = true; l.more; {
		l.more, l.seen, l.held = false, false, l.held[:0]
		err := w.names.Dir(ctx, dir, l.at.after(), l.each)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // it went since its name was told, or never was: no keys
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

// inside writes what lies in the first of the entries of a directory, which is one itself.
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

// level is a directory that is walked.
type level struct {
	*walk
	dir, only string
	// at is the last name that was told, seen whether this call of Dir told any.
	at   place
	seen bool
	// held are names from the first directory on, in order; more says that others may follow.
	held []Entry
	more bool
}

// each takes a name, and says whether the next is wanted.
func (l *level) each(e Entry) bool {
	if !l.at.less(e) {
		if !l.seen {
			return true // where the walk begins
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

// add writes a key or a group, and says whether the next is wanted.
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

// end is the tail of a key of a class; "": the bucket's.
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

// tail is what ends the element of each key, from its size on.
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

// head appends what stands before the keys.
func (w *walk) head(b []byte, bucket string) []byte {
	q := &w.q
	b = append(b, open...)
	b = append(b, `<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>`...)
	b = append(w.text(b, bucket), "</Name><Prefix>"...)
	b = append(w.key(b, q.Prefix), "</Prefix>"...)
	if q.Version == 1 {
		b = append(b, "<Marker>"...)
		b = append(w.key(b, q.After), "</Marker>"...)
		// Amazon tells it with a delimiter alone: without, the last key is known to be it.
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

// pages appends what the second version says of where the page begins and where the next does.
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

// token appends the token that goes on behind the last entry.
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

// key appends a key, or a part of one that is cut at "/", as the query wants it.
func (w *walk) key(b []byte, s string) []byte {
	if w.q.URL {
		return appendURL(b, s)
	}
	return w.text(b, s)
}

// text appends what is no key.
func (w *walk) text(b []byte, s string) []byte {
	b, ok := appendText(b, s)
	if !ok && w.err == nil {
		w.err = fmt.Errorf("%q in XML: %w", s, ErrUnsure)
	}
	return b
}

// place is a place in a directory: at a file, or, with dir, at the end of a directory. Not set:
// before all.
type place struct {
	name     string
	dir, set bool
}

// before is a place close before all names that begin with s.
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

// after is the place as Names.Dir takes it.
func (p place) after() string {
	if p.dir {
		return p.name + "/"
	}
	return p.name
}

// less says whether an entry lies behind the place.
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
