// Package listing answers S3's listings - ListObjectsV2, ListObjects, ListBuckets and
// GetBucketLocation - from a tree of directories, without asking the origin.
//
// A listing is the keys behind a place in byte order. The tree gives the names of one
// directory at a time, a directory in the place of its name with "/" behind; walked so, each
// directory where it stands, the keys come in the byte order of whole keys ("a-b", "a/b",
// "a0"). A page begins in the midst: behind "a/b/c" lies what follows "c" in "a/b/", then what
// follows "b/" in "a/", then what follows "a/" at the top; nothing before it is read. With the
// delimiter "/" only one directory is read, and its directories are the groups. A page ends
// with its limit, and is truncated if one more name follows.
//
// The document is written by appending: keys as they come, groups aside, and at last the head,
// which tells counts and the place to go on, into a gap that was left before them.
//
// What the tree does not know it asks the origin for, one directory at a time, where the origin
// itself tells a whole page in one answer. So the directories that a page needs are asked for
// some at a time ahead, and a page that needs many is not answered.
//
// What the tree cannot surely tell, what XML cannot carry and what origins answer in different
// ways is not answered: ErrUnsure says that the request passes to the origin.
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
	// maxKeys is what a page holds at most, whatever was asked for: Amazon's limit.
	maxKeys = 1000
	// maxKey is the longest key in bytes that S3 has.
	maxKey = 1024
	// MostAsked directories are asked of the origin for a page that can pass to it as well. A page
	// that passes costs one request, and is not known the next time: so many more are paid for a
	// tree that is small, or that gets known page by page. One after another they would take
	// longer than the page does at the origin; see maxAhead.
	MostAsked = 16
	// maxAhead of them are asked for at once, once the first told how many keys are in one: a
	// half of MostAsked, which so takes about as long as three requests, and a quarter of the
	// listings that a tree runs at a time.
	maxAhead = 8
)

// ErrUnsure says that an answer from the tree would not surely be the origin's: the request
// passes to the origin.
var ErrUnsure = errors.New("the tree cannot tell all of the listing")

// Names is a tree of the keys of a bucket.
type Names interface {
	// Dir calls each for what lies right below prefix, which is "" or ends in "/": in the byte
	// order of names, where a directory counts as its name with "/" behind, until each returns
	// false. It begins behind the name after: behind a file of that name, or, if after ends in
	// "/", behind all of that directory; "" begins with the first. after need not exist.
	//
	// ErrUnsure: there are keys that the tree cannot show, or it cannot be asked;
	// fs.ErrNotExist: there is no such directory, and no key below it. each does not call Dir.
	Dir(ctx context.Context, prefix, after string, each func(Entry) bool) error
	// Asks says whether Dir of a prefix would have the origin asked for what lies below it. With
	// ahead that begins now: Dir will be called soon.
	Asks(prefix string, ahead bool) bool
}

// Entry is what lies right below a prefix.
type Entry struct {
	// Name is the key's next segment, without "/". It is "" for the object whose key is the
	// prefix itself ("a/" in "a/"), and for the directory that stands between two slashes.
	Name string
	// Dir says that keys lie below Name and "/".
	Dir bool
	// Object is what the key means; nil for a directory.
	Object *hearth.Object
}

// Bucket is what answers say of a bucket, or of all its objects.
type Bucket struct {
	Name string
	// Created is when it was made; zero: not told.
	Created time.Time
	// Region it is in, told by a ListBuckets that has a parameter; "": not told.
	Region string
	// Owner of its objects, told where a listing has owners; without an ID nothing is told.
	Owner Owner
	// Class is the storage class of those of its objects that say nothing else; "": not told.
	Class string
}

// Owner is an account, as the origin names it.
type Owner struct {
	ID string
	// Name is the DisplayName; "": not told.
	Name string
}

// Answer appends the document that answers a query to buf. With an error buf is returned as it
// was: ErrUnsure, or what kept the tree from telling; the request passes to the origin.
func Answer(ctx context.Context, n Names, b Bucket, q Query, buf []byte) ([]byte, error) {
	if q.Owner && b.Owner.ID == "" {
		return buf, ErrUnsure
	}
	w := &walk{names: n, q: q, bucket: b, tail: tail(b, q)}
	// The head is short, and a long one only costs another copy.
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

// grown is buf with a length of n bytes, and room for a page of short keys behind them.
func grown(buf []byte, n int) []byte {
	if cap(buf) >= n {
		return buf[:n]
	}
	to := make([]byte, n, n+4096)
	copy(to, buf)
	return to
}

// AppendLocation appends the answer to GetBucketLocation. Amazon's first region has no name
// there.
func AppendLocation(buf []byte, region string) []byte {
	buf = append(buf, open...)
	buf = append(buf, `<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">`...)
	if region != "us-east-1" {
		buf, _ = appendText(buf, region) // of the configuration
	}
	return append(buf, "</LocationConstraint>"...)
}

// SetBucketHeader sets what the answer to HeadBucket says, and that to a listing, of a bucket's
// region.
func SetBucketHeader(h http.Header, region string) { h.Set("X-Amz-Bucket-Region", region) }
