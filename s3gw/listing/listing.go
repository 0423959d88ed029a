// Package listing answers S3's listings - ListObjectsV2, ListObjects, ListBuckets and
// GetBucketLocation - from a tree of directories, without asking the origin.
//
// A listing is the keys that follow a place in byte order. The tree gives the names of one
// directory at a time; a directory sorts as its name with "/" behind. Walked so, each directory at
// its place, the keys come in the byte order of whole keys ("a-b", "a/b", "a0"). A page may begin
// anywhere. After "a/b/c" comes what follows "c" in "a/b/", then what follows "b/" in "a/", then
// what follows "a/" at the top. Nothing before is read. With the delimiter "/" only one directory
// is read, and its directories are the groups (common prefixes). A page ends at its limit, and is
// truncated if one more name follows.
//
// The document is written by appending: keys as they come, the groups in a buffer of their own. The
// head, which has the counts and the next place, is written last, into a gap left in front.
//
// For names that it does not know the tree asks the origin, one directory at a time. The origin
// itself would answer a whole page at once. So some of the directories that a page needs are asked
// for ahead, and a page that needs many is not answered.
//
// Three things are not answered: what the tree does not surely know, what XML cannot carry, and
// what origins answer differently. ErrUnsure means that the request passes to the origin.
//
// The formats are those of Amazon's S3 API reference; order of elements and escapes are
// MinIO's, of which testdata holds answers.
package listing

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hearthfs/hearth"
)

const (
	// maxKeys is the most on a page, whatever was asked for: Amazon's limit.
	maxKeys = 1000
	// maxKey is the longest key in bytes that S3 has.
	maxKey = 1024
	// MostAsked is how many directories are asked of the origin for a page that could pass to it as
	// well. A page that passes costs one request, but is unknown the next time. So we pay that many
	// more for a small tree, or for one that gets known page by page. In sequence they would take
	// longer than the page does at the origin; see maxAhead.
	MostAsked = 16
	// maxAhead is how many of them are asked for at once, after the first told how many keys one
	// has. It is half of MostAsked, so that all take about as long as three requests, and a quarter
	// of the listings that a tree runs at a time.
	maxAhead = 8
)

// ErrUnsure means that the tree's answer might differ from the origin's: the request passes to the
// origin.
var ErrUnsure = errors.New("the tree cannot tell all of the listing")

// Names is a tree of the keys of a bucket.
type Names interface {
	// Dir calls each for what lies directly below prefix, which is "" or ends in "/", until each
	// returns false. The order is the byte order of names; a directory counts as its name with "/"
	// behind. It begins behind the name after: a file of that name or, if after ends in "/", all of
	// that directory. "" means from the start. after need not exist.
	//
	// ErrUnsure means that there are keys that the tree cannot show, or that it cannot be asked.
	// fs.ErrNotExist means that there is no such directory, and no key below it. each does not call
	// Dir.
	Dir(ctx context.Context, prefix, after string, each func(Entry) bool) error
	// Asks reports whether Dir of a prefix would ask the origin. With ahead the question to the
	// origin begins now: Dir will be called soon.
	Asks(prefix string, ahead bool) bool
}

// Entry is a name directly below a prefix.
type Entry struct {
	// Name is the key's next segment, without "/". It is "" for the object whose key is the
	// prefix itself ("a/" in "a/"), and for the directory that stands between two slashes.
	Name string
	// Dir means that there are keys below Name + "/".
	Dir bool
	// Object is what the key means; nil for a directory.
	Object *hearth.Object
}

// Bucket is what answers say of a bucket, or of all its objects.
type Bucket struct {
	Name string
	// Created is its creation time; the zero time is left out.
	Created time.Time
	// Region of the bucket, in the answer to a ListBuckets with a parameter; "" is left out.
	Region string
	// Owner of its objects, in listings with owners; without an ID it is left out.
	Owner Owner
	// Class is the storage class of objects without one of their own; "" is left out.
	Class string
}

// Owner is an account, as the origin names it.
type Owner struct {
	ID string
	// Name is the DisplayName; "" is left out.
	Name string
}

// Answer appends the document that answers a query to buf. On an error it returns buf unchanged:
// the error is ErrUnsure, or why the tree could not answer. Then the request passes to the origin.
func Answer(ctx context.Context, n Names, b Bucket, q Query, buf []byte) ([]byte, error) {
	if q.Owner && b.Owner.ID == "" {
		return buf, ErrUnsure
	}
	w := &walk{names: n, q: q, bucket: b, tail: tail(b, q)}
	// The gap holds a usual head; a longer head costs one more copy.
	start := len(buf) + 1024
	w.body = grown(buf, start)
	if q.Max > 0 {
		if err := w.run(ctx); err != nil {
			return buf, err
		}
	}
	w.body = append(w.body, w.groups...)
	if q.URL {
		w.body = append(w.body, "<EncodingType>url</EncodingType>"...)
	}
	w.body = append(w.body, "</ListBucketResult>"...)
	head := w.head(w.body[:len(buf):start], b.Name)
	if w.err != nil {
		return buf, w.err
	}
	if len(head) > start {
		return append(head, w.body[start:]...), nil
	}
	return append(w.body[:len(head)], w.body[start:]...), nil
}

// grown returns buf with a length of n bytes, and room for a page of short keys behind.
func grown(buf []byte, n int) []byte {
	if cap(buf) >= n {
		return buf[:n]
	}
	to := make([]byte, n, n+4096)
	copy(to, buf)
	return to
}

// AppendLocation appends the answer to GetBucketLocation. There Amazon's first region is "".
func AppendLocation(buf []byte, region string) []byte {
	buf = append(buf, open...)
	buf = append(buf, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`...)
	if region != "us-east-1" {
		buf, _ = appendText(buf, region) // it comes from the configuration
	}
	return append(buf, "</LocationConstraint>"...)
}

// SetBucketHeader sets the header with a bucket's region, for answers to HeadBucket and to
// listings.
func SetBucketHeader(h http.Header, region string) { h.Set("X-Amz-Bucket-Region", region) }
