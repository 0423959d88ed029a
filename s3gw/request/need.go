package request

import "strings"

// Need is one right that a request needs.
type Need struct {
	// Bucket "" means every bucket.
	Bucket string
	// Key is the object that is read or written, or the prefix of all of them; "" means any key of
	// the bucket.
	Key string
	// Write means the right to write, otherwise to read.
	Write bool
	// Some means that a right to any part of the bucket is enough; Key is "".
	Some bool
}

// Granted asks may for n, and for the same of the Alias of its key. A key that leaves the bucket by
// its dots needs every bucket. A key may climb only as some servers read it (percent escapes in the
// key itself, backslashes). It then needs the right to what they find, too. What does not climb
// stays below what it lies below.
func (n Need) Granted(may func(Need) bool) bool {
	if !n.granted(may) {
		return false
	}
	if !strings.ContainsAny(n.Key, `%\`) {
		return true
	}
	for key := range readings(n.Key) {
		if key != n.Key && steps(key) && !(Need{Bucket: n.Bucket, Key: key, Write: n.Write}).granted(may) {
			return false
		}
	}
	return true
}

func (n Need) granted(may func(Need) bool) bool {
	if !may(n) {
		return false
	}
	alias, outside := Alias(n.Key)
	switch {
	case outside:
		return may(Need{Write: n.Write})
	case alias == n.Key:
		return true
	}
	n.Key = alias
	return may(n)
}

// Alias returns the key that some servers take for this one. versitygw joins the key to a path, so
// that mine/../x is x, and a//b is a/b. MinIO drops leading slashes (both were tried). outside
// means that its dots lead out of the bucket. Nearly every key is its own Alias.
func Alias(key string) (alias string, outside bool) {
	if regular(key) {
		return key, false
	}
	segments := strings.Split(key, "/")
	kept := segments[:0]
	for _, s := range segments {
		switch {
		case s == "..":
			outside = outside || len(kept) == 0
			kept = kept[:max(0, len(kept)-1)]
		case !special(s):
			kept = append(kept, s)
		}
	}
	alias = strings.Join(kept, "/")
	if alias != "" && strings.HasSuffix(key, "/") {
		alias += "/"
	}
	return alias, outside
}

// regular reports whether a key is its own Alias. A key that ends in a slash has no last segment:
// it is the marker of a directory.
func regular(key string) bool {
	begin := 0
	for i := range len(key) {
		if key[i] == '/' {
			if special(key[begin:i]) {
				return false
			}
			begin = i + 1
		}
	}
	return begin == len(key) || !special(key[begin:])
}

func special(segment string) bool { return segment == "" || segment == "." || segment == ".." }

// reach is how much of a bucket a request can read or change.
type reach int

const (
	reachesService reach = iota // every bucket: for what is not known
	reachesBucket
	reachesSome // shows, by itself, no key: any right in the bucket is enough
	reachesPrefix
	reachesKey
	reachesNothing
)

// Allowed asks may for each right that the request needs, until one is missing. For DeleteObjects
// and GetBatch that is not all: the caller also checks each key in the body, by Need.Granted. For a
// Cached ListBuckets it checks nothing: clients are shown only what is theirs.
func (q *Request) Allowed(may func(Need) bool) bool {
	n := Need{Bucket: q.Bucket, Write: q.Changes}
	switch q.reach {
	case reachesNothing:
		return true
	case reachesService:
		n.Bucket = ""
	case reachesSome:
		n.Some = true
	case reachesKey:
		n.Key = q.Key
	}
	for _, key := range q.climbing { // an origin that takes them for paths reads them
		if !(Need{Bucket: n.Bucket, Key: key}).Granted(may) {
			return false
		}
	}
	if q.reach == reachesPrefix {
		return q.lists(n, may)
	}
	if climbs(q.Prefix) && !q.lists(n, may) { // perhaps it is a listing all the same
		return false
	}
	if !n.Granted(may) {
		return false
	}
	s := q.Source
	if s == nil {
		return true
	}
	from := Need{Bucket: s.Bucket, Key: s.Key}
	spaced := Need{Bucket: s.Bucket, Key: s.spaced}
	return from.Granted(may) && (s.spaced == "" || spaced.Granted(may))
}

// lists checks the right to list. The last segment of a prefix is the beginning of a name, so a dot
// there is not a directory.
func (q *Request) lists(n Need, may func(Need) bool) bool {
	for prefix := range readings(q.Prefix) {
		last := strings.LastIndexByte(prefix, '/') + 1
		if prefix != q.Prefix && !steps(prefix[:last]) {
			continue // as for a key
		}
		n.Key = prefix
		alias, outside := Alias(prefix[:last])
		if !may(n) || outside && !may(Need{}) {
			return false
		}
		if n.Key = alias + prefix[last:]; n.Key != prefix && !may(n) {
			return false
		}
	}
	return true
}
