package request

import "strings"

// Need is one right that a request needs.
type Need struct {
	// Bucket "": every bucket.
	Bucket string
	// Key is what is read or written, or what all that is read or written begins with; "": any
	// key of the bucket.
	Key string
	// Write, else reading.
	Write bool
	// Some: a right to any part of the bucket will do; Key is "".
	Some bool
}

// Granted asks may for n, and for the same of the Alias of its key; a key that leaves the bucket
// by its dots needs every bucket. What climbs only as some servers read it (percent escapes in the
// key itself, backslashes) needs the right to what they find, too; what does not climb stays below
// whatever it lies below.
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

// Alias is the key that some servers take for this one: versitygw joins it to a path, so that
// mine/../x is x, and a//b is a/b; MinIO leaves out slashes in front (both were asked). outside:
// its dots lead out of the bucket. Nearly every key is its own.
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

// regular tells a key that is its own Alias. What ends in a slash has no last segment: it is a
// directory's marker.
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
	reachesService reach = iota // every bucket: what nothing is known of
	reachesBucket
	reachesSome // what shows, by itself, no key: whoever has any right in the bucket
	reachesPrefix
	reachesKey
	reachesNothing
)

// Allowed asks may for each right that the request needs, until one is missing. Of DeleteObjects
// and GetBatch it is not the whole answer: the keys in the body are needed as well, each by
// Need.Granted. Of ListBuckets that is Cached it is none at all: who asks is shown what is theirs.
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
	for _, key := range q.climbing { // to an origin that takes them for paths they are read
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

// lists is the right to list: the last segment of a prefix is the beginning of a name, and a dot
// there no directory.
func (q *Request) lists(n Need, may func(Need) bool) bool {
	for prefix := range readings(q.Prefix) {
		last := strings.LastIndexByte(prefix, '/') + 1
		if prefix != q.Prefix && !steps(prefix[:last]) {
			continue // as of a key
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
